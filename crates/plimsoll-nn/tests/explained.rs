//! Why memory is alive, and what having it again would take, in the profile of a run: the same as `device.why_alive()` says at that
//! moment, for eager code and for planned steps.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use plimsoll_nn::Layer;
use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::losses::MeanSquaredError;
use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
use plimsoll_nn::train::{Batch, Trainer, Until};
use plimsoll_report::{Explanation, Holding, Price, Profile, Profiler};
use plimsoll_tensor::{Activation, Device, GradientTape, Owner, Result, Tensor, Variable};

/// What `f` did, which is recorded on a device of its own, told from its profile.
fn explained(f: impl FnOnce(&Device) -> Result<()>) -> Result<Explanation> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("run.profile");
    let profiler = Profiler::start(device.pool(), &path, &serde_json::json!({})).expect("it can be written");
    f(&device)?;
    profiler.finish().expect("it can be written");
    Ok(Explanation::of(&Profile::read(&path).expect("it was written")).expect("it is whole"))
}

/// A plain generator of numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

/// Ops on a tape in random order, of which some values are dropped again.
fn graph(random: &mut Random, w: &Variable, x: &Tensor) -> Result<Vec<Tensor>> {
    let mut all = vec![x.matmul(w)?];
    for _ in 0..8 + random.below(12) {
        let y = all[random.below(all.len())].clone();
        let made = match random.below(6) {
            0 => y.sin()?,
            1 => y.matmul(w)?.tanh()?,
            2 => y.add(&all[random.below(all.len())])?,
            3 => y.square()?.exp()?,
            4 => y.softmax(-1)?,
            _ => y.sum_keepdims(-1)?.mul(&y)?,
        };
        all.push(made);
        if random.below(3) == 0 {
            let at = random.below(all.len() - 1);
            all.remove(at);
        }
    }
    Ok(all)
}

#[test]
fn prices_of_eager_code_are_those_of_why_alive() -> Result<()> {
    let mut n_compared = 0;
    for seed in 0..60 {
        let mut random = Random(seed);
        let mut expected: HashMap<(Owner, u32, String), u64> = HashMap::new();
        let explanation = explained(|device| {
            let (w, x) = (Variable::new(Tensor::ones([48, 48])?).named("w"), Tensor::ones([48, 48])?);
            let tape = GradientTape::new().persistent(true);
            let kept = tape.record(|| graph(&mut random, &w, &x))?;
            // The peak is here, by far.
            let large = Tensor::ones([1 << 20])?;
            let why = device.why_alive();
            for row in why.rows().iter().filter(|row| row.blocks > 0) {
                let key = (row.owner, row.site.line(), row.site.op().to_owned());
                let sum = expected.entry(key).or_default();
                *sum = row.nanoseconds.map_or(u64::MAX, |ns| sum.saturating_add(ns));
            }
            drop((large, kept));
            Ok(())
        })?;
        for Holding { owner, site, price, held, .. } in &explanation.holders {
            let key = (*owner, site.line as u32, site.op.clone());
            assert!(held.is_some(), "somebody was asked: {site}");
            // What no tape knows of, ops do; but what can be recomputed by tapes costs as much by ops.
            if let Some(&nanoseconds) = expected.get(&key).filter(|ns| **ns < u64::MAX) {
                match price {
                    Price::Recompute { nanoseconds: told, .. } => {
                        assert_eq!(*told, nanoseconds, "{seed}: {site}")
                    }
                    Price::Never(why) => {
                        panic!("{seed}: {site} costs {nanoseconds} ns, and the profile says {why}")
                    }
                }
                n_compared += 1;
            }
        }
    }
    assert!(n_compared > 200, "{n_compared}");
    Ok(())
}

/// The largest row of an owner.
fn row<'a>(explanation: &'a Explanation, owner: Owner, layer: &str) -> &'a Holding {
    let mut rows = explanation.holders.iter().filter(|row| row.owner == owner && row.site.scope == layer);
    rows.next().unwrap_or_else(|| panic!("{layer} holds {owner}: {explanation}"))
}

/// A planned step: what is saved is read next by backward and has a price, and variables are named.
#[test]
fn a_planned_step_tells_who_reads_next_and_at_what_price() -> Result<()> {
    let natural = explained(|device| {
        let model = Sequential::new()
            .add(Dense::new(256).activation(Activation::Tanh))
            .add(Dense::new(256).activation(Activation::Tanh))
            .add(Dense::new(1).named("head"))
            .build([64])?;
        let batch = || Ok(Batch::new(Tensor::ones([4096, 64])?, Tensor::ones([4096, 1])?));
        let batches: Vec<Batch> = (0..3).map(|_| batch()).collect::<Result<_>>()?;
        let mut trainer = Trainer::new(model, Adam::new(1e-3).build(), MeanSquaredError);
        trainer.fit(&batches, Until::Epochs(1))?;
        drop(device.why_alive());
        Ok(())
    })?;
    assert!(natural.n_checked > 20, "{}", natural.n_checked);
    let saved = row(&natural, Owner::Saved, "dense");
    let (next, _, phase) = saved.read_next.as_ref().expect("it is read");
    assert!(phase == "forward" || phase == "backward", "{phase}: {next}");
    assert!(matches!(saved.price, Price::Recompute { nanoseconds: 1.., n_ops: 1.. }), "{:?}", saved.price);
    let weights = row(&natural, Owner::Parameters, "dense_1");
    let (by, frees) = weights.held.as_ref().expect("somebody was asked");
    assert!(by.contains("variable") && *frees >= weights.bytes / weights.blocks, "{by}: {frees}");
    assert_eq!(weights.price, Price::Never("it is a variable's value".to_owned()));
    Ok(())
}
