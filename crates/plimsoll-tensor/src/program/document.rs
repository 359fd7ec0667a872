//! A program as a document for other programs: a page that explains it, another process, a custom tool.
//!
//! Everything is named by its number in the program: values, blocks, calls, copies. The numbers follow from what the
//! function does and from nothing else, so two recordings of it, here or on another machine, have the same. A document is
//! not read back into a program: only its function makes one.

use plimsoll_memory::{OffsetPlan, Region, Site};
use serde::Serialize;

use super::{Call, Instruction, Place, Program, ValueView};
use crate::eager::op::Meta;

/// What a program does, and where its blocks lie.
#[derive(Debug, Serialize)]
pub struct ProgramDocument {
    /// The devices that it uses; everything else names its own by its number here.
    devices: Vec<String>,
    arguments: Vec<TensorDocument>,
    /// The arguments that are donated; they are the first blocks.
    donated: Vec<u32>,
    variables: Vec<VariableDocument>,
    /// The bytes of tensors from outside.
    captured: Vec<usize>,
    values: Vec<ValueDocument>,
    blocks: Vec<BlockDocument>,
    calls: Vec<CallDocument>,
    instructions: Vec<InstructionDocument>,
    results: Vec<ViewDocument>,
    n_draws: u64,
}

#[derive(Debug, Serialize)]
struct TensorDocument {
    dtype: &'static str,
    shape: Vec<usize>,
}

#[derive(Debug, Serialize)]
struct VariableDocument {
    name: Option<String>,
    #[serde(flatten)]
    tensor: TensorDocument,
    is_written: bool,
}

#[derive(Debug, Serialize)]
struct ValueDocument {
    bytes: usize,
    device: u8,
    place: PlaceDocument,
    /// The call that makes it.
    call: Option<u32>,
    /// The value that it equals because it is a recomputation or a reload of it.
    repeats: Option<u32>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum PlaceDocument {
    Argument(u32),
    Variable(u32),
    Captured(u32),
    Block(u32),
}

#[derive(Debug, Serialize)]
struct BlockDocument {
    bytes: u64,
    device: u8,
    owner: &'static str,
    site: SiteDocument,
    /// Where it lies in the memory of the program, if that is planned.
    offset: Option<u64>,
}

#[derive(Debug, Serialize)]
struct SiteDocument {
    file: &'static str,
    line: u32,
    scope: &'static str,
    op: &'static str,
    /// File and line of the place that described the layer.
    described: Option<(&'static str, u32)>,
}

#[derive(Debug, Serialize)]
struct CallDocument {
    op: &'static str,
    /// The op with its attributes, as text.
    attributes: String,
    inputs: Vec<ViewDocument>,
    outputs: Vec<ViewDocument>,
    /// How many of the outputs, the last ones, are made for backward alone.
    n_aux: u16,
    workspace: Option<u32>,
    device: u8,
    phase: &'static str,
    site: SiteDocument,
    /// Whether it is a recomputation.
    is_repeated: bool,
}

#[derive(Debug, Serialize)]
struct ViewDocument {
    value: u32,
    #[serde(flatten)]
    tensor: TensorDocument,
    strides: Vec<isize>,
    offset: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum InstructionDocument {
    Acquire { block: u32 },
    Release { block: u32 },
    Relabel { block: u32, owner: &'static str },
    Read { variable: u32 },
    Call { call: u32 },
    Offload { value: u32, copy: u32 },
    Fetch { copy: u32, value: u32 },
    Wait { copy: u32 },
    Discard { copy: u32 },
    Mark { name: &'static str },
    Commit,
}

impl Program {
    /// The program as a document, with the offsets at which its blocks are planned to lie on its first device, if there are
    /// any.
    pub fn document(&self, offsets: Option<&OffsetPlan>) -> ProgramDocument {
        ProgramDocument {
            devices: self.devices.iter().map(|device| device.name().to_owned()).collect(),
            arguments: self.arguments.iter().map(TensorDocument::of).collect(),
            donated: self.donated.clone(),
            variables: self.variable_documents(),
            captured: self.captured.storages.iter().map(|storage| storage.n_bytes()).collect(),
            values: self.value_documents(),
            blocks: self.block_documents(offsets),
            calls: self.calls().map(CallDocument::of).collect(),
            instructions: self.instructions().map(InstructionDocument::of).collect(),
            results: self.results.iter().map(ViewDocument::of).collect(),
            n_draws: self.n_draws,
        }
    }

    fn variable_documents(&self) -> Vec<VariableDocument> {
        let document = |(number, input): (u32, &super::VariableInput)| VariableDocument {
            name: input.cell.upgrade().map(|cell| cell.name()).filter(|name| !name.is_empty()),
            tensor: TensorDocument::of(&input.meta),
            is_written: self.written.contains(&number),
        };
        (0..).zip(&self.variables).map(document).collect()
    }

    fn value_documents(&self) -> Vec<ValueDocument> {
        let document = |value: &super::Value| ValueDocument {
            bytes: value.n_bytes,
            device: value.device,
            place: match value.place {
                Place::Argument(number) => PlaceDocument::Argument(number),
                Place::Variable(number) => PlaceDocument::Variable(number),
                Place::Captured(number) => PlaceDocument::Captured(number),
                Place::Block(number) => PlaceDocument::Block(number),
            },
            call: value.call,
            repeats: value.repeats,
        };
        self.values.iter().map(document).collect()
    }

    fn block_documents(&self, offsets: Option<&OffsetPlan>) -> Vec<BlockDocument> {
        // A plan counts the blocks of the step's region as they are acquired.
        let mut planned = offsets.map(|offsets| offsets.entries().iter());
        let is_planned = |number: u32, block: &super::BlockSpec| {
            let is_step = block.label.owner.region() == Region::Step;
            self.donated_argument(number).is_none() && is_step && block.device == 0
        };
        let mut document = |(number, block): (u32, &super::BlockSpec)| {
            let entry = planned.as_mut().filter(|_| is_planned(number, block)).and_then(Iterator::next);
            BlockDocument {
                bytes: block.n_bytes,
                device: block.device,
                owner: block.label.owner.name(),
                site: SiteDocument::of(block.label.site),
                offset: entry.and_then(|entry| entry.offset),
            }
        };
        (0..).zip(self.blocks.iter()).map(&mut document).collect()
    }
}

impl TensorDocument {
    fn of(meta: &Meta) -> TensorDocument {
        TensorDocument { dtype: meta.dtype.name(), shape: meta.shape().to_vec() }
    }
}

impl ViewDocument {
    fn of(view: &ValueView) -> ViewDocument {
        let layout = &view.meta.layout;
        ViewDocument {
            value: view.value,
            tensor: TensorDocument::of(&view.meta),
            strides: layout.strides().to_vec(),
            offset: layout.offset(),
        }
    }
}

impl SiteDocument {
    fn of(site: Site) -> SiteDocument {
        SiteDocument {
            file: site.file(),
            line: site.line(),
            scope: site.scope(),
            op: site.op(),
            described: site.described(),
        }
    }
}

impl CallDocument {
    fn of(call: &Call) -> CallDocument {
        CallDocument {
            op: call.op.name(),
            attributes: format!("{:?}", call.op),
            inputs: call.inputs.iter().map(ViewDocument::of).collect(),
            outputs: call.outputs.iter().map(ViewDocument::of).collect(),
            n_aux: call.n_aux,
            workspace: call.workspace,
            device: call.device,
            phase: call.phase.name(),
            site: SiteDocument::of(call.site),
            is_repeated: call.recomputed_flops.is_some(),
        }
    }
}

impl InstructionDocument {
    fn of(instruction: &Instruction) -> InstructionDocument {
        match *instruction {
            Instruction::Acquire(block) => InstructionDocument::Acquire { block },
            Instruction::Release(block) => InstructionDocument::Release { block },
            Instruction::Relabel(block, label) => {
                InstructionDocument::Relabel { block, owner: label.owner.name() }
            }
            Instruction::Read(variable) => InstructionDocument::Read { variable },
            Instruction::Call(call) => InstructionDocument::Call { call },
            Instruction::Offload(value, copy) => InstructionDocument::Offload { value, copy },
            Instruction::Fetch(copy, value) => InstructionDocument::Fetch { copy, value },
            Instruction::Wait(copy) => InstructionDocument::Wait { copy },
            Instruction::Discard(copy) => InstructionDocument::Discard { copy },
            Instruction::Mark(name) => InstructionDocument::Mark { name: name.as_str() },
            Instruction::Commit => InstructionDocument::Commit,
        }
    }
}
