//! Agreement: plans of a program that several ranks run together, each on a device of its own.
//!
//! A plan may bring a value together again that ranks have in parts, and all ranks must do so at the same place. So they run the same
//! plan. Its candidates are made from a trace that is the same on all ranks: what differs from rank to rank, the parts of a value,
//! counts as large as it is on average, and where ranks work through different numbers of examples, all look at the first rank's. A
//! candidate has the same number on all ranks, each finds the fastest that fits its own pool and limit, and the greatest of these
//! numbers is tried by all until they agree. A limit that one rank cannot keep is refused on all of them.
//!
//! How ranks are asked is up to [`Peers`]; nothing is ever transferred here.

use std::fmt;
use std::sync::Arc;

use plimsoll_memory::rounded_size;
use plimsoll_plan::Trace;

use super::{Call, Instruction, Phase, Program};
use crate::base::error::Result;
use crate::device::Device;
use crate::eager::op::AverageOutputs;

/// The ranks that run a program together.
pub trait Peers: fmt::Debug + Send + Sync {
    /// Whether all of them run the same plan; else each takes its own, and they agree on nothing but whether there is one.
    fn share_plans(&self) -> bool;

    /// Tells the others what this rank has chosen, and hears what they have. On a ghost nothing is transferred.
    ///
    /// # Errors
    /// A rank that fails, or that plans another program.
    fn agree(&self, own: &Choice, is_dry: bool) -> Result<Agreed>;
}

/// What a rank has chosen for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The checksum of the trace that candidates were made from.
    pub program: u64,
    /// The limit of the rank's device.
    pub limit: Option<u64>,
    /// The number of the candidate, or the least limit that would do where none fits.
    pub plan: std::result::Result<usize, u64>,
}

/// What all ranks say to a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreed {
    /// It stands.
    Yes,
    /// The candidates before that number do not fit everywhere.
    From(usize),
    /// A rank has none that fits; the least limit with which all have one, as far as they know.
    Refused {
        /// The rank.
        rank: usize,
        /// The least limit.
        least: u64,
    },
}

/// How the plans of a program are agreed upon.
pub(super) struct Agreement {
    pub peers: Arc<dyn Peers>,
    /// The program as the first rank has it, where that differs.
    basis: Option<Program>,
}

/// What differs from rank to rank in a program, as an average rank has it.
pub(super) struct Averages {
    /// The bytes of each block as the pool rounds them.
    pub blocks: Vec<u64>,
    /// What each call has to do with parts of values,
    pub calls: Vec<Share>,
    /// and whether a value is such a part, or was made from one.
    pub is_part: Vec<bool>,
}

/// What a call has to do with parts that differ from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// Nothing.
    None,
    /// It makes parts, or brings them together.
    Exchanges,
    /// It computes with this rank's part.
    OfPart,
}

impl Program {
    /// This program as one of several ranks that agree on its plans.
    #[must_use]
    pub fn agreeing(mut self, peers: Arc<dyn Peers>) -> Program {
        self.agreement = Some(Arc::new(Agreement { peers, basis: None }));
        self
    }

    /// This program, planned from what the first rank has: the same calls over another number of examples.
    #[must_use]
    pub fn planned_as(mut self, basis: Program) -> Program {
        if let Some(agreement) = self.agreement.take() {
            let agreement = Agreement { peers: agreement.peers.clone(), basis: Some(basis) };
            self.agreement = Some(Arc::new(agreement));
        }
        self
    }

    /// Whether all ranks that run it run the same plan of it.
    pub(super) fn shares_plans(&self) -> bool {
        self.agreement.as_ref().is_some_and(|agreement| agreement.peers.share_plans())
    }

    /// Whether it is planned from what another rank has.
    pub(super) fn has_basis(&self) -> bool {
        self.agreement.as_ref().is_some_and(|agreement| agreement.basis.is_some())
    }

    /// The trace from which its plans are made: the same on all ranks that share them.
    pub(super) fn planning_trace(&self, number: u8, device: &Device) -> Trace {
        let Some(agreement) = self.agreement.as_ref().filter(|agreement| agreement.peers.share_plans())
        else {
            return self.trace_of(number, device, device.stats().in_use);
        };
        let basis = agreement.basis.as_ref().unwrap_or(self);
        basis.trace_with(number, device, 0, &basis.averages())
    }

    /// The most bytes in use at a time on each device, where parts count as on average. What updates need is left out, because
    /// every rank updates its parts alone.
    pub(super) fn average_peaks(&self) -> Vec<u64> {
        let averages = self.averages();
        let (mut now, mut peaks) = (vec![0u64; self.devices.len()], vec![0u64; self.devices.len()]);
        for instruction in self.instructions() {
            match *instruction {
                Instruction::Acquire(block) => {
                    let device = usize::from(self.block(block).device);
                    now[device] += averages.blocks[block as usize];
                    peaks[device] = peaks[device].max(now[device]);
                }
                Instruction::Release(block) => {
                    now[usize::from(self.block(block).device)] -= averages.blocks[block as usize];
                }
                _ => {}
            }
        }
        peaks
    }

    /// What it is on this rank.
    pub(super) fn own_sizes(&self) -> Averages {
        let blocks = self.blocks.iter().map(|block| rounded_size(block.n_bytes)).collect();
        let calls = vec![Share::None; self.calls.len()];
        Averages { blocks, calls, is_part: vec![false; self.values.len()] }
    }

    /// What it is on an average rank.
    fn averages(&self) -> Averages {
        let mut averages = self.own_sizes();
        for (number, call) in self.calls().enumerate() {
            let reads_part = call.inputs.iter().any(|view| averages.is_part[view.value as usize]);
            match call.op.get().average_outputs(&call.input_metas()) {
                Some(average) => {
                    averages.calls[number] = Share::Exchanges;
                    self.note_exchange(call, &average, &mut averages);
                }
                None if call.phase == Phase::Update || reads_part => {
                    averages.calls[number] = Share::OfPart;
                    self.note_part(call, &mut averages);
                }
                None => {}
            }
        }
        averages
    }

    /// A call makes parts, or brings them together.
    fn note_exchange(&self, call: &Call, average: &AverageOutputs, averages: &mut Averages) {
        for (view, &n_bytes) in call.outputs.iter().zip(&average.n_bytes) {
            let Some(block) = self.block_of(view.value) else { continue };
            averages.blocks[block as usize] = rounded_size(n_bytes as u64);
            averages.is_part[view.value as usize] = average.are_parts;
        }
    }

    /// A call computes with a part.
    fn note_part(&self, call: &Call, averages: &mut Averages) {
        for view in &call.outputs {
            averages.is_part[view.value as usize] = true;
            let Some(block) = self.block_of(view.value) else { continue };
            // What is written over a part lies where that was acquired.
            if !call.inputs.iter().any(|view| self.block_of(view.value) == Some(block)) {
                averages.blocks[block as usize] = 0;
            }
        }
        if let Some(block) = call.workspace {
            averages.blocks[block as usize] = 0;
        }
    }
}
