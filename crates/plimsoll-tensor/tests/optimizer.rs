//! Updates of variables by optimizer ops: in place, over many parameters at once, with the bits of one at a time.

#![forbid(unsafe_code)]

use plimsoll_cpu::threads::with_threads;
use plimsoll_memory::Pool;
use plimsoll_tensor::optimizer::{
    Adafactor, Adagrad, Adam, Adam8bit, Algorithm, BeginStep, Common, Control, Decay, RmsProp, Scaling, Sgd,
    UpdatedParameter,
};
use plimsoll_tensor::{DType, Device, Owner, Result, Tensor, Variable, apply, with_owner};
use plimsoll_testkit::assert_close;

fn algorithms() -> Vec<Box<dyn Algorithm>> {
    vec![
        Box::new(Sgd { momentum: 0.9, nesterov: true }),
        Box::new(Adam { beta_1: 0.9, beta_2: 0.99, epsilon: 1e-8, amsgrad: true, epsilon_hat: true }),
        Box::new(RmsProp { rho: 0.9, momentum: 0.5, epsilon: 1e-6, centered: true }),
        Box::new(Adagrad { initial: 0.1, epsilon: 1e-10 }),
        Box::new(Adam8bit { beta_1: 0.9, beta_2: 0.99, epsilon: 1e-8 }),
        Box::new(Adafactor { beta_2_decay: -0.8, epsilon_1: None, epsilon_2: 1e-3, clip_threshold: 1.0 }),
    ]
}

/// Shapes below, at and beyond the edges of tiles and tasks, and a matrix that Adafactor cuts into strips.
const SHAPES: [&[usize]; 7] = [&[1], &[1023], &[1024], &[33, 1025], &[5000], &[70, 3000], &[0]];

/// Numbers that look random and depend on their place alone.
fn numbers(shape: &[usize], salt: usize) -> Result<Tensor> {
    let n = shape.iter().product();
    let value = |idx: usize| ((idx * 7919 + salt * 104_729) % 2003) as f32 / 1001.0 - 1.0;
    Tensor::from_slice(&(0..n).map(value).collect::<Vec<f32>>(), shape)
}

/// Parameters with their states and control buffer.
struct Training<'a> {
    algorithm: &'a dyn Algorithm,
    variables: Vec<Variable>,
    members: Vec<UpdatedParameter>,
    gradients: Vec<Tensor>,
    control: Variable,
}

impl Training<'_> {
    fn new<'a>(algorithm: &'a dyn Algorithm, shapes: &[&[usize]], salt: usize) -> Result<Training<'a>> {
        let (mut variables, mut members, mut gradients) = (Vec::new(), Vec::new(), Vec::new());
        for (idx, shape) in shapes.iter().enumerate() {
            let parameter = Variable::new(numbers(shape, idx + salt)?);
            let states = algorithm.states(parameter.shape(), parameter.dtype());
            members.push(UpdatedParameter { n_states: states.len(), has_copy: false, decays: idx % 2 == 0 });
            variables.push(parameter);
            for state in states {
                let tensor = with_owner(Owner::Optimizer, || {
                    Tensor::full_of(state.shape, state.initial, state.dtype)
                })?;
                variables.push(Variable::new(tensor));
            }
            gradients.push(numbers(shape, idx + salt + 100)?);
        }
        let control = Variable::new(Control::new(0.01, 1.0).to_tensor()?);
        Ok(Training { algorithm, variables, members, gradients, control })
    }

    fn step(&self) -> Result<()> {
        let common = Common { decay: Decay::L2(0.01), clip_value: Some(0.9) };
        let operands: Vec<&Variable> = self.variables.iter().chain([&self.control]).collect();
        Variable::update_together(&[
            (BeginStep::default().op(), &[&self.control], &[]),
            (
                self.algorithm.update(common, &self.members),
                &operands,
                &self.gradients.iter().collect::<Vec<_>>(),
            ),
        ])
    }

    fn bits(&self) -> Result<Vec<Vec<u64>>> {
        let bits = |v: &Variable| Ok(v.to_f64_vec()?.into_iter().map(f64::to_bits).collect());
        self.variables.iter().map(bits).collect()
    }
}

#[test]
fn many_parameters_at_once_have_the_bits_of_one_at_a_time_for_any_number_of_threads() -> Result<()> {
    for algorithm in algorithms() {
        let mut alone = Vec::new();
        for (idx, shape) in SHAPES.iter().enumerate() {
            let mut training = Training::new(&*algorithm, &[shape], idx)?;
            training.members[0].decays = idx % 2 == 0;
            with_threads(1, || (0..3).try_for_each(|_| training.step()))?;
            alone.extend(training.bits()?);
        }
        for n_threads in [1, 2, 7] {
            let together = Training::new(&*algorithm, &SHAPES, 0)?;
            with_threads(n_threads, || (0..3).try_for_each(|_| together.step()))?;
            assert_eq!(together.bits()?, alone, "{algorithm:?} with {n_threads} threads");
        }
    }
    Ok(())
}

#[test]
fn an_update_is_in_place_and_takes_no_memory_of_a_parameters_size() -> Result<()> {
    for algorithm in algorithms() {
        let device = Device::separate_cpu();
        let _on = device.enter();
        let training = Training::new(&*algorithm, &[&[700, 3000], &[5000]], 0)?;
        let before = device.stats().in_use;
        training.step()?;
        let after = device.stats();
        assert_eq!(after.in_use, before);
        let extra = after.peak_in_use - before;
        assert!(extra <= 700 * 3000 * 4 / 8, "{algorithm:?} takes {extra} bytes");
        if !format!("{algorithm:?}").contains("Adafactor") {
            assert_eq!(extra, 0, "{algorithm:?}");
        }
    }
    Ok(())
}

#[test]
fn a_variable_that_somebody_reads_moves_and_has_the_same_bits() -> Result<()> {
    for algorithm in algorithms() {
        let (plain, read) =
            (Training::new(&*algorithm, &SHAPES, 0)?, Training::new(&*algorithm, &SHAPES, 0)?);
        plain.step()?;
        let before = read.bits()?;
        let values: Vec<Tensor> = read.variables.iter().map(Variable::value).collect();
        read.step()?;
        assert_eq!(read.bits()?, plain.bits()?, "{algorithm:?}");
        let held = values.iter().map(|v| Ok(v.to_f64_vec()?.into_iter().map(f64::to_bits).collect()));
        assert_eq!(held.collect::<Result<Vec<Vec<u64>>>>()?, before, "{algorithm:?}");
    }
    Ok(())
}

#[test]
fn strided_gradients_and_parameters_give_the_same_bits() -> Result<()> {
    for algorithm in algorithms() {
        let plain = Training::new(&*algorithm, &[&[33, 1025]], 0)?;
        let mut strided = Training::new(&*algorithm, &[&[33, 1025]], 0)?;
        let turned = |x: &Tensor| x.t()?.copied()?.t();
        strided.gradients[0] = turned(&strided.gradients[0])?;
        strided.variables[0] = Variable::new(turned(&strided.variables[0])?);
        assert!(!strided.gradients[0].is_contiguous());
        for training in [&plain, &strided] {
            training.step()?;
            training.step()?;
        }
        assert_eq!(strided.bits()?, plain.bits()?, "{algorithm:?}");
    }
    Ok(())
}

#[test]
fn an_overflow_changes_nothing_but_the_loss_scale() -> Result<()> {
    for algorithm in algorithms() {
        let training = Training::new(&*algorithm, &SHAPES, 0)?;
        training.step()?;
        let before = training.bits()?;
        let begin =
            BeginStep { scaling: Some(Scaling { growth_interval: 5, factor: 2.0 }), ..BeginStep::default() };
        training
            .control
            .assign(&Control { loss_scale: 8.0, ..Control::read(&training.control)? }.to_tensor()?)?;
        let (norm, second) = (Tensor::from(f32::INFINITY)?, Tensor::from(1i64)?);
        let operands: Vec<&Variable> = training.variables.iter().chain([&training.control]).collect();
        let gradients: Vec<&Tensor> = training.gradients.iter().collect();
        Variable::update_together(&[
            (begin.op(), &[&training.control], &[&norm, &second]),
            (training.algorithm.update(Common::default(), &training.members), &operands, &gradients),
        ])?;
        let control = Control::read(&training.control)?;
        assert_eq!(
            (control.loss_scale, control.step, control.skipped, control.overflow),
            (4.0, 1.0, 1.0, 2.0)
        );
        assert_eq!(training.bits()?, before, "{algorithm:?}");
    }
    Ok(())
}

#[test]
fn a_compute_copy_is_the_rounded_parameter_and_narrow_gradients_are_widened() -> Result<()> {
    for algorithm in algorithms() {
        for dtype in [DType::F16, DType::BF16] {
            let wide = Training::new(&*algorithm, &[&[70, 70]], 0)?;
            let mut narrow = Training::new(&*algorithm, &[&[70, 70]], 0)?;
            let gradient = wide.gradients[0].cast(dtype)?;
            let copy = Variable::new(narrow.variables[0].cast(dtype)?);
            let wide = Training { gradients: vec![gradient.cast(DType::F32)?], ..wide };
            narrow.gradients[0] = gradient;
            narrow.variables.push(copy.clone());
            narrow.members[0].has_copy = true;
            wide.step()?;
            narrow.step()?;
            narrow.variables.pop();
            assert_eq!(narrow.bits()?, wide.bits()?, "{algorithm:?} {dtype}");
            assert_eq!(
                copy.to_f64_vec()?,
                wide.variables[0].cast(dtype)?.to_f64_vec()?,
                "{algorithm:?} {dtype}"
            );
        }
    }
    Ok(())
}

/// One step of Adafactor in plain ops, on a matrix that the op cuts into several strips, beside PyTorch's formula.
#[test]
fn adafactor_of_a_matrix_in_strips_is_that_of_the_whole() -> Result<()> {
    let rule = Adafactor { beta_2_decay: -0.8, epsilon_1: None, epsilon_2: 1e-3, clip_threshold: 1.0 };
    let training = Training::new(&rule, &[&[700, 300]], 0)?;
    let p = training.variables[0].value().cast(DType::F64)?;
    let g = training.gradients[0].cast(DType::F64)?.clamp(-0.9, 0.9)?.add(&p.mul(0.01)?)?;
    let square = g.mul(&g)?;
    let (row, col) = (square.mean(1)?.unsqueeze(1)?, square.mean(0)?.unsqueeze(0)?);
    let update = g.div(&row.matmul(&col)?.div(&row.mean(..)?)?.sqrt()?)?;
    let root_mean = |x: &Tensor| x.mul(x)?.mean(..)?.sqrt()?.item::<f64>();
    let size = root_mean(&p)? * 0.01 / root_mean(&update)?.max(1.0);
    training.step()?;
    assert_close(&training.variables[0], &p.sub(&update.mul(size)?)?.to_f64_vec()?);
    assert_close(&training.variables[1], &row.to_f64_vec()?);
    assert_close(&training.variables[2], &col.to_f64_vec()?);
    Ok(())
}

/// Adam in eight bits takes about the way of Adam: it ends near the target, too, on a problem whose gradients range over
/// four decades inside each block.
#[test]
fn adam_in_eight_bits_finds_the_target() -> Result<()> {
    let rule = Adam8bit { beta_1: 0.9, beta_2: 0.999, epsilon: 1e-8 };
    let mut training = Training::new(&rule, &[&[64, 64]], 0)?;
    assert_eq!(training.variables[1].dtype(), DType::U8);
    let steepness: Vec<f32> = (0..4096).map(|idx| 10f32.powf(-((idx % 5) as f32))).collect();
    let (steepness, target) = (Tensor::from_slice(&steepness, [64, 64])?, numbers(&[64, 64], 9)?);
    let distance = |p: &Tensor| p.sub(&target)?.abs()?.max(..)?.item::<f32>();
    training.members[0].decays = false;
    assert!(distance(&training.variables[0])? > 1.0);
    for _ in 0..400 {
        training.gradients[0] = training.variables[0].sub(&target)?.mul(&steepness)?;
        training.step()?;
    }
    let left = distance(&training.variables[0])?;
    assert!(left < 0.05, "{left} is left");
    Ok(())
}

#[test]
fn a_variable_to_be_written_twice_is_refused() -> Result<()> {
    let training = Training::new(&Sgd { momentum: 0.0, nesterov: false }, &[&[3], &[3]], 0)?;
    let twice = Training { variables: vec![training.variables[0].clone().named("w"); 2], ..training };
    let error = twice.step().expect_err("one op cannot write a variable twice").to_string();
    assert!(error.contains("variable \"w\" is to be written twice"), "{error}");
    Ok(())
}

#[test]
fn members_with_other_states_than_the_algorithm_has_are_refused() -> Result<()> {
    // Every block ends at a page that nobody may touch: a kernel that looked for a state that is not there would end here.
    let _on = Device::over("cpu", Pool::fenced().unwrap()).enter();
    for algorithm in algorithms() {
        for shape in [&[70, 80][..], &[33]] {
            let parameter = numbers(shape, 1)?;
            let n_states = algorithm.states(parameter.shape(), parameter.dtype()).len();
            let control = Control::new(0.01, 1.0).to_tensor()?;
            for asked in (0..6).chain([usize::MAX - 1, usize::MAX]).filter(|&n| n != n_states) {
                let member = UpdatedParameter { n_states: asked, has_copy: false, decays: true };
                let op = algorithm.update(Common::default(), &[member]);
                for given in 0..6 {
                    let states = std::iter::repeat_n(&parameter, given);
                    let operands: Vec<&Tensor> =
                        [&parameter].into_iter().chain(states).chain([&control, &parameter]).collect();
                    let refused = apply(op.clone(), &operands).unwrap_err().to_string();
                    assert!(refused.contains("states"), "{refused}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn states_of_another_shape_or_dtype_are_refused() -> Result<()> {
    let _on = Device::over("cpu", Pool::fenced().unwrap()).enter();
    for algorithm in algorithms() {
        for shape in [&[70, 80][..], &[33]] {
            let parameter = numbers(shape, 1)?;
            let states = algorithm.states(parameter.shape(), parameter.dtype());
            let members = [UpdatedParameter { n_states: states.len(), has_copy: false, decays: true }];
            let made: Vec<Tensor> = states
                .iter()
                .map(|state| Tensor::full_of(state.shape, state.initial, state.dtype))
                .collect::<Result<_>>()?;
            let control = Control::new(0.01, 1.0).to_tensor()?;
            for (at, spec) in states.iter().enumerate() {
                let shorter = Tensor::full_of(spec.shape, spec.initial, spec.dtype)?.narrow(0, 0, 1)?;
                let is_one = shorter.shape() == &spec.shape;
                for other in [shorter, made[at].cast(DType::F16)?].into_iter().skip(usize::from(is_one)) {
                    let mut wrong = made.clone();
                    wrong[at] = other;
                    let operands: Vec<&Tensor> =
                        [&parameter].into_iter().chain(&wrong).chain([&control, &parameter]).collect();
                    let op = algorithm.update(Common::default(), &members);
                    let refused = apply(op, &operands).unwrap_err().to_string();
                    assert!(refused.contains(&format!("so its state `{}` is", spec.name)), "{refused}");
                }
            }
        }
    }
    Ok(())
}
