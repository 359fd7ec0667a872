//! Every check sees what it is there for: ops that are wrong in one way each, and one that is right.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_tensor::op::{Gradient, Meta, Op, Outputs, Run, SavedRef, SavedRefs, Tensors, view};
use plimsoll_tensor::ops::registry::{OpInfo, Sample, floats, registry};
use plimsoll_tensor::{Backward, DType, OpRef, Result, Tensor, apply};
use plimsoll_testkit::{CheckOutcome, Need, checks};

/// What an op that looks at its first input does in backward.
type BackwardFn = Box<dyn Fn(&mut Backward<'_>) -> Result<()> + Send + Sync>;

/// An op whose output is its first input, and whose backward and composite are as wrong as a test wants them.
struct Pass {
    backward: BackwardFn,
    composite: fn(&[&Tensor]) -> Result<Tensor>,
    gradient: Gradient,
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pass")
    }
}

impl Op for Pass {
    fn name(&self) -> &'static str {
        "pass"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        view(inputs[0].layout)
    }

    fn run(&self, _run: &mut Run<'_>) -> Result<()> {
        Ok(())
    }

    fn gradient(&self) -> Gradient {
        self.gradient
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        [SavedRef::Input(0)].into_iter().collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        (self.backward)(backward)
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        Some((self.composite)(inputs).map(|output| [output].into_iter().collect()))
    }
}

/// The first input, with a backward that multiplies the gradient.
fn pass(inputs: &[Tensor], factor: impl Fn(&Backward<'_>) -> f64 + Send + Sync + 'static) -> Result<Tensor> {
    let backward = move |backward: &mut Backward<'_>| {
        let gradient = backward.gradient()?;
        backward.set_grad(0, gradient.affine(factor(backward), 0.0)?)
    };
    run(inputs, Box::new(backward), |x| x[0].affine(1.0, 0.0), Gradient::Backward)
}

/// The first input, with a right backward and a composite that is not the same function.
fn with_composite(inputs: &[Tensor], composite: fn(&[&Tensor]) -> Result<Tensor>) -> Result<Tensor> {
    let backward = |backward: &mut Backward<'_>| {
        let gradient = backward.gradient()?;
        backward.set_grad(0, gradient)
    };
    run(inputs, Box::new(backward), composite, Gradient::Backward)
}

fn run(
    inputs: &[Tensor],
    backward: BackwardFn,
    composite: fn(&[&Tensor]) -> Result<Tensor>,
    gradient: Gradient,
) -> Result<Tensor> {
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    Ok(apply(OpRef::new(Pass { backward, composite, gradient }), &inputs)?.remove(0))
}

/// A sample that calls `affine(1.5, 0)`, or what a test puts in its place.
fn sample(call: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Vec<Sample> {
    let call = move |x: &[Tensor]| call(&x[0]);
    vec![Sample::new("square", vec![floats(&[3, 4])], call).reference(|x| x[0].map(|x| 1.5 * x))]
}

/// A sample that passes its first input on.
fn passing(
    n_inputs: usize,
    call: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
) -> Vec<Sample> {
    vec![Sample::new("square", vec![floats(&[3, 4]); n_inputs], call)]
}

/// The samples of an op that is wrong in one way.
type Samples = fn() -> Vec<Sample>;

/// For each check, an op that it must refuse, and a part of what it says.
const BROKEN: &[(&str, &str, Samples, &str)] = &[
    ("declarations", "another", || sample(|x| x.affine(1.5, 0.0)), "none of them is `another`"),
    ("forward_values", "affine", || sample(|x| x.affine(1.6, 0.0)), "at [0, 0] it is"),
    ("layouts", "affine", by_contiguity, "transposed inputs [0]: output 0"),
    ("empty_inputs", "affine", panics_when_empty, "it panicked: no elements"),
    ("zero_dimensional_inputs", "affine", adds_a_dimension, "has shape [1]"),
    ("error_inputs", "affine", refuses_nothing, "the call succeeded"),
    ("mismatched_operands", "pass", ignores_an_operand, "which its composite refuses"),
    ("first_order", "pass", || passing(1, |x| pass(x, |_| 1.001)), "by finite differences"),
    ("second_order", "pass", wrong_in_second_order, "the second derivative"),
    ("narrow_gradients", "pass", wrong_in_bfloat16, "bfloat16: gradient of input 0"),
    ("unwatched_inputs", "pass", wrong_alone, "watched alone"),
    ("shared_inputs", "pass", wrong_when_shared, "expected"),
    ("derived_inputs", "pass", wrong_when_rebuilt, "rebuilt for backward"),
    ("persistent_tape", "pass", other_each_time, "the first time"),
    ("fused_equals_composite", "pass", other_composite, "under two tapes"),
    ("ghost_trace", "affine", asks_for_more_on_ghosts, "of the ghost's trace"),
    ("replayed_records", "affine", hides_its_output, "no record makes it"),
    ("thread_counts", "affine", counts_threads, "2 threads give other bits"),
    ("any_order", "pass", other_each_time, "the gradient of input 0"),
    ("programs", "affine", other_in_programs, "its program gives other bits"),
    ("failed_acquisitions", "affine", swallows_errors, "the call succeeded"),
    ("golden_values", "affine", unlike_pytorch, "output 0 against PyTorch"),
];

fn by_contiguity() -> Vec<Sample> {
    sample(|x| x.affine(if x.is_contiguous() { 1.5 } else { 1.25 }, 0.0))
}

fn panics_when_empty() -> Vec<Sample> {
    sample(|x| {
        assert!(x.n_elems() > 0, "no elements");
        x.affine(1.5, 0.0)
    })
}

fn adds_a_dimension() -> Vec<Sample> {
    sample(|x| if x.rank() == 0 { x.affine(1.5, 0.0)?.reshape([1]) } else { x.affine(1.5, 0.0) })
}

fn refuses_nothing() -> Vec<Sample> {
    let with_refusal = |sample: Sample| sample.refuses(vec![floats(&[2])], "a matrix");
    sample(|x| x.affine(1.5, 0.0)).into_iter().map(with_refusal).collect()
}

fn wrong_in_second_order() -> Vec<Sample> {
    passing(1, |x| with_composite(x, |x| x[0].affine(2.0, 0.0))?.mul(&x[0]))
}

fn wrong_in_bfloat16() -> Vec<Sample> {
    passing(1, |x| pass(x, |backward| if backward.input_dtype(0) == DType::BF16 { 1.5 } else { 1.0 }))
}

fn wrong_alone() -> Vec<Sample> {
    passing(2, |x| pass(x, |backward| if backward.wants(1) { 1.0 } else { 2.0 }))
}

fn wrong_when_shared() -> Vec<Sample> {
    passing(2, |x| {
        let factor = if x[0].shares_memory_with(&x[1]) { 2.0 } else { 1.0 };
        x[1].add(&pass(x, move |_| factor)?)
    })
}

fn wrong_when_rebuilt() -> Vec<Sample> {
    passing(1, |x| {
        let seen = x[0].clone();
        pass(x, move |backward| match backward.input(0) {
            Ok(input) if input.shares_memory_with(&seen) => 1.0,
            _ => 2.0,
        })
    })
}

fn other_each_time() -> Vec<Sample> {
    static TIMES: AtomicUsize = AtomicUsize::new(0);
    passing(1, |x| pass(x, |_| TIMES.fetch_add(1, Ordering::SeqCst) as f64))
}

fn ignores_an_operand() -> Vec<Sample> {
    passing(2, |x| with_composite(x, |x| x[1].affine(0.0, 0.0)?.add(x[0])))
}

fn other_composite() -> Vec<Sample> {
    passing(1, |x| with_composite(x, |x| x[0].affine(1.01, 0.0)))
}

fn asks_for_more_on_ghosts() -> Vec<Sample> {
    sample(|x| {
        let _more = if x.device().is_ghost() { Some(x.copied()?) } else { None };
        x.affine(1.5, 0.0)
    })
}

fn hides_its_output() -> Vec<Sample> {
    sample(|x| {
        // Values that come from the host have no record.
        let scaled = x.affine(1.5, 0.0)?;
        match x.dtype() {
            DType::F32 => Tensor::from_slice(&scaled.to_vec::<f32>()?, *x.shape()),
            _ => Ok(scaled),
        }
    })
}

fn counts_threads() -> Vec<Sample> {
    sample(|x| x.affine(plimsoll_cpu::threads::n_threads() as f64, 0.0))
}

fn other_in_programs() -> Vec<Sample> {
    sample(|x| x.affine(if x.is_ghost() { 1.25 } else { 1.5 }, 0.0))
}

fn swallows_errors() -> Vec<Sample> {
    sample(|x| x.affine(1.5, 0.0).or_else(|_| Ok(x.clone())))
}

/// The registry's own samples, which are recorded, with another call.
fn unlike_pytorch() -> Vec<Sample> {
    let affine = registry().into_iter().find(|op| op.name == "affine").expect("affine is in the registry");
    let mut samples = (affine.samples)();
    for sample in &mut samples {
        sample.call = Box::new(|x| Ok(vec![x[0].affine(1.5001, -0.25)?]));
    }
    samples
}

fn never_recorded() -> Vec<Sample> {
    let call = |x: &[Tensor]| x[0].affine(1.5, 0.0);
    vec![Sample::new("never recorded", vec![floats(&[3])], call).torch("x0 * 1.5")]
}

fn entry(name: &'static str, samples: Samples) -> &'static OpInfo {
    Box::leak(Box::new(OpInfo { name, doc: "Each element times a number.", samples }))
}

#[test]
fn every_check_refuses_an_op_that_is_wrong_in_its_way() {
    let rows: Vec<&str> = BROKEN.iter().map(|&(check, ..)| check).collect();
    let checks: Vec<&str> = checks::ALL.iter().map(|&(name, _)| name).collect();
    assert_eq!(rows, checks, "each check has its row");
    for (&(name, op, samples, part), (_, check)) in BROKEN.iter().zip(checks::ALL) {
        match check(entry(op, samples)) {
            Ok(outcome) => panic!("{name} does not see what is wrong: {outcome:?}"),
            Err(failure) => assert!(failure.text().contains(part), "{name}: {failure:?}"),
        }
    }
}

#[test]
fn an_op_that_is_right_passes_every_check() {
    let op = entry("affine", || sample(|x| x.affine(1.5, 0.0)));
    let mut ignored = Vec::new();
    for (name, check) in checks::ALL {
        match check(op) {
            Ok(CheckOutcome::Passed) => {}
            Ok(CheckOutcome::Ignored(reason)) => ignored.push((*name, reason)),
            Err(failure) => panic!("{name}: {failure:?}"),
        }
    }
    // The sample has one input, no refusals and no expression for PyTorch; everything else looks at something.
    let expected = [
        ("error_inputs", Need::Refusals),
        ("unwatched_inputs", Need::TwoGradients),
        ("shared_inputs", Need::TwoAlike),
        ("golden_values", Need::Torch),
    ];
    assert_eq!(ignored, expected.map(|(name, need)| (name, need.reason())));
}

#[test]
fn a_gradient_that_is_lost_in_one_dtype_is_seen() {
    let lost = || {
        passing(1, |x| {
            let backward = |backward: &mut Backward<'_>| match backward.input_dtype(0) {
                DType::BF16 => Ok(()),
                _ => {
                    let gradient = backward.gradient()?;
                    backward.set_grad(0, gradient)
                }
            };
            run(x, Box::new(backward), |x| x[0].affine(1.0, 0.0), Gradient::Backward)
        })
    };
    let failure = checks::narrow_gradients(entry("pass", lost)).expect_err("bfloat16 has no gradient");
    assert!(failure.text().contains("it is lost, and float64 has it"), "{failure:?}");
}

#[test]
fn an_op_without_a_gradient_is_not_said_to_have_passed_its_checks() {
    let honest = || {
        passing(1, |x| run(x, Box::new(|_| Ok(())), |x| x[0].affine(1.0, 0.0), Gradient::None("it jumps")))
    };
    for check in [checks::second_order, checks::narrow_gradients, checks::persistent_tape] {
        assert!(matches!(check(entry("pass", honest)), Ok(CheckOutcome::Ignored(_))));
    }
}

fn keeps_a_tensor() -> Vec<Sample> {
    static KEPT: Mutex<Option<Tensor>> = Mutex::new(None);
    sample(|x| {
        *KEPT.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(x.clone());
        x.affine(1.5, 0.0)
    })
}

#[test]
fn a_tensor_that_stays_behind_is_seen() {
    let failure = checks::forward_values(entry("affine", keeps_a_tensor)).expect_err("a tensor is kept");
    assert!(failure.text().contains("blocks and"), "{failure:?}");
}

#[test]
fn values_that_were_never_recorded_are_asked_for() {
    let golden_values =
        checks::ALL.iter().find(|(name, _)| *name == "golden_values").expect("the check exists").1;
    let failure = golden_values(entry("affine", never_recorded)).expect_err("nothing is recorded");
    assert!(failure.text().contains("no recorded values"), "{failure:?}");
}

#[test]
fn declarations_about_gradients_are_held_to() {
    let silent =
        || passing(1, |x| run(x, Box::new(|_| Ok(())), |x| x[0].affine(1.0, 0.0), Gradient::None("")));
    let failure = checks::declarations(entry("pass", silent)).expect_err("no reason is given");
    assert!(failure.text().contains("must say why"), "{failure:?}");
    let honest = || {
        passing(1, |x| run(x, Box::new(|_| Ok(())), |x| x[0].affine(1.0, 0.0), Gradient::None("it jumps")))
    };
    assert_eq!(checks::first_order(entry("pass", honest)).ok(), Some(CheckOutcome::Passed));
}
