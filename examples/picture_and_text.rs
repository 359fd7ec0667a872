//! A model of two inputs, floats and ids: pictures, and words about them, to a class.
//!
//! Run it with `cargo run --release --example picture_and_text`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use plimsoll::prelude::*;

fn main() -> Result<()> {
    set_seed(0);
    let (image, text) = (Tensor::randn([512, 12, 12, 1])?, Tensor::randint([512, 6], 0, 50, DType::I64)?);
    // What there is to be found: whether the picture is bright, and whether the first word is one of the first half.
    let is_bright = image.reshape([512, 144])?.mean(1)?.gt(0.0)?.cast(DType::I64)?;
    let is_early = text.narrow(1, 0, 1)?.reshape([512])?.lt(25)?.cast(DType::I64)?;
    let label = is_bright.affine(2.0, 0.0)?.add(&is_early)?;

    let data = Dataset::from_tensor_slices(([("image", image), ("text", text)], label))?;
    let (held_out, data) = (data.take(128).batch(64)?, data.skip(128).shuffle(384, 1).batch(64)?.prefetch(2));

    let model = Functional::new(|(image, text): (Node, Node)| {
        let image = Conv2D::new(8, 3).activation(Activation::Relu).apply(&image)?;
        let image = Dense::new(32).apply(&Flatten::new().apply(&image)?)?;
        let text = Flatten::new().apply(&Embedding::new(50, 8).apply(&text)?)?;
        let both = Node::concat([image, text], -1)?;
        Dense::new(4).apply(&Dense::new(64).activation(Activation::Relu).apply(&both)?)
    })
    .build([("image", vec![12, 12, 1]), ("text", vec![6])])?;
    println!("{}", model.summary(64)?);

    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    let mut trainer = Trainer::new(model, Adam::new(3e-3).build(), loss)
        .training_metric(metrics::SparseCategoricalAccuracy::new())
        .metric(metrics::SparseCategoricalAccuracy::new())
        .held_out(held_out)
        .callback(callbacks::ReduceLROnPlateau::new(2).monitor("val_sparse_categorical_accuracy").maximize());
    for epoch in trainer.fit(&data, Until::Epochs(8))?.epochs.iter() {
        println!("{epoch}");
    }
    Ok(())
}
