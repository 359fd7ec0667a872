//! What the same loop manages eagerly: the least limit of a `Trainer` is never above that.

use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::losses::{Loss, SparseCategoricalCrossentropy};
use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
use plimsoll_nn::plan::least_limit;
use plimsoll_nn::train::Until;
use plimsoll_nn::{BuiltLayer, Layer, Mode, Model, Policy};
use plimsoll_tensor::{Activation, Bytes, GradientTape, Result, Shape, Step, Tensor};

use crate::models::{GPT, TREE, Task, UNET};
use crate::run::{GRANULE, device};

/// A trunk and many heads of their own, whose outputs are added up.
struct MultiTask;

impl Layer for MultiTask {
    fn name(&self) -> &str {
        "multi_task"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let dense = |width: usize| Dense::new(width).activation(Activation::Gelu);
        let trunk = Sequential::new().add(dense(64)).add(dense(64)).named("trunk").build(*input)?;
        let head = |number: usize| {
            let head = Sequential::new().add(dense(96)).add(dense(32)).add(Dense::new(5));
            head.named(&format!("head_{number}")).build([64])
        };
        let heads: Vec<Model> = (0..10).map(head).collect::<Result<_>>()?;
        BuiltLayer::new(Shape::new(&[5])?, move |x, mode| {
            let shared = trunk.forward(x, mode)?;
            let outputs: Vec<Tensor> = heads
                .iter()
                .map(|head| head.forward(&shared, mode)?.log_softmax(-1))
                .collect::<Result<_>>()?;
            outputs
                .into_iter()
                .try_fold(None, |sum: Option<Tensor>, output| {
                    sum.map_or_else(|| Ok(output.clone()), |sum| sum.add(&output)).map(Some)
                })
                .map(|sum| sum.expect("there are heads"))
        })
    }
}

const MULTI_TASK: Task = Task {
    model: || MultiTask.build([16]),
    inputs: (&[16], false),
    labels: &[],
    n_classes: 5,
    batch: 512,
    policy: Policy::Float32,
    n_parts: 1,
};

/// Whether two steps of the loop that a user would write fit a limit.
fn fits(task: &Task, limit: u64) -> Result<bool> {
    let device = device();
    device.set_limit(Some(Bytes::new(limit)))?;
    let _on = device.enter();
    let run = || -> Result<()> {
        let model = (task.model)()?;
        let (variables, mut optimizer) = (model.trainable_variables(), Adam::new(1e-3).build());
        let loss = SparseCategoricalCrossentropy::new().from_logits(true);
        optimizer.prepare(&variables)?;
        for batch in task.batches()?.into_iter().take(2) {
            let (inputs, labels) = batch.input_and_label()?;
            Step::run(&device, || {
                let tape = GradientTape::new();
                let value = tape.record(|| loss.of(&labels, model.prediction(&inputs, Mode::Train)?))?;
                let gradients = tape.variable_gradients(&value, &variables)?;
                optimizer.apply_gradients(gradients, &variables)
            })?;
        }
        Ok(())
    };
    match run() {
        Ok(()) => Ok(true),
        Err(error) if error.is_out_of_memory() => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_no_worse_than_eager(name: &str, task: &Task) -> Result<()> {
    let natural = plimsoll_nn::plan::plan(&device(), || {
        let data = task.batches()?;
        task.trainer()?.fit(&data, Until::Epochs(1)).map(drop)
    })?;
    let least = least_limit(&device(), || {
        let data = task.batches()?;
        task.trainer()?.fit(&data, Until::Epochs(1)).map(drop)
    })?;
    let (mut works, mut fails) = (natural.committed_bytes.div_ceil(GRANULE), 0);
    while works - fails > 1 {
        let between = fails + (works - fails) / 2;
        if fits(task, between * GRANULE)? { works = between } else { fails = between }
    }
    let eager = works * GRANULE;
    eprintln!("{name}: natural {}, eager {eager}, least {least}", natural.committed_bytes);
    assert!(least <= eager, "{name}: {least} as planned, {eager} eagerly");
    Ok(())
}

#[test]
fn the_least_limit_is_no_more_than_an_eager_loop_needs() -> Result<()> {
    is_no_worse_than_eager("multi-task", &MULTI_TASK)?;
    is_no_worse_than_eager("tree", &TREE)?;
    is_no_worse_than_eager("unet", &UNET)?;
    is_no_worse_than_eager("gpt", &GPT)
}
