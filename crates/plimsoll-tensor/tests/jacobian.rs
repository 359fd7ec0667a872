//! Jacobians, against formulas and against values recorded from PyTorch 2.15.

use plimsoll_tensor::{Device, GradientTape, Result, Tensor, Variable};
use plimsoll_testkit::assert_close;

const X: [f64; 6] = [0.5, -1.0, 2.0, 1.5, 0.25, -0.75];
const W: [f64; 6] = [0.1, 0.2, -0.3, 0.4, 0.5, -0.6];

/// `softmax(tanh(x @ w))`, example by example.
fn network(x: &Tensor) -> Result<Tensor> {
    x.matmul(&Tensor::from_slice(&W, [3, 2])?)?.tanh()?.softmax(-1)
}

/// `torch.autograd.functional.jacobian` of the network: the part of each example with respect to itself.
const RECORDED: [[f64; 6]; 2] = [
    [
        -0.001549098499284,
        -0.017678989598862,
        0.027976563658322,
        0.001549098499284,
        0.017678989598862,
        -0.027976563658322,
    ],
    [
        -0.002570924261594,
        -0.095835152983888,
        0.152822059921902,
        0.002570924261594,
        0.095835152983888,
        -0.152822059921902,
    ],
];

#[test]
fn a_jacobian_has_the_values_that_pytorch_gives() -> Result<()> {
    let x = Variable::new(Tensor::from_slice(&X, [2, 3])?);
    let tape = GradientTape::new();
    let y = tape.record(|| network(&x))?;
    let jacobian = tape.jacobian(&y, &x)?;
    assert_eq!(jacobian.shape().dims(), [2, 2, 2, 3]);
    for example in 0..2 {
        let own = jacobian.select(0, example)?.select(1, example)?;
        assert_close(&own, &RECORDED[example as usize]);
        let other = jacobian.select(0, example)?.select(1, 1 - example)?;
        assert_close(&other, &[0.0; 6]);
    }
    Ok(())
}

#[test]
fn a_batch_jacobian_is_the_part_of_each_example() -> Result<()> {
    let x = Variable::new(Tensor::from_slice(&X, [2, 3])?);
    let tape = GradientTape::new();
    let y = tape.record(|| network(&x))?;
    let jacobian = tape.batch_jacobian(&y, &x)?;
    assert_eq!(jacobian.shape().dims(), [2, 2, 3]);
    assert_close(&jacobian, &RECORDED.concat());

    let tape = GradientTape::new();
    let y = tape.record(|| network(&x)?.sum(0))?;
    let error = tape.batch_jacobian(&y, &x.reshape([3, 2])?).unwrap_err().to_string();
    assert!(error.contains("a target of shape [2] and a source of shape [3, 2]"), "{error}");
    Ok(())
}

#[test]
fn the_jacobian_of_a_linear_function_is_its_matrix() -> Result<()> {
    let w = Tensor::from_slice(&W, [3, 2])?;
    let x = Variable::new(Tensor::from_slice(&X[..3], [3])?);
    let tape = GradientTape::new();
    let y = tape.record(|| x.unsqueeze(0)?.matmul(&w)?.squeeze(0))?;
    assert_eq!(tape.jacobian(&y, &x)?.to_f64_vec()?, w.t()?.to_f64_vec()?);
    Ok(())
}

#[test]
fn a_jacobian_is_differentiable() -> Result<()> {
    let x = Variable::new(Tensor::from_slice(&[2.0f64, 3.0], 2)?);
    let outer = GradientTape::new();
    let hessian_row_sums = outer.record(|| {
        let inner = GradientTape::new();
        // y = [x0² x1, x1³]
        let y = inner.record(|| {
            let (first, second) = (x.narrow(0, 0, 1)?, x.narrow(0, 1, 1)?);
            Tensor::concat(&[&first.square()?.mul(&second)?, &second.powf(3.0)?], 0)
        })?;
        inner.jacobian(&y, &x)
    })?;
    assert_close(&hessian_row_sums, &[12.0, 4.0, 0.0, 27.0]);
    let [second] = outer.gradient(&hessian_row_sums, [&x])?;
    // d/dx0 of (2 x0 x1 + x0²) is 2 x1 + 2 x0; d/dx1 of (2 x0 x1 + 3 x1²) is 2 x0 + 6 x1.
    assert_close(&second, &[10.0, 22.0]);
    Ok(())
}

#[test]
fn one_use_of_a_tape_frees_what_it_saved_at_the_end() -> Result<()> {
    let device = Device::separate_cpu();
    let _there = device.enter();
    let x = Variable::new(Tensor::from_slice(&X, 6)?);
    let tape = GradientTape::new();
    let y = tape.record(|| x.tanh()?.square())?;
    tape.jacobian(&y, &x)?;
    assert_eq!(tape.saved().bytes(), 0);
    let error = tape.jacobian(&y, &x).unwrap_err().to_string();
    assert!(error.contains("persistent(true)"), "{error}");

    let tape = GradientTape::new().persistent(true);
    let y = tape.record(|| x.tanh()?.square())?;
    let first = tape.jacobian(&y, &x)?.to_f64_vec()?;
    assert_eq!(tape.jacobian(&y, &x)?.to_f64_vec()?, first);
    assert!(tape.saved().bytes() > 0);
    Ok(())
}

#[test]
fn what_has_no_jacobian_is_an_error() -> Result<()> {
    let (x, other) = (Variable::new(Tensor::zeros([2, 3, 1, 1, 1])?), Variable::new(Tensor::zeros(2)?));
    let tape = GradientTape::new().persistent(true);
    let y = tape.record(|| x.square())?;
    let error = tape.jacobian(&y, &x).unwrap_err().to_string();
    assert!(error.contains("would have 10 axes; at most 8"), "{error}");
    let error = tape.jacobian(&y, &other).unwrap_err().to_string();
    assert!(error.contains("jacobian: source 0 of shape [2] is not connected"), "{error}");
    Ok(())
}

/// The product of the elements has second derivatives where elements are zero, too.
#[test]
fn the_second_derivative_of_a_product_at_zero() -> Result<()> {
    for (values, expected) in [
        ([2.0f64, 0.0, 3.0], [[0.0, 3.0, 0.0], [3.0, 0.0, 2.0], [0.0, 2.0, 0.0]]),
        ([0.0, 0.0, 3.0], [[0.0, 3.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
    ] {
        let x = Variable::new(Tensor::from_slice(&values, 3)?);
        let outer = GradientTape::new();
        let first = outer.record(|| {
            let inner = GradientTape::new();
            let y = inner.record(|| x.prod(..))?;
            let [first] = inner.gradient(&y, [&x])?;
            Ok(first)
        })?;
        assert_eq!(outer.jacobian(&first, &x)?.to_vec::<f64>()?, expected.concat());
    }
    Ok(())
}

#[test]
fn several_sources_take_the_same_passes_and_unconnected_ones_have_none() -> Result<()> {
    let x = Variable::new(Tensor::from_slice(&[1.0f32, 2.0], 2)?);
    let y = Variable::new(Tensor::from_slice(&[3.0f32, 4.0], 2)?);
    let unused = Variable::new(Tensor::from_slice(&[5.0f32], 1)?);
    let tape = GradientTape::new();
    let z = tape.record(|| x.mul(&x)?.mul(&y))?;
    let jacobians = tape.jacobians(&z, &[&x, &y, &unused])?;
    let values = |place: usize| jacobians[place].as_ref().expect("it is connected").to_vec::<f32>();
    assert_eq!(values(0)?, [6.0, 0.0, 0.0, 16.0]);
    assert_eq!(values(1)?, [1.0, 0.0, 0.0, 4.0]);
    assert!(jacobians[2].is_none());
    assert!(tape.jacobian(&z, &x).unwrap_err().to_string().contains("has given its gradient"));
    let tape = GradientTape::new();
    let rows = tape.record(|| y.reshape([2, 1])?.square())?;
    assert!(tape.batch_jacobian_or_none(&rows, &Tensor::ones([2, 3])?)?.is_none());
    Ok(())
}
