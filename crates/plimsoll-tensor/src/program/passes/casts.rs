//! Casts that are the identity on all bit patterns: of whole numbers to a wider type and back.
//!
//! Floats are left alone: on the way from a narrow type to a wide one and back, a signalling NaN becomes a quiet one.

use super::super::{Call, Place, Program};
use super::Change;
use crate::base::dtype::DType;

/// The second casts of pairs that give back what the first one read.
pub(super) fn identities(program: &Program) -> Vec<Change> {
    let single = program.single_blocks();
    let is_single = |value: u32| match program.value(value).place {
        Place::Block(block) => single.contains(&block),
        Place::Argument(_) | Place::Captured(_) => true,
        // It is written where later calls would still read it.
        Place::Variable(_) => false,
    };
    let identity = |(number, second): (usize, &Call)| {
        let first = &program.calls[program.value(cast_input(second)?).call? as usize];
        cast_input(first)?;
        let (read, made) = (&first.inputs[0], &second.outputs[0]);
        let is_same = *read.meta == *made.meta && second.inputs[0].meta == first.outputs[0].meta;
        let is_back = is_wider(first.outputs[0].meta.dtype, read.meta.dtype);
        let fits = is_same && is_back && is_single(read.value) && is_single(made.value);
        fits.then(|| Change { replaced: vec![(made.value, read.value)], removed: vec![number as u32] })
    };
    program.calls.iter().enumerate().filter_map(identity).collect()
}

/// What a cast reads; nothing for other calls.
fn cast_input(call: &Call) -> Option<u32> {
    (call.op.name() == "cast" && !call.op.is_own()).then(|| call.inputs[0].value)
}

/// Whether a type has all values of another.
fn is_wider(wide: DType, narrow: DType) -> bool {
    matches!((narrow, wide), (DType::U8 | DType::Bool, DType::I32 | DType::I64) | (DType::I32, DType::I64))
}

#[cfg(test)]
mod tests {
    use super::is_wider;
    use crate::base::dtype::DType;

    #[test]
    fn only_whole_numbers_come_back_as_they_were() {
        assert!(is_wider(DType::I64, DType::I32) && is_wider(DType::I32, DType::U8));
        assert!(!is_wider(DType::I32, DType::I64) && !is_wider(DType::F32, DType::F16));
        assert!(!is_wider(DType::F64, DType::F32) && !is_wider(DType::F32, DType::I32));
    }
}
