//! Why memory is alive, and what having it again would take, in the profile of a run: the same as `device.why_alive()` says at that
//! moment, for eager code and for planned steps.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use plimsoll_memory::testing::Fail;
use plimsoll_nn::Layer;
use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::losses::MeanSquaredError;
use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
use plimsoll_nn::plan;
use plimsoll_nn::train::callbacks::LambdaCallback;
use plimsoll_nn::train::{Batch, Trainer, Until};
use plimsoll_report::{Action, Advice, Change, Explanation, Holding, Price, Profile, Profiler, Works};
use plimsoll_tensor::{
    Activation, Bytes, Device, Function, GradientTape, Owner, Result, Step, Tensor, Variable,
};

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

/// Who held each block when memory could not be had, by owner, as the profile says; checked at the last shortage.
fn held_at_shortage(path: &Path) -> Vec<(Owner, String)> {
    let profile = Profile::read(path).expect("it was written");
    let (mut works, mut there, mut held) = (Works::default(), Vec::new(), Vec::new());
    let replayed = profile.replay(|moment| {
        works.see(moment);
        match moment.change {
            Some(Change::Mark(..)) if moment.phase == "out of memory" => {
                there = moment.blocks.iter().map(|(&serial, block)| (serial, block.owner)).collect();
                held.clear();
            }
            // Nothing else happens between the shortage and the answer.
            Some(Change::Held(..)) if held.len() < there.len() => {
                let named = |&(serial, owner): &(u64, Owner)| Some((owner, works.held(serial)?.0));
                held = there.iter().filter_map(named).collect();
            }
            _ => {}
        }
        true
    });
    replayed.expect("it is whole");
    assert_eq!(held.len(), there.len(), "each block has somebody who holds it");
    held.into_iter().map(|(owner, by)| (owner, profile.text(by).to_owned())).collect()
}

/// Each acquisition of a step fails in turn, on the tape, in a recorded program and in an update: whoever keeps memory alive at
/// that moment is in the profile, though all of it is gone when the error has arrived; and nobody waits for a lock of its own.
#[test]
fn whoever_lacks_memory_learns_who_holds_it() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("run.profile");
    let w = Variable::new(Tensor::ones([48, 48])?).named("w");
    let program = Function::new(|x: Tensor| x.sin()?.matmul(&x)?.tanh()?.sum(..));
    let x = Tensor::ones([48, 48])?;
    program.call(x.clone())?;
    let step = || {
        Step::run(&device, || {
            let pinned = w.value();
            let tape = GradientTape::new();
            let loss = tape.record(|| x.matmul(&w)?.tanh()?.square()?.sum(..))?;
            let gradient = tape.gradient(&loss, [&w])?;
            w.assign_sub(&gradient[0].mul(1e-3)?)?;
            drop(pinned);
            Ok(())
        })?;
        program.call(x.clone()).map(drop)
    };
    step()?;
    let (mut of_tape, mut of_program, mut of_code, mut all) = (0, 0, 0, Vec::new());
    for nth in 1.. {
        let recorded = Profiler::start(device.pool(), &path, &serde_json::json!({}));
        let profiler = recorded.expect("it can be written").oom_page(None);
        device.pool().fail_acquisition(nth);
        let outcome = step();
        device.pool().fail_acquisitions(Fail::Never);
        profiler.finish().expect("it can be written");
        if outcome.is_ok() {
            assert!(nth > 12, "the step has acquisitions: {nth}");
            break;
        }
        let held = held_at_shortage(&path);
        let of = |owner, by: &str| held.iter().filter(|(of, name)| *of == owner && name.contains(by)).count();
        assert!(of(Owner::Parameters, "variable w") > 0, "{nth}: {held:?}");
        of_tape += of(Owner::Saved, "tape crates/plimsoll-nn/tests/explained.rs");
        of_code += of(Owner::Temporary, "in your code");
        of_program += held.iter().filter(|(_, by)| by.contains("which runs")).count();
        all.extend(held);
        let error = Explanation::of(&Profile::read(&path).expect("it is there")).expect("it is whole");
        assert!(error.shortage.as_ref().is_some_and(|shortage| shortage.bytes > 0), "{nth}");
        assert_eq!(error.to_string().matches("out of memory: ").count(), 1);
    }
    assert!(of_tape > 0 && of_program > 0 && of_code > 0, "{of_tape} {of_program} {of_code}: {all:?}");
    Ok(())
}

/// A step that no plan fits is refused before it runs: a profile says so, has a page, and names who holds what there is.
#[test]
fn a_step_that_is_refused_leaves_a_page_with_holders() -> Result<()> {
    let device = Device::separate_cpu().limit(Bytes::mib(6))?;
    let _on = device.enter();
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("run.profile");
    let profiler = Profiler::start(device.pool(), &path, &serde_json::json!({})).expect("it can be written");
    let model = Dense::new(256).build([256])?;
    let batch = Batch::new(Tensor::ones([1024, 256])?, Tensor::ones([1024, 256])?);
    let mut trainer = Trainer::new(model, Adam::new(1e-3).build(), MeanSquaredError);
    let refused = trainer.fit(&vec![batch], Until::Epochs(1)).expect_err("it does not fit");
    assert!(refused.is_out_of_memory(), "{refused}");
    drop(trainer);
    profiler.finish().expect("it can be written");
    assert!(path.with_extension("out-of-memory.html").exists());
    let held = held_at_shortage(&path);
    let names: Vec<&str> = held.iter().map(|(_, by)| &**by).collect();
    assert!(names.contains(&"variable kernel") || names.iter().any(|by| by.contains("kernel")), "{names:?}");
    let explanation = Explanation::of(&Profile::read(&path).expect("it is there")).expect("it is whole");
    let shortage = explanation.shortage.expect("it was refused");
    assert!(shortage.bytes > 6 << 20, "the least limit: {shortage:?}");
    Ok(())
}

/// Tells the program that it is the process to be killed, and where to record.
const KILLED: &str = "PLIMSOLL_EXPLAINED_TEST_PROFILE";
/// After so many steps.
const STEPS: u64 = 3;

/// A run of which each step is as the one before.
fn steps(path: &Path, after: impl FnMut(u64) + Send + 'static) -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let model =
        Sequential::new().add(Dense::new(8).activation(Activation::Tanh)).add(Dense::new(1)).build([4])?;
    let batch = || Ok(Batch::new(Tensor::ones([8, 4])?, Tensor::ones([8, 1])?));
    let batches: Vec<Batch> = (0..STEPS).map(|_| batch()).collect::<Result<_>>()?;
    let profiler = Profiler::start(device.pool(), path, &serde_json::json!({})).expect("it can be written");
    let mut after = after;
    let callback = LambdaCallback::new().steps(move |event, _| {
        after(event.step);
        Ok(())
    });
    let mut trainer = Trainer::new(model, Adam::new(1e-3).build(), MeanSquaredError).callback(callback);
    trainer.fit(&batches, Until::Epochs(1))?;
    profiler.finish().expect("it can be written");
    Ok(())
}

/// The process that ends without a word once its last step is over; it is no test of its own.
#[test]
fn the_process_that_is_killed() -> Result<()> {
    let Some(path) = std::env::var_os(KILLED) else { return Ok(()) };
    steps(Path::new(&path), |step| {
        if step == STEPS {
            std::process::abort();
        }
    })
}

/// Whatever kills a process, all of its steps that had ended are in the profile, the last one with everything it freed.
#[test]
fn a_killed_process_leaves_its_last_finished_step() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let (whole, killed) = (folder.path().join("whole.profile"), folder.path().join("killed.profile"));
    steps(&whole, |_| {})?;
    let this = std::env::current_exe().expect("this program has a name");
    let output = Command::new(this)
        .args(["--exact", "the_process_that_is_killed"])
        .env(KILLED, &killed)
        .output()
        .expect("the program starts");
    assert!(!output.status.success(), "it was killed");
    let moments = |path: &Path| {
        let profile = Profile::read(path).expect("it was written");
        let mut moments = Vec::new();
        let replayed = profile.replay(|moment| {
            let last = moment.change.is_some_and(Change::is_counted);
            moments.extend(last.then_some((moment.step, moment.phase.clone(), moment.in_use)));
            true
        });
        replayed.expect("it is whole");
        (profile.is_complete(), moments)
    };
    let ((is_complete, whole), (was_complete, killed)) = (moments(&whole), moments(&killed));
    assert!(is_complete && !was_complete);
    let of = |moments: &[(u64, String, u64)], step| -> Vec<_> {
        moments.iter().filter(|moment| moment.0 == step).cloned().collect()
    };
    for step in 1..=STEPS {
        let (whole, killed) = (of(&whole, step), of(&killed, step));
        // What comes between two steps belongs to the one before; the killed one did not get there.
        assert!(whole.starts_with(&killed), "step {step}");
        assert!(killed.iter().any(|moment| moment.1 == "update"), "step {step}: {killed:?}");
    }
    // After a step its results and its batch are dropped, and the next batch is made.
    let (before, last) = (of(&killed, STEPS - 1), of(&killed, STEPS));
    assert!((1..=4).contains(&(before.len() - last.len())), "{before:?} {last:?}");
    assert_eq!(
        before[..last.len()],
        last.iter().map(|it| (STEPS - 1, it.1.clone(), it.2)).collect::<Vec<_>>()
    );
    Ok(())
}

const BLOCK: u32 = line!() + 6;

/// A model of blocks, of which a line describes all; with `.recompute()` written there, or without.
fn blocks(is_recomputed: bool) -> Result<()> {
    let block = || Sequential::new().add(Dense::new(256).activation(Activation::Tanh)).add(Dense::new(256));
    let model = (0..4).fold(Sequential::new(), |model, _| match is_recomputed {
        false => model.add(block()),
        true => model.add(block().recompute()),
    });
    let model = model.add(Dense::new(1)).build([256])?;
    let batch = Batch::new(Tensor::ones([2048, 256])?, Tensor::ones([2048, 1])?);
    Trainer::new(model, Adam::new(0.01).build(), MeanSquaredError)
        .fit(&vec![batch], Until::Epochs(1))
        .map(drop)
}

/// What would help a run of one's own: taken one by one, each action has the peak that was said, as a plan and as a run.
#[test]
fn each_line_of_code_that_would_help_has_its_peak() -> Result<()> {
    let device = Device::separate_cpu();
    let found = plan::actions(&device, std::time::Duration::from_secs(3600), || blocks(false))?;
    let actions = Action::listed(&found.expect("the run fits"));
    let before = plan::plan(&device, || blocks(false))?;
    let (mut n_recomputed, mut n_limits, mut n_spilled) = (0, 0, 0);
    for Action { advice, saved_bytes, peak_bytes, more_ms } in &actions {
        let Advice::Code(code) = advice else { panic!("{advice:?}") };
        let device = Device::separate_cpu();
        let _on = device.enter();
        let mut is_recomputed = false;
        if code.starts_with(&format!(".recompute() on the layer at {}:{BLOCK} ", file!())) {
            (is_recomputed, n_recomputed) = (true, n_recomputed + 1);
        } else if let Some((_, limit)) = code.split_once("Bytes::new(") {
            let digits: String = limit.chars().take_while(char::is_ascii_digit).collect();
            device.set_limit(Some(Bytes::new(digits.parse().expect("a number"))))?;
            n_limits += 1;
            if code.contains("set_offload") {
                let folder = tempfile::tempdir().expect("a folder for temporary files").keep();
                device.set_offload(Some(&plimsoll_tensor::Offload::Folder(folder)))?;
                n_spilled += 1;
            }
        } else {
            panic!("{code}");
        }
        blocks(is_recomputed)?;
        assert_eq!(device.stats().peak_in_use, *peak_bytes, "{code}");
        assert_eq!(before.peak_bytes - peak_bytes, *saved_bytes, "{code}");
        assert!(more_ms.is_finite());
    }
    let kinds = [n_recomputed, n_limits, n_spilled];
    assert!(kinds.iter().all(|&n| n > 0), "{kinds:?}: {actions:?}");
    Ok(())
}

/// A loop of one's own: the trace tells which values could be dropped sooner, and what the peak is then, to the byte.
#[test]
fn a_bare_loop_is_told_what_the_trace_can_tell() -> Result<()> {
    let run = |is_dropped: bool| {
        let line = std::cell::Cell::new(0);
        let explanation = explained(|_| {
            line.set(line!() + 1);
            let forgotten = Tensor::ones([300, 1000])?.sin()?;
            let y = forgotten.sum(..)?;
            let forgotten = Some(forgotten).filter(|_| !is_dropped);
            let large = Tensor::ones([1 << 20])?.exp()?;
            let peak = large.add(&y)?;
            drop((forgotten, peak, large));
            Ok(())
        })?;
        Ok::<_, plimsoll_tensor::Error>((explanation, line.get()))
    };
    let (explanation, line) = run(false)?;
    assert!(explanation.is_of_trace);
    let action = explanation.actions.first().expect("something helps");
    let said = format!("drop the temporary values of sin ({}:{line}) sooner", file!());
    assert!(action.advice.text().starts_with(&said), "{:?} {said}", explanation.actions);
    let (taken, _) = run(true)?;
    assert_eq!(taken.peak.in_use, action.peak_bytes);
    assert_eq!(explanation.peak.in_use - taken.peak.in_use, action.saved_bytes);
    assert!(explanation.to_string().contains("what the trace alone can tell"));
    assert!(taken.actions.is_empty(), "{:?}", taken.actions);
    Ok(())
}
