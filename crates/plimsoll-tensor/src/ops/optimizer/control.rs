//! The control buffer of an optimizer, and the tiny op that begins each of its steps.
//!
//! Everything that changes from step to step and is not a tensor (learning rate, step number, loss scale, clip factor,
//! overflow) lives in one buffer of eight f64 on the device. Update kernels read it there, so a step reads nothing back
//! and takes no host number that changes. The op of [`BeginStep`] alone decides: it looks at the global norm of the gradients,
//! moves the loss scale, advances the step number and sets the learning rate; updates that come after it in the same
//! step only obey. It refuses to guess: without a loss scale, gradients that are not finite are passed on as they are.
//!
//! Where waiting for the loss would hold up the device, the op is given the loss instead. One that is not finite stops the
//! optimizer until it is released, so that the host may look later.

use plimsoll_cuda::{Gpu, Grid, Param, Profile, Template};

use super::schedule::{CurveParam, Schedule};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::device::fault;
use crate::eager::execute::call;
use crate::eager::op::{Gradient, Meta, Op, OpRef, Operand, Outputs, Run, one};
use crate::ops::cuda::c_name;
use crate::ops::cuda::elementwise::Elementwise;
use crate::ops::registry::{Array, OpInfo, Sample, Values, input};

/// What the control buffer holds, in the order of its positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Control {
    /// Position 0: the learning rate of this step.
    pub learning_rate: f64,
    /// Position 1: how many steps have changed the parameters, this one included once it has begun.
    pub step: f64,
    /// Position 2: what the loss is multiplied by before backward; 1 without loss scaling.
    pub loss_scale: f64,
    /// Position 3: steps without overflow since the loss scale last changed.
    pub good_steps: f64,
    /// Position 4: what gradients are multiplied by: the clip factor over the loss scale.
    pub factor: f64,
    /// Position 5: zero, or one more than the index of the first gradient that was not finite: nothing is updated. Not a
    /// number if the loss that was given was not finite, or a kernel of the step refused a value: nothing is updated until
    /// the buffer is released.
    pub overflow: f64,
    /// Position 6: the global norm of the last gradients, without the loss scale and before clipping; NaN if it was not
    /// asked for.
    pub norm: f64,
    /// Position 7: how many steps were skipped because of an overflow.
    pub skipped: f64,
}

impl Control {
    /// The number of positions.
    pub const LEN: usize = 8;
    /// The position of the loss scale, for reading it on the device.
    pub const LOSS_SCALE: isize = 2;
    /// The position of the overflow, for reading it on the device.
    pub const OVERFLOW: isize = 5;

    /// The control buffer of an optimizer that has not made a step.
    pub fn new(learning_rate: f64, loss_scale: f64) -> Control {
        Control {
            learning_rate,
            step: 0.0,
            loss_scale,
            good_steps: 0.0,
            factor: 1.0 / loss_scale,
            overflow: 0.0,
            norm: f64::NAN,
            skipped: 0.0,
        }
    }

    /// These contents after a step that must not be committed. The overflow is not a number from here on, whose last bits
    /// are the number that it was.
    fn refusing(self) -> Control {
        match self.overflow.is_nan() {
            true => self,
            false => Control { overflow: f64::from_bits(f64::NAN.to_bits() | self.overflow as u64), ..self },
        }
    }

    /// These contents as they were before a step that must not be committed; the same if there was none.
    pub fn accepting(self) -> Control {
        match self.overflow.is_nan() {
            true => Control { overflow: f64::from(self.overflow.to_bits() as u32), ..self },
            false => self,
        }
    }

    /// The buffer's contents.
    pub fn to_array(&self) -> [f64; Control::LEN] {
        let Control { learning_rate, step, loss_scale, good_steps, factor, overflow, norm, skipped } = *self;
        [learning_rate, step, loss_scale, good_steps, factor, overflow, norm, skipped]
    }

    /// The contents of a buffer.
    pub fn from_array(values: [f64; Control::LEN]) -> Control {
        let [learning_rate, step, loss_scale, good_steps, factor, overflow, norm, skipped] = values;
        Control { learning_rate, step, loss_scale, good_steps, factor, overflow, norm, skipped }
    }

    /// The contents of an operand that [`check`] let pass.
    pub(super) fn load(operand: &Operand) -> Control {
        let (first, step) = (operand.ptr().cast::<f64>(), operand.meta.layout.strides()[0]);
        // SAFETY: eight values of f64 at the operand's stride, which nobody writes now.
        Control::from_array(std::array::from_fn(|idx| unsafe { *first.offset(idx as isize * step) }))
    }

    /// Writes the contents to an output.
    pub(super) fn store(&self, operand: &Operand) {
        let first = operand.ptr().cast::<[f64; Control::LEN]>();
        // SAFETY: an output of that shape, contiguous, and one thread writes it.
        unsafe { first.write(self.to_array()) };
    }
}

/// Refuses what is no control buffer.
pub(crate) fn check(op: &'static str, control: &Meta) -> Result<()> {
    if control.dtype == DType::F64 && control.shape().dims() == [Control::LEN] {
        return Ok(());
    }
    Err(Error::argument(
        op,
        format!(
            "the control buffer is [8] float64 (see `optimizer::Control`), not {} {}",
            control.shape(),
            control.dtype
        ),
    ))
}

/// How the loss scale moves: halved when gradients overflow, grown after a run of steps without overflow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// The number of good steps after which the scale grows.
    pub growth_interval: u32,
    /// What it is multiplied by then, and divided by on overflow.
    pub factor: f64,
}

impl Scaling {
    /// The scale never goes below this: smaller ones would shrink gradients that already overflow without a scale.
    pub const LEAST: f64 = 1.0;
    /// The scale never grows beyond this: bfloat16 does not overflow, and would let it grow for ever.
    pub const GREATEST: f64 = 16_777_216.0;
}

/// How a step of an optimizer begins: the description of the op that begins it, which [`BeginStep::op`] gives. Its
/// variable is the control buffer; its inputs are none, or the outputs of `global_norm` over all gradients: their norm and
/// the index of the first that is not finite, or -1. A step that is committed only if its loss is finite
/// has one more, the loss: one float64.
#[derive(Clone, Debug, Default)]
pub struct BeginStep {
    /// The learning rate as a function of the steps made so far; none leaves it as it stands in the buffer.
    pub schedule: Option<Schedule>,
    /// The greatest global norm of the gradients; larger ones are scaled down to it.
    pub clip_norm: Option<f64>,
    /// How the loss scale moves; none leaves it and does not look for overflows.
    pub scaling: Option<Scaling>,
    /// Whether the step is made only if its loss is finite; then the loss is the last input.
    pub if_finite: bool,
}

impl BeginStep {
    /// The op that begins the step.
    pub fn op(self) -> OpRef {
        OpRef::shipped(Begin(self))
    }

    /// Whether the op wants the outputs of `global_norm`.
    pub fn needs_norm(&self) -> bool {
        self.clip_norm.is_some() || self.scaling.is_some()
    }

    /// The buffer for the step that begins, given what `global_norm` says of the gradients.
    fn begun(
        &self,
        mut control: Control,
        norm_and_first_bad: Option<(f64, i64)>,
        finite_loss: f64,
    ) -> Control {
        if !finite_loss.is_finite() {
            return control.refusing();
        }
        let (norm, first_bad) = norm_and_first_bad.unwrap_or((f64::NAN, -1));
        let inverse_scale = 1.0 / control.loss_scale;
        control.norm = norm * inverse_scale;
        let clip = match self.clip_norm {
            Some(greatest) if control.norm > greatest => greatest / control.norm,
            // A norm that is NaN must not pass for a small one.
            Some(_) if control.norm.is_nan() => f64::NAN,
            _ => 1.0,
        };
        control.factor = clip * inverse_scale;
        control.overflow = 0.0;
        if let Some(scaling) = self.scaling {
            if first_bad >= 0 {
                control.overflow = first_bad as f64 + 1.0;
                control.skipped += 1.0;
                control.good_steps = 0.0;
                control.loss_scale = (control.loss_scale / scaling.factor).max(Scaling::LEAST);
                return control;
            }
            control.good_steps += 1.0;
            if control.good_steps >= f64::from(scaling.growth_interval) {
                control.good_steps = 0.0;
                control.loss_scale = (control.loss_scale * scaling.factor).min(Scaling::GREATEST);
            }
        }
        if let Some(schedule) = &self.schedule {
            control.learning_rate = schedule.at(control.step);
        }
        control.step += 1.0;
        control
    }
}

static BEGIN: Template = Template { name: "begin_step", text: include_str!("begin_step.cu") };

/// The attributes of [`BeginStep`], as its kernel takes them.
#[repr(C)]
struct Beginning {
    flags: u64,
    clip_norm: f64,
    growth_interval: f64,
    scale_factor: f64,
    least_scale: f64,
    greatest_scale: f64,
    unknown: f64,
    curve: CurveParam,
}

// SAFETY: `begin_step.cu` has the same struct.
unsafe impl Param for Beginning {}

impl BeginStep {
    fn beginning(&self) -> Beginning {
        const HAS_NORM: u64 = 1;
        const CLIPS: u64 = 2;
        const SCALES: u64 = 4;
        let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
        Beginning {
            flags: flag(self.needs_norm(), HAS_NORM)
                | flag(self.clip_norm.is_some(), CLIPS)
                | flag(self.scaling.is_some(), SCALES),
            clip_norm: self.clip_norm.unwrap_or(f64::INFINITY),
            growth_interval: self.scaling.map_or(0.0, |scaling| f64::from(scaling.growth_interval)),
            scale_factor: self.scaling.map_or(1.0, |scaling| scaling.factor),
            least_scale: Scaling::LEAST,
            greatest_scale: Scaling::GREATEST,
            unknown: f64::NAN,
            curve: self.schedule.as_ref().map_or(CurveParam::NONE, Schedule::param),
        }
    }
}

/// The op that begins a step. It is not the description itself: whoever has an op can call its kernel.
#[derive(Debug)]
struct Begin(BeginStep);

impl Op for Begin {
    fn name(&self) -> &'static str {
        "begin_step"
    }

    fn never_refuses(&self) -> bool {
        true
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let wanted = if self.0.needs_norm() { 3 } else { 1 } + usize::from(self.0.if_finite);
        if inputs.len() != wanted {
            return Err(Error::argument(
                self.name(),
                format!(
                    "takes {wanted} inputs, not {}: the control buffer, and for clipping or loss scaling also the \
                     norm and the first index that `global_norm` gives; a step that is committed if its loss is finite has that loss after them",
                    inputs.len()
                ),
            ));
        }
        check(self.name(), inputs[0])?;
        if self.0.if_finite {
            let finite_loss = inputs[wanted - 1];
            if finite_loss.n_elems() != 1 || finite_loss.dtype != DType::F64 {
                let detail =
                    format!("the loss is one float64, not {} {}", finite_loss.shape(), finite_loss.dtype);
                return Err(Error::argument(self.name(), detail));
            }
        }
        if let [_, norm, first_bad, ..] = inputs {
            let is_norm = norm.n_elems() == 1 && matches!(norm.dtype, DType::F32 | DType::F64);
            let is_index = first_bad.n_elems() == 1 && first_bad.dtype == DType::I64;
            if !is_norm || !is_index {
                return Err(Error::argument(
                    self.name(),
                    format!(
                        "the norm is one float32 or float64 and the index one int64, not {} {} and {} {}",
                        norm.shape(),
                        norm.dtype,
                        first_bad.shape(),
                        first_bad.dtype
                    ),
                ));
            }
        }
        one(*inputs[0].shape(), DType::F64)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let finite_loss = match run.inputs.last() {
            // SAFETY: a single element of that type, as `infer` has seen, which nobody writes now.
            Some(finite_loss) if self.0.if_finite => unsafe { *finite_loss.ptr().cast::<f64>() },
            _ => 0.0,
        };
        let norm_and_first_bad = match run.inputs {
            // SAFETY: single elements of these types, as `infer` has seen, which nobody writes now.
            [_, norm, first_bad, ..] => Some(unsafe {
                let norm = match norm.dtype() {
                    DType::F32 => f64::from(*norm.ptr().cast::<f32>()),
                    _ => *norm.ptr().cast::<f64>(),
                };
                (norm, *first_bad.ptr().cast::<i64>())
            }),
            _ => None,
        };
        self.0.begun(Control::load(&run.inputs[0]), norm_and_first_bad, finite_loss).store(&run.outputs[0]);
        Ok(())
    }

    fn workspace_cuda(&self, _inputs: &[&Meta], _profile: &Profile) -> usize {
        self.0.schedule.as_ref().map_or(0, |schedule| size_of_val(&*schedule.pieces()))
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let (control, nothing) = (&run.inputs[0], std::ptr::null_mut::<u8>());
        let (norm, first_bad) = match run.inputs {
            [_, norm, first_bad, ..] => (Some(norm), first_bad.ptr()),
            _ => (None, nothing),
        };
        let finite_loss = run.inputs.last().filter(|_| self.0.if_finite).map_or(nothing, Operand::ptr);
        // Whether a kernel of the step has refused a value is for its own kernel to see.
        let faults = fault::cell(run.device);
        let norm_dtype = norm.map_or(DType::F32, Operand::dtype);
        let variant = u64::from(norm_dtype == DType::F64);
        let kernel =
            gpu.kernel(&BEGIN, self.name(), variant, || format!("typedef {} Norm;", c_name(norm_dtype)))?;
        let pieces = self.0.schedule.as_ref().map_or(vec![], Schedule::pieces);
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_ne_bytes()).collect();
        let stride = control.meta.layout.strides()[0] as i64;
        let norm = norm.map_or(nothing, Operand::ptr);
        // SAFETY: the scratch memory has room for the pieces; the operands are as `infer` has seen, and one thread reads
        // all of them before it writes.
        unsafe {
            if !bytes.is_empty() {
                gpu.upload(&bytes, run.workspace)?;
            }
            let (to, beginning) = (run.outputs[0].ptr(), self.0.beginning());
            gpu.launch(
                &kernel,
                Grid::of(1, 1),
                &[
                    &control.ptr(),
                    &stride,
                    &norm,
                    &first_bad,
                    &finite_loss,
                    &faults,
                    &to,
                    &run.workspace,
                    &beginning,
                ],
            )?;
        }
        Ok(())
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it counts the steps of an optimizer")
    }
}

/// The op that puts a number into the control buffer: its variable is the buffer, its input one f64, the new learning
/// rate.
pub fn set_learning_rate() -> OpRef {
    OpRef::fixed(&SetLearningRate)
}

#[derive(Clone, Copy, Debug)]
struct SetLearningRate;

impl Op for SetLearningRate {
    fn name(&self) -> &'static str {
        "set_learning_rate"
    }

    fn never_refuses(&self) -> bool {
        true
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [control, rate] = inputs else {
            let detail = format!("takes the control buffer and a number, not {} inputs", inputs.len());
            return Err(Error::argument(self.name(), detail));
        };
        check(self.name(), control)?;
        if rate.n_elems() != 1 || rate.dtype != DType::F64 {
            let detail = format!("the learning rate is one float64, not {} {}", rate.shape(), rate.dtype);
            return Err(Error::argument(self.name(), detail));
        }
        one(*control.shape(), DType::F64)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        // SAFETY: a single element of that type, as `infer` has seen, which nobody writes now.
        let learning_rate = unsafe { *run.inputs[1].ptr().cast::<f64>() };
        Control { learning_rate, ..Control::load(&run.inputs[0]) }.store(&run.outputs[0]);
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let rate = Meta::fresh(Shape::SCALAR, DType::F64);
        let rate = Operand::new(run.inputs[1].ptr(), &rate);
        let kernel = Elementwise {
            op: self.name(),
            inputs: &[&run.inputs[0], &rate],
            outputs: &[&run.outputs[0]],
            numbers: &[],
            words: &[],
            variant: 0,
        };
        kernel.run(gpu, || "y0 = index == 0 ? x1 : x0;".to_owned())
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it sets a number of an optimizer")
    }
}

/// The registry's entry of the op that begins a step.
pub(super) const BEGIN_INFO: OpInfo = OpInfo {
    name: "begin_step",
    doc: "Judges the gradients of an optimizer's step by their norm and sets its learning rate, scale and number.",
    samples: begin_samples,
};

/// The registry's entry of the op that sets the learning rate.
pub(super) const RATE_INFO: OpInfo = OpInfo {
    name: "set_learning_rate",
    doc: "Sets the learning rate in an optimizer's control buffer.",
    samples: rate_samples,
};

fn begin_samples() -> Vec<Sample> {
    let buffer = || input(&[Control::LEN], Values::Of(DType::F64, 1.0, 2.0));
    let norm = || input(&[], Values::Of(DType::F32, 5.0, 9.0));
    let index = |low: f64, high: f64| input(&[], Values::Of(DType::I64, low, high));
    let sample = |name: &str, inputs, op: BeginStep| {
        Sample::new(name, inputs, move |x| call(op.clone().op(), &x.iter().collect::<Vec<_>>()))
    };
    let scaling = Some(Scaling { growth_interval: 2, factor: 2.0 });
    let both = BeginStep { clip_norm: Some(0.5), scaling, ..BeginStep::default() };
    let if_finite = BeginStep { if_finite: true, ..BeginStep::default() };
    let finite_loss = || input(&[], Values::Of(DType::F64, 1.0, 2.0));
    vec![
        sample("plain", vec![buffer()], BeginStep::default())
            .reference(|x| {
                let [rate, step, scale, good, .., skipped] = x[0].values[..] else { unreachable!() };
                Array::new(&[8], vec![rate, step + 1.0, scale, good, 1.0 / scale, 0.0, f64::NAN, skipped])
            })
            .refuses(vec![input(&[8], Values::Of(DType::F32, 0.0, 1.0))], "the control buffer is [8] float64")
            .refuses(vec![buffer(), norm()], "takes 1 inputs, not 2"),
        sample("clipped and grown", vec![buffer(), norm(), index(-1.0, -0.5)], both.clone())
            .reference(|x| {
                let [rate, step, scale, .., skipped] = x[0].values[..] else { unreachable!() };
                let norm = x[1].values[0] / scale;
                let values = vec![rate, step + 1.0, 2.0 * scale, 0.0, 0.5 / norm / scale, 0.0, norm, skipped];
                Array::new(&[8], values)
            })
            .refuses(vec![buffer(), norm(), norm()], "the index one int64"),
        sample("overflowed", vec![buffer(), norm(), index(3.0, 4.0)], both).reference(|x| {
            let [rate, step, scale, .., skipped] = x[0].values[..] else { unreachable!() };
            let norm = x[1].values[0] / scale;
            let values = vec![rate, step, 1.0, 0.0, 0.5 / norm / scale, 4.0, norm, skipped + 1.0];
            Array::new(&[8], values)
        }),
        sample("if finite", vec![buffer(), finite_loss()], if_finite)
            .reference(|x| {
                let [rate, step, scale, good, .., skipped] = x[0].values[..] else { unreachable!() };
                Array::new(&[8], vec![rate, step + 1.0, scale, good, 1.0 / scale, 0.0, f64::NAN, skipped])
            })
            .refuses(vec![buffer(), norm()], "the loss is one float64"),
    ]
}

fn rate_samples() -> Vec<Sample> {
    let buffer = || input(&[Control::LEN], Values::Of(DType::F64, 0.0, 2.0));
    let inputs = vec![buffer(), input(&[], Values::Of(DType::F64, 0.0, 1.0))];
    vec![
        Sample::new("number", inputs, |x| call(set_learning_rate(), &[&x[0], &x[1]]))
            .reference(|x| {
                let mut values = x[0].values.clone();
                values[0] = x[1].values[0];
                Array::new(&[8], values)
            })
            .refuses(vec![buffer(), buffer()], "the learning rate is one float64"),
    ]
}
