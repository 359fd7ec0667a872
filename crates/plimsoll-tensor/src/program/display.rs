//! A program as a person reads it: a line for each call, in the order in which they run.

use std::fmt;

use super::{Call, Instruction, Place, Program, ValueView};

impl fmt::Display for Program {
    /// `%12 = matmul(%3, w)  float32[64, 10]  backward  src/main.rs:10 dense matmul`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_blocks = self.n_blocks();
        writeln!(f, "program: {} calls, {n_blocks} blocks, {} draws", self.calls.len(), self.n_draws)?;
        for (number, argument) in self.arguments.iter().enumerate() {
            writeln!(f, "  argument {number}: {}{}", argument.dtype, argument.shape())?;
        }
        for instruction in self.instructions() {
            match *instruction {
                Instruction::Call(number) => self.show_call(f, &self.calls[number as usize])?,
                Instruction::Mark(name) => writeln!(f, "  {name}:")?,
                Instruction::Commit => writeln!(f, "  commit:")?,
                Instruction::Offload(value, copy) => writeln!(f, "    copy {copy} = offload(%{value})")?,
                Instruction::Fetch(copy, value) => writeln!(f, "    %{value} = fetch(copy {copy})")?,
                Instruction::Wait(copy) => writeln!(f, "    wait(copy {copy})")?,
                Instruction::Read(number) => writeln!(f, "    read {}", self.variable_name(number))?,
                Instruction::Acquire(_)
                | Instruction::Release(_)
                | Instruction::Relabel(..)
                | Instruction::Discard(_) => {}
            }
        }
        let results: Vec<String> = self.results.iter().map(|result| self.name(result)).collect();
        writeln!(f, "  return {}", results.join(", "))
    }
}

impl Program {
    fn show_call(&self, f: &mut fmt::Formatter<'_>, call: &Call) -> fmt::Result {
        let names = |views: &[ValueView]| {
            let names: Vec<String> = views.iter().map(|view| self.name(view)).collect();
            names.join(", ")
        };
        let (outputs, inputs) = (names(&call.outputs), names(&call.inputs));
        let shape = call.outputs.first().map(|view| format!("{}{}", view.meta.dtype, view.meta.shape()));
        writeln!(
            f,
            "    {outputs} = {}({inputs})  {}  {}  {}",
            call.op.name(),
            shape.unwrap_or_default(),
            call.phase.name(),
            call.site
        )
    }

    fn variable_name(&self, number: u32) -> String {
        let name = self.variables[number as usize].cell.upgrade().map(|cell| cell.name());
        name.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("variable {number}"))
    }

    /// How a program calls a value: by its number, or by where it comes from.
    fn name(&self, view: &ValueView) -> String {
        let value = self.value(view.value);
        match (value.place, value.call) {
            (Place::Argument(number), None) => format!("argument {number}"),
            (Place::Block(block), None) if let Some(number) = self.donated_argument(block) => {
                format!("donated {number}")
            }
            (Place::Captured(number), None) => format!("captured {number}"),
            (Place::Variable(number), made) => {
                let name = self.variable_name(number);
                if made.is_some() { format!("{name}'") } else { name }
            }
            _ => format!("%{}", view.value),
        }
    }
}
