//! Equal calls: the same op with the same attributes on the same values is made once (common subexpressions).
//!
//! Never for draws, for effects, for ops of somebody's own, or where sums have no fixed order; nor across forward and backward: what
//! backward rebuilds or a recomputed function makes again is made again on purpose, and whether that is worth its time is for the
//! planner to decide, which knows the limit.

use std::collections::{BTreeMap, HashMap};

use super::super::{Call, Phase, Program};
use super::Change;
use crate::eager::execute::Order;
use crate::eager::op::Draw;

/// The calls that repeat an earlier one.
pub(super) fn repeated(program: &Program) -> Vec<Change> {
    let single = program.single_blocks();
    let is_single = |call: &Call| {
        call.outputs
            .iter()
            .all(|view| program.block_of(view.value).is_some_and(|block| single.contains(&block)))
    };
    // Values that are read in place of others, so that what is computed from equal values is equal, too.
    let mut instead: HashMap<u32, u32> = HashMap::new();
    let mut first: BTreeMap<(&'static str, Vec<u32>), Vec<u32>> = BTreeMap::new();
    let mut changes = Vec::new();
    for number in 0..program.calls.len() {
        let call = &program.calls[number];
        if !is_repeatable(call) || !is_single(call) {
            continue;
        }
        let reads = |call: &Call| -> Vec<u32> {
            call.inputs.iter().map(|view| *instead.get(&view.value).unwrap_or(&view.value)).collect()
        };
        let known = first.entry((call.op.name(), reads(call))).or_default();
        let equal = known.iter().copied().find(|&other| is_equal(&program.calls[other as usize], call));
        let Some(equal) = equal else {
            known.push(number as u32);
            continue;
        };
        let earlier = &program.calls[equal as usize];
        let replaced: Vec<(u32, u32)> =
            call.outputs.iter().zip(&earlier.outputs).map(|(old, new)| (old.value, new.value)).collect();
        instead.extend(replaced.iter().copied());
        changes.push(Change { replaced, removed: vec![number as u32] });
    }
    changes
}

/// Whether a call gives the same bits whenever it is made, and nothing else.
fn is_repeatable(call: &Call) -> bool {
    let draws = std::cell::Cell::new(false);
    let note = |draw: Draw| {
        draws.set(true);
        draw
    };
    _ = call.op.redrawn(&note);
    let is_plain =
        call.order == Order::Fixed && call.phase != Phase::Update && call.recomputed_flops.is_none();
    let is_ours = !call.op.is_own() && !call.op.has_effect() && call.op.get().output_device().is_none();
    is_plain && is_ours && !draws.get()
}

/// Whether two calls that read the same values see and make the same of them.
fn is_equal(ours: &Call, theirs: &Call) -> bool {
    let same_views = ours.inputs.iter().zip(&theirs.inputs).all(|(one, other)| one.meta == other.meta);
    let same_outputs = ours.outputs.len() == theirs.outputs.len()
        && ours.outputs.iter().zip(&theirs.outputs).all(|(one, other)| one.meta == other.meta);
    same_views
        && same_outputs
        && (ours.n_aux, ours.device, ours.phase) == (theirs.n_aux, theirs.device, theirs.phase)
        && format!("{:?}", ours.op) == format!("{:?}", theirs.op)
}
