//! An op of the user's own, written against the public interface, without unsafe code.

use plimsoll_tensor::op::{Keep, Keeps, Meta, Outputs, Run, one};
use plimsoll_tensor::{Backward, Device, GradientTape, Op, OpRef, Owner, Result, Tensor, Variable, apply};

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

    fn keeps(&self, _wanted: &[bool]) -> Keeps {
        Keeps::from_slice(&[Keep::Input(0)])
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let x = backward.input(0)?;
        let slope = x.mul(&x)?.mul(3.0)?;
        let gradient = backward.gradient()?.mul(&slope)?;
        backward.give(0, gradient)
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
