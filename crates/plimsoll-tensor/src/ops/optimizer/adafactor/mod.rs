//! Adafactor: second moments of a matrix from their means over rows and over columns.
//!
//! A parameter of two or more dimensions is seen as matrices over its last two; each has a mean of squares per row and
//! one per column, and their outer product stands for the mean of squares of each element. Vectors keep one per element.
//! The update is never there as a whole: it is computed once for its norm and once to be applied, so the only scratch
//! memory is a few numbers per strip of rows, and partial sums of columns where a matrix has more than one strip. Sums
//! are made strip by strip and joined in their order, so they do not depend on threads.

mod cuda;
mod cut;
mod pass;
mod samples;

use plimsoll_cpu::threads::{SharedPtr, parallel};
use plimsoll_cuda::{Gpu, Profile};

use self::cut::{Cut, Place, Sum};
use self::pass::{Now, Pass};
use super::operands::{Operands, UpdatedParameters};
use super::{Algorithm, Common, Control, StateSpec, UpdatedParameter};
use crate::base::axes::Axes;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::eager::op::{Gradient, Meta, Op, OpRef, Outputs, Run};

pub(super) use samples::INFO;

/// v ← v + tᵝ (g² - v), kept by element or by rows and columns, then u = g / √max(v, ε₁²) and
/// p ← p - α u / max(1, rms(u) / d), where α = max(ε₂, rms(p)) min(η, 1 / √t). As in PyTorch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adafactor {
    /// The power of the step number by which new squares count; negative.
    pub beta_2_decay: f64,
    /// ε₁: the least root of a mean of squares; the dtype's own precision if there is none.
    pub epsilon_1: Option<f64>,
    /// ε₂: the least root mean square of a parameter for the size of its step.
    pub epsilon_2: f64,
    /// d: the greatest root mean square of an update.
    pub clip_threshold: f64,
}

impl Adafactor {
    const NAME: &'static str = "adafactor";
}

impl Algorithm for Adafactor {
    fn states(&self, shape: &Shape, dtype: DType) -> Vec<StateSpec> {
        let state = |name, shape| StateSpec { name, shape, dtype, initial: 0.0 };
        match shape.rank() {
            0 | 1 => vec![state("v", *shape)],
            rank => {
                let without = |axis: usize| shape.reduced(Axes::of([axis]), true);
                vec![state("v_row", without(rank - 1)), state("v_column", without(rank - 2))]
            }
        }
    }

    fn update(&self, common: Common, members: &[UpdatedParameter]) -> OpRef {
        OpRef::shipped(Factored { rule: *self, common, members: UpdatedParameters::new(members) })
    }
}

#[derive(Debug)]
struct Factored {
    rule: Adafactor,
    common: Common,
    members: UpdatedParameters,
}

impl Op for Factored {
    fn name(&self) -> &'static str {
        Adafactor::NAME
    }

    fn never_refuses(&self) -> bool {
        true
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let states = |parameter: &Meta| self.rule.states(parameter.shape(), parameter.dtype);
        self.members.infer(self.name(), inputs, states)
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        let cuts = (0..self.members.len()).map(|idx| Cut::of(inputs[self.members.first(idx)].shape()));
        let n_numbers = cuts.fold(0usize, |sum, cut| sum.saturating_add(cut.scratch_len()));
        n_numbers.saturating_mul(size_of::<f64>())
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let operands = Operands::new(&self.members, run);
        let control = operands.control();
        // SAFETY: each parameter's operands are brought by one task.
        parallel(self.members.len(), |idx| unsafe { operands.carry_whole(idx) });
        if control.overflow != 0.0 {
            return Ok(());
        }
        let scratch = SharedPtr::new(run.workspace.cast::<f64>());
        let pass = Pass { operands: &operands, n_parameters: self.members.len(), scratch };
        let singles = Now::<f32>::new(self, &control, f64::from(f32::EPSILON));
        let doubles = Now::<f64>::new(self, &control, f64::EPSILON);
        pass.for_each_strip(|place, strip| match place.is_single {
            true => pass.moments(place, strip, &singles),
            false => pass.moments(place, strip, &doubles),
        });
        parallel(self.members.len(), |idx| match pass.places().nth(idx) {
            Some(place) if place.is_single => pass.join(&place, &singles),
            Some(place) => pass.join(&place, &doubles),
            None => {}
        });
        pass.for_each_strip(|place, strip| match place.is_single {
            true => pass.norm(place, strip, &singles),
            false => pass.norm(place, strip, &doubles),
        });
        pass.places().for_each(|place| self.decide(&place, &control));
        pass.for_each_strip(|place, strip| match place.is_single {
            true => pass.apply(place, strip, &singles),
            false => pass.apply(place, strip, &doubles),
        });
        Ok(())
    }

    fn workspace_cuda(&self, inputs: &[&Meta], _profile: &Profile) -> usize {
        self.workspace(inputs)
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let operands = Operands::new(&self.members, run);
        operands.carry_all_cuda(self.name(), gpu)?;
        cuda::run(self, &operands, run.workspace, gpu)
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it updates an optimizer's variables")
    }
}

impl Factored {
    /// The factor of a parameter's update, from the sums of its strips.
    fn decide(&self, place: &Place, control: &Control) {
        let n_elems = place.cut.n_elems() as f64;
        let sum = |which: Sum| -> f64 {
            // SAFETY: sums of strips, which nobody writes now.
            (0..place.cut.n_strips()).map(|strip| unsafe { *place.sum(strip, which) }).sum()
        };
        let root_mean = |which: Sum| (sum(which) / n_elems).sqrt();
        let rate = control.learning_rate.min(control.step.sqrt().recip());
        let size = self.rule.epsilon_2.max(root_mean(Sum::Parameter)) * rate;
        let excess = (root_mean(Sum::Update) / self.rule.clip_threshold).max(1.0);
        // SAFETY: the factor's place, which nobody else uses now.
        unsafe { *place.factor() = size / excess };
    }
}
