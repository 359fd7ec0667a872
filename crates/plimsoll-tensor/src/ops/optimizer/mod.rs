//! Updates of an optimizer: one op over all parameters, in place, with no temporary of a parameter's size.
//!
//! An update op is run through [`Variable::update_together`](crate::Variable::update_together), after the op that begins
//! the step ([`BeginStep`]): it takes all parameters with their states and the control buffer as variables, and the
//! gradients as inputs (see `operands`). What changes from step to step is read from the control buffer; what does not
//! is an attribute. When the buffer says that gradients overflowed, an update changes nothing.
//!
//! A rule that treats every element by itself is one file that implements `Rule` and one line below; weight decay,
//! clipping by value, unscaling, narrow gradients, compute copies, strides, tiles and threads are the family's. Rules
//! that look further (`adafactor`, `adam_8bit`) are ops of their own on the same operands. As functions of their inputs
//! they are in the registry like every op, so the generated tests hold them; they have no gradient.

mod adafactor;
mod adam_8bit;
mod control;
mod cuda;
mod elements;
mod operands;
mod quantise;
mod samples;
mod schedule;

use std::fmt;

use plimsoll_cpu::element::Number;
use plimsoll_cpu::math::Real;
use plimsoll_cpu::simd;
use plimsoll_cuda::Gpu;

pub use adafactor::Adafactor;
pub use adam_8bit::Adam8bit;
pub(crate) use control::check as check_control;
pub use control::{BeginStep, Control, Scaling, set_learning_rate};
pub use operands::{StateSpec, UpdatedParameter};
pub use schedule::Schedule;

pub use crate::ops::global_norm::{NORM_CHUNK, norm_of_square_sums, square_sums};

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::eager::op::{Gradient, Meta, Op, OpRef, Outputs, Run};
use crate::ops::registry::OpInfo;
use elements::Room;
use operands::{Operands, UpdatedParameters};
use samples::RuleSample;

/// Declares the rules of the family: each has a file.
macro_rules! rules {
    ($($module:ident :: $rule:ident),* $(,)?) => {
        $(mod $module; pub use $module::$rule;)*
        /// The family's part of the registry.
        pub(super) const INFOS: &[&OpInfo] = &[
            &adafactor::INFO,
            &adam_8bit::INFO,
            &control::BEGIN_INFO,
            &control::RATE_INFO,
            $(&samples::info::<$module::$rule>()),*
        ];
    };
}

rules! {
    adagrad::Adagrad,
    adam::Adam,
    rmsprop::RmsProp,
    sgd::Sgd,
}

/// The most states that a rule may have.
const MAX_STATES: usize = 3;

/// A way to update parameters: what states each has, and the op that updates all of them.
pub trait Algorithm: fmt::Debug + Send + Sync + 'static {
    /// The states of a parameter.
    fn states(&self, shape: &Shape, dtype: DType) -> Vec<StateSpec>;

    /// The op that updates parameters; each member has as many states as [`Algorithm::states`] says.
    fn update(&self, common: Common, members: &[UpdatedParameter]) -> OpRef;

    /// Whether every element is treated by itself, so that parts of a parameter may be updated in different places.
    fn is_elementwise(&self) -> bool {
        false
    }
}

impl<R: Rule> Algorithm for R {
    fn states(&self, shape: &Shape, dtype: DType) -> Vec<StateSpec> {
        let spec = |(name, initial)| StateSpec { name, shape: *shape, dtype, initial };
        self.slots().into_iter().map(spec).collect()
    }

    fn update(&self, common: Common, members: &[UpdatedParameter]) -> OpRef {
        OpRef::shipped(Update { rule: self.clone(), common, members: UpdatedParameters::new(members) })
    }

    fn is_elementwise(&self) -> bool {
        true
    }
}

/// How an element of a parameter and its states change, given the element of the gradient. It is not for others: its CUDA C
/// is run as it stands. An update of somebody's own is an [`Algorithm`] with an op of their own.
pub(crate) trait Rule: Clone + fmt::Debug + Send + Sync + 'static {
    /// The op's name.
    const NAME: &'static str;
    /// One sentence for the documents.
    const DOC: &'static str;
    /// The numbers of a step, the same for all elements, in the type that is computed with.
    type Now<T: Real>: Copy + Send + Sync;
    /// The same in CUDA C: a struct `Now`, `Now now_of(const Control& control, const double* a)` from the numbers of
    /// [`Rule::attributes`], and `T element(const Now& now, T parameter, T gradient, T* states)`.
    const CUDA: &'static str;

    /// The names of the states that the rule has with these attributes, at most three; each is like its parameter, and
    /// begins as the number beside its name.
    fn slots(&self) -> Vec<(&'static str, f64)>;
    /// The attributes as numbers, for [`Rule::CUDA`].
    fn attributes(&self) -> [f64; 4];
    /// The numbers of the step that has begun.
    fn now<T: Real>(&self, control: &Control) -> Self::Now<T>;
    /// The new value of an element, and the new states in place of the old ones. States that the rule does not have
    /// are zero.
    fn element<T: Real>(now: &Self::Now<T>, parameter: T, gradient: T, states: &mut [T; MAX_STATES]) -> T;

    /// Rules with typical attributes, for the tests.
    fn samples() -> Vec<RuleSample<Self>>;
    /// The new value of an element, as plainly as it can be written, for the tests; `step` begins at one.
    fn reference(&self, step: i32, rate: f64, parameter: f64, gradient: f64, states: &mut [f64]) -> f64;
}

/// What weight decay does to a parameter before the rule sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Decay {
    /// Nothing.
    #[default]
    None,
    /// The parameter times this is added to the gradient: the gradient of a penalty on the parameters' squares.
    L2(f64),
    /// The parameter shrinks by the learning rate times this, apart from the gradient (AdamW).
    Decoupled(f64),
}

/// What is done before any rule.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Common {
    /// The weight decay, for the parameters that have it.
    pub decay: Decay,
    /// The greatest magnitude of an element of a gradient; larger ones are cut to it.
    pub clip_value: Option<f64>,
}

/// What is done to an element before the rule, in the type that is computed with.
#[derive(Clone, Copy)]
struct Before<T> {
    factor: T,
    clip: T,
    penalty: T,
    shrink: T,
}

impl<T: Real> Before<T> {
    fn new(common: &Common, control: &Control, decays: bool) -> Before<T> {
        let decay = if decays { common.decay } else { Decay::None };
        let (penalty, shrink) = match decay {
            Decay::None => (0.0, 1.0),
            Decay::L2(weight) => (weight, 1.0),
            Decay::Decoupled(weight) => (0.0, 1.0 - control.learning_rate * weight),
        };
        Before {
            factor: T::from_f64(control.factor),
            clip: T::from_f64(common.clip_value.unwrap_or(f64::INFINITY)),
            penalty: T::from_f64(penalty),
            shrink: T::from_f64(shrink),
        }
    }

    /// The gradient and the parameter that the rule sees.
    #[inline(always)]
    fn apply(&self, parameter: T, gradient: T) -> (T, T) {
        let unscaled = gradient * self.factor;
        let clipped = Number::max(Number::min(unscaled, self.clip), -self.clip);
        // A penalty of zero must not turn an infinite parameter into a gradient that is no number.
        let penalised = if self.penalty == T::ZERO { clipped } else { clipped + self.penalty * parameter };
        (parameter * self.shrink, penalised)
    }
}

/// An elementwise rule over all parameters.
#[derive(Debug)]
struct Update<R> {
    rule: R,
    common: Common,
    members: UpdatedParameters,
}

impl<R: Rule> Op for Update<R> {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn never_refuses(&self) -> bool {
        true
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        self.members.infer(R::NAME, inputs, |parameter| self.rule.states(parameter.shape(), parameter.dtype))
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let operands = Operands::new(&self.members, run);
        let control = operands.control();
        let singles = Step::<R, f32>::new(self, &control);
        let doubles = Step::<R, f64>::new(self, &control);
        operands.for_each_tile(|idx, range| {
            // SAFETY: tiles do not overlap, and each is visited by one thread.
            unsafe {
                operands.carry(idx, range.clone());
                match operands.parameter(idx).dtype() {
                    _ if control.overflow != 0.0 => {}
                    DType::F32 => singles.tile(&operands, idx, range),
                    _ => doubles.tile(&operands, idx, range),
                }
            }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let operands = Operands::new(&self.members, run);
        operands.carry_all_cuda(R::NAME, gpu)?;
        cuda::update(self, &operands, gpu, |_| true)
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it updates an optimizer's variables")
    }
}

/// The numbers of one execution for parameters of one type.
struct Step<'a, R: Rule, T: Real> {
    members: &'a UpdatedParameters,
    /// For parameters without weight decay, and for those with it.
    before: [Before<T>; 2],
    now: R::Now<T>,
}

impl<R: Rule, T: Real> Step<'_, R, T> {
    fn new<'a>(update: &'a Update<R>, control: &Control) -> Step<'a, R, T> {
        Step {
            members: &update.members,
            before: [false, true].map(|decays| Before::new(&update.common, control, decays)),
            now: update.rule.now(control),
        }
    }

    /// Updates one tile of a parameter.
    ///
    /// # Safety
    /// The parameter is of type `T`, its present values are where the new ones go, and nobody else uses the tile.
    unsafe fn tile(&self, operands: &Operands<'_>, idx: usize, range: std::ops::Range<usize>) {
        let member = self.members.member(idx);
        let mut room = Room::new();
        // SAFETY: the caller's promise; parameter, states and copy are different operands.
        unsafe {
            let gradient = elements::gradient::<T>(operands.gradient(idx), range.clone(), &mut room);
            let parameter = elements::part::<T>(operands.parameter(idx), range.clone());
            let state = |k: usize| match k < member.n_states {
                true => elements::part::<T>(operands.state(idx, k), range.clone()),
                false => &mut [],
            };
            let before = &self.before[usize::from(member.decays)];
            update_tile::<R, T>(&self.now, before, parameter, [state(0), state(1), state(2)], gradient);
            if let Some(copy) = operands.copy(idx) {
                elements::write_copy(parameter, copy, range);
            }
        }
    }
}

/// Updates the elements of a tile; compiled once per rule and type. Slices of states that the rule does not have are
/// empty, and each number of states has a loop of its own, so that the compiler sees slices that do not overlap.
#[inline(never)]
fn update_tile<R: Rule, T: Real>(
    now: &R::Now<T>,
    before: &Before<T>,
    parameter: &mut [T],
    [s0, s1, s2]: [&mut [T]; MAX_STATES],
    gradient: &[T],
) {
    let element = Element::<R, T> { now: *now, before: *before };
    simd::vectorize(
        #[inline(always)]
        || match (s0.len(), s1.len(), s2.len()) {
            (0, ..) => element.without_states(parameter, gradient),
            (_, 0, _) => element.with_one(parameter, s0, gradient),
            (_, _, 0) => element.with_two(parameter, s0, s1, gradient),
            _ => element.with_three(parameter, s0, s1, s2, gradient),
        },
    );
}

/// All that is done to an element.
struct Element<R: Rule, T: Real> {
    now: R::Now<T>,
    before: Before<T>,
}

impl<R: Rule, T: Real> Element<R, T> {
    #[inline(always)]
    fn update(&self, parameter: T, gradient: T, states: &mut [T; MAX_STATES]) -> T {
        let (parameter, gradient) = self.before.apply(parameter, gradient);
        R::element(&self.now, parameter, gradient, states)
    }

    #[inline(always)]
    fn without_states(&self, p: &mut [T], g: &[T]) {
        for (p, &g) in p.iter_mut().zip(g) {
            *p = self.update(*p, g, &mut [T::ZERO; MAX_STATES]);
        }
    }

    #[inline(always)]
    fn with_one(&self, p: &mut [T], s: &mut [T], g: &[T]) {
        for ((p, s), &g) in p.iter_mut().zip(s).zip(g) {
            let mut states = [*s, T::ZERO, T::ZERO];
            *p = self.update(*p, g, &mut states);
            *s = states[0];
        }
    }

    #[inline(always)]
    fn with_two(&self, p: &mut [T], s: &mut [T], t: &mut [T], g: &[T]) {
        for (((p, s), t), &g) in p.iter_mut().zip(s).zip(t).zip(g) {
            let mut states = [*s, *t, T::ZERO];
            *p = self.update(*p, g, &mut states);
            [*s, *t, _] = states;
        }
    }

    #[inline(always)]
    fn with_three(&self, p: &mut [T], s: &mut [T], t: &mut [T], u: &mut [T], g: &[T]) {
        for ((((p, s), t), u), &g) in p.iter_mut().zip(s).zip(t).zip(u).zip(g) {
            let mut states = [*s, *t, *u];
            *p = self.update(*p, g, &mut states);
            [*s, *t, *u] = states;
        }
    }
}
