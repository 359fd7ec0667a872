//! What a layer, a loss, a metric and a callback of one's own are written with is in the prelude, and whatever `plimsoll` exports
//! is on its list.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll::prelude::*;

/// A factor for each feature: a layer with a variable.
struct Scale;

impl Layer for Scale {
    fn name(&self) -> &str {
        "scale"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let factors = variable("factors", input, Initializer::Ones, Fans::of_elements(input))?;
        BuiltLayer::new(input, move |x, _mode| Ok(x * &factors))
    }
}

/// The fourth power of the error.
struct QuarticError;

impl Loss for QuarticError {
    fn name(&self) -> &str {
        "quartic_error"
    }

    fn losses(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        predictions.sub(labels)?.powf(4.0)?.mean(1..)
    }
}

/// The number of steps that callbacks were told of.
static N_STEPS: AtomicU64 = AtomicU64::new(0);

struct Count;

impl Callback for Count {
    fn name(&self) -> &str {
        "count"
    }

    fn on_step(&mut self, event: &StepEvent, _run: &mut Requests<'_>) -> Result<()> {
        N_STEPS.store(event.step, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn parts_of_ones_own_need_no_more_than_the_prelude() -> Result<()> {
    set_seed(1);
    let x = Tensor::randn([32, 3])?;
    let y = x.mul(2.0)?;
    let data = Dataset::from_tensor_slices((x, y))?.batch(8)?;
    let model = Scale.build([3])?;
    let mut trainer = Trainer::new(model, SGD::new(0.05).build(), QuarticError).callback(Count);
    trainer.fit(&data, Until::Epochs(2))?;
    assert_eq!(N_STEPS.load(Ordering::Relaxed), 8);
    let factors = trainer.model().variables()[0].to_vec::<f32>()?;
    assert!(factors.iter().all(|factor| *factor > 1.0), "{factors:?}");
    Ok(())
}

#[test]
fn what_is_exported_is_on_the_list() {
    let list =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).expect("the list");
    let globs: Vec<&str> =
        list.lines().filter(|line| line.contains("pub use") && line.contains('*')).collect();
    assert!(globs.is_empty(), "{globs:?}");
}
