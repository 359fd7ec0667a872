//! Ranks inside one process: messages, collectives, sums by the tree, and what goes wrong between ranks.

#![forbid(unsafe_code)]

use std::sync::Arc;

use plimsoll_dist::local::{Faults, Local, world, world_with};
use plimsoll_dist::{Communicator, Leaves, Settled, Strategy, TreeSum, ghost, peers};
use plimsoll_tensor::program::{Agreed, Choice};
use plimsoll_tensor::{DType, Device, Error, Program, Result, Tensor};

/// What each rank gets, each on a thread of its own.
fn on_all<R: Send>(ranks: Vec<Local>, f: impl Fn(Arc<dyn Communicator>) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let run = |rank: Local| scope.spawn(|| f(Arc::new(rank)));
        let threads: Vec<_> = ranks.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// Tensors of a leaf: large enough for several messages, small enough for a bucket, and single numbers. Sums of them depend
/// on their order.
fn of_leaf(leaf: usize) -> Result<Vec<Tensor>> {
    let number =
        |n: usize, at: usize| ((leaf * 7919 + at * 104_729) % 1_000_003) as f32 / (1 + n % 97) as f32;
    let tensor = |n: usize| Tensor::from_vec((0..n).map(|at| number(n, at)).collect::<Vec<f32>>());
    let wide = tensor(1000)?.cast(DType::F64)?.reshape([10, 100])?;
    Ok(vec![tensor(1)?, tensor(300_001)?, tensor(5000)?, tensor(0)?, wide, tensor(17)?])
}

/// The bits of the sums on each rank.
fn sums(n_leaves: usize, n_ranks: usize) -> Vec<Result<Vec<Vec<f64>>>> {
    on_all(world(n_ranks), |communicator| {
        let device = Device::separate_cpu();
        let _on = device.enter();
        let leaves = Leaves::new(n_leaves, n_ranks)?;
        let mut sum = TreeSum::new(leaves);
        for leaf in leaves.of_rank(communicator.rank()) {
            sum.push(leaf, of_leaf(leaf)?)?;
        }
        sum.finish(&communicator)?.iter().map(Tensor::to_f64_vec).collect()
    })
}

#[test]
fn sums_have_the_same_bits_for_every_number_of_ranks() -> Result<()> {
    for n_leaves in [1, 2, 3, 4, 6, 7, 8, 12] {
        let expected = sums(n_leaves, 1).remove(0)?;
        for n_ranks in (2..=n_leaves).filter(|n| n_leaves % n == 0) {
            for (rank, sum) in sums(n_leaves, n_ranks).into_iter().enumerate() {
                assert!(sum? == expected, "rank {rank} of {n_ranks}, {n_leaves} leaves");
            }
        }
    }
    // The order matters for these numbers: one after the other gives something else.
    let one_by_one = (1..8).try_fold(of_leaf(0)?, |sum, leaf| {
        sum.into_iter().zip(of_leaf(leaf)?).map(|(sum, next)| sum.into_add(next)).collect::<Result<Vec<_>>>()
    })?;
    let one_by_one: Vec<Vec<f64>> = one_by_one.iter().map(Tensor::to_f64_vec).collect::<Result<_>>()?;
    assert!(one_by_one != sums(8, 1).remove(0)?);
    Ok(())
}

#[test]
fn a_collective_is_a_call_with_an_effect_that_a_dry_run_skips() -> Result<()> {
    let outcomes = on_all(world(2), |communicator| {
        let device = Device::separate_cpu();
        let _on = device.enter();
        let x = Tensor::full([700_000], 1.0 + communicator.rank() as f64)?;
        let leaves = Leaves::new(2, 2)?;
        let program = Program::record(&device, &[&x], |x| {
            let mut sum = TreeSum::new(leaves);
            sum.push(communicator.rank(), vec![x[0].mul(2.0)?])?;
            // Nobody reads what the first one gives, and the second one is like it: both are made.
            sum.finish(&communicator)?;
            let mut sum = TreeSum::new(leaves);
            sum.push(communicator.rank(), vec![x[0].mul(2.0)?])?;
            sum.finish(&communicator)
        })?;
        let n_calls = program.calls().filter(|call| call.op.name() == "all_reduce").count();
        assert_eq!(n_calls, 2, "{program}");
        let planned = program.footprints()?.remove(0);
        device.pool().reset_peaks();
        let sum = program.run(&[&x], None)?;
        assert_eq!(device.stats().peak_in_use, planned.peak);
        assert_eq!(device.stats().peak_rows, planned.owners);
        sum[0].to_vec::<f32>().map(|sum| sum[699_999])
    });
    for outcome in outcomes {
        assert_eq!(outcome?, 6.0);
    }
    Ok(())
}

#[test]
fn notes_and_bytes_reach_all_ranks() -> Result<()> {
    for size in 1..6 {
        let outcomes = on_all(world(size), |communicator| {
            let rank = communicator.rank();
            communicator.barrier()?;
            let mut bytes = [rank as u8 + 1; 3];
            communicator.broadcast(&mut bytes)?;
            Ok::<_, Error>((bytes, communicator.all_gather(&vec![rank as u8; rank])?))
        });
        for outcome in outcomes {
            let (bytes, notes) = outcome?;
            assert_eq!(bytes, [1; 3]);
            assert!(
                notes.iter().enumerate().all(|(rank, note)| *note == vec![rank as u8; rank]),
                "{notes:?}"
            );
        }
    }
    Ok(())
}

/// A sum over all ranks, and how many messages each rank had.
fn sum_with(faults: Faults) -> Vec<Result<f32>> {
    on_all(world_with(4, faults), |communicator| {
        let device = Device::separate_cpu();
        let sum = {
            let _on = device.enter();
            let leaves = Leaves::new(8, 4)?;
            let mut sum = TreeSum::new(leaves);
            for leaf in leaves.of_rank(communicator.rank()) {
                sum.push(leaf, vec![Tensor::full([400_000], leaf as f64)?])?;
            }
            sum.finish(&communicator).and_then(|sum| Ok(sum[0].to_vec::<f32>()?[0]))
        };
        assert_eq!(device.stats().in_use, 0, "nothing is left behind");
        sum
    })
}

#[test]
fn whichever_message_fails_every_rank_is_told_of_it() -> Result<()> {
    for outcome in sum_with(Faults::default()) {
        assert_eq!(outcome?, 28.0);
    }
    let mut n_faults = 0;
    for rank in 0..4 {
        for message in 0.. {
            let outcomes = sum_with(Faults::default().failing(rank, message));
            if outcomes.iter().all(Result::is_ok) {
                assert!(message > 1, "rank {rank} has messages");
                break;
            }
            n_faults += 1;
            // A rank that needed nothing more may have ended well before.
            let failed = |number: usize| outcomes[number].as_ref().err().map(ToString::to_string);
            let own = failed(rank).expect("it failed itself");
            assert!(own.contains(&format!("rank {rank} failed: it could not")), "{own}");
            for error in (0..4).filter_map(failed) {
                assert!(error.contains(&format!("rank {rank} failed")), "{error}");
            }
        }
    }
    assert!(n_faults >= 12, "{n_faults}");
    Ok(())
}

#[test]
fn a_rank_that_leaves_or_is_late_is_named() {
    let outcomes = on_all(world(3), |communicator| match communicator.rank() {
        1 => Ok(()),
        _ => communicator.barrier(),
    });
    let error = outcomes[0].as_ref().expect_err("rank 1 never comes").to_string();
    assert!(error.contains("rank 1 failed: it has left"), "{error}");
    // Slow, but not too slow: the same sum.
    let slow = Faults::default().slow(2, 50);
    assert!(sum_with(slow.clone()).into_iter().all(|outcome| outcome.is_ok_and(|sum| sum == 28.0)));
    for outcome in sum_with(slow.most_wait(20)) {
        let error = outcome.expect_err("nobody waits that long").to_string();
        assert!(error.contains("rank 2 failed: it was") && error.contains("ticks late"), "{error}");
    }
}

#[test]
fn ranks_that_do_something_else_are_named_on_every_rank() {
    for (version, recipe, said) in [
        ("1", "chars", "recipe is \"chars\" there and \"digits\" on rank 0"),
        ("2", "digits", "version is \"2\" there and \"1\" on rank 0"),
    ] {
        let outcomes = on_all(world(3), |communicator| {
            let (version, recipe) =
                if communicator.rank() == 2 { (version, recipe) } else { ("1", "digits") };
            let run = [("version", version.to_owned()), ("recipe", recipe.to_owned())];
            Strategy::data_parallel(communicator).agree(&run)
        });
        for outcome in outcomes {
            let error = outcome.expect_err("one does something else").to_string();
            assert!(error.contains(&format!("rank 2 does something else: {said}")), "{error}");
        }
    }
}

#[test]
fn messages_of_another_length_are_an_error_on_both_sides() {
    let outcomes = on_all(world(2), |communicator| match communicator.rank() {
        0 => communicator.send(1, &[1, 2, 3]).and_then(|()| communicator.recv(1, &mut [0])),
        _ => communicator.recv(0, &mut [0, 0]),
    });
    let [first, second] = outcomes.try_into().expect("two ranks");
    let texts = [first, second].map(|outcome: Result<()>| outcome.expect_err("3 bytes for 2").to_string());
    assert!(texts[0].contains("rank 1 failed: it takes 2 bytes"), "{texts:?}");
    assert!(texts[1].contains("rank 0 failed: it sent 3 bytes"), "{texts:?}");
}

/// A program's plan as a rank chooses it: what it takes by itself, and what comes of what the others need. Plans before `own` do
/// not fit it, and none from `end` on.
fn choose(
    communicator: &Arc<dyn Communicator>,
    program: u64,
    (own, end): (usize, usize),
    is_dry: bool,
) -> Result<Agreed> {
    let peers = peers(communicator, true);
    let mut number = own;
    loop {
        let plan = if number < end { Ok(number) } else { Err(number as u64 * 100) };
        match peers.agree(&Choice { program, limit: None, plan }, is_dry)? {
            Agreed::From(first) => number = number.max(first),
            Agreed::Yes => return Ok(Agreed::From(number)),
            refused => return Ok(refused),
        }
    }
}

#[test]
fn ranks_run_the_leanest_plan_that_one_of_them_needs() -> Result<()> {
    let outcomes = on_all(world(3), |communicator| {
        let own = [2, 5, 3][communicator.rank()];
        let first = choose(&communicator, 7, (own, 9), false)?;
        let before = communicator.agreements().note(None);
        // What was agreed on is not asked about again, so ranks may do so at other times.
        let again = choose(&communicator, 7, (own, 9), false)?;
        let refused = choose(&communicator, 8, (own, 4), false)?;
        Ok::<_, Error>(([first, again, refused], before.len()))
    });
    for outcome in outcomes {
        let refused = Agreed::Refused { rank: 1, least: 500 };
        assert_eq!(outcome?, ([Agreed::From(5), Agreed::From(5), refused], 16));
    }
    Ok(())
}

#[test]
fn ranks_that_plan_other_programs_are_named() {
    let outcomes = on_all(world(2), |communicator| {
        let program = communicator.rank() as u64;
        choose(&communicator, program, (0, 1), false)
    });
    for outcome in outcomes {
        let error = outcome.expect_err("the programs differ").to_string();
        assert!(error.contains("rank 1 does something else"), "{error}");
    }
}

#[test]
fn dry_runs_transfer_nothing_and_settle_on_the_leanest_plan() -> Result<()> {
    let ranks: Vec<Arc<dyn Communicator>> = (0..3).map(|rank| ghost(rank, 3)).collect::<Result<Vec<_>>>()?;
    let dry_runs = || -> Result<Vec<Settled>> {
        for (communicator, own) in ranks.iter().zip([2, 5, 3]) {
            choose(communicator, 7, (0, 9), true)?;
            choose(communicator, 8, (own, 9), true)?;
        }
        let notes: Vec<Vec<u8>> = ranks.iter().map(|rank| rank.agreements().note(None)).collect();
        ranks.iter().map(|rank| rank.agreements().settle(&notes)).collect()
    };
    assert_eq!(dry_runs()?, [Settled::No; 3]);
    assert_eq!(dry_runs()?, [Settled::Yes; 3]);
    let notes = [ranks[0].agreements().note(None), ranks[1].agreements().note(Some(300)), vec![0; 16]];
    assert_eq!(ranks[0].agreements().settle(&notes)?, Settled::Refused { rank: 1, least: 300 });
    choose(&ranks[0], 1, (0, 1), true)?;
    choose(&ranks[1], 2, (0, 1), true)?;
    let notes: Vec<Vec<u8>> = ranks[..2].iter().map(|rank| rank.agreements().note(None)).collect();
    let error = ranks[0].agreements().settle(&notes).expect_err("the programs differ").to_string();
    assert!(error.contains("rank 1 does something else"), "{error}");
    Ok(())
}
