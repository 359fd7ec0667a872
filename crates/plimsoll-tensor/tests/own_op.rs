//! An op of the user's own, written against the public interface, without unsafe code.

use std::panic::{self, AssertUnwindSafe};

use plimsoll_tensor::op::{Meta, Output, Outputs, Run, SavedRef, SavedRefs, one};
use plimsoll_tensor::{
    Backward, Device, Error, GradientTape, Op, OpRef, Owner, Result, Saving, Step, Tensor, Variable, apply,
    current_scope, scope, set_seed, with_owner, with_saving,
};

/// f(x) = x³, f'(x) = 3 x².
#[derive(Debug)]
struct Cube;

impl Op for Cube {
    fn name(&self) -> &'static str {
        "cube"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        one(*inputs[0].shape(), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (inputs, mut outputs) = run.slices::<f32>(self.name())?;
        for (y, x) in outputs[0].iter_mut().zip(inputs[0]) {
            *y = x * x * x;
        }
        Ok(())
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        SavedRefs::from_slice(&[SavedRef::Input(0)])
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let x = backward.input(0)?;
        let local_grad = x.mul(&x)?.mul(3.0)?;
        let gradient = backward.gradient()?.mul(&local_grad)?;
        backward.set_grad(0, gradient)
    }
}

fn cube(x: &Tensor) -> Result<Tensor> {
    Ok(apply(OpRef::new(Cube), &[x])?.remove(0))
}

#[test]
fn an_op_of_ones_own_has_values_and_gradients_of_any_order() -> Result<()> {
    let x = Variable::new(Tensor::from_slice(&[1.0f32, -2.0], 2)?);
    let outer = GradientTape::new();
    let dx = outer.record(|| {
        let inner = GradientTape::new();
        let y = inner.record(|| cube(&x))?;
        assert_eq!(y.to_vec::<f32>()?, [1.0, -8.0]);
        let [dx] = inner.gradient(&y, [&x])?;
        assert_eq!(dx.to_vec::<f32>()?, [3.0, 12.0]);
        Ok(dx)
    })?;
    assert_eq!(outer.gradient(&dx, [&x])?[0].to_vec::<f32>()?, [6.0, -12.0]);
    Ok(())
}

#[test]
fn its_bytes_are_labelled_and_a_ghost_runs_it() -> Result<()> {
    for device in [Device::separate_cpu(), Device::ghost_cpu()] {
        let _on = device.enter();
        let x = Variable::new(Tensor::ones([100])?);
        let tape = GradientTape::new();
        let _y = tape.record(|| cube(&x)?.mul(2.0))?;
        assert_eq!(tape.saved().values()[0].op, "cube");
        assert_eq!(device.stats().rows().get(Owner::Parameters), 400);
    }
    Ok(())
}

#[test]
fn what_its_kernel_does_not_take_is_a_clear_error() -> Result<()> {
    let strided = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?.t()?;
    assert!(cube(&strided).unwrap_err().to_string().contains("cube: an operand is strided"));
    assert!(cube(&Tensor::from(1.0f64)?).unwrap_err().to_string().contains("float64, not float32"));
    assert!(cube(&Tensor::zeros([0])?)?.to_vec::<f32>()?.is_empty());
    Ok(())
}

/// Adds one to every variable, and refuses at a number that it finds there: after it has written what came before.
#[derive(Debug)]
struct Count {
    refuses: f32,
}

impl Op for Count {
    fn name(&self) -> &'static str {
        "count"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        Ok(inputs.iter().map(|meta| Output::New { shape: *meta.shape(), dtype: meta.dtype }).collect())
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (inputs, mut outputs) = run.slices::<f32>(self.name())?;
        for (output, input) in outputs.iter_mut().zip(&inputs) {
            for (y, x) in output.iter_mut().zip(*input) {
                if *x == self.refuses {
                    return Err(Error::argument(self.name(), format!("{x} is refused")));
                }
                *y = x + 1.0;
            }
        }
        Ok(())
    }
}

#[test]
fn an_update_that_its_kernel_refuses_changes_nothing() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let variable = |values: &[f32]| Ok::<_, Error>(Variable::new(Tensor::from_slice(values, values.len())?));
    let (a, b, c) = (variable(&[1.0, 2.0])?, variable(&[3.0, 4.0])?, variable(&[5.0])?);
    let values = || Ok::<_, Error>([a.to_vec::<f32>()?, b.to_vec::<f32>()?, c.to_vec::<f32>()?]);
    let before = values()?;
    let in_use = device.stats().in_use;
    let count = |refuses| OpRef::new(Count { refuses });
    // At once; after another update; inside a step, after an assignment and an addition that went well.
    Variable::update(count(4.0), &[&a, &b], &[]).expect_err("4 is refused");
    assert_eq!((values()?, device.stats().in_use), (before.clone(), in_use));
    Variable::update_together(&[(count(-1.0), &[&a], &[]), (count(5.0), &[&c], &[])])
        .expect_err("5 is refused");
    assert_eq!((values()?, device.stats().in_use), (before.clone(), in_use));
    let refused = Step::run(&device, || {
        a.assign(&Tensor::zeros(2)?)?;
        b.assign_add(&Tensor::ones(2)?)?;
        Variable::update(count(5.0), &[&c], &[])
    });
    assert!(refused.expect_err("5 is refused").to_string().contains("count: 5 is refused"));
    assert_eq!((values()?, device.stats().in_use), (before, in_use));
    // What is not refused is written.
    Variable::update_together(&[(count(-1.0), &[&a, &b], &[]), (count(-1.0), &[&c], &[])])?;
    assert_eq!(values()?, [vec![2.0, 3.0], vec![4.0, 5.0], vec![6.0]]);
    assert_eq!(device.stats().in_use, in_use, "the old blocks are free");
    Ok(())
}

#[test]
fn a_panic_leaves_step_scopes_and_generator_as_they_were() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let x = Variable::new(Tensor::ones([4])?);
    let train = |panics: bool| {
        Step::run(&device, || {
            let tape = GradientTape::new();
            let y = tape.record(|| {
                scope("layer", || {
                    with_owner(Owner::Saved, || {
                        with_saving(Saving::Fast, || {
                            let y = x.mul(&Tensor::randn([4])?)?.dropout(0.5)?;
                            assert!(!panics, "a layer of the user's panics");
                            y.sum(..)
                        })
                    })
                })
            })?;
            let [dx] = tape.gradient(&y, [&x])?;
            x.assign_sub(&dx)?;
            y.item::<f32>()
        })
    };
    let run = |panics: bool| {
        set_seed(11);
        x.assign(&Tensor::ones([4])?)?;
        (0..3)
            .map(|_| {
                if panics {
                    panic::catch_unwind(AssertUnwindSafe(|| train(true))).expect_err("it panics");
                }
                train(false).map(f32::to_bits)
            })
            .collect::<Result<Vec<u32>>>()
    };
    let expected = run(false)?;
    let (in_use, values) = (device.stats().in_use, x.to_vec::<f32>()?);
    assert_eq!(run(true)?, expected);
    assert_eq!((device.stats().in_use, x.to_vec::<f32>()?), (in_use, values));
    assert!(!Step::is_open() && current_scope().is_empty());
    Ok(())
}
