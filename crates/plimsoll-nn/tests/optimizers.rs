//! Optimizers: PyTorch's numbers, state by name, all or nothing, loss scale, accumulation, updates during backward.

use std::slice::from_ref;

use plimsoll_memory::testing::Fail;
use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::optimizers::{
    Accumulator, Adafactor, Adagrad, Adam, Adam8bit, AdamW, LossScale, Optimizer, OptimizerConfig,
    ParameterGroup, RMSprop, SGD,
};
use plimsoll_nn::{Layer, Model, Policy, with_policy};
use plimsoll_tensor::optimizer::Schedule;
use plimsoll_tensor::{
    Activation, DType, Device, Error, GradientTape, Owner, Result, Step, Tensor, Variable, set_seed,
};
use plimsoll_testkit::assert_close;

fn vector(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len()).expect("memory for a few numbers")
}

/// A variable after some steps towards [0.5, 0.25, -1].
fn after_steps(method: &dyn OptimizerConfig, n_steps: usize) -> Result<Variable> {
    let (variable, target) = (Variable::new(vector(&[1.0, -2.0, 3.0])), vector(&[0.5, 0.25, -1.0]));
    let mut optimizer = method.build();
    for _ in 0..n_steps {
        let gradient = variable.sub(&target)?;
        optimizer.apply_gradients(vec![gradient], from_ref(&variable))?;
    }
    Ok(variable)
}

/// Recorded from PyTorch 2.15 with a learning rate of 0.1 and, but for what is set here, its defaults.
#[test]
fn five_steps_are_those_of_pytorch() -> Result<()> {
    let momentum = SGD::new(0.1).momentum(0.9).nesterov(true).weight_decay(0.1);
    let recorded: [(&dyn OptimizerConfig, [f64; 3]); 8] = [
        (&SGD::new(0.1), [0.7952449, -1.0786026, 1.3619601]),
        (&momentum, [0.3655006, 0.5908727, -1.547246]),
        (&Adam::new(0.1), [0.5278145, -1.5025399, 2.5012677]),
        (&Adam8bit::new(0.1), [0.5278145, -1.5025399, 2.5012677]),
        (&AdamW::new(0.1), [0.524326, -1.4936184, 2.4873381]),
        (&RMSprop::new(0.1), [0.5021746, -1.0343524, 1.987278]),
        (&Adagrad::new(0.1), [0.7226918, -1.6856086, 2.6816719]),
        (&Adafactor::new(0.1), [0.5065123, -1.1566008, 2.1247487]),
    ];
    for (method, expected) in recorded {
        assert_close(&after_steps(method, 5)?.value(), &expected);
    }
    Ok(())
}

/// Recorded from Keras 3.15 with a learning rate of 0.1 and an epsilon that is large enough to tell both forms apart.
#[test]
fn five_steps_with_epsilon_hat_are_those_of_keras() -> Result<()> {
    let adam = Adam::new(0.1).epsilon(0.1).epsilon_hat(true);
    let adamw = AdamW::new(0.1).epsilon(0.1).epsilon_hat(true);
    let recorded: [(&dyn OptimizerConfig, [f64; 3]); 3] = [
        (&adam, [0.8998646, -1.7361425, 2.6679463]),
        (&adam.amsgrad(true), [0.8998646, -1.7361425, 2.6679463]),
        (&adamw, [0.8952517, -1.7267803, 2.6537023]),
    ];
    for (method, expected) in recorded {
        assert_close(&after_steps(method, 5)?.value(), &expected);
    }
    Ok(())
}

/// A small network, with a loss that every variable has a part in.
struct Training {
    model: Model,
    x: Tensor,
}

impl Training {
    fn new(policy: Policy) -> Result<Training> {
        set_seed(3);
        let layers = Sequential::new()
            .add(Dense::new(16).activation(Activation::Relu))
            .add(Dense::new(16).activation(Activation::Relu))
            .add(Dense::new(4));
        let model = with_policy(policy, || layers.build([12]))?;
        Ok(Training { model, x: Tensor::randn([8, 12])? })
    }

    fn loss(&self, tape: &GradientTape) -> Result<Tensor> {
        tape.record(|| {
            let y = self.model.call(&self.x)?;
            y.mul(&y)?.mean(..)
        })
    }

    fn gradients(&self, tape: &GradientTape, loss: &Tensor) -> Result<Vec<Tensor>> {
        tape.variable_gradients(loss, &self.model.trainable_variables())
    }

    fn step(&self, optimizer: &mut Optimizer) -> Result<()> {
        let tape = GradientTape::new();
        let loss = self.loss(&tape)?;
        let loss = tape.record(|| optimizer.scale_loss(&loss))?;
        let gradients = self.gradients(&tape, &loss)?;
        optimizer.apply_gradients(gradients, &self.model.trainable_variables())
    }

    fn bits(&self) -> Result<Vec<u64>> {
        bits(&self.model.variables())
    }
}

fn bits(variables: &[Variable]) -> Result<Vec<u64>> {
    let mut bits = Vec::new();
    for variable in variables {
        let values = variable.master().unwrap_or(variable).to_f64_vec()?;
        bits.extend(values.into_iter().map(f64::to_bits));
    }
    Ok(bits)
}

#[test]
fn state_is_made_once_named_by_path_and_owned_by_the_optimizer() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let training = Training::new(Policy::Float32)?;
    let mut optimizer = Adam::new(1e-3).build();
    assert!(optimizer.variables().is_empty());
    training.step(&mut optimizer)?;
    let names: Vec<String> = optimizer.variables().iter().map(Variable::name).collect();
    assert_eq!(names[..3], ["optimizer.control", "optimizer.m.dense.kernel", "optimizer.v.dense.kernel"]);
    assert_eq!(names.len(), 1 + 2 * training.model.variables().len());
    let owned = device.stats().rows().get(Owner::Optimizer);
    assert_eq!(owned as usize, 64 + 2 * 4 * training.model.n_parameters());
    let in_use = device.stats().in_use;
    training.step(&mut optimizer)?;
    assert_eq!((device.stats().in_use, optimizer.steps()?), (in_use, 2));
    Ok(())
}

#[test]
fn other_variables_and_wrong_gradients_are_refused_by_name() -> Result<()> {
    let (a, b) = (Variable::new(vector(&[1.0])).named("a"), Variable::new(vector(&[2.0])).named("b"));
    let mut optimizer = SGD::new(0.1).build();
    let one = || vector(&[1.0]);
    let text = |error: Error| error.to_string();
    let missing = optimizer.apply_gradients(vec![one()], &[a.clone(), b.clone()]).map_err(text);
    assert!(missing.unwrap_err().contains("1 gradients for 2 variables"));
    let shape = optimizer.apply_gradients(vec![vector(&[1.0, 2.0])], from_ref(&a)).map_err(text);
    assert!(shape.unwrap_err().contains("variable \"a\" is [1], but its gradient [2]"));
    let none = optimizer.apply_gradients(vec![], &[]).map_err(text);
    assert!(none.unwrap_err().contains("no variables"));
    optimizer.apply_gradients(vec![one()], from_ref(&a))?;
    let other = optimizer.apply_gradients(vec![one()], from_ref(&b)).map_err(text).unwrap_err();
    assert!(other.contains("number 0: \"a\" was expected, not \"b\""), "{other}");
    assert!(optimizer.apply_gradients(vec![one(), one()], &[a.clone(), b.clone()]).is_err());
    assert_eq!((a.item::<f32>()?, b.item::<f32>()?), (0.9, 2.0));
    Ok(())
}

#[test]
fn a_step_holds_back_the_update_and_gives_the_same_bits() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let (outside, inside) = (Training::new(Policy::Float32)?, Training::new(Policy::Float32)?);
    let (mut first, mut second) =
        (Adam::new(0.01).build().clip_norm(0.1), Adam::new(0.01).build().clip_norm(0.1));
    for _ in 0..3 {
        outside.step(&mut first)?;
        Step::run(&device, || inside.step(&mut second))?;
    }
    assert_eq!(outside.bits()?, inside.bits()?);
    let before = (inside.bits()?, bits(&second.variables())?);
    let failed: Result<()> = Step::run(&device, || {
        inside.step(&mut second)?;
        Err(Error::argument("test", "the step fails after its update"))
    });
    assert!(failed.is_err());
    assert_eq!((inside.bits()?, bits(&second.variables())?), before);
    Ok(())
}

#[test]
fn each_failing_acquisition_changes_nothing() -> Result<()> {
    for in_step in [false, true] {
        let device = Device::separate_cpu();
        let _on = device.enter();
        let mut n_failed = 0;
        for nth in 1.. {
            let training = Training::new(Policy::MixedFloat16)?;
            let mut optimizer = Adafactor::new(0.01).build().clip_norm(0.1).loss_scale(LossScale::new());
            // The update has to move what somebody else reads, so it takes memory, too.
            let held: Vec<Tensor> = training.model.variables().iter().map(Variable::value).collect();
            let before = (training.bits()?, optimizer.control()?);
            device.pool().fail_acquisition(nth);
            let outcome = match in_step {
                true => Step::run(&device, || training.step(&mut optimizer)),
                false => training.step(&mut optimizer),
            };
            device.pool().fail_acquisitions(Fail::Never);
            let Err(error) = outcome else { break };
            assert!(error.is_out_of_memory(), "{error}");
            let control = optimizer.control()?;
            assert_eq!(training.bits()?, before.0, "acquisition {nth}");
            assert_eq!((control.step, control.loss_scale), (before.1.step, before.1.loss_scale));
            training.step(&mut optimizer)?;
            assert_eq!(optimizer.steps()?, 1);
            drop(held);
            n_failed += 1;
        }
        assert!(n_failed > 40, "a step takes memory more than {n_failed} times");
        assert_eq!(device.stats().in_use, 0);
    }
    Ok(())
}

#[test]
fn a_restored_optimizer_continues_bit_for_bit() -> Result<()> {
    let (whole, resumed) = (Training::new(Policy::MixedFloat16)?, Training::new(Policy::MixedFloat16)?);
    let build = || -> Result<Optimizer> {
        let schedule = Schedule::cosine_decay(0.01, 0.001, 20)?.warmed_up(2);
        Ok(Adam::new(0.01).build().schedule(schedule).loss_scale(LossScale::new().growth_interval(3)))
    };
    let mut optimizer = build()?;
    (0..4).try_for_each(|_| whole.step(&mut optimizer))?;
    let saved: Vec<Tensor> = optimizer.variables().iter().map(Variable::value).collect();
    let weights = whole.model.variables();
    let weights: Vec<Tensor> = weights.iter().map(|v| v.master().unwrap_or(v).value()).collect();
    (0..4).try_for_each(|_| whole.step(&mut optimizer))?;

    let mut again = build()?;
    again.prepare(&resumed.model.trainable_variables())?;
    again.variables().iter().zip(&saved).try_for_each(|(variable, value)| variable.assign(value))?;
    resumed
        .model
        .variables()
        .iter()
        .zip(&weights)
        .try_for_each(|(variable, value)| variable.assign(value))?;
    (0..4).try_for_each(|_| resumed.step(&mut again))?;
    assert_eq!(resumed.bits()?, whole.bits()?);
    assert_eq!(bits(&again.variables())?, bits(&optimizer.variables())?);
    Ok(())
}

#[test]
fn gradients_are_clipped_by_value_and_by_norm() -> Result<()> {
    let moved = |optimizer: Optimizer, gradient: &[f32]| -> Result<Vec<f32>> {
        let (mut optimizer, v) = (optimizer, Variable::new(Tensor::zeros([gradient.len()])?));
        optimizer.apply_gradients(vec![vector(gradient)], from_ref(&v))?;
        v.to_vec()
    };
    let sgd = || SGD::new(1.0).build();
    assert_eq!(moved(sgd().clip_value(0.5), &[0.25, -3.0, 0.75])?, [-0.25, 0.5, -0.5]);
    assert_eq!(moved(sgd().clip_norm(2.5), &[3.0, 4.0])?, [-1.5, -2.0]);
    assert_eq!(moved(sgd().clip_norm(10.0), &[3.0, 4.0])?, [-3.0, -4.0]);
    Ok(())
}

#[test]
fn decay_leaves_out_what_is_excluded_by_name() -> Result<()> {
    let variables = ["block.kernel", "block.bias"].map(|name| Variable::new(vector(&[1.0])).named(name));
    for optimizer in [AdamW::new(0.1).weight_decay(0.5).build(), SGD::new(0.1).weight_decay(0.5).build()] {
        variables.iter().try_for_each(|variable| variable.assign(&vector(&[1.0])))?;
        let mut optimizer = optimizer.exclude_from_weight_decay(&["bias"]);
        optimizer.apply_gradients(vec![vector(&[0.0]); 2], &variables)?;
        assert_eq!(variables.each_ref().map(|v| v.item::<f32>().ok()), [Some(0.95), Some(1.0)]);
    }
    Ok(())
}

#[test]
fn the_learning_rate_is_set_or_follows_its_schedule() -> Result<()> {
    let variable = Variable::new(vector(&[0.0]));
    let one = || vec![vector(&[1.0])];
    let mut optimizer = SGD::new(0.5).build();
    optimizer.set_learning_rate(0.25)?;
    optimizer.apply_gradients(one(), from_ref(&variable))?;
    assert_eq!((variable.item::<f32>()?, optimizer.learning_rate()?), (-0.25, 0.25));
    optimizer.set_learning_rate(1.0)?;
    optimizer.apply_gradients(one(), from_ref(&variable))?;
    assert_eq!(variable.item::<f32>()?, -1.25);

    variable.assign(&vector(&[0.0]))?;
    let mut optimizer =
        SGD::new(9.0).build().schedule(Schedule::piecewise_constant_decay(&[1, 2], &[1.0, 0.5, 0.25])?);
    for expected in [-1.0, -1.5, -1.75] {
        optimizer.apply_gradients(one(), from_ref(&variable))?;
        assert_eq!(variable.item::<f32>()?, expected);
    }
    Ok(())
}

#[test]
fn a_rate_that_is_set_under_a_schedule_begins_there_and_keeps_its_shape() -> Result<()> {
    let variable = Variable::new(vector(&[0.0]));
    let schedule = Schedule::piecewise_constant_decay(&[2, 3], &[1.0, 0.5, 0.25])?;
    let mut optimizer = SGD::new(9.0).build().schedule(schedule);
    let rate = |optimizer: &mut Optimizer| {
        optimizer.apply_gradients(vec![vector(&[1.0])], from_ref(&variable))?;
        optimizer.learning_rate()
    };
    assert_eq!(rate(&mut optimizer)?, 1.0);
    optimizer.set_learning_rate(0.5)?;
    assert_eq!([rate(&mut optimizer)?, rate(&mut optimizer)?], [0.5, 0.25]);
    optimizer.scale_learning_rate(4.0)?;
    assert_eq!(rate(&mut optimizer)?, 0.5);
    let mut ended = SGD::new(1.0).build().schedule(Schedule::constant(0.0));
    let error = ended.set_learning_rate(1.0).unwrap_err().to_string();
    assert!(error.contains("the schedule says 0 at step 0"), "{error}");
    Ok(())
}

#[test]
fn groups_have_rates_and_decay_of_their_own() -> Result<()> {
    let names = ["encoder.kernel", "encoder.bias", "head.kernel", "head.bias"];
    let variables = names.map(|name| Variable::new(vector(&[1.0])).named(name));
    let mut optimizer = SGD::new(0.5)
        .weight_decay(0.5)
        .build()
        .clip_norm(1e9)
        .group(ParameterGroup::new("encoder.kernel").learning_rate(0.25))
        .group(ParameterGroup::new("bias").weight_decay(0.0));
    let values = || variables.each_ref().map(|variable| variable.item::<f32>().unwrap());
    optimizer.apply_gradients(vec![vector(&[1.0]); 4], &variables)?;
    // 1 - rate (1 + decay): rate 0.25 with decay, 0.5 without, 0.5 with, 0.5 without.
    assert_eq!(values(), [1.0 - 0.25 * 1.5, 0.5, 1.0 - 0.5 * 1.5, 0.5]);
    let names: Vec<String> = optimizer.variables().iter().map(Variable::name).collect();
    assert_eq!(names, ["optimizer.control", "optimizer.control.0"]);
    variables.iter().try_for_each(|variable| variable.assign(&vector(&[0.0])))?;
    optimizer.scale_learning_rate(0.5)?;
    optimizer.apply_gradients(vec![vector(&[1.0]); 4], &variables)?;
    assert_eq!(values(), [-0.125, -0.25, -0.25, -0.25]);
    Ok(())
}

#[test]
fn variables_that_are_left_out_for_a_while_keep_their_moments() -> Result<()> {
    let variables = ["a", "b"].map(|name| Variable::new(vector(&[0.0])).named(name));
    let mut optimizer = SGD::new(1.0).momentum(0.5).build();
    let one = || vector(&[1.0]);
    optimizer.apply_gradients(vec![one(), one()], &variables)?;
    optimizer.select(from_ref(&variables[1]))?;
    optimizer.apply_gradients(vec![one()], from_ref(&variables[1]))?;
    optimizer.select(&variables)?;
    optimizer.apply_gradients(vec![one(), one()], &variables)?;
    // a: steps of 1 and 1.5, as if there had been no pause; b: 1, 1.5 and 1.75.
    assert_eq!(variables.each_ref().map(|v| v.item::<f32>().unwrap()), [-2.5, -4.25]);
    assert!(optimizer.apply_gradients(vec![one()], from_ref(&variables[0])).is_err());
    Ok(())
}

#[test]
fn an_overflow_is_skipped_named_and_halves_the_scale() -> Result<()> {
    let variables = ["a", "b"].map(|name| Variable::new(vector(&[1.0])).named(name));
    let scale = LossScale::new().initial(8.0).growth_interval(2);
    let mut optimizer = SGD::new(1.0).momentum(0.5).build().loss_scale(scale);
    let mut step = |a: f32, b: f32| -> Result<(f64, Option<String>)> {
        optimizer.apply_gradients(vec![vector(&[a]), vector(&[b])], &variables)?;
        Ok((optimizer.control()?.loss_scale, optimizer.overflowed()?))
    };
    assert_eq!(step(8.0, f32::INFINITY)?, (4.0, Some("b".to_owned())));
    assert_eq!(step(f32::NAN, f32::NAN)?, (2.0, Some("a".to_owned())));
    assert_eq!(variables.each_ref().map(|v| v.item::<f32>().ok()), [Some(1.0), Some(1.0)]);
    // Gradients are those of the scaled loss.
    assert_eq!(step(1.0, 2.0)?, (2.0, None));
    assert_eq!(variables.each_ref().map(|v| v.item::<f32>().ok()), [Some(0.5), Some(0.0)]);
    assert_eq!(step(0.0, 0.0)?, (4.0, None));
    let control = optimizer.control()?;
    assert_eq!((control.step, control.skipped, control.good_steps), (2.0, 2.0, 0.0));
    Ok(())
}

#[test]
fn mixed_precision_with_a_loss_scale_trains() -> Result<()> {
    for policy in [Policy::MixedFloat16, Policy::MixedBfloat16] {
        let training = Training::new(policy)?;
        let mut optimizer = Adam::new(0.01).build().loss_scale(LossScale::new());
        let loss = || -> Result<f32> {
            let y = training.model.infer(&training.x)?.cast(DType::F32)?;
            y.mul(&y)?.mean(..)?.item()
        };
        let before = loss()?;
        (0..60).try_for_each(|_| training.step(&mut optimizer))?;
        let after = loss()?;
        assert!(after < before / 20.0, "{policy}: from {before} to {after}");
        for variable in training.model.variables() {
            let master = variable.master().expect("a mixed variable has a master");
            assert_eq!(variable.to_f64_vec()?, master.cast(variable.dtype())?.to_f64_vec()?);
        }
    }
    Ok(())
}

#[test]
fn parts_of_a_batch_add_up_in_place_to_the_whole() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let training = Training::new(Policy::Float32)?;
    let tape = GradientTape::new();
    let loss = training.loss(&tape)?;
    let whole = training.gradients(&tape, &loss)?;
    drop(tape);
    let mut accumulator = Accumulator::new();
    let mut in_use = Vec::new();
    for (start, len) in [(0, 3), (3, 3), (6, 2)] {
        let part = Training { model: training.model.clone(), x: training.x.narrow(0, start, len)? };
        let tape = GradientTape::new();
        let loss = part.loss(&tape)?;
        let loss = tape.record(|| loss.mul(len as f64 / 8.0))?;
        accumulator.add(part.gradients(&tape, &loss)?)?;
        drop((part, tape, loss));
        in_use.push(device.stats().in_use);
    }
    assert!(in_use.iter().all(|&bytes| bytes == in_use[0]), "{in_use:?}");
    let sums = accumulator.take();
    assert!(accumulator.is_empty());
    for (sum, whole) in sums.iter().zip(&whole) {
        assert_close(sum, &whole.to_f64_vec()?);
    }
    Ok(())
}

#[test]
fn narrow_gradients_add_up_in_single_precision() -> Result<()> {
    let mut accumulator = Accumulator::new();
    let small = vector(&[1.0, 1e-3]).cast(DType::F16)?;
    for _ in 0..3 {
        accumulator.add(vec![small.clone()])?;
    }
    let sums = accumulator.take();
    assert_eq!(sums[0].dtype(), DType::F32);
    assert_close(&sums[0], &small.to_f64_vec()?.iter().map(|x| 3.0 * x).collect::<Vec<_>>());
    accumulator.add(vec![small.clone()])?;
    let error = accumulator.add(vec![small.clone(), small]).expect_err("another number").to_string();
    assert!(error.contains("1 gradients are added up, but 2"), "{error}");
    accumulator.add(vec![vector(&[1.0])])?;
    let error = accumulator.add(vec![vector(&[1.0, 2.0])]).expect_err("another shape").to_string();
    assert!(error.contains("a gradient of [2] cannot be added to one of [1]"), "{error}");
    Ok(())
}

#[test]
fn variables_of_several_ops_are_updated_as_each_would_be_alone() -> Result<()> {
    let make = |n: usize| Ok(Variable::new(Tensor::full([3], n as f64 / 7.0)?).named(&format!("v{n}")));
    let gradient = |n: usize, step: usize| Tensor::full([3], (n * step) as f64 / 11.0 - 3.0);
    // One op takes 64 of them.
    let variables: Vec<Variable> = (0..150).map(make).collect::<Result<_>>()?;
    let mut together = Adam::new(0.1).build();
    for step in 1..3 {
        let gradients = (0..150).map(|n| gradient(n, step)).collect::<Result<_>>()?;
        together.apply_gradients(gradients, &variables)?;
    }
    assert_eq!(together.steps()?, 2);
    for n in [0, 63, 64, 127, 128, 149] {
        let (alone, mut optimizer) = ([make(n)?], Adam::new(0.1).build());
        for step in 1..3 {
            optimizer.apply_gradients(vec![gradient(n, step)?], &alone)?;
        }
        assert_eq!(variables[n].to_vec::<f32>()?, alone[0].to_vec::<f32>()?, "variable {n}");
    }
    Ok(())
}
