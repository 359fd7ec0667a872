//! What the registry knows of the elementwise rules: samples made from what each rule states.
//!
//! An update is a function of its operands like any op; called as one, it writes its results into fresh memory. The
//! samples call it so: once with every operand given, against plain loops, and for ten steps over two parameters, against
//! PyTorch's optimizers. The tests of variables check that the same update in place gives the same bits.

use smallvec::SmallVec;

use super::{Algorithm, Common, Control, Decay, Rule, UpdatedParameter};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::execute::{Arg, execute};
use crate::eager::op::OpRef;
use crate::eager::tensor::Tensor;
use crate::ops::registry::{Array, Input, OpInfo, Sample, Values, input};

/// The learning rate of all samples.
const RATE: f64 = 0.1;

/// How many steps the longer samples make.
const N_STEPS: i32 = 10;

/// A rule with its attributes, to be tested against PyTorch.
pub(crate) struct RuleSample<R> {
    /// What is special about it.
    pub name: &'static str,
    /// The rule.
    pub rule: R,
    /// What comes before the rule.
    pub common: Common,
    /// The expression that makes PyTorch's optimizer of the list `parameters`, with a learning rate of 0.1.
    pub torch: &'static str,
}

/// The registry's entry of a rule.
pub(super) const fn info<R: Rule>() -> OpInfo {
    OpInfo { name: R::NAME, doc: R::DOC, samples: samples::<R> }
}

fn samples<R: Rule>() -> Vec<Sample> {
    let samples = R::samples();
    let matrices = ten_steps(&samples[0], ", ten steps of a matrix and a number", [&[4, 9], &[]]);
    let each = samples
        .iter()
        .flat_map(|sample| [one_step(sample), ten_steps(sample, ", ten steps", [&[7], &[2, 3, 5]])]);
    each.chain([matrices]).collect()
}

/// Values whose gradients are not asked for.
pub(super) fn constants(shape: &[usize], low: f64, high: f64) -> Input {
    input(shape, Values::Constants(low, high))
}

/// A tensor in the dtype that parameters of its dtype have.
pub(super) fn wide(x: &Tensor) -> Result<Tensor> {
    x.cast(x.dtype().accumulator())
}

/// The control buffer at a step, beginning at one; made by ops, so that records lead to it.
pub(super) fn control_at(step: i32) -> Result<Tensor> {
    let control = Control { step: f64::from(step), ..Control::new(RATE, 1.0) };
    let number = |value: f64| Tensor::full_of([1], value, DType::F64);
    let numbers: Vec<Tensor> = control.to_array().into_iter().map(number).collect::<Result<_>>()?;
    Tensor::concat(&numbers.iter().collect::<Vec<_>>(), 0)
}

/// Runs an update as a function.
pub(super) fn call_update(op: OpRef, operands: &[&Tensor]) -> Result<Vec<Tensor>> {
    let args: SmallVec<[Arg<'_>; 3]> = operands.iter().map(|tensor| Arg::Lent(tensor)).collect();
    Ok(execute(op, args)?.into_vec())
}

/// One step of one parameter from given states, which plain loops repeat.
fn one_step<R: Rule>(sample: &RuleSample<R>) -> Sample {
    const STEP: i32 = 3;
    let (rule, common) = (sample.rule.clone(), sample.common);
    let member = UpdatedParameter { n_states: rule.slots().len(), has_copy: false, decays: true };
    // The rule's variance of gradients stays positive for states of this range.
    let states = (0..member.n_states).map(|_| constants(&[3, 5], 0.3, 0.5));
    let shape = [constants(&[3, 5], -2.0, 2.0)];
    let inputs: Vec<Input> =
        shape.clone().into_iter().chain(states).chain([constants(&[3, 5], -1.0, 1.0)]).collect();
    let op = rule.update(common, &[member]);
    let wrong = |at: usize, other: Input| {
        let mut inputs = inputs.clone();
        inputs[at] = other;
        inputs
    };
    let (last, of_i64) = (inputs.len() - 1, |shape: &[usize]| input(shape, Values::Of(DType::I64, 0.0, 5.0)));
    let refused = [
        (wrong(last, constants(&[5, 3], 0.0, 1.0)), "but its gradient [5, 3]"),
        (wrong(last, of_i64(&[3, 5])), "a float32 parameter takes gradients of float32, float16 or bfloat16"),
        (wrong(0, of_i64(&[3, 5])), "parameters are float32 or float64"),
    ];
    let call = move |x: &[Tensor]| {
        let (gradient, variables) = x.split_last().expect("a parameter and a gradient");
        let variables: Vec<Tensor> = variables.iter().map(wide).collect::<Result<_>>()?;
        let control = control_at(STEP)?;
        let operands: Vec<&Tensor> = variables.iter().chain([&control, gradient]).collect();
        let mut results = call_update(op.clone(), &operands)?;
        results.truncate(variables.len());
        Ok(results)
    };
    let mut sample = Sample::many(format!("{}, one step", sample.name), inputs, call);
    sample.refuses.extend(refused);
    sample.references(move |x| {
        let mut results: Vec<Array> = x[..last].to_vec();
        for at in 0..results[0].values.len() {
            let mut element: Vec<f64> = results.iter().map(|array| array.values[at]).collect();
            step_element(&rule, &common, STEP, &mut element, x[last].values[at]);
            results.iter_mut().zip(element).for_each(|(array, value)| array.values[at] = value);
        }
        results
    })
}

/// One step of a parameter's element, which its states follow.
fn step_element<R: Rule>(rule: &R, common: &Common, step: i32, element: &mut [f64], gradient: f64) {
    let (parameter, states) = element.split_first_mut().expect("a parameter");
    let mut gradient = common.clip_value.map_or(gradient, |clip| gradient.clamp(-clip, clip));
    match common.decay {
        Decay::None => {}
        Decay::L2(weight) => gradient += weight * *parameter,
        Decay::Decoupled(weight) => *parameter -= RATE * weight * *parameter,
    }
    *parameter = rule.reference(step, RATE, *parameter, gradient, states);
}

/// Ten steps of two parameters; the gradient is the way from a target.
fn ten_steps<R: Rule>(sample: &RuleSample<R>, name: &str, shapes: [&[usize]; 2]) -> Sample {
    let (rule, common) = (sample.rule.clone(), sample.common);
    let call = steps(rule.clone(), common, N_STEPS);
    let initial: Vec<f64> = rule.slots().iter().map(|&(_, initial)| initial).collect();
    Sample::many(format!("{}{name}", sample.name), parameters_and_targets(shapes), call)
        .references(move |x| {
            let each = |(parameter, target): (&Array, &Array)| {
                let mut result = parameter.clone();
                for (value, target) in result.values.iter_mut().zip(&target.values) {
                    let mut element = [&[*value], &initial[..]].concat();
                    for step in 1..=N_STEPS {
                        let gradient = element[0] - target;
                        step_element(&rule, &common, step, &mut element, gradient);
                    }
                    *value = element[0];
                }
                result
            };
            x[..2].iter().zip(&x[2..]).map(each).collect()
        })
        .torch(torch_steps(sample.torch, N_STEPS))
}

/// Two parameters and their targets.
pub(super) fn parameters_and_targets(shapes: [&[usize]; 2]) -> Vec<Input> {
    [shapes, shapes].as_flattened().iter().map(|shape| constants(shape, -2.0, 2.0)).collect()
}

/// PyTorch's expression for steps of two parameters.
pub(super) fn torch_steps(torch: &str, n_steps: i32) -> String {
    format!("optimize(lambda parameters: {torch}, [x0, x1], [x2, x3], {n_steps})")
}

/// Steps of two parameters whose gradients are the ways from their targets.
pub(super) fn steps<A: Algorithm>(
    algorithm: A,
    common: Common,
    n_steps: i32,
) -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static {
    move |x| {
        let x: Vec<Tensor> = x.iter().map(wide).collect::<Result<_>>()?;
        let (parameters, targets) = x.split_at(2);
        let (mut variables, mut members, mut firsts) = (Vec::new(), Vec::new(), Vec::new());
        for parameter in parameters {
            let states = algorithm.states(parameter.shape(), parameter.dtype());
            members.push(UpdatedParameter { n_states: states.len(), has_copy: false, decays: true });
            firsts.push(variables.len());
            variables.push(parameter.clone());
            for state in states {
                variables.push(Tensor::full_of(state.shape, state.initial, state.dtype)?);
            }
        }
        let op = algorithm.update(common, &members);
        for step in 1..=n_steps {
            let control = control_at(step)?;
            let distances = firsts.iter().zip(targets).map(|(&first, target)| variables[first].sub(target));
            let gradients: Vec<Tensor> = distances.collect::<Result<_>>()?;
            let operands: Vec<&Tensor> = variables.iter().chain([&control]).chain(&gradients).collect();
            let mut results = call_update(op.clone(), &operands)?;
            results.truncate(variables.len());
            variables = results;
        }
        Ok(firsts.into_iter().map(|first| variables[first].clone()).collect())
    }
}
