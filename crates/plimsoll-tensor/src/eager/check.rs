//! What `execute` asks of an op's statements before it acts on them.
//!
//! Anybody can implement [`Op`](crate::Op), without unsafe code, and state whatever they like; memory is handed out and
//! looked at as the op says. So every statement that leads to memory is held against what is there: views against the
//! storage of the input that they look at, positions against the lists that they point into. New outputs need no check:
//! their storage is made for their shape, and a shape can be counted by construction. A statement that does not hold is an
//! error that names the op and the numbers, and nothing has happened yet.

use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::eager::execute::Arg;
use crate::eager::op::{AuxOutput, OpRef, Operand, Output, Rebuild, SavedRef};
use crate::eager::tensor::{Nodes, Tensor};

/// The most outputs that an op can have.
const MAX_OUTPUTS: usize = 1 << 12;

/// The longest axis of an operand on a GPU; strides, paddings and the like are at most as long, too.
pub(crate) const MAX_GPU_EXTENT: usize = i32::MAX as usize;

/// What the outputs of an op are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Views of inputs.
    Views,
    /// New tensors.
    New,
}

/// What the outputs are: all of them views, or all of them new.
///
/// # Errors
/// No outputs, too many, or some of each kind.
#[inline]
pub(crate) fn kind_of(op: &OpRef, outputs: &[Output]) -> Result<Kind> {
    match outputs {
        [Output::New { .. }] => Ok(Kind::New),
        [Output::View { .. }] => Ok(Kind::Views),
        several => kind_of_several(op, several),
    }
}

fn kind_of_several(op: &OpRef, outputs: &[Output]) -> Result<Kind> {
    let n_views = outputs.iter().filter(|output| matches!(output, Output::View { .. })).count();
    let detail = match outputs.len() {
        0 => "`infer` states no outputs; an op has at least one".to_owned(),
        n if n > MAX_OUTPUTS => format!("`infer` states {n} outputs; an op has at most {MAX_OUTPUTS}"),
        n if n_views == n => return Ok(Kind::Views),
        _ if n_views == 0 => return Ok(Kind::New),
        n => format!(
            "`infer` states {n} outputs of which {n_views} are views; they must be all views or all new"
        ),
    };
    Err(Error::argument(op.name(), detail))
}

/// The view of an input that an output is.
///
/// # Errors
/// An input that the op does not have; a layout that reaches beyond the input's storage.
pub(crate) fn view(op: &OpRef, args: &[Arg<'_>], output: &Output) -> Result<Tensor> {
    let Output::View { input, layout } = output else { return Err(changed(op)) };
    let Some(arg) = args.get(*input) else {
        let detail = format!("`infer` states a view of input {input}; the op has {} inputs", args.len());
        return Err(Error::argument(op.name(), detail));
    };
    let (storage, dtype) = (arg.storage(), arg.meta().dtype);
    let n_elems = storage.n_bytes() / dtype.size();
    if !layout.lies_within(n_elems) {
        return Err(Error::shape(op.name(), beyond(layout, n_elems)));
    }
    Ok(Tensor::over(storage.clone(), arg.meta().with_layout(**layout), Nodes::new()))
}

fn beyond(layout: &Layout, n_elems: usize) -> String {
    format!(
        "a view of shape {} with strides {:?} from element {} on reaches beyond its storage of {n_elems} elements",
        layout.shape(),
        layout.strides(),
        layout.offset()
    )
}

/// Refuses auxiliary outputs that are not row-major from the first element on, as their storage is.
pub(crate) fn aux_outputs(op: &OpRef, aux_outputs: &[AuxOutput]) -> Result<()> {
    match aux_outputs.iter().find(|aux| aux.meta.layout != Layout::contiguous(*aux.meta.shape())) {
        None => Ok(()),
        Some(aux) => {
            let detail = format!(
                "`aux_outputs` states an output of shape {} with strides {:?}; auxiliary outputs are row-major",
                aux.meta.shape(),
                aux.meta.layout.strides()
            );
            Err(Error::argument(op.name(), detail))
        }
    }
}

/// Refuses what is to be saved of a call with so many inputs, outputs and auxiliary outputs if it is not there. `what` names
/// the statement.
pub(crate) fn saved(
    op: &OpRef,
    what: &str,
    saved: &[SavedRef],
    [inputs, outputs, aux_outputs]: [usize; 3],
) -> Result<()> {
    let is_there = |saved_ref: &&SavedRef| match **saved_ref {
        SavedRef::Input(idx) => idx < inputs,
        SavedRef::Output(idx) => idx < outputs,
        SavedRef::Aux(idx) => idx < aux_outputs,
    };
    match saved.iter().find(|saved_ref| !is_there(saved_ref)) {
        None => Ok(()),
        Some(saved_ref) => {
            let detail = format!(
                "`{what}` names {saved_ref:?}; the op has {inputs} inputs, {outputs} outputs and {aux_outputs} auxiliary outputs"
            );
            Err(Error::argument(op.name(), detail))
        }
    }
}

/// Refuses a way to rebuild an output that reads, or makes, what the op does not have.
pub(crate) fn rebuilding(op: &OpRef, all: [usize; 3]) -> Result<()> {
    let Some(Rebuild { output, reads, .. }) = op.get().rebuild() else { return Ok(()) };
    saved(op, "rebuild", &reads, all)?;
    saved(op, "rebuild", &[SavedRef::Output(output)], all)
}

/// Refuses operands with an extent that kernels of a GPU, which count along an axis in 32 bits, cannot count.
pub(crate) fn extents_on_gpu<'a>(
    op: &OpRef,
    mut operands: impl Iterator<Item = &'a Operand<'a>>,
) -> Result<()> {
    let is_long = |operand: &&Operand<'_>| operand.shape().iter().any(|&extent| extent > MAX_GPU_EXTENT);
    match operands.find(is_long) {
        None => Ok(()),
        Some(operand) => {
            let detail = format!("shape {}; on a GPU an extent is at most {MAX_GPU_EXTENT}", operand.shape());
            Err(Error::shape(op.name(), detail))
        }
    }
}

/// Refuses an axis that a shape does not have.
pub(crate) fn axis(op: &'static str, axis: usize, shape: &Shape) -> Result<()> {
    if axis < shape.rank() {
        return Ok(());
    }
    Err(Error::shape(op, format!("shape {shape} has no axis {axis}")))
}

/// The most lines of an operand without elements.
const MOST_EMPTY_LINES: usize = 1 << 26;

/// Refuses operands without elements whose other extents multiply to so much that no kernel would come to the end of their
/// lines: they have no bytes, so that the pool does not refuse them.
#[inline]
pub(crate) fn empty_lines<'a>(op: &OpRef, operands: impl Iterator<Item = &'a Operand<'a>>) -> Result<()> {
    let is_empty = |operand: &&Operand<'_>| operand.n_elems() == 0;
    operands.into_iter().filter(is_empty).try_for_each(|operand| {
        let extents = operand.shape().iter().filter(|&&extent| extent > 0);
        match extents.fold(1, |n: usize, &extent| n.saturating_mul(extent)) {
            n if n <= MOST_EMPTY_LINES => Ok(()),
            n => {
                let detail =
                    format!("shape {} has no elements, but {n} lines; there may be at most", operand.shape());
                Err(Error::shape(op.name(), format!("{detail} {MOST_EMPTY_LINES}")))
            }
        }
    })
}

/// The error of an op that has an effect and is asked for its outputs a second time.
pub(crate) fn recomputed_effect(op: &OpRef) -> Error {
    Error::argument(
        op.name(),
        "it has an effect besides its outputs, so it is not recomputed; take it out of the recomputed function",
    )
}

/// An op that says something else than it said before.
pub(crate) fn changed(op: &OpRef) -> Error {
    Error::argument(
        op.name(),
        "it states other outputs for equal inputs than it did before; shapes and dtypes must follow from the inputs alone",
    )
}
