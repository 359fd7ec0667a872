//! Whether two recordings of a function do the same.

use super::{Call, Program, ValueView};
use crate::op::Draw;

impl Program {
    /// The first thing in which another recording of the same function differs, in words.
    pub fn difference(&self, other: &Program) -> Option<String> {
        for (ours, theirs) in self.calls().zip(other.calls()) {
            let (ours, theirs) = (self.described(ours), other.described(theirs));
            if ours != theirs {
                return Some(format!("{ours} was {theirs} when it was recorded again"));
            }
        }
        let (ours, theirs) = (self.calls.len(), other.calls.len());
        (ours != theirs).then(|| format!("{ours} calls were {theirs} when it was recorded again"))
    }

    /// A call in words that say all that it does: op with attributes, operands, line.
    fn described(&self, call: &Call) -> String {
        // Draws are counted from the beginning of the recording.
        let from_first = |draw: Draw| Draw { seed: 0, number: draw.number.wrapping_sub(self.first_draw) };
        let op = call.op.redrawn(&from_first);
        let view = |view: &ValueView| {
            let value = self.value(view.value);
            let place =
                value.call.map_or_else(|| format!("{:?}", value.place), |_| format!("%{}", view.value));
            format!("{place}{:?}{:?}", view.meta.shape().dims(), view.meta.layout.strides())
        };
        let inputs: Vec<String> = call.inputs.iter().map(view).collect();
        format!("{op:?}({}) at {}", inputs.join(", "), call.site)
    }
}
