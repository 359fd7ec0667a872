//! Variables and the ops that update them, with arguments that nobody means well with: values of every form, updates of
//! variables that do not belong together, members with other states than an algorithm has, schedules of any number.

use plimsoll_tensor::optimizer::{
    Adafactor, Adagrad, Adam, Adam8bit, Algorithm, BeginStep, Common, Control, Decay, RmsProp, Scaling,
    Schedule, Sgd, UpdatedParameter, set_learning_rate,
};
use plimsoll_tensor::{DType, Device, GradientTape, OpRef, Result, Tensor, Variable, apply, with_ghosts};

use super::draw::Hostile;
use super::methods::HostileCall;

/// All of them.
pub fn updates() -> Vec<HostileCall> {
    vec![
        ("assign", assign),
        ("mixed", mixed),
        ("variable_under_tape", under_tape),
        ("with_ghosts", as_ghosts),
        ("begin_step", begin_step),
        ("update_of_tensors", update_of_tensors),
        ("update_of_variables", update_of_variables),
        ("schedule", scheduled),
    ]
}

/// A tensor like another, mostly.
fn like(h: &mut Hostile, x: &Tensor) -> Result<Tensor> {
    let dims = if h.chance(85) { x.shape().to_vec() } else { h.dims() };
    let dtype = if h.chance(90) { x.dtype() } else { h.dtype() };
    h.tensor_of(&dims, dtype)
}

/// A variable whose memory is its own, or shared, or a view of another's.
fn variable(h: &mut Hostile) -> Result<Variable> {
    Ok(Variable::new(h.tensor()?).trainable(h.chance(80)))
}

fn assign(h: &mut Hostile) -> Result<Vec<Tensor>> {
    let v = variable(h)?;
    let before = h.maybe(|_| v.value());
    for _ in 0..h.below(4) {
        let value = if h.chance(15) { v.value() } else { like(h, &v)? };
        // One that is refused leaves the variable as it was, and others follow.
        drop(match h.below(3) {
            0 => v.assign(&value),
            1 => v.assign_add(&value),
            _ => v.assign_sub(&value),
        });
    }
    Ok(before.into_iter().chain([v.value()]).collect())
}

fn mixed(h: &mut Hostile) -> Result<Vec<Tensor>> {
    let v = variable(h)?.mixed(h.dtype())?;
    let value = like(h, &v)?;
    v.assign(&value)?;
    v.assign_add(&value)?;
    Ok(vec![v.value()])
}

/// Values that a tape would make again are read, written over and read again.
fn under_tape(h: &mut Hostile) -> Result<Vec<Tensor>> {
    let v = variable(h)?;
    let other = like(h, &v)?;
    let tape = GradientTape::new().persistent(h.chance(30));
    let is_twice = h.chance(50);
    let sum = tape.record(|| {
        let y = v.affine(3.0, 1.0)?;
        v.assign(&other)?;
        let y = y.mul(&y)?;
        if is_twice {
            v.assign_add(&other)?;
        }
        y.mul(&v)?.sum(..)
    })?;
    let mut results = tape.variable_gradients(&sum, &[v])?;
    results.push(sum);
    Ok(results)
}

fn as_ghosts(h: &mut Hostile) -> Result<Vec<Tensor>> {
    let (v, x) = (variable(h)?, h.tensor()?);
    let ghost = if h.chance(80) { Device::ghost_cpu() } else { Device::current() };
    with_ghosts(std::slice::from_ref(&v), &ghost, || v.mul(&v)?.sum(..))?;
    drop(with_ghosts(std::slice::from_ref(&v), &ghost, || v.assign(&x)));
    Ok(vec![v.value()])
}

/// A schedule of any numbers.
fn schedule(h: &mut Hostile) -> Result<Schedule> {
    let (first, second, steps) = (h.number(), h.number(), h.count() as u64);
    let schedule = match h.below(8) {
        0 => Schedule::constant(first),
        1 => Schedule::exponential_decay(first, second, steps)?,
        2 => Schedule::steps(first, second, steps)?,
        3 => {
            let boundaries = h.list(|h| h.count() as u64);
            let n_values = if h.chance(80) { boundaries.len() + 1 } else { h.below(4) };
            Schedule::piecewise_constant_decay(
                &boundaries,
                &(0..n_values).map(|_| h.number()).collect::<Vec<_>>(),
            )?
        }
        4 => Schedule::polynomial_decay(first, second, steps, h.number())?,
        5 => Schedule::linear(first, second, steps)?,
        6 => Schedule::cosine_decay(first, second, steps)?,
        _ => Schedule::one_cycle(first, steps)?,
    };
    Ok(if h.chance(50) { schedule.warmed_up(h.count() as u64) } else { schedule })
}

fn scheduled(h: &mut Hostile) -> Result<Vec<Tensor>> {
    let schedule = schedule(h)?;
    let rates: Vec<f64> = (0..4).map(|_| schedule.at(h.number())).collect();
    Ok(vec![Tensor::from_slice(&rates, 4)?])
}

/// A control buffer, or something that is none.
fn control(h: &mut Hostile) -> Result<Tensor> {
    if h.chance(15) {
        return h.tensor();
    }
    let number = |h: &mut Hostile| if h.chance(60) { 1.0 } else { h.number() };
    let values: [f64; Control::LEN] = std::array::from_fn(|_| number(h));
    Control::from_array(values).to_tensor()
}

fn begin(h: &mut Hostile) -> Result<BeginStep> {
    Ok(BeginStep {
        schedule: if h.chance(40) { Some(schedule(h)?) } else { None },
        clip_norm: h.maybe(Hostile::number),
        scaling: h.maybe(|h| Scaling { growth_interval: h.count() as u32, factor: h.number() }),
        if_finite: h.chance(30),
    })
}

/// What the op that begins a step reads beside the buffer, or something else.
fn begin_inputs(h: &mut Hostile, begin: &BeginStep) -> Result<Vec<Tensor>> {
    let mut inputs = Vec::new();
    if begin.needs_norm() == h.chance(95) {
        inputs = vec![h.tensor_of(&[], DType::F32)?, h.indices(&[], 3)?];
    }
    if begin.if_finite == h.chance(95) {
        inputs.push(h.tensor_of(&[], DType::F64)?);
    }
    if h.chance(10) {
        inputs.push(h.tensor()?);
    }
    Ok(inputs)
}

fn begin_step(h: &mut Hostile) -> Result<Vec<Tensor>> {
    let (begin, buffer) = (begin(h)?, control(h)?);
    if h.chance(20) {
        let rate = if h.chance(70) { h.tensor_of(&[1], DType::F64)? } else { h.tensor()? };
        return Ok(apply(set_learning_rate(), &[&buffer, &rate])?.into_vec());
    }
    let inputs = begin_inputs(h, &begin)?;
    let op = begin.op();
    if h.chance(50) {
        return Ok(apply(op, &[&buffer].into_iter().chain(&inputs).collect::<Vec<_>>())?.into_vec());
    }
    let variable = Variable::new(buffer);
    Variable::update(op, &[&variable], &inputs.iter().collect::<Vec<_>>())?;
    Ok(vec![variable.value()])
}

fn algorithm(h: &mut Hostile) -> Box<dyn Algorithm> {
    let (a, b, epsilon) = (h.number(), h.number(), h.number());
    match h.below(6) {
        0 => Box::new(Sgd { momentum: a, nesterov: h.chance(50) }),
        1 => {
            Box::new(Adam { beta_1: a, beta_2: b, epsilon, amsgrad: h.chance(50), epsilon_hat: h.chance(50) })
        }
        2 => Box::new(RmsProp { rho: a, momentum: b, epsilon, centered: h.chance(50) }),
        3 => Box::new(Adagrad { initial: a, epsilon }),
        4 => Box::new(Adam8bit { beta_1: a, beta_2: b, epsilon }),
        _ => Box::new(Adafactor {
            beta_2_decay: a,
            epsilon_1: h.maybe(Hostile::number),
            epsilon_2: epsilon,
            clip_threshold: b,
        }),
    }
}

/// An update with its operands: variables, then gradients.
struct Operands {
    op: OpRef,
    variables: Vec<Tensor>,
    gradients: Vec<Tensor>,
}

/// An update of a few parameters, of which something may be wrong.
fn operands(h: &mut Hostile) -> Result<Operands> {
    let algorithm = algorithm(h);
    let decay = match h.below(3) {
        0 => Decay::None,
        1 => Decay::L2(h.number()),
        _ => Decay::Decoupled(h.number()),
    };
    let common = Common { decay, clip_value: h.maybe(Hostile::number) };
    let (mut members, mut variables, mut gradients) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..h.below(4) {
        let (dims, dtype) = (h.dims(), if h.chance(90) { DType::F32 } else { h.dtype() });
        let parameter = h.tensor_of(&dims, dtype)?;
        let states = algorithm.states(parameter.shape(), dtype);
        let n_states = if h.chance(90) { states.len() } else { h.count() };
        members.push(UpdatedParameter { n_states, has_copy: h.chance(25), decays: h.chance(50) });
        gradients.push(if h.chance(80) { like(h, &parameter)? } else { h.tensor_of(&dims, DType::BF16)? });
        let copy = h.tensor_of(&dims, DType::BF16)?;
        variables.push(parameter);
        for state in &states {
            let made = Tensor::full_of(state.shape, state.initial, state.dtype)?;
            variables.push(if h.chance(92) { made } else { like(h, &made)? });
        }
        if members.last().is_some_and(|member| member.has_copy) && h.chance(95) {
            variables.push(copy);
        }
    }
    variables.push(control(h)?);
    if h.chance(5) {
        variables.push(h.tensor()?);
    }
    Ok(Operands { op: algorithm.update(common, &members), variables, gradients })
}

fn update_of_tensors(h: &mut Hostile) -> Result<Vec<Tensor>> {
    let Operands { op, variables, gradients } = operands(h)?;
    Ok(apply(op, &variables.iter().chain(&gradients).collect::<Vec<_>>())?.into_vec())
}

fn update_of_variables(h: &mut Hostile) -> Result<Vec<Tensor>> {
    let Operands { op, variables, gradients } = operands(h)?;
    let readers: Vec<Tensor> = variables.iter().filter(|_| h.chance(20)).cloned().collect();
    let variables: Vec<Variable> = variables.into_iter().map(Variable::new).collect();
    let mut named: Vec<&Variable> = variables.iter().collect();
    if h.chance(5) {
        named.extend(variables.first());
    }
    let begin = begin(h)?;
    let begin_inputs = begin_inputs(h, &begin)?;
    let inputs = [begin_inputs.iter().collect::<Vec<_>>(), gradients.iter().collect()];
    let control: Vec<&Variable> = variables.last().into_iter().collect();
    let updates: [(OpRef, &[&Variable], &[&Tensor]); 2] =
        [(begin.op(), &control, &inputs[0]), (op, &named, &inputs[1])];
    Variable::update_together(&updates[h.below(2)..])?;
    Ok(readers.into_iter().chain(variables.iter().map(|variable| variable.value())).collect())
}
