//! Scopes that begin and end: each ends by itself, in whatever order; closures are thin users of them.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};

use plimsoll_tensor::{
    Device, Function, Generator, GradientTape, Name, OpenScope, Owner, PlacementLog, Program, Result, Saving,
    Step, Tensor, Unconnected, Variable, at_line, current_scope, custom_gradient, enter_line, enter_owner,
    enter_saving, enter_scope, is_recording, log_placements, recompute, scope, set_seed, with_owner,
    with_saving,
};

/// The label of an op that runs now, as text.
fn label() -> Result<String> {
    let (made, log) = log_placements(|| Tensor::ones([1]));
    made?;
    Ok(log[0].site.to_string())
}

/// Who owns a tensor that is made now.
fn owner() -> Result<&'static str> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let _made = Tensor::ones([1])?;
    let rows = device.stats().rows();
    let owners: Vec<&str> =
        rows.iter().filter(|&(name, n)| name != "rounding" && n > 0).map(|row| row.0).collect();
    Ok(owners[0])
}

/// Whether a tape keeps what a cheap op could rebuild.
fn keeps_all() -> Result<bool> {
    let w = Variable::new(Tensor::ones([64, 64])?);
    let tape = GradientTape::new();
    let _y = tape.record(|| w.matmul(&w)?.abs()?.mul(0.5)?.matmul(&w))?;
    Ok(tape.saved().own_bytes() > 64 * 64 * 4)
}

#[test]
fn layers_end_by_themselves() -> Result<()> {
    let first = enter_scope("first");
    let second = enter_scope("second");
    let third = enter_scope("third");
    assert_eq!(current_scope(), "first.second.third");
    drop(second);
    assert_eq!(current_scope(), "first.third");
    let fourth = enter_scope("fourth");
    drop(first);
    assert_eq!(current_scope(), "third.fourth");
    scope("fifth", || assert_eq!(current_scope(), "third.fourth.fifth"));
    assert!(label()?.ends_with("third.fourth full"));
    drop(third);
    assert_eq!(current_scope(), "fourth");
    drop(fourth);
    assert_eq!(current_scope(), "");
    Ok(())
}

#[test]
fn layers_that_are_entered_inside_a_closure_may_stay_open() {
    let outer = enter_scope("outer");
    let inner = scope("closure", || {
        drop(outer);
        assert_eq!(current_scope(), "closure");
        enter_scope("inner")
    });
    assert_eq!(current_scope(), "inner");
    drop(inner);
    assert_eq!(current_scope(), "");
}

#[test]
fn layers_without_a_name_add_nothing() {
    let (a, none, b) = (enter_scope("a"), enter_scope(""), enter_scope("b"));
    assert_eq!(current_scope(), "a.b");
    drop(a);
    assert_eq!(current_scope(), "b");
    drop(none);
    assert_eq!(current_scope(), "b");
    drop(b);
}

#[test]
fn lines_end_by_themselves() -> Result<()> {
    let first = enter_line("first.py", 1);
    let second = enter_line("second.py", 2);
    assert_eq!(label()?, "second.py:2 full");
    drop(first);
    assert_eq!(label()?, "second.py:2 full");
    let third = enter_line("third.py", 3);
    assert_eq!(at_line("closure.py", 4, label)?, "closure.py:4 full");
    drop(third);
    assert_eq!(label()?, "second.py:2 full");
    drop(second);
    assert!(label()?.contains("scopes.rs:"), "{}", label()?);
    Ok(())
}

#[test]
fn files_and_phases_need_no_constant_names() -> Result<()> {
    let file = |n: usize| format!("cell {n}.py");
    for n in [1, 2, 1, 1] {
        assert_eq!(at_line(&file(n), 7, label)?, format!("cell {n}.py:7 full"));
    }
    // A phase may be called what the recording of a function calls its own marks.
    let (device, x) = (Device::current(), Tensor::ones([2])?);
    let program = Program::record(&device, &[&x], |inputs| {
        let marks = ["call".to_owned(), ":commit".to_owned()];
        marks.iter().for_each(|name| Device::current().mark(Name::intern(name), 99));
        Ok(vec![inputs[0].exp()?])
    })?;
    assert_eq!((program.calls().len(), program.run(&[&x], None)?.len()), (1, 1));
    let text = program.to_string();
    assert!(text.contains("  call:\n") && text.contains("  commit:\n"), "{text}");
    Ok(())
}

/// The call has its own line while it runs, its function has those of its ops, and neither is in the way of the other.
#[test]
fn a_line_that_is_entered_inside_a_call_outlives_it() -> Result<()> {
    let x = Tensor::ones([1])?;
    let left_open = RefCell::new(None);
    let forward = |values: &[Tensor]| {
        *left_open.borrow_mut() = Some(enter_line("inside.py", 5));
        Ok((values[0].clone(), |gradient: &Tensor| Ok(vec![gradient.clone()])))
    };
    custom_gradient(&[&x], forward)?;
    assert_eq!(label()?, "inside.py:5 full");
    let function = Function::new(|x: Tensor| {
        assert!(label()?.contains("scopes.rs:"));
        let _line = left_open.replace(Some(enter_line("function.py", 6)));
        x.neg()
    });
    function.run_eagerly(true).call(x)?;
    assert_eq!(label()?, "function.py:6 full");
    left_open.replace(None);
    assert!(label()?.contains("scopes.rs:"), "{}", label()?);
    Ok(())
}

#[test]
fn owners_end_by_themselves() -> Result<()> {
    let first = enter_owner(Owner::Parameters);
    let second = enter_owner(Owner::Optimizer);
    assert_eq!(owner()?, "optimizer");
    drop(first);
    assert_eq!(owner()?, "optimizer");
    assert_eq!(with_owner(Owner::Data, owner)?, "data");
    let third = enter_owner(Owner::Graph);
    drop(second);
    assert_eq!(owner()?, "graph");
    drop(third);
    assert_eq!(owner()?, "temporary");
    Ok(())
}

#[test]
fn saving_ends_by_itself() -> Result<()> {
    assert!(!keeps_all()?);
    let fast = enter_saving(Saving::Fast);
    let lean = enter_saving(Saving::Lean);
    assert!(!keeps_all()? && with_saving(Saving::Fast, keeps_all)?);
    let again = enter_saving(Saving::Fast);
    drop(lean);
    assert!(keeps_all()?);
    drop(again);
    assert!(keeps_all()?);
    drop(fast);
    assert!(!keeps_all()?);
    Ok(())
}

#[test]
fn devices_end_by_themselves() {
    let [a, b, c] = [(); 3].map(|()| Device::separate_cpu());
    let (on_a, on_b, on_c) = (a.enter(), b.enter(), c.enter());
    drop(on_b);
    assert_eq!(Device::current(), c);
    drop(on_c);
    assert_eq!(Device::current(), a);
    drop(on_a);
    assert_eq!(Device::current(), Device::cpu());
}

/// What two tapes know of x², which is computed now: whether each gives its gradient.
fn recorded_by(tapes: [&GradientTape; 2]) -> Result<[bool; 2]> {
    let x = Variable::new(Tensor::from(3.0f32)?);
    let y = x.mul(&x)?;
    let mut known = [false; 2];
    for (known, tape) in known.iter_mut().zip(tapes) {
        let gradients = tape.gradients(&[&y], None, &[&x], Unconnected::None)?;
        *known = gradients[0].as_ref().map(|gradient| gradient.item::<f32>()).transpose()? == Some(6.0);
    }
    Ok(known)
}

#[test]
fn tapes_end_by_themselves() -> Result<()> {
    let [a, b] = [(); 2].map(|()| GradientTape::new().persistent(true));
    let tapes = [&a, &b];
    let (first, second) = (a.start(), b.start());
    assert_eq!(recorded_by(tapes)?, [true, true]);
    drop(first);
    assert_eq!(recorded_by(tapes)?, [false, true]);
    let twice = b.start();
    drop(second);
    assert_eq!(recorded_by(tapes)?, [false, true]);
    assert_eq!(a.record(|| recorded_by(tapes))?, [true, true]);
    drop(twice);
    assert!(!is_recording());
    Ok(())
}

#[test]
fn pauses_end_by_themselves() -> Result<()> {
    let [a, b] = [(); 2].map(|()| GradientTape::new().persistent(true));
    let tapes = [&a, &b];
    let (on_a, on_b) = (a.start(), b.start());
    let (pause_a, pause_b) = (a.pause(), b.pause());
    assert!(!is_recording());
    drop(pause_a);
    assert_eq!(recorded_by(tapes)?, [true, false]);
    let again = b.start();
    assert_eq!(recorded_by(tapes)?, [true, true], "a tape records that is started during a pause");
    drop(on_b);
    drop(pause_b);
    assert_eq!(recorded_by(tapes)?, [true, true]);
    assert_eq!(b.stop_recording(|| recorded_by(tapes))?, [true, false]);
    drop(again);
    let pause = a.pause();
    drop(on_a);
    drop(pause);
    assert!(!is_recording());
    Ok(())
}

#[test]
fn a_tape_may_end_inside_a_recomputed_function() -> Result<()> {
    let x = Variable::new(Tensor::from(3.0f32)?);
    let (outer, inner) = (GradientTape::new(), GradientTape::new());
    let (ends_inside, on_inner) = (outer.start(), inner.start());
    let known = x.mul(&x)?;
    thread_local!(static ENDS_INSIDE: Cell<Option<OpenScope>> = const { Cell::new(None) });
    ENDS_INSIDE.set(Some(ends_inside));
    let y = recompute(&[&known], |values| {
        drop(ENDS_INSIDE.take());
        values[0].mul(&values[0])
    })?;
    drop(on_inner);
    assert!(!is_recording());
    assert_eq!(inner.gradient(&y, [&x])?[0].item::<f32>()?, 108.0);
    assert!(outer.gradient(&y, [&x]).is_err(), "it did not record the result any more");
    Ok(())
}

#[test]
fn logs_end_by_themselves() -> Result<()> {
    let ops = |log: PlacementLog| log.end().iter().map(|placement| placement.op).collect::<Vec<_>>();
    let first = PlacementLog::start();
    let x = Tensor::ones([2])?;
    let second = PlacementLog::start();
    x.sqrt()?;
    assert_eq!(ops(first), ["full"]);
    x.exp()?;
    let (squared, log) = log_placements(|| x.square());
    squared?;
    assert_eq!((log.len(), ops(second)), (1, vec!["sqrt", "exp"]));
    drop(PlacementLog::start());
    assert_eq!(log_placements(|| x.neg().map(drop)).1.len(), 1);
    Ok(())
}

#[test]
fn a_step_is_committed_or_changes_nothing() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    set_seed(7);
    let x = Variable::new(Tensor::ones([3])?);
    let values = || x.to_vec::<f32>();
    let (generator, in_use) = (Generator::current(), device.stats().in_use);

    let given_up = Step::begin(&device)?;
    x.assign(&Tensor::randn([3])?)?;
    assert_ne!(values()?, [1.0; 3]);
    assert!(Step::begin(&device).is_err_and(|error| error.to_string().contains("do not nest")));
    assert!(Step::is_open());
    drop(given_up);
    assert!(!Step::is_open());
    assert_eq!((values()?, Generator::current()), (vec![1.0; 3], generator));
    assert_eq!(device.stats().in_use, in_use);

    let step = Step::begin(&device)?;
    x.assign(&Tensor::randn([3])?)?;
    step.commit()?;
    let committed = values()?;
    generator.make_current();
    x.assign(&Tensor::ones([3])?)?;
    Step::run(&device, || x.assign(&Tensor::randn([3])?))?;
    assert_eq!(committed, values()?);
    assert_eq!(device.stats().in_use, in_use);
    Ok(())
}

#[test]
fn a_step_that_fails_at_its_commit_changes_nothing() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let x = Variable::new(Tensor::ones([3])?);
    let generator = Generator::current();
    let step = Step::begin(&device)?;
    x.assign_add(&Tensor::randn([3])?)?;
    let wanted = Tensor::from_slice(&[1i64, 9], 2)?;
    let failed = x.gather(0, &wanted).and_then(|_| step.commit());
    assert!(failed.is_err());
    assert_eq!((x.to_vec::<f32>()?, Generator::current()), (vec![1.0; 3], generator));
    assert!(!Step::is_open());
    Ok(())
}

/// One step of training, with closures or with guards; returns the labels of its ops and the bits of its results.
fn train(with_guards: bool) -> Result<(Vec<String>, Vec<u32>)> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    set_seed(3);
    let x = Variable::new(Tensor::ones([64])?);
    let tape = GradientTape::new();
    let forward = || x.mul(&Tensor::randn([64])?)?.dropout(0.5)?.square()?.sum(..);
    let log = PlacementLog::start();
    let y = if with_guards {
        let step = Step::begin(&device)?;
        let line = enter_line("train.py", 8);
        let recording = tape.start();
        let layer = enter_scope("layer");
        let saving = enter_saving(Saving::Fast);
        let y = forward()?;
        drop((recording, layer, saving));
        let [dx] = tape.gradient(&y, [&x])?;
        x.assign_sub(&dx)?;
        drop(line);
        step.commit()?;
        y
    } else {
        Step::run(&device, || {
            at_line("train.py", 8, || {
                let y = tape.record(|| scope("layer", || with_saving(Saving::Fast, forward)))?;
                let [dx] = tape.gradient(&y, [&x])?;
                x.assign_sub(&dx)?;
                Ok(y)
            })
        })?
    };
    let labels = log.end().iter().map(|placement| placement.site.to_string()).collect();
    let bits = [y.to_vec::<f32>()?, x.to_vec::<f32>()?].concat().into_iter().map(f32::to_bits).collect();
    Ok((labels, bits))
}

#[test]
fn guards_give_the_bits_and_labels_of_closures() -> Result<()> {
    let (labels, bits) = train(true)?;
    assert!(labels.iter().any(|label| label == "train.py:8 layer dropout"), "{labels:?}");
    assert_eq!((labels, bits), train(false)?);
    Ok(())
}

#[test]
fn a_panic_ends_what_is_open() -> Result<()> {
    let device = Device::separate_cpu();
    let generator = Generator::current();
    let panicked = panic::catch_unwind(AssertUnwindSafe(|| {
        let _on = device.enter();
        let _step = Step::begin(&device).expect("no step is open");
        let tape = GradientTape::new();
        let _scopes = (enter_scope("layer"), enter_line("a.py", 1), enter_owner(Owner::Data));
        let (_log, _saving) = (PlacementLog::start(), enter_saving(Saving::Fast));
        let (_recording, _again) = (tape.start(), tape.pause());
        let _drawn = Tensor::randn([3]);
        log_placements(|| panic!("a layer of the user's panics"))
    }));
    assert!(panicked.is_err());
    assert_eq!((current_scope(), Device::current()), (String::new(), Device::cpu()));
    assert!(!is_recording() && !Step::is_open() && !keeps_all()?);
    assert_eq!((owner()?, Generator::current()), ("temporary", generator));
    assert!(label()?.contains("scopes.rs:"));
    Ok(())
}
