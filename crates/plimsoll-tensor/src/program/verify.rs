//! A check for debugging: a program that runs as planned is compared, call by call, with one that is not.
//!
//! With `PLIMSOLL_VERIFY=1`, or [`Device::set_verify`], a program is first run as it was recorded, with nothing recomputed,
//! nothing offloaded and no planned offsets: block by block through a pool of its own, where every block is filled with NaN
//! bytes before it is written and before it is freed. Its effects go to copies of the variables. Then it runs as planned,
//! and each call must give the bytes that it gave before: so a plan that frees a value too early, places two values at one
//! offset or recomputes something else is found at the call that shows it, and so is a custom op that is not a function of
//! its inputs. The pool's requests must also be those of the program's dry run, event by event.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_memory::{Block, LongList, TraceEvent};
use smallvec::SmallVec;

use super::argument::Argument;
use super::runner::Run;
use super::{Call, Phase, Place, Program};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::device::checksum::checksum;
use crate::device::fault;
use crate::device::storage::Storage;
use crate::eager::context;
use crate::eager::execute::Order;
use crate::eager::variable::VariableCell;

/// All bits set: no number in any type of floats.
const NO_NUMBER: u8 = 0xFF;

/// The checksums of what each call of a recorded program gives.
pub(super) struct Reference {
    sums: Vec<SmallVec<[u64; 2]>>,
    /// For each call, whether it gives these every time.
    is_exact: Vec<bool>,
}

impl Program {
    /// Runs the program block by block, without effects.
    ///
    /// # Errors
    /// As [`Program::run`]; a pool whose requests are not those of the dry run.
    pub(super) fn reference(&self, arguments: Vec<Argument>) -> Result<Reference> {
        let siblings = self.siblings()?;
        let ended = self.reference_on(&siblings, arguments);
        siblings.iter().fold(ended, |ended, device| fault::end_step(device, ended, false))
    }

    /// The devices of the program with empty pools of their own.
    fn siblings(&self) -> Result<Vec<Device>> {
        self.devices.iter().map(Device::sibling).collect()
    }

    /// For each call, whether it gives the same bits every time: its sums have one order, and so had those of all that it
    /// reads.
    fn exact_calls(&self) -> Vec<bool> {
        let mut is_exact: Vec<bool> = Vec::new();
        for call in self.calls() {
            let makers = call.inputs.iter().filter_map(|view| self.value(view.value).call);
            let reads_exact = makers.into_iter().all(|maker| is_exact[maker as usize]);
            is_exact.push(reads_exact && call.order == Order::Fixed);
        }
        is_exact
    }

    fn reference_on(&self, devices: &[Device], arguments: Vec<Argument>) -> Result<Reference> {
        let copies = self.siblings()?;
        let mut run = Run::new(self, devices, arguments)?;
        run.fills = true;
        run.copy_donated()?;
        run.copy_variables(&copies)?;
        devices.iter().for_each(|device| device.pool().start_trace());
        let mut sums = Vec::new();
        for instruction in self.instructions() {
            if let super::Instruction::Call(number) = *instruction {
                let call = &self.calls[number as usize];
                context::at_recorded_site(call.site, || run.call(call))?;
                sums.push(run.sums(call)?);
            } else {
                run.memory(instruction)?;
            }
        }
        for (number, device) in (0..).zip(devices) {
            fault::wait_and_look(device)?;
            let predicted = self.on(number).requests(&device.sibling()?)?;
            check_timeline(&predicted, &device.pool().take_trace())?;
        }
        drop(run);
        Ok(Reference { sums, is_exact: self.exact_calls() })
    }
}

impl Reference {
    /// Compares what a call of the planned program gave with what it gave block by block.
    pub fn check(&self, recorded: &Program, run: &mut Run<'_>, call: &Call) -> Result<()> {
        if !self.is_exact[call.source as usize] {
            return Ok(());
        }
        let first = &recorded.calls[call.source as usize];
        // The second of two ops gives the last output and what belongs to it.
        let skipped = if call.is_second { first.outputs.len() - usize::from(first.n_aux) - 1 } else { 0 };
        let expected = &self.sums[call.source as usize][skipped..];
        match run.sums(call)?.iter().zip(expected).all(|(sum, expected)| sum == expected) {
            true => Ok(()),
            false => Err(Error::tape(format!(
                "a recomputed value is not what it was: {} at {} gave other bytes for the same inputs; an op must be a \
                 function of its inputs and attributes, and write all of its outputs",
                call.op.name(),
                call.site
            ))),
        }
    }
}

impl Reference {
    /// Compares the new values of variables with those of the copies.
    pub fn check_variables(&self, recorded: &Program, cells: &[Arc<VariableCell>]) -> Result<()> {
        let mut expected: HashMap<u32, (u64, &Call)> = HashMap::new();
        let calls = recorded.calls.iter().zip(&self.sums).zip(&self.is_exact);
        for ((call, sums), _) in
            calls.filter(|((call, _), is_exact)| call.phase == Phase::Update && **is_exact)
        {
            for (view, &sum) in call.outputs.iter().zip(sums) {
                let variable = recorded.variable_of(view.value);
                expected.extend(variable.map(|variable| (variable, (sum, call))));
            }
        }
        for (variable, (sum, call)) in expected {
            let cell = &cells[variable as usize];
            if checksum(&cell.value().0)? != sum {
                return Err(Error::tape(format!(
                    "the new value of variable {:?} is not what it is block by block, by {} at {}",
                    cell.name(),
                    call.op.name(),
                    call.site
                )));
            }
        }
        Ok(())
    }
}

impl Run<'_> {
    /// The checksums of what a call has just given.
    fn sums(&mut self, call: &Call) -> Result<SmallVec<[u64; 2]>> {
        call.outputs.iter().map(|view| self.sum(view.value)).collect()
    }

    fn sum(&mut self, value: u32) -> Result<u64> {
        let number = match self.program.value(value).place {
            Place::Block(number) if self.blocks[number as usize].is_some() => number,
            _ => return self.variable_storage(value).map_or(Ok(0), |storage| checksum(&storage)),
        };
        let device = self.devices[usize::from(self.program.block(number).device)].clone();
        let slot = &mut self.blocks[number as usize];
        let Some(block) = slot.take() else { return Ok(0) };
        let storage = Storage::own(block, DType::U8, &device);
        let sum = checksum(&storage);
        *slot = Storage::into_block(storage);
        sum
    }
}

/// Refuses a run whose requests are not those of its dry run, event by event: what is taken, where, for whom and by which line,
/// and what is freed. A dry run also frees what the run returns.
fn check_timeline(predicted: &LongList<TraceEvent>, measured: &LongList<TraceEvent>) -> Result<()> {
    let requests = |events: &LongList<TraceEvent>| -> LongList<TraceEvent> {
        events.iter().filter(|event| event.is_request()).copied().collect()
    };
    let (predicted, measured) = (requests(predicted), requests(measured));
    for number in 0..predicted.len().max(measured.len()) {
        let [expected, event] =
            [&predicted, &measured].map(|events| (number < events.len()).then(|| events[number]));
        if event == expected || matches!((expected, event), (Some(TraceEvent::Release { .. }), None)) {
            continue;
        }
        let said = |event: Option<TraceEvent>| event.map_or("nothing".to_owned(), |it| format!("{it:?}"));
        let (event, expected) = (said(event), said(expected));
        let detail = format!("request {number} of a program was {event}, and that of its dry run {expected}");
        return Err(Error::argument("verify", detail));
    }
    Ok(())
}

/// Fills a block with bytes that are no number.
pub(super) fn fill(block: &Block, device: &Device) -> Result<()> {
    Storage::fill_block(block, device, NO_NUMBER)
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::{Label, Owner, Region, Site};

    use super::*;

    #[test]
    fn timelines_are_compared_event_by_event() {
        let site = |line| Site::intern("src/main.rs", line, "net", "matmul");
        let acquire = |serial, bytes, line| TraceEvent::Acquire {
            serial,
            region: Region::Step,
            offset: 512 * serial,
            bytes,
            label: Label::new(Owner::Saved, site(line)),
        };
        let list = |events: &[TraceEvent]| events.iter().copied().collect::<LongList<TraceEvent>>();
        let release = |serial| TraceEvent::Release { serial };
        let mark = TraceEvent::Mark { name: "forward".into(), number: 0 };
        let predicted = list(&[acquire(0, 8, 1), mark, acquire(1, 8, 2), release(0), release(1)]);
        let check = |measured: &[TraceEvent]| check_timeline(&predicted, &list(measured));
        assert!(check(&[acquire(0, 8, 1), acquire(1, 8, 2), release(0)]).is_ok(), "what is returned is held");
        for wrong in [
            &[acquire(0, 8, 1), acquire(1, 9, 2), release(0)][..],
            &[acquire(0, 8, 1), acquire(1, 8, 3), release(0)],
            &[acquire(0, 8, 1), release(0), acquire(1, 8, 2)],
            &[acquire(0, 8, 1)],
            &[acquire(0, 8, 1), acquire(1, 8, 2), release(0), release(1), acquire(2, 8, 1)],
        ] {
            let error = check(wrong).expect_err("it is another timeline").to_string();
            assert!(error.contains("request") && error.contains("dry run"), "{error}");
        }
    }
}
