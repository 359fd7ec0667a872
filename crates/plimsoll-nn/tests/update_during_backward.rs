//! Updating each variable as soon as its gradient is complete: the same bits, one gradient at a time, and refusals.

use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::optimizers::{Adafactor, Adam, LossScale, Optimizer, OptimizerConfig, SGD};
use plimsoll_nn::{Layer, Model};
use plimsoll_tensor::{Device, GradientTape, Owner, Result, Step, Tensor, Variable, set_seed};

fn bits(variables: &[Variable]) -> Result<Vec<u32>> {
    let mut bits = Vec::new();
    for variable in variables {
        bits.extend(variable.to_vec::<f32>()?.into_iter().map(f32::to_bits));
    }
    Ok(bits)
}

/// Wide layers one after the other, whose gradients are much larger than anything else.
fn deep(n_layers: usize) -> Result<(Model, Tensor)> {
    set_seed(5);
    let layers = (0..n_layers).fold(Sequential::new(), |model, _| model.add(Dense::new(256)));
    Ok((layers.build([256])?, Tensor::randn([2, 256])?))
}

/// The weights after two steps of that model, the most bytes that the second took, and how many of these were gradients.
fn deep_steps(
    device: &Device,
    optimizer: &mut Optimizer,
    during_backward: bool,
) -> Result<(Vec<u32>, u64, u64)> {
    let (model, x) = deep(6)?;
    let variables = model.trainable_variables();
    optimizer.prepare(&variables)?;
    let (mut peak, mut gradient_bytes) = (0, 0);
    for _ in 0..2 {
        device.pool().reset_peaks();
        let before = device.stats().in_use;
        let tape = GradientTape::new();
        let loss = tape.record(|| model.call(&x)?.square()?.mean(..))?;
        if during_backward {
            optimizer.apply_during_backward(&tape, &loss, &variables)?;
        } else {
            optimizer.apply_gradients(tape.variable_gradients(&loss, &variables)?, &variables)?;
        }
        let stats = device.stats();
        (peak, gradient_bytes) = (stats.peak_in_use - before, stats.peak_rows.get(Owner::Gradients));
    }
    Ok((bits(&variables)?, peak, gradient_bytes))
}

#[test]
fn updates_during_backward_have_the_same_bits_and_hold_one_gradient() -> Result<()> {
    for method in
        [&SGD::new(0.01).momentum(0.9) as &dyn OptimizerConfig, &Adam::new(0.01), &Adafactor::new(0.01)]
    {
        let device = Device::separate_cpu();
        let _on = device.enter();
        let (together, all, _) = deep_steps(&device, &mut method.build(), false)?;
        let (each, one, gradient_bytes) = deep_steps(&device, &mut method.build(), true)?;
        assert_eq!(each, together);
        let gradient = 256 * 256 * 4;
        assert!(all >= 6 * gradient, "all together take {all} bytes");
        assert!(one < gradient + gradient / 4, "one after the other take {one} bytes");
        assert!(gradient_bytes <= gradient, "{gradient_bytes} bytes of gradients at the peak");
    }
    Ok(())
}

#[test]
fn a_variable_that_is_read_twice_is_updated_when_both_gradients_are_there() -> Result<()> {
    let (x, shared, other) = (
        Tensor::ones([4, 4])?,
        Variable::new(Tensor::full([4, 4], 0.5)?).named("shared"),
        Variable::new(Tensor::full([4, 4], -0.25)?).named("other"),
    );
    let variables = [shared.clone(), other.clone()];
    let loss = |tape: &GradientTape| {
        tape.record(|| x.matmul(&shared)?.tanh()?.matmul(&other)?.matmul(&shared)?.sum(..))
    };
    let tape = GradientTape::new();
    let target = loss(&tape)?;
    let [of_shared, of_other] = tape.gradient(&target, [&shared, &other])?;
    let expected = [shared.sub(&of_shared)?.to_f64_vec()?, other.sub(&of_other)?.to_f64_vec()?];
    let tape = GradientTape::new();
    let target = loss(&tape)?;
    SGD::new(1.0).build().apply_during_backward(&tape, &target, &variables)?;
    assert_eq!([shared.to_f64_vec()?, other.to_f64_vec()?], expected);
    Ok(())
}

#[test]
fn updates_during_backward_are_refused_where_they_cannot_be_right() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let (v, unused) = (Variable::new(Tensor::ones([1])?), Variable::new(Tensor::ones([1])?));
    let refused = |mut optimizer: Optimizer, variables: &[Variable]| -> Result<String> {
        let tape = GradientTape::new();
        let loss = tape.record(|| v.mul(&v)?.sum(..))?;
        let outcome = optimizer.apply_during_backward(&tape, &loss, variables);
        Ok(outcome.expect_err("it cannot be right").to_string())
    };
    let (sgd, one) = (|| SGD::new(0.1).build(), [v.clone()]);
    assert!(refused(sgd().clip_norm(1.0), &one)?.contains("clipping by global norm needs all gradients"));
    assert!(refused(sgd().loss_scale(LossScale::new()), &one)?.contains("a dynamic loss scale looks for"));
    let in_step = Step::run(&device, || refused(sgd(), &one))?;
    assert!(in_step.contains("outside `Step::run`"), "{in_step}");
    let unconnected = refused(sgd(), &[v.clone(), unused])?;
    assert!(unconnected.contains("source 1 of shape [1] is not connected"), "{unconnected}");
    assert_eq!((v.item::<f32>()?, v.version()), (1.0, 0));
    Ok(())
}
