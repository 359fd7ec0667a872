//! The gradient tape, as TensorFlow's users know it.

use plimsoll_tensor::{
    Device, ErrorKind, GradientTape, Owner, Result, Saving, Step, Tensor, Unconnected, Variable,
    custom_gradient, recompute, set_seed, with_saving,
};

fn scalar(value: f64) -> Tensor {
    Tensor::from(value).unwrap()
}

fn item(tensor: &Tensor) -> f64 {
    tensor.item::<f64>().unwrap()
}

/// A device of the test's own, so that tests do not see each other's bytes.
fn device() -> Device {
    Device::separate_cpu()
}

#[test]
fn a_watched_tensor_has_a_gradient_and_an_unwatched_one_has_none() -> Result<()> {
    let (x, y) = (scalar(3.0), scalar(4.0));
    let tape = GradientTape::new();
    tape.watch(&x)?;
    let z = tape.record(|| x.mul(&x)?.mul(&y))?;
    let [dx, dy] = tape.gradient_or_none(&z, [&x, &y])?;
    assert_eq!(item(&dx.unwrap()), 24.0);
    assert!(dy.is_none());
    Ok(())
}

#[test]
fn a_target_that_the_tape_did_not_record_is_named() -> Result<()> {
    let x = Variable::new(scalar(3.0)).named("x");
    let outside = x.mul(&x)?;
    let (first, second) = (GradientTape::new(), GradientTape::new().persistent(true));
    let others = first.record(|| x.mul(&x))?;
    second.record(|| x.square())?;
    let said = |target: &Tensor| {
        let each = second.gradient_each(target, &[&x], |_, _| Ok(()));
        [
            second.gradient(target, [&x]).unwrap_err().to_string(),
            second.variable_gradients(target, std::slice::from_ref(&x)).unwrap_err().to_string(),
            second.jacobian(target, &x).unwrap_err().to_string(),
            each.unwrap_err().to_string(),
        ]
    };
    for (target, knows) in [(&outside, "no tape knows it"), (&others, "another tape knows it")] {
        for error in said(target) {
            assert!(error.contains("the target of shape [] was not recorded by this tape"), "{error}");
            assert!(error.contains(knows), "{error}");
        }
    }
    // What the target does not depend on may still be asked for.
    assert!(second.gradient_or_none(&outside, [&x])?[0].is_none());
    assert_eq!(item(&second.gradient_or_zeros(&outside, [&x])?[0]), 0.0);
    Ok(())
}

#[test]
fn unconnected_sources_are_an_error_none_or_zeros() -> Result<()> {
    let (x, y) = (Variable::new(scalar(3.0)), Variable::new(Tensor::from_slice(&[1.0f64, 2.0], 2)?));
    let tape = GradientTape::new().persistent(true);
    let z = tape.record(|| x.mul(&x))?;
    let error = tape.gradient(&z, [&y]).unwrap_err();
    assert!(error.to_string().contains("source 0 of shape [2] is not connected"), "{error}");
    assert!(tape.gradient_or_none(&z, [&y])?[0].is_none());
    assert_eq!(tape.gradient_or_zeros(&z, [&y])?[0].to_vec::<f64>()?, [0.0, 0.0]);
    Ok(())
}

#[test]
fn a_second_gradient_needs_a_persistent_tape() -> Result<()> {
    let x = Variable::new(scalar(3.0));
    let tape = GradientTape::new();
    let y = tape.record(|| x.mul(&x))?;
    tape.gradient(&y, [&x])?;
    let error = tape.gradient(&y, [&x]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Tape { .. }));
    assert!(error.to_string().contains("persistent(true)"), "{error}");

    let tape = GradientTape::new().persistent(true);
    let y = tape.record(|| x.mul(&x))?;
    assert_eq!(item(&tape.gradient(&y, [&x])?[0]), 6.0);
    assert_eq!(item(&tape.gradient(&y, [&x])?[0]), 6.0);
    Ok(())
}

#[test]
fn variables_are_watched_when_they_are_read_unless_told_otherwise() -> Result<()> {
    let x = Variable::new(scalar(3.0)).named("x");
    let fixed = Variable::new(scalar(2.0)).named("fixed").trainable(false);
    let tape = GradientTape::new();
    let y = tape.record(|| x.mul(&fixed))?;
    assert_eq!(tape.watched_variables(), std::slice::from_ref(&x));
    let [dx, dfixed] = tape.gradient_or_none(&y, [&x, &fixed])?;
    assert!(dx.is_some() && dfixed.is_none());

    let tape = GradientTape::new().watch_accessed_variables(false);
    let y = tape.record(|| x.mul(&fixed))?;
    assert!(tape.watched_variables().is_empty());
    assert!(tape.gradient_or_none(&y, [&x])?[0].is_none());
    Ok(())
}

#[test]
fn what_runs_while_recording_is_stopped_is_a_constant() -> Result<()> {
    let x = Variable::new(scalar(3.0));
    let tape = GradientTape::new();
    let y = tape.record(|| {
        let constant = tape.stop_recording(|| x.mul(&x))?;
        x.mul(&constant)
    })?;
    assert_eq!(item(&tape.gradient(&y, [&x])?[0]), 9.0);
    Ok(())
}

#[test]
fn stop_gradient_cuts_the_path() -> Result<()> {
    let x = Variable::new(scalar(3.0));
    let tape = GradientTape::new();
    let y = tape.record(|| x.mul(&x)?.stop_gradient().mul(&x))?;
    assert_eq!(item(&tape.gradient(&y, [&x])?[0]), 9.0);
    Ok(())
}

#[test]
fn reset_forgets_what_was_recorded() -> Result<()> {
    let x = Variable::new(scalar(3.0));
    let tape = GradientTape::new();
    let old = tape.record(|| x.mul(&x))?;
    tape.reset();
    assert!(tape.saved().values().is_empty() && tape.watched_variables().is_empty());
    let new = tape.record(|| x.mul(2.0))?;
    assert!(tape.gradient(&old, [&x]).unwrap_err().to_string().contains("reset"));
    tape.reset();
    let new = tape.record(|| new.add(&x)?.mul(&x))?;
    assert_eq!(item(&tape.gradient(&new, [&x])?[0]), 6.0 + 6.0);
    Ok(())
}

#[test]
fn several_targets_add_up_with_their_output_gradients() -> Result<()> {
    let x = Variable::new(Tensor::from_slice(&[1.0f64, 2.0], 2)?);
    let tape = GradientTape::new().persistent(true);
    let (square, double) = tape.record(|| Ok((x.mul(&x)?, x.mul(2.0)?)))?;
    let plain = tape.gradients(&[&square, &double], None, &[&x], Unconnected::None)?;
    assert_eq!(plain[0].as_ref().unwrap().to_vec::<f64>()?, [4.0, 6.0]);
    let (a, b) = (Tensor::from_slice(&[1.0f64, 0.0], 2)?, Tensor::from_slice(&[0.0f64, 10.0], 2)?);
    let weighted = tape.gradients(&[&square, &double], Some(&[&a, &b]), &[&x], Unconnected::None)?;
    assert_eq!(weighted[0].as_ref().unwrap().to_vec::<f64>()?, [2.0, 20.0]);
    let error = tape.gradients(&[&square], Some(&[&scalar(1.0)]), &[&x], Unconnected::None).unwrap_err();
    assert!(error.to_string().contains("the output gradient is [] float64 but its target [2]"), "{error}");
    Ok(())
}

#[test]
fn nested_tapes_give_higher_orders() -> Result<()> {
    let x = Variable::new(scalar(2.0));
    let third = GradientTape::new();
    let d2 = third.record(|| {
        let second = GradientTape::new();
        let d1 = second.record(|| {
            let first = GradientTape::new();
            let y = first.record(|| x.mul(&x)?.mul(&x)?.mul(&x)?.exp()?.mul(1e-3))?;
            Ok(first.gradient(&y, [&x])?[0].clone())
        })?;
        Ok(second.gradient(&d1, [&x])?[0].clone())
    })?;
    let d3 = item(&third.gradient(&d2, [&x])?[0]);
    // f = e^(x⁴)/1000 at x = 2: f''' = f (64 x⁹ + 144 x⁵ + 24 x).
    let expected = 1e-3 * 16f64.exp() * (64.0 * 512.0 + 144.0 * 32.0 + 48.0);
    assert!((d3 / expected - 1.0).abs() < 1e-12, "{d3} {expected}");
    Ok(())
}

#[test]
fn a_gradient_of_an_intermediate_value() -> Result<()> {
    let x = Variable::new(scalar(3.0));
    let tape = GradientTape::new().persistent(true);
    let (y, z) = tape.record(|| {
        let y = x.mul(&x)?;
        let z = y.mul(&y)?;
        Ok((y, z))
    })?;
    let [dy, dx] = tape.gradient(&z, [&y, &x])?;
    assert_eq!((item(&dy), item(&dx)), (18.0, 108.0));
    Ok(())
}

#[test]
fn a_value_read_before_an_assignment_stays_as_it_was() -> Result<()> {
    let v = Variable::new(scalar(2.0));
    let tape = GradientTape::new();
    let y = tape.record(|| v.mul(&v)?.mul(&v))?;
    v.assign(&scalar(10.0))?;
    assert_eq!(item(&tape.gradient(&y, [&v])?[0]), 12.0);
    assert_eq!(item(&v), 10.0);
    Ok(())
}

#[test]
fn dropping_handles_frees_and_changes_no_bit() -> Result<()> {
    let device = device();
    let _on = device.enter();
    let gradient = |drop_early: bool| -> Result<Vec<f32>> {
        set_seed(1);
        let x = Variable::new(Tensor::randn([64, 64])?);
        let tape = GradientTape::new();
        let (y, unused, loss) = tape.record(|| {
            let y = x.matmul(&x)?;
            let unused = y.exp()?;
            let loss = y.matmul(&y)?.sum(..)?;
            Ok((y, unused, loss))
        })?;
        if drop_early {
            let saved = device.stats().rows().get(Owner::Saved);
            drop(unused);
            assert!(device.stats().rows().get(Owner::Saved) < saved, "no live tensor reaches it any more");
            drop(y);
        } else {
            std::mem::forget((y, unused));
        }
        tape.gradient(&loss, [&x])?[0].to_vec()
    };
    assert_eq!(gradient(true)?, gradient(false)?);
    Ok(())
}

#[test]
fn dropping_the_tape_frees_and_asking_for_its_gradient_is_an_error() -> Result<()> {
    let device = device();
    let _on = device.enter();
    let x = Variable::new(Tensor::randn([64, 64])?);
    let tape = GradientTape::new();
    let y = tape.record(|| x.matmul(&x)?.matmul(&x))?;
    assert_eq!(device.stats().rows().get(Owner::Saved), 64 * 64 * 4);
    drop(tape);
    assert_eq!(device.stats().rows().get(Owner::Saved), 0);
    let other = GradientTape::new();
    assert!(other.gradient_or_none(&y, [&x])?[0].is_none());
    Ok(())
}

#[test]
fn a_long_chain_is_dropped_without_recursion() -> Result<()> {
    let x = Variable::new(scalar(1.0));
    let tape = GradientTape::new();
    let y = tape.record(|| (0..200_000).try_fold(x.value(), |y, _| y.add(1.0)))?;
    assert_eq!(item(&y), 200_001.0);
    drop(tape);
    drop(y);
    Ok(())
}

#[test]
fn a_stated_gradient_replaces_the_recorded_one() -> Result<()> {
    let x = Variable::new(scalar(3.0));
    let tape = GradientTape::new();
    let y = tape.record(|| {
        custom_gradient(&[&x], |inputs| {
            let x = inputs[0].clone();
            let y = x.mul(&x)?;
            Ok((y, move |gradient: &Tensor| Ok(vec![gradient.mul(&x)?.mul(100.0)?])))
        })
    })?;
    assert_eq!(item(&y), 9.0);
    assert_eq!(item(&tape.gradient(&y, [&x])?[0]), 300.0);
    Ok(())
}

#[test]
fn a_stated_gradient_can_be_differentiated_again() -> Result<()> {
    let x = Variable::new(scalar(3.0));
    let outer = GradientTape::new();
    let dx = outer.record(|| {
        let inner = GradientTape::new();
        let y = inner.record(|| {
            custom_gradient(&[&x], |inputs| {
                let x = inputs[0].clone();
                let y = x.mul(&x)?;
                Ok((y, move |gradient: &Tensor| Ok(vec![gradient.mul(&x)?.mul(2.0)?])))
            })
        })?;
        Ok(inner.gradient(&y, [&x])?[0].clone())
    })?;
    assert_eq!(item(&outer.gradient(&dx, [&x])?[0]), 2.0);
    Ok(())
}

#[test]
fn a_recomputed_function_keeps_nothing_inside_and_gives_the_same_bits() -> Result<()> {
    let device = device();
    let _on = device.enter();
    let run = |again: bool| -> Result<(usize, Vec<f32>, Vec<f32>)> {
        set_seed(3);
        let w = Variable::new(Tensor::randn([32, 32])?);
        let x = Tensor::randn([32, 32])?;
        let tape = GradientTape::new();
        tape.watch(&x)?;
        let block = {
            let w = w.clone();
            move |inputs: &[Tensor]| {
                let noise = Tensor::uniform([32, 32], 0.0, 1.0, inputs[0].dtype())?;
                inputs[0].matmul(&w)?.relu()?.mul(&noise)?.matmul(&w)?.relu()
            }
        };
        let loss = tape.record(|| {
            let y = if again { recompute(&[&x], block)? } else { block(std::slice::from_ref(&x))? };
            y.sum(..)
        })?;
        let own = tape.saved().own_bytes();
        let [dx, dw] = tape.gradient(&loss, [&x, &w])?;
        Ok((own, dx.to_vec()?, dw.to_vec()?))
    };
    let (own_plain, dx_plain, dw_plain) = run(false)?;
    let (own_again, dx_again, dw_again) = run(true)?;
    assert_eq!((dx_plain, dw_plain), (dx_again, dw_again));
    assert_eq!(own_again, 0, "the input and the variable are held by the program");
    assert!(own_plain > 0);
    Ok(())
}

#[test]
fn a_recomputed_function_reads_variables_as_they_were() -> Result<()> {
    let (x, w) = (scalar(3.0), Variable::new(scalar(2.0)));
    let tape = GradientTape::new();
    tape.watch(&x)?;
    let inside = w.clone();
    let y = tape.record(|| recompute(&[&x], move |inputs| inputs[0].mul(&inside)?.mul(&inside)))?;
    w.assign(&scalar(100.0))?;
    let [dx, dw] = tape.gradient(&y, [&x, &w])?;
    assert_eq!((item(&dx), item(&dw)), (4.0, 12.0));
    Ok(())
}

#[test]
fn a_recomputed_function_assigns_once() -> Result<()> {
    let device = device();
    let _on = device.enter();
    let (x, calls) = (Variable::new(scalar(3.0)), Variable::new(scalar(0.0)).trainable(false));
    let inside = calls.clone();
    let step = || {
        let counted = inside.clone();
        let tape = GradientTape::new();
        let y = tape.record(|| {
            recompute(&[&x], move |inputs| {
                counted.assign_add(&scalar(1.0))?;
                inputs[0].mul(&inputs[0])
            })
        })?;
        tape.gradient(&y, [&x])
    };
    let [dx] = step()?;
    assert_eq!((item(&dx), item(&calls)), (6.0, 1.0));
    Step::run(&device, step)?;
    assert_eq!(item(&calls), 2.0);
    Ok(())
}

#[test]
fn a_recomputed_function_refuses_recorded_tensors_that_are_not_its_inputs() -> Result<()> {
    let x = Variable::new(scalar(3.0));
    let tape = GradientTape::new();
    let error = tape
        .record(|| {
            let hidden = x.mul(2.0)?;
            recompute(&[&x], move |inputs| inputs[0].mul(&hidden))
        })
        .unwrap_err();
    assert!(error.to_string().contains("pass it as one of the function's inputs"), "{error}");
    Ok(())
}

#[test]
fn values_that_cheap_ops_rebuild_are_not_kept() -> Result<()> {
    let device = device();
    let _on = device.enter();
    let run = |saving: Saving| -> Result<(usize, Vec<f32>)> {
        set_seed(5);
        let w = Variable::new(Tensor::randn([64, 64])?);
        let tape = GradientTape::new();
        let loss = with_saving(saving, || {
            tape.record(|| {
                // `abs` keeps its input, so the product need not keep abs's output.
                let y = w.matmul(&w)?.abs()?.mul(0.5)?;
                y.matmul(&w)?.sum(..)
            })
        })?;
        let own = tape.saved().own_bytes();
        Ok((own, tape.gradient(&loss, [&w])?[0].to_vec()?))
    };
    let (lean, lean_bits) = run(Saving::Lean)?;
    let (fast, fast_bits) = run(Saving::Fast)?;
    assert_eq!(lean_bits, fast_bits);
    assert_eq!((lean, fast), (64 * 64 * 4, 2 * 64 * 64 * 4));
    Ok(())
}

#[test]
fn saved_values_are_listed_with_op_form_bytes_and_line() -> Result<()> {
    let device = device();
    let _on = device.enter();
    let x = Variable::new(Tensor::randn([64, 64])?);
    let tape = GradientTape::new();
    let line = line!() + 1;
    let _loss = tape.record(|| x.matmul(&x)?.exp()?.sum(..))?;
    let saved = tape.saved();
    assert_eq!(saved.own_bytes(), 64 * 64 * 4);
    assert_eq!(saved.own_bytes() as u64, device.stats().rows().get(Owner::Saved));
    let text = saved.to_string();
    assert!(text.contains("exp"), "{text}");
    assert!(text.contains("output"), "{text}");
    assert!(text.contains("16,384"), "{text}");
    assert!(text.contains(&format!("tape.rs:{line}")), "{text}");
    Ok(())
}

#[test]
fn a_new_thread_starts_with_no_tape() -> Result<()> {
    let x = Variable::new(scalar(3.0));
    let tape = GradientTape::new();
    let y = tape.record(|| {
        let x = x.clone();
        std::thread::spawn(move || x.mul(&x)).join().expect("the thread ends well")
    })?;
    assert!(tape.gradient_or_none(&y, [&x])?[0].is_none());
    Ok(())
}

#[test]
fn whole_numbers_cannot_be_watched() -> Result<()> {
    let error = GradientTape::new().watch(&Tensor::from(3i64)?).unwrap_err();
    assert!(error.to_string().contains("int64 tensor has no gradient"), "{error}");
    Ok(())
}

#[test]
fn variable_gradients_name_what_is_not_connected() -> Result<()> {
    let (x, y) = (Variable::new(scalar(3.0)).named("x"), Variable::new(scalar(2.0)).named("layer.y"));
    let tape = GradientTape::new().persistent(true);
    let z = tape.record(|| x.mul(&x))?;
    assert_eq!(item(&tape.variable_gradients(&z, std::slice::from_ref(&x))?[0]), 6.0);
    let error = tape.variable_gradients(&z, &[x, y]).unwrap_err().to_string();
    assert!(error.contains("does not depend on \"layer.y\""), "{error}");
    Ok(())
}

#[test]
fn a_tape_around_another_changes_at_most_the_last_bits_of_a_gradient() -> Result<()> {
    set_seed(5);
    let x = Variable::new(Tensor::randn([8, 33])?);
    type Function = fn(&Variable) -> Result<Tensor>;
    let functions: [Function; 3] = [
        |x| x.softmax(1)?.square()?.sum(..),
        |x| x.sigmoid()?.tanh()?.sum(..),
        |x| x.softmax(0)?.exp()?.sum(..),
    ];
    for f in functions {
        let gradient = || {
            let tape = GradientTape::new();
            let y = tape.record(|| f(&x))?;
            let [dx] = tape.gradient(&y, [&x])?;
            dx.to_vec::<f32>()
        };
        let alone = gradient()?;
        // One that watches nothing changes no bit.
        let blind = GradientTape::new().watch_accessed_variables(false);
        assert_eq!(blind.record(gradient)?, alone);
        let outer = GradientTape::new();
        let within = outer.record(gradient)?;
        let largest = alone.iter().fold(0f32, |most, value| most.max(value.abs()));
        for (alone, within) in alone.iter().zip(&within) {
            // A handful of roundings of the largest value that takes part.
            assert!((alone - within).abs() <= 16.0 * f32::EPSILON * largest, "{alone} and {within}");
        }
    }
    Ok(())
}
