//! A model that was trained before becomes a layer of another one: first the new head is trained, then all of it, slowly.
//!
//! Run it with `cargo run --release --example fine_tuning`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use plimsoll::prelude::*;

fn main() -> Result<()> {
    set_seed(0);
    let x = Tensor::randn([512, 16])?;
    let sum = x.sum(1)?.reshape([512, 1])?;
    let first = Dataset::from_tensor_slices((x.clone(), sum.sin()?))?.shuffle(512, 1).batch(64)?;
    let second = Dataset::from_tensor_slices((x, sum.cos()?))?.shuffle(512, 2).batch(64)?;

    let encoder = Sequential::new()
        .add(Dense::new(64).activation(Activation::Tanh))
        .add(Dense::new(64).activation(Activation::Tanh))
        .build([16])?;
    let pretrained = Sequential::new().add(encoder.clone()).add(Dense::new(1)).build([16])?;
    let history =
        Trainer::new(pretrained, Adam::new(3e-3).build(), MeanSquaredError).fit(&first, Until::Epochs(20))?;
    println!("the first task: loss {:.4}", history.loss.unwrap_or(f64::NAN));

    let model = Sequential::new()
        .add(encoder.named("encoder").frozen())
        .add(Dense::new(1).named("head"))
        .build([16])?;
    let names: Vec<String> = model.named_variables().into_iter().map(|(name, _)| name).collect();
    println!("its variables: {}", names.join(", "));
    let optimizer = Adam::new(1e-2).build().group(ParameterGroup::new("encoder").learning_rate(1e-3));
    let mut trainer = Trainer::new(model, optimizer, MeanSquaredError);
    let frozen = trainer.fit(&second, Until::Epochs(10))?;
    println!("the second, the head alone: loss {:.4}", frozen.loss.unwrap_or(f64::NAN));

    trainer.model().layer("encoder")?.set_trainable(true);
    let tuned = trainer.fit(&second, Until::Epochs(30))?;
    println!("and with all of it: loss {:.4}", tuned.loss.unwrap_or(f64::NAN));
    Ok(())
}
