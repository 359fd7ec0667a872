//! Dead calls: what they make is read by nobody. A call with an effect is never dead, nor is one that may refuse values: eager code
//! would say so. What is refused are indices and labels, so a call that reads floats alone refuses nothing.

use super::super::{Phase, Program};
use super::Change;

/// The calls that nobody reads, those too that only dead calls read.
pub(super) fn unread(program: &Program) -> Vec<Change> {
    let mut n_readers = vec![0u32; program.n_values()];
    let read = program.calls.iter().flat_map(|call| &call.inputs).chain(&program.results);
    read.for_each(|view| n_readers[view.value as usize] += 1);
    let single = program.single_blocks();
    let mut removed = Vec::new();
    for number in (0..program.calls.len()).rev() {
        let call = &program.calls[number];
        let is_read = call.outputs.iter().any(|view| n_readers[view.value as usize] > 0);
        let is_alone = call
            .outputs
            .iter()
            .all(|view| program.block_of(view.value).is_some_and(|block| single.contains(&block)));
        let reads_floats = call.inputs.iter().all(|view| view.meta.dtype.is_float());
        let may_refuse = !reads_floats && !call.op.get().never_refuses();
        let may_matter = call.op.has_effect() || call.op.is_own() || may_refuse;
        if is_read || !is_alone || may_matter || call.phase == Phase::Update {
            continue;
        }
        removed.push(number as u32);
        call.inputs.iter().for_each(|view| n_readers[view.value as usize] -= 1);
    }
    // One by one they would not be dead: a reader goes before what it reads.
    match removed.is_empty() {
        true => Vec::new(),
        false => vec![Change { replaced: Vec::new(), removed }],
    }
}
