//! Numbers as the bytes that they are, to be sent and received.

use std::ops::AddAssign;

use plimsoll_tensor::op::{Operand, Run};
use plimsoll_tensor::{DType, Element, Error, Result};

/// A type of numbers that collectives add up. Every pattern of bits is one, and none has padding.
pub(crate) trait Number: Element + Copy + AddAssign {}

impl Number for f32 {}
impl Number for f64 {}

/// The bytes of numbers.
pub(crate) fn bytes_of<T: Number>(numbers: &[T]) -> &[u8] {
    // SAFETY: floats have no padding, bytes need no alignment, and the length is that of the same memory.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// The bytes of numbers, to be written.
pub(crate) fn bytes_of_mut<T: Number>(numbers: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and whatever is written there is a float.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
}

/// The operands of an op on the host, as bytes.
pub(crate) struct OperandBytes<'a> {
    pub inputs: Vec<&'a [u8]>,
    pub outputs: Vec<&'a mut [u8]>,
    pub workspace: &'a mut [u8],
}

/// The operands of an op whose outputs are memory of their own.
///
/// # Errors
/// A device that is not the host; operands that are strided, or of truth values.
pub(crate) fn operands<'a>(run: &'a mut Run<'_>, op: &'static str) -> Result<OperandBytes<'a>> {
    check(run, op)?;
    // Operands without elements may have any address.
    let filled = |operands: &'a [Operand<'a>]| operands.iter().filter(|operand| operand.n_elems() > 0);
    let is_input = |output: &Operand<'_>| filled(run.inputs()).any(|input| input.ptr() == output.ptr());
    if filled(run.outputs()).any(is_input) {
        return Err(Error::argument(op, "an output is written over an input"));
    }
    let inputs = run.inputs().iter().map(|operand| {
        // SAFETY: `execute` hands out operands that are valid for their layouts, this one is contiguous, every pattern of bits is a
        // number (checked), and nothing writes to an input while the op runs.
        unsafe { read(operand) }
    });
    let inputs = inputs.collect();
    // SAFETY: outputs are blocks of their own and not inputs (checked), and `run` is borrowed for as long as the slices live.
    let outputs = run.outputs().iter().map(|operand| unsafe { write(operand) }).collect();
    Ok(OperandBytes { inputs, outputs, workspace: workspace(run) })
}

/// The operands of an op that updates variables: there are outputs alone, which hold the variables' present values.
///
/// # Errors
/// As [`operands`].
pub(crate) fn variables<'a>(run: &'a mut Run<'_>, op: &'static str) -> Result<OperandBytes<'a>> {
    check(run, op)?;
    let mut outputs = Vec::new();
    for (input, output) in run.inputs().iter().zip(run.outputs()) {
        // SAFETY: an output is the memory of the variable itself, or a block of its own; both are as long as its layout says, of
        // numbers (checked), nobody else's, and sliced once, because `run` is borrowed for as long as the slices live.
        let bytes = unsafe { write(output) };
        if input.ptr() != output.ptr() {
            // SAFETY: then it is not the output's memory, and nothing writes to it while the op runs.
            bytes.copy_from_slice(unsafe { read(input) });
        }
        outputs.push(bytes);
    }
    Ok(OperandBytes { inputs: Vec::new(), outputs, workspace: workspace(run) })
}

fn check(run: &Run<'_>, op: &'static str) -> Result<()> {
    if !run.device().is_host() {
        let detail = format!("{} is not the host, whose memory ranks exchange", run.device());
        return Err(Error::device(op, detail));
    }
    let mut operands = run.inputs().iter().chain(run.outputs());
    match operands.find(|operand| !operand.is_contiguous() || operand.dtype() == DType::Bool) {
        Some(operand) => {
            Err(Error::shape(op, format!("an operand is strided, or no number: {:?}", operand.meta)))
        }
        None => Ok(()),
    }
}

/// # Safety
/// The operand is contiguous, of numbers, and nobody writes to it while the slice lives.
unsafe fn read<'a>(operand: &Operand<'_>) -> &'a [u8] {
    match operand.meta.n_bytes() {
        0 => &[],
        // SAFETY: the caller's promise.
        n_bytes => unsafe { std::slice::from_raw_parts(operand.ptr(), n_bytes) },
    }
}

/// # Safety
/// The operand is contiguous, of numbers, and nobody else's while the slice lives.
unsafe fn write<'a>(operand: &Operand<'_>) -> &'a mut [u8] {
    match operand.meta.n_bytes() {
        0 => &mut [],
        // SAFETY: the caller's promise.
        n_bytes => unsafe { std::slice::from_raw_parts_mut(operand.ptr(), n_bytes) },
    }
}

fn workspace<'a>(run: &Run<'_>) -> &'a mut [u8] {
    match run.workspace() {
        (_, 0) => &mut [],
        // SAFETY: the block is as long as it says and this call's alone; whoever asks for operands does so once.
        (start, n_bytes) => unsafe { std::slice::from_raw_parts_mut(start, n_bytes) },
    }
}
