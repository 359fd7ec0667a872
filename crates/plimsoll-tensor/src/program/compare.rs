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

    /// Whether another recording acquires and releases the same memory for the same calls, so that the plans of one hold for
    /// the other: they differ at most in numbers, draws, and in which tensors and variables they use.
    pub fn is_alike(&self, other: &Program) -> bool {
        let same_call = |(ours, theirs): (&Call, &Call)| {
            ours.op.name() == theirs.op.name()
                && ours.op.second(&ours.input_metas()).is_some()
                    == theirs.op.second(&theirs.input_metas()).is_some()
                && (&ours.inputs, &ours.outputs, ours.n_aux)
                    == (&theirs.inputs, &theirs.outputs, theirs.n_aux)
                && (ours.workspace, &ours.wanted, ours.device)
                    == (theirs.workspace, &theirs.wanted, theirs.device)
                && (ours.phase, ours.site, ours.order) == (theirs.phase, theirs.site, theirs.order)
        };
        let lengths = |program: &Program| {
            let (calls, values) = (program.calls.len(), program.values.len());
            (calls, values, program.blocks.len(), program.instructions.len(), program.n_draws)
        };
        lengths(self) == lengths(other)
            && (&self.devices, self.commits_if_finite) == (&other.devices, other.commits_if_finite)
            && (&self.arguments, &self.donated) == (&other.arguments, &other.donated)
            && self.argument_devices == other.argument_devices
            && self.results == other.results
            && self.written == other.written
            && self.new_places == other.new_places
            && self.cleared == other.cleared
            && self
                .variables
                .iter()
                .map(|input| &input.meta)
                .eq(other.variables.iter().map(|input| &input.meta))
            && self.calls.iter().zip(other.calls.iter()).all(same_call)
            && self.values.iter().eq(other.values.iter())
            && self.blocks.iter().eq(other.blocks.iter())
            && self.instructions.iter().eq(other.instructions.iter())
    }

    /// Takes over the numbers, tensors and variables of a recording that is like the one that this program was made from.
    pub(super) fn adopt(&mut self, recorded: &Program) {
        for at in 0..self.calls.len() {
            let (source, is_second) = (self.calls[at].source, self.calls[at].is_second);
            let from = &recorded.calls[source as usize];
            let second = if is_second { from.op.second(&from.input_metas()) } else { None };
            self.calls[at].op = second.map_or_else(|| from.op.clone(), |second| second.op);
        }
        self.variables.clone_from(&recorded.variables);
        self.captured.clone_from(&recorded.captured);
        self.first_draw = recorded.first_draw;
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
