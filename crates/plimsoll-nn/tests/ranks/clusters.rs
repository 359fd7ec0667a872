//! Plans of ranks that are not there: the table of ZeRO (arXiv 1910.02054, figure 1) for a model of 7.5 billion parameters.

use plimsoll_dist::{Strategy, ghost};
use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::losses::MeanSquaredError;
use plimsoll_nn::optimizers::{Adam, LossScale, OptimizerConfig};
use plimsoll_nn::plan::{Plan, plan};
use plimsoll_nn::train::{Batch, Trainer, Until};
use plimsoll_nn::{Layer, Policy, with_policy, with_strategy};
use plimsoll_tensor::{Device, Owner, Result, Tensor};

/// So many square matrices of that side are 7.5 billion parameters exactly.
const N_LAYERS: usize = 1200;
const SIDE: usize = 2500;

/// What a rank of a cluster needs for three steps under `mixed_float16`, with Adam and an example for each rank.
fn planned(rank: usize, n_ranks: usize, stage: usize) -> Result<Plan> {
    plan(&Device::ghost_cpu(), || -> Result<()> {
        let strategy = Strategy::data_parallel(ghost(rank, n_ranks)?).zero(stage);
        let layer = || Dense::new(SIDE).no_bias();
        let layers = (0..N_LAYERS).fold(Sequential::new(), |layers, _| layers.add(layer()));
        let model = with_strategy(&strategy, || with_policy(Policy::MixedFloat16, || layers.build([SIDE])))?;
        let optimizer = Adam::new(1e-3).build().loss_scale(LossScale::new());
        let data = vec![Batch::new(Tensor::zeros([n_ranks, SIDE])?, Tensor::zeros([n_ranks, SIDE])?)];
        Trainer::new(model, optimizer, MeanSquaredError)
            .strategy(strategy)
            .fit(&data, Until::Steps(3))
            .map(drop)
    })
}

/// The bytes of model states at the peak: parameters, gradients and what the optimizer keeps.
fn states(plan: &Plan) -> f64 {
    let owners = [Owner::Parameters, Owner::Gradients, Owner::Optimizer];
    owners.into_iter().map(|owner| plan.owners.get(owner) as f64).sum()
}

/// The paper keeps sums of gradients in 16 bits, where ours are float32: 2Ψ / N more at stage 2. At stage 3 it keeps a 16-bit copy of
/// its shard of the parameters, and ours are gathered from the shard in full precision: 2Ψ / N less, so that the figure is the same.
#[test]
fn zeros_table_of_model_states() -> Result<()> {
    let (psi, n) = ((N_LAYERS * SIDE * SIDE) as f64, 64.0);
    let expected = [4.0 * psi + 12.0 * psi / n, 2.0 * psi + 16.0 * psi / n, 16.0 * psi / n];
    assert_eq!(expected.map(|bytes| (bytes / 1e7).round() / 1e2), [31.41, 16.88, 1.88]);
    // What is on its way besides: gradients and gathered parameters of a few layers, in float32 at most.
    let on_the_way = 4.0 * (SIDE * SIDE * size_of::<f32>()) as f64;
    for (stage, expected) in (1..).zip(expected) {
        for rank in [0, 37] {
            let states = states(&planned(rank, 64, stage)?);
            let more = states - expected;
            assert!(
                (-0.002 * expected..on_the_way + 0.002 * expected).contains(&more),
                "stage {stage}, rank {rank}: {states:e} for {expected:e}"
            );
        }
    }
    Ok(())
}
