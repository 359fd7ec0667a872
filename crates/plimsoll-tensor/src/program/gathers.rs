//! Programs of variables that are kept elsewhere: where such a variable is read, its value is made, and freed after its last
//! reader.
//!
//! A variable whose value is kept in shards says its shape and nothing else. A function that reads it is recorded as if it had a
//! value; this rewriting replaces each [`Instruction::Read`] of it by calls of the op that makes the value, from a variable that is
//! there. One such call serves the readers of one layer in one phase: a layer's weights are there while its forward or its backward
//! runs, and not between. These calls are in the program before it is planned, so their memory is planned like any other, and a plan
//! may make such a value again for what it recomputes.

use std::collections::BTreeMap;

use plimsoll_memory::{Label, LongList, Owner, Site};
use smallvec::{SmallVec, smallvec};

use super::{BlockSpec, Call, Instruction, Phase, Place, Program, Value, ValueView, VariableInput};
use crate::base::error::{Error, Result};
use crate::eager::execute::Order;
use crate::eager::op::{Meta, OpRef, Output};
use crate::eager::variable::Variable;

/// Readers that are further apart than so many calls have a value each, whatever layer they are of.
const MOST_APART: u32 = 64;

/// A variable that has no value of its own, and how its value is made.
pub struct GatheredVariable {
    /// The variable.
    pub variable: Variable,
    /// The variable from which its value is made,
    pub from: Variable,
    /// and the op that makes it: the first output is the value, and others are scratch memory.
    pub gather: OpRef,
}

/// Readers of a variable that share a value.
struct Readers {
    first: u32,
    last: u32,
    phase: Phase,
    scope: &'static str,
}

impl Program {
    /// The program with calls that make the values of these variables where they are read.
    ///
    /// # Errors
    /// A program that writes or returns one of the variables.
    pub fn gathering(self, gathered: &[GatheredVariable]) -> Result<Program> {
        let mut from = self;
        let mut calls: LongList<Call> = from.calls.clone();
        let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
        let mut n_gathered = 0;
        for gathered in gathered {
            let Some(value) = from.read_value(&gathered.variable) else { continue };
            n_gathered += 1;
            from.check_gathered(value, &gathered.variable)?;
            let source = from.source_of(&gathered.from, value);
            for readers in from.readers_of(value) {
                let call = from.gather_call(gathered, source, value, &readers)?;
                let new = call.outputs[0].value;
                for at in readers.first..=readers.last {
                    let inputs = calls[at as usize].inputs.iter_mut();
                    inputs.filter(|view| view.value == value).for_each(|view| view.value = new);
                }
                let blocks: Vec<u32> =
                    call.outputs.iter().filter_map(|view| from.block_of(view.value)).collect();
                let before: &mut Vec<Instruction> = before.entry(readers.first).or_default();
                before.extend(blocks.iter().map(|&block| Instruction::Acquire(block)));
                before.push(Instruction::Call(calls.len() as u32));
                before.extend(blocks[1..].iter().map(|&block| Instruction::Release(block)));
                let after: &mut Vec<Instruction> = after.entry(readers.last).or_default();
                after.push(Instruction::Release(blocks[0]));
                calls.push(call);
            }
        }
        if n_gathered == 0 {
            return Ok(from);
        }
        let mut instructions = LongList::default();
        for &instruction in from.instructions() {
            match instruction {
                Instruction::Read(variable) if from.variables[variable as usize].is_gathered => {}
                Instruction::Call(number) => {
                    instructions.extend(before.remove(&number).unwrap_or_default());
                    instructions.push(instruction);
                    instructions.extend(after.remove(&number).unwrap_or_default());
                }
                other => instructions.push(other),
            }
        }
        Ok(from.compacted(&calls, &instructions, &BTreeMap::new()))
    }

    /// The value that a variable has when the program begins, if the program reads it; from here on the variable is one that
    /// has none.
    fn read_value(&mut self, variable: &Variable) -> Option<u32> {
        let number = self.variable_number(variable)?;
        let value = self.value_of_variable(number)?;
        self.variables[number as usize].is_gathered = true;
        Some(value)
    }

    fn variable_number(&self, variable: &Variable) -> Option<u32> {
        let is_it = |input: &VariableInput| input.cell.as_ptr() == std::sync::Arc::as_ptr(variable.cell());
        self.variables.iter().position(is_it).map(|number| number as u32)
    }

    fn value_of_variable(&self, variable: u32) -> Option<u32> {
        let is_it = |value: &Value| value.place == Place::Variable(variable) && value.call.is_none();
        self.values.iter().position(is_it).map(|number| number as u32)
    }

    /// Refuses what can only be done with a value that is there.
    fn check_gathered(&self, value: u32, variable: &Variable) -> Result<()> {
        let refuse = |what: &str| {
            let detail = format!("variable {:?} is kept in shards and is {what}", variable.name());
            Err(Error::argument("function", detail))
        };
        let is_read = |call: &Call| call.inputs.iter().any(|view| view.value == value);
        if self.calls.iter().any(|call| call.phase == Phase::Update && is_read(call)) {
            return refuse("written, or read for what is written");
        }
        match self.results.iter().any(|view| view.value == value) {
            true => refuse("returned as it is; return what is computed from it"),
            false => Ok(()),
        }
    }

    /// The value of the variable from which another one's value is made.
    fn source_of(&mut self, variable: &Variable, like: u32) -> u32 {
        let known = self.variable_number(variable);
        let number = known.unwrap_or(self.variables.len() as u32);
        if known.is_none() {
            let cell = std::sync::Arc::downgrade(variable.cell());
            let meta = Box::new(*variable.cell().meta());
            self.variables.push(VariableInput { cell, meta, is_gathered: false });
        }
        self.value_of_variable(number).unwrap_or_else(|| {
            let device = self.value(like).device;
            let n_bytes = variable.cell().meta().n_bytes();
            let place = Place::Variable(number);
            self.add_value(Value { n_bytes, place, device, call: None, first_fetch: None, repeats: None })
        })
    }

    /// The readers of a value, by layer and phase.
    fn readers_of(&self, value: u32) -> Vec<Readers> {
        let mut all: Vec<Readers> = Vec::new();
        for (number, call) in (0u32..).zip(self.calls.iter()) {
            if !call.inputs.iter().any(|view| view.value == value) {
                continue;
            }
            let (phase, scope) = (call.phase, call.site.scope());
            match all.last_mut() {
                Some(last)
                    if last.phase == phase && last.scope == scope && number - last.last <= MOST_APART =>
                {
                    last.last = number;
                }
                _ => all.push(Readers { first: number, last: number, phase, scope }),
            }
        }
        all
    }

    /// The call that makes a value for some readers, with its outputs and their blocks.
    fn gather_call(
        &mut self,
        gathered: &GatheredVariable,
        source: u32,
        value: u32,
        readers: &Readers,
    ) -> Result<Call> {
        let (op, meta) = (&gathered.gather, *gathered.from.cell().meta());
        let first = &self.calls[readers.first as usize];
        let (device, phase, site) = (self.value(value).device, readers.phase, first.site);
        let (_, described) = site.layer();
        let site = Site::intern_in_layer(site.file(), site.line(), site.scope(), op.name(), described);
        let mut outputs: SmallVec<[ValueView; 1]> = SmallVec::new();
        for output in op.get().infer(&[&meta])? {
            let Output::New { shape, dtype } = output else {
                return Err(Error::argument(
                    "function",
                    "an op that makes a variable's value has new outputs",
                ));
            };
            let meta = Meta::fresh(shape, dtype);
            let owner = if outputs.is_empty() { Owner::Parameters } else { Owner::Workspace };
            let spec = BlockSpec { n_bytes: meta.n_bytes() as u64, device, label: Label::new(owner, site) };
            let place = Place::Block(self.blocks.len() as u32);
            self.blocks.push(spec);
            // The number of the call is told when all are numbered anew; until then it is any.
            let value = Value {
                n_bytes: meta.n_bytes(),
                place,
                device,
                call: Some(0),
                first_fetch: None,
                repeats: None,
            };
            outputs.push(ValueView { value: self.add_value(value), meta: Box::new(meta) });
        }
        Ok(Call {
            op: op.clone(),
            inputs: smallvec![ValueView { value: source, meta: Box::new(meta) }],
            outputs,
            n_aux: 0,
            workspace: None,
            wanted: smallvec![false],
            device,
            phase,
            site,
            order: Order::Fixed,
            recomputed_flops: None,
            source: 0,
            is_second: false,
        })
    }
}
