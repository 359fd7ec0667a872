//! The operands of an update op, and how their elements are cut into tasks and tiles.
//!
//! One op updates all parameters of an optimizer. For each parameter in turn its variables are the parameter, its
//! states, and its 16-bit compute copy if it has one; the last variable is the control buffer. The inputs are the
//! gradients, one per parameter. All elements of all parameters form one sequence of tiles, and a task takes a fixed
//! number of them, so a hundred small parameters cost one task, and neither their number nor that of the threads is
//! seen in the bits.

use std::ops::Range;

use plimsoll_cpu::threads::parallel;

use super::control::{self, Control};
use super::elements::{BLOCK_LEN, TILE_LEN, carry_elements};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::op::{Meta, Operand, Output, Outputs, Run};

/// Tiles that a task takes, so that waking a thread for it pays.
const TILES_PER_TASK: usize = 32;

/// One parameter of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdatedParameter {
    /// The number of its states.
    pub n_states: usize,
    /// Whether a 16-bit compute copy follows its states.
    pub has_copy: bool,
    /// Whether weight decay applies to it.
    pub decays: bool,
}

/// A state that a parameter has: to be made before the first update, filled with one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateSpec {
    /// Its name.
    pub name: &'static str,
    /// Its shape.
    pub shape: Shape,
    /// Its dtype.
    pub dtype: DType,
    /// What it begins as.
    pub initial: f64,
}

/// The parameters of an update, and where their operands are.
#[derive(Clone, Debug)]
pub(super) struct UpdatedParameters {
    list: Box<[UpdatedParameter]>,
    /// For each parameter the position of its first operand, and at the end that of the control buffer.
    firsts: Box<[usize]>,
}

impl UpdatedParameters {
    pub fn new(list: &[UpdatedParameter]) -> UpdatedParameters {
        // Anybody can ask for any number of states; `infer` refuses what no list of operands can have.
        let ends = list.iter().scan(0usize, |end, member| {
            *end = end.saturating_add(member.n_states).saturating_add(1 + usize::from(member.has_copy));
            Some(*end)
        });
        UpdatedParameters { firsts: std::iter::once(0).chain(ends).collect(), list: list.into() }
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn member(&self, idx: usize) -> UpdatedParameter {
        self.list[idx]
    }

    /// The position of a parameter among the operands.
    pub fn first(&self, idx: usize) -> usize {
        self.firsts[idx]
    }

    /// The position of the control buffer.
    fn control(&self) -> usize {
        self.firsts[self.list.len()]
    }

    /// Checks all operands; `states` says which states a parameter has.
    ///
    /// # Errors
    /// Operands that the kernels could not work on: another number of them, or of a parameter's states; shapes and dtypes that
    /// do not belong together.
    pub fn infer(
        &self,
        op: &'static str,
        inputs: &[&Meta],
        states: impl Fn(&Meta) -> Vec<StateSpec>,
    ) -> Result<Outputs> {
        let control = self.control();
        if inputs.len() != control.saturating_add(1 + self.len()) {
            return Err(Error::argument(
                op,
                format!(
                    "{} parameters with their states have {} variables and {} gradients, but there are {} operands",
                    self.len(),
                    control.saturating_add(1),
                    self.len(),
                    inputs.len()
                ),
            ));
        }
        control::check(op, inputs[control])?;
        for (idx, member) in self.list.iter().enumerate() {
            let first = self.firsts[idx];
            let (parameter, gradient) = (inputs[first], inputs[control + 1 + idx]);
            check_gradient(op, idx, parameter, gradient)?;
            check_states(op, idx, parameter, &states(parameter), &inputs[first + 1..][..member.n_states])?;
            if member.has_copy {
                check_copy(op, idx, parameter, inputs[first + 1 + member.n_states])?;
            }
        }
        let variables = &inputs[..=control];
        Ok(variables.iter().map(|meta| Output::New { shape: *meta.shape(), dtype: meta.dtype }).collect())
    }
}

/// Refuses parameters that are not wide floats, and gradients that do not belong to them.
fn check_gradient(op: &'static str, idx: usize, parameter: &Meta, gradient: &Meta) -> Result<()> {
    let fits = match parameter.dtype {
        DType::F32 => matches!(gradient.dtype, DType::F32 | DType::F16 | DType::BF16),
        DType::F64 => gradient.dtype == DType::F64,
        other => {
            return Err(Error::dtype(
                op,
                format!(
                    "parameter {idx} is {other}; parameters are float32 or float64, and 16-bit ones have a float32 \
                     master"
                ),
            ));
        }
    };
    if !fits {
        return Err(Error::dtype(
            op,
            format!(
                "parameter {idx} is {}, its gradient {}; a float32 parameter takes gradients of float32, float16 or \
                 bfloat16, a float64 one of float64",
                parameter.dtype, gradient.dtype
            ),
        ));
    }
    if parameter.shape() != gradient.shape() {
        return Err(Error::shape(
            op,
            format!("parameter {idx} is {}, but its gradient {}", parameter.shape(), gradient.shape()),
        ));
    }
    Ok(())
}

fn check_copy(op: &'static str, idx: usize, parameter: &Meta, copy: &Meta) -> Result<()> {
    let is_narrow = matches!(copy.dtype, DType::F16 | DType::BF16);
    if is_narrow && parameter.dtype == DType::F32 && parameter.shape() == copy.shape() {
        return Ok(());
    }
    Err(Error::argument(
        op,
        format!(
            "parameter {idx} is {} {}, its compute copy {} {}; a float32 parameter may have a float16 or bfloat16 copy \
             of its shape",
            parameter.shape(),
            parameter.dtype,
            copy.shape(),
            copy.dtype
        ),
    ))
}

/// Refuses states that are not those that the parameter has: the kernels look for each of them, and for no other.
fn check_states(
    op: &'static str,
    idx: usize,
    parameter: &Meta,
    wanted: &[StateSpec],
    states: &[&Meta],
) -> Result<()> {
    let described = format!("parameter {idx} is {} {}", parameter.shape(), parameter.dtype);
    if states.len() != wanted.len() {
        let names: Vec<&str> = wanted.iter().map(|spec| spec.name).collect();
        let detail = format!("{described} and has the states {names:?}, not {} of them", states.len());
        return Err(Error::argument(op, detail));
    }
    let differs =
        |(spec, state): &(&StateSpec, &&Meta)| spec.shape != *state.shape() || spec.dtype != state.dtype;
    match wanted.iter().zip(states).find(differs) {
        None => Ok(()),
        Some((spec, state)) => {
            let (is, wanted) = ((state.shape(), state.dtype), (spec.shape, spec.dtype));
            let detail = format!(
                "{described}, so its state `{}` is {} {}, not {} {}",
                spec.name, wanted.0, wanted.1, is.0, is.1
            );
            Err(Error::argument(op, detail))
        }
    }
}

/// The operands of one execution, shared by its tasks.
pub(super) struct Operands<'a> {
    members: &'a UpdatedParameters,
    inputs: &'a [Operand<'a>],
    outputs: &'a [Operand<'a>],
}

// SAFETY: operands are addresses and forms; what is read and written through them is promised where it is done.
unsafe impl Sync for Operands<'_> {}

impl<'a> Operands<'a> {
    pub fn new(members: &'a UpdatedParameters, run: &Run<'a>) -> Operands<'a> {
        Operands { members, inputs: run.inputs, outputs: run.outputs }
    }

    /// The control buffer, which is passed on as it is.
    pub fn control(&self) -> Control {
        let at = self.members.control();
        let control = Control::load(&self.inputs[at]);
        if self.inputs[at].ptr() != self.outputs[at].ptr() {
            control.store(&self.outputs[at]);
        }
        control
    }

    /// Where the control buffer is on a GPU, once the variables have been brought to where their new values go.
    pub fn control_place(&self) -> *mut u8 {
        self.outputs[self.members.control()].ptr()
    }

    /// The present values of all variables, the control buffer included, and where the new ones go.
    pub fn variables(&self) -> impl Iterator<Item = (&Operand<'a>, &Operand<'a>)> {
        self.inputs.iter().zip(self.outputs)
    }

    /// The number of parameters.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// A parameter's entry in the list.
    pub fn member(&self, idx: usize) -> UpdatedParameter {
        self.members.member(idx)
    }

    /// The number of elements of a parameter.
    pub fn n_elems(&self, idx: usize) -> usize {
        self.parameter(idx).n_elems()
    }

    /// Where a parameter's new value goes.
    pub fn parameter(&self, idx: usize) -> &Operand<'a> {
        &self.outputs[self.members.firsts[idx]]
    }

    /// A parameter's gradient.
    pub fn gradient(&self, idx: usize) -> &Operand<'a> {
        &self.inputs[self.members.control() + 1 + idx]
    }

    /// Where the new value of a parameter's state goes.
    pub fn state(&self, idx: usize, state: usize) -> &Operand<'a> {
        &self.outputs[self.members.firsts[idx] + 1 + state]
    }

    /// Where a parameter's compute copy goes.
    pub fn copy(&self, idx: usize) -> Option<&Operand<'a>> {
        let member = self.members.member(idx);
        member.has_copy.then(|| &self.outputs[self.members.firsts[idx] + 1 + member.n_states])
    }

    /// Brings a tile of a parameter, of its states and of its copy to where their new values go, unless they are there
    /// already. States of another shape than the parameter's have an element per block.
    ///
    /// # Safety
    /// Nobody else uses these elements meanwhile.
    pub unsafe fn carry(&self, idx: usize, tile: Range<usize>) {
        let first = self.members.firsts[idx];
        let shape = self.inputs[first].shape();
        for at in first..self.members.firsts[idx + 1] {
            let blocks = tile.start / BLOCK_LEN..tile.end.div_ceil(BLOCK_LEN);
            let part = if self.inputs[at].shape() == shape { tile.clone() } else { blocks };
            // SAFETY: the part lies within the operands, and is the caller's alone.
            unsafe { self.carry_part(at, part) };
        }
    }

    /// Brings the whole of a parameter, of its states and of its copy to where their new values go, unless they are
    /// there already.
    ///
    /// # Safety
    /// Nobody else uses these operands meanwhile.
    pub unsafe fn carry_whole(&self, idx: usize) {
        for at in self.members.firsts[idx]..self.members.firsts[idx + 1] {
            // SAFETY: all elements of the operands, which are the caller's alone.
            unsafe { self.carry_part(at, 0..self.inputs[at].n_elems()) };
        }
    }

    /// # Safety
    /// The part lies within the operands at that position, and nobody else uses it meanwhile.
    unsafe fn carry_part(&self, at: usize, part: Range<usize>) {
        let (from, to) = (&self.inputs[at], &self.outputs[at]);
        if from.ptr() == to.ptr() {
            return;
        }
        // SAFETY: the operands have one shape and dtype, and the rest is the caller's promise.
        unsafe {
            match from.dtype().size() {
                8 => carry_elements::<u64>(from, to, part),
                4 => carry_elements::<u32>(from, to, part),
                2 => carry_elements::<u16>(from, to, part),
                _ => carry_elements::<u8>(from, to, part),
            }
        }
    }

    /// Cuts all elements of all parameters into tiles and calls `visit` with the parameter and the elements of each,
    /// on all threads. Tiles are visited once, in no order, and tiles of different tasks do not overlap.
    pub fn for_each_tile(&self, visit: impl Fn(usize, Range<usize>) + Sync) {
        let n_tiles = |idx: usize| self.n_elems(idx).div_ceil(TILE_LEN);
        let total: usize = (0..self.members.len()).map(n_tiles).sum();
        parallel(total.div_ceil(TILES_PER_TASK), |task| {
            let (mut idx, mut before) = (0, 0);
            for tile in task * TILES_PER_TASK..((task + 1) * TILES_PER_TASK).min(total) {
                while tile >= before + n_tiles(idx) {
                    before += n_tiles(idx);
                    idx += 1;
                }
                let start = (tile - before) * TILE_LEN;
                visit(idx, start..(start + TILE_LEN).min(self.n_elems(idx)));
            }
        });
    }
}
