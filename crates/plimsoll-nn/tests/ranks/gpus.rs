//! Several ranks on one GPU, each with a pool of its own: the bits of one rank at every stage, each rank's memory as planned, and a
//! driver that counts what the ranks have taken and nothing else.
//!
//! The GPU is the one that `PLIMSOLL_TEST_DEVICE` names, or else the emulated one.

use std::sync::Arc;

use plimsoll_dist::local::{Faults, Local, mirrored, world, world_with};
use plimsoll_dist::{Communicator, Leaves, Strategy, TreeSum};
use plimsoll_nn::Layer;
use plimsoll_nn::layers::Dense;
use plimsoll_nn::losses::MeanSquaredError;
use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
use plimsoll_nn::train::{Batch, Trainer, Until};
use plimsoll_tensor::{Device, Error, Result, Tensor, set_seed};
use plimsoll_testkit::device_under_test;

use crate::faults::train;
use crate::networks::{Limit, NETWORKS, Network, UNTIL, as_planned, assert_same, on_devices, outcome, run};

/// So many pools of one GPU.
fn gpus(n: usize) -> Result<Vec<Device>> {
    let gpu = || match std::env::var_os("PLIMSOLL_TEST_DEVICE").is_some() {
        true => Ok(device_under_test()),
        false => Device::emulated(),
    };
    (0..n).map(|_| gpu()).collect()
}

fn on_gpus<R: Send>(
    ranks: Vec<Local>,
    f: impl Fn(Arc<dyn Communicator>, Device) -> R + Sync,
) -> Result<Vec<R>> {
    let devices = gpus(ranks.len())?;
    Ok(on_devices(ranks, devices, f))
}

#[test]
fn the_bits_do_not_depend_on_ranks_stage_or_limit() -> Result<()> {
    for network in NETWORKS {
        let on = |n_ranks: usize, stage: usize, limit: Limit| {
            on_gpus(world(n_ranks), |communicator, device| {
                as_planned((network, stage), &communicator, &device, limit)
            })
        };
        let expected = on(1, 0, Limit::None)?.remove(0)?;
        assert!(expected.1.iter().all(|loss| loss.is_finite()), "{:?}", expected.1);
        for (n_ranks, stage) in [(4, 0), (2, 1), (4, 2), (2, 3), (4, 3)] {
            for (rank, outcome) in on(n_ranks, stage, Limit::None)?.into_iter().enumerate() {
                let what = format!("{network:?}, stage {stage}, rank {rank} of {n_ranks}");
                assert_same(outcome?, &expected, &what);
            }
        }
    }
    Ok(())
}

/// What one rank saves by stages on GPUs is resumed by others, with the bits of a run that never stopped.
#[test]
fn a_run_is_resumed_by_other_ranks_at_another_stage() -> Result<()> {
    let network = Network::Words;
    let on = |n_ranks: usize, stage: usize, folder: Option<&std::path::Path>| {
        on_gpus(world(n_ranks), |communicator, device| {
            let _on = device.enter();
            outcome(&run((network, stage), &communicator, folder, UNTIL)?)
        })
    };
    let expected = on(1, 0, None)?.remove(0)?;
    let folder = tempfile::tempdir().expect("a folder");
    let saved = on_gpus(world(2), |communicator, device| {
        let _on = device.enter();
        let (mut trainer, _) = run((network, 3), &communicator, None, Until::Steps(2))?;
        trainer.save(folder.path())
    })?;
    saved.into_iter().collect::<Result<Vec<()>>>()?;
    for (n_ranks, stage) in [(4, 2), (1, 0)] {
        for outcome in on(n_ranks, stage, Some(folder.path()))? {
            assert!(outcome?.0 == expected.0, "resumed by {n_ranks} ranks at stage {stage}");
        }
    }
    Ok(())
}

/// The driver counts what the pools of all ranks have committed; ranks of one process take nothing for their messages.
#[test]
fn the_driver_counts_the_sum_of_the_ranks() -> Result<()> {
    let devices = gpus(4)?;
    let gpu = devices[0].gpu().expect("it is one").clone();
    let before = gpu.memory()?.free;
    let counted = mirrored(&devices, |communicator| {
        set_seed(1);
        let strategy = Strategy::data_parallel(communicator.clone()).leaves(4).zero(2);
        let data = vec![Batch::new(Tensor::randn([8, 300])?, Tensor::randn([8, 700])?)];
        let model = Dense::new(700).build([300])?;
        let mut trainer = Trainer::new(model, Adam::new(0.1).build(), MeanSquaredError).strategy(strategy);
        trainer.fit(&data, Until::Steps(2))?;
        communicator.barrier()?;
        let device = Device::current();
        let gpu = device.gpu().ok_or_else(|| Error::device("test", "no GPU"))?;
        let counted = (device.stats().committed, communicator.outside_bytes(), gpu.memory()?.free);
        communicator.barrier()?;
        Ok(counted)
    })?;
    let committed: u64 = counted.iter().map(|(committed, ..)| committed).sum();
    let outside: u64 = counted.iter().map(|(_, outside, _)| outside).sum();
    assert!(committed > 0 && outside == 0, "{counted:?}");
    for (_, _, free) in &counted {
        assert_eq!(before - free, committed + outside, "{counted:?}");
    }
    assert_eq!(gpu.memory()?.free, before, "everything went back");
    Ok(())
}

/// Ranks on two pools of one GPU, on another GPU and on the host: what they exchange are the same bytes.
#[test]
fn messages_travel_between_devices_of_all_kinds() -> Result<()> {
    let mut devices = gpus(2)?;
    // A GPU of another thread is another one.
    devices.push(std::thread::spawn(Device::emulated).join().expect("no panic")?);
    devices.push(Device::separate_cpu());
    for turn in 0..4 {
        devices.rotate_left(turn);
        let sums = on_devices(world(4), devices.clone(), |communicator, device| {
            let _on = device.enter();
            let rank = communicator.rank();
            let numbers = (0..300_001).map(|at| (at % 97) as f32 * (rank + 1) as f32).collect();
            let mut sum = TreeSum::new(Leaves::new(4, 4)?);
            sum.push(rank, vec![Tensor::from_vec(numbers)?, Tensor::full([3], rank as f64)?])?;
            let sums = sum.finish(&communicator)?;
            assert!(sums.iter().all(|sum| sum.device() == device), "sums are where they came from");
            Ok::<_, Error>((sums[0].to_vec::<f32>()?, sums[1].to_vec::<f32>()?))
        });
        for sums in sums {
            let (long, short) = sums?;
            assert!(long.iter().enumerate().all(|(at, sum)| *sum == (at % 97) as f32 * 10.0), "turn {turn}");
            assert_eq!(short, [6.0; 3]);
        }
    }
    Ok(())
}

/// Messages of a run fail, at every stage: all ranks end with an error that names the one that failed, what was lent is back, and
/// nothing is left.
#[test]
fn a_message_that_fails_ends_the_run_of_all_ranks() -> Result<()> {
    for stage in 0..4 {
        for rank in 0..2 {
            let mut n_faults = 0;
            for message in (0..).map(|power| 2u64.pow(power) - 1) {
                let outcomes = on_gpus(
                    world_with(2, Faults::default().failing(rank, message)),
                    |communicator, device| {
                        let trained = {
                            let _on = device.enter();
                            train(&communicator, stage, |trainer| trainer)
                        };
                        assert_eq!(device.stats().in_use, 0, "nothing is left");
                        trained
                    },
                )?;
                if outcomes.iter().all(Result::is_ok) {
                    break;
                }
                n_faults += 1;
                for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
                    assert!(error.to_string().contains(&format!("rank {rank} failed")), "{error}");
                }
                assert!(outcomes[rank].is_err(), "it failed itself");
            }
            assert!(n_faults > 4, "stage {stage}: {n_faults}");
        }
    }
    Ok(())
}

/// Where each rank has a GPU of its own, the model is that of a run of one rank all the same.
#[test]
fn a_model_is_mirrored_on_several_gpus() -> Result<()> {
    let trained =
        |devices: &[Device]| mirrored(devices, |communicator| train(&communicator, 0, |trainer| trainer));
    let one = trained(&gpus(1)?)?.remove(0);
    let elsewhere = std::thread::spawn(Device::emulated).join().expect("no panic")?;
    let here = Device::emulated()?;
    for variables in trained(&[here, elsewhere])? {
        assert!(variables == one);
    }
    Ok(())
}
