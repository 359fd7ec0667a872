//! `fused`: several pointwise ops as one, so that what is between them never reaches memory.
//!
//! Nobody calls it: a pass over programs makes it of calls that the program has. It computes what these compute, to the bit: the
//! same functions, in the same order, and each result is rounded to its dtype as if it had been stored. On the CPU a piece of
//! all operands goes through one op after the other while it is in the cache (`cpu.rs`); for a GPU one kernel is made of what
//! the ops say of themselves (`cuda.rs`). It has no gradient, because what is recorded on a tape is the ops themselves.

mod cpu;
mod cuda;
mod fold;

use std::sync::Arc;

use plimsoll_cuda::{Generated, Gpu};
use smallvec::SmallVec;

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::eager::op::{Cost, Draw, Gradient, Meta, Op, OpRef, Output, Outputs, Pointwise, Run, bytes_moved};
use crate::ops::cuda::elementwise::{MAX_INPUTS, MAX_NUMBERS, MAX_WORDS};
pub(crate) use fold::{FusedFold, Memory, Taker};

/// The most outputs.
const MAX_OUTPUTS: usize = 4;
/// The most ops: beyond, a kernel holds so many values at a time that it is no faster.
const MAX_STEPS: usize = 24;

/// One of the ops, with what it reads.
#[derive(Clone, Debug)]
pub(crate) struct FusedStep {
    pub op: OpRef,
    pub inputs: SmallVec<[FusedInput; 2]>,
    /// The dtype of what it makes.
    pub dtype: DType,
}

/// What one of the ops reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FusedInput {
    /// An input of the fused op.
    Outer(u16),
    /// What an earlier step has made.
    Step(u16),
}

/// Several pointwise ops whose results have one shape.
#[derive(Clone, Debug)]
pub(crate) struct Fused {
    shape: Shape,
    steps: Box<[FusedStep]>,
    /// The step that makes each output.
    outputs: SmallVec<[u16; MAX_OUTPUTS]>,
    /// Where each step's result lies on the CPU.
    places: Box<[cpu::Place]>,
    /// Whether one of the steps draws.
    draws: bool,
    /// The kernels: the same for equal ops with equal dtypes, whatever their numbers are.
    generated: Arc<Generated>,
}

impl Fused {
    /// One op that does the work of several, in their order; nothing if it would be too large, if an op is not pointwise, or
    /// if two of them draw.
    pub fn new(
        shape: Shape,
        input_dtypes: &[DType],
        steps: Vec<FusedStep>,
        outputs: SmallVec<[u16; MAX_OUTPUTS]>,
    ) -> Option<Fused> {
        let fits = input_dtypes.len() <= MAX_INPUTS
            && (1..=MAX_OUTPUTS).contains(&outputs.len())
            && steps.len() <= MAX_STEPS;
        let pointwise: Vec<Pointwise> = steps.iter().map_while(|step| step.op.pointwise()).collect();
        let n_numbers: usize = pointwise.iter().map(|pointwise| pointwise.numbers.len()).sum();
        let n_words: usize = pointwise.iter().map(|pointwise| pointwise.words.len()).sum();
        let n_draws = pointwise.iter().filter(|pointwise| pointwise.draws).count();
        if !fits
            || pointwise.len() < steps.len()
            || n_numbers > MAX_NUMBERS
            || n_words > MAX_WORDS
            || n_draws > 1
        {
            return None;
        }
        let places = cpu::places(&steps, &outputs, &[]);
        let generated = Generated::of(fingerprint(input_dtypes, &steps, &outputs));
        Some(Fused { shape, steps: steps.into(), outputs, places, draws: n_draws > 0, generated })
    }
}

/// A number that stands for the text of a kernel.
fn fingerprint(input_dtypes: &[DType], steps: &[FusedStep], outputs: &[u16]) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (input_dtypes, outputs).hash(&mut hasher);
    for step in steps {
        let body = step.op.pointwise().map(|pointwise| pointwise.body);
        (step.op.name(), body, &step.inputs, step.dtype).hash(&mut hasher);
    }
    hasher.finish()
}

impl Op for Fused {
    fn name(&self) -> &'static str {
        "fused"
    }

    fn infer(&self, _inputs: &[&Meta]) -> Result<Outputs> {
        let output =
            |&step: &u16| Output::New { shape: self.shape, dtype: self.steps[usize::from(step)].dtype };
        Ok(self.outputs.iter().map(output).collect())
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        cpu::run(self, run)
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::run(self, run, gpu)
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it is made of a program's calls, which a tape records one by one")
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn list_bytes(&self) -> usize {
        let ops: usize = self.steps.iter().map(|step| step.op.heap_bytes()).sum();
        ops + size_of_val(&*self.steps) + size_of_val(&*self.places)
    }

    fn with_draw(&self, next: &dyn Fn(Draw) -> Draw) -> Option<OpRef> {
        self.draws.then(|| {
            let mut redrawn = self.clone();
            redrawn.steps.iter_mut().for_each(|step| step.op = step.op.redrawn(next));
            OpRef::shipped(redrawn)
        })
    }

    fn cost(&self, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
        let flops = (self.shape.n_elems() as u64).saturating_mul(self.steps.len() as u64);
        Cost { flops, bytes: bytes_moved(inputs, outputs) }
    }
}
