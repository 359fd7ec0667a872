//! Notes for a planner, taken while a step runs on a ghost and keeps everything.

use std::sync::Arc;

use plimsoll_memory::{LongList, rounded_size};
use plimsoll_plan::{Input, Position, Trace};
use smallvec::SmallVec;

use crate::device::Device;
use crate::execute::{self, Order};
use crate::journal::{Record, Source, Value};
use crate::op::{Meta, Output};

/// What is noted while a step is observed. The ghost's peaks are this observer's: it reads them op by op.
pub(super) struct Observer {
    device: Device,
    trace: Trace,
    /// Values whose end has not come.
    open: Vec<u32>,
    /// The fingerprint and the bytes in use of the op that runs.
    began: (u64, u64),
}

/// The bytes of outputs that an op makes again though they are another record's: it does the work of two.
fn unasked_bytes(record: &Record, inputs: &[&Meta]) -> u64 {
    let outputs = record.op.get().infer(inputs).unwrap_or_default();
    let bytes = |output: &Output| match output {
        Output::New { shape, dtype } => rounded_size((shape.n_elems() * dtype.size()) as u64),
        Output::View { .. } => 0,
    };
    outputs.iter().skip(record.n_outputs.into()).map(bytes).sum()
}

impl Observer {
    pub fn new(device: Device) -> Observer {
        device.pool().reset_peaks();
        Observer { device, trace: Trace::default(), open: Vec::new(), began: (0, 0) }
    }

    /// The op at a position begins: what only backward holds by now may be away during it.
    pub fn begin(&mut self, position: u32, fingerprint: u64, values: &LongList<Value>) {
        self.began = (fingerprint, self.device.stats().in_use);
        let trace = &mut self.trace;
        self.open.retain(|&number| {
            let (noted, value) = (&mut trace.values[number as usize], &values[number as usize]);
            if value.living.strong_count() == 0 {
                noted.gone_from = position;
                return false;
            }
            let is_alone = value.kept.as_ref().is_some_and(|kept| Arc::strong_count(kept) == 1);
            if is_alone && noted.alone_from.is_none() {
                noted.alone_from = Some(position);
            }
            true
        });
    }

    /// The op that began has ended.
    pub fn end(&mut self, record: &Record, outputs: &[&Meta]) {
        let metas: SmallVec<[&Meta; 3]> = record.inputs.iter().map(|input| &*input.meta).collect();
        let at = self.trace.records.len() as u32;
        let (fingerprint, start) = self.began;
        let workspace = execute::workspace_bytes(&record.op, &self.device, &metas, record.order) as u64;
        let workspace = rounded_size(workspace) + unasked_bytes(record, &metas);
        let inputs = record.inputs.iter().map(|input| match &input.source {
            Source::Value(number) => Input::Value(*number),
            Source::Outside(_) => Input::Lasting,
        });
        // What would have other bits the next time is told as made from something that is gone.
        let inputs = inputs.chain((record.order == Order::Any).then_some(Input::Passing));
        self.trace.records.push(plimsoll_plan::Record {
            fingerprint,
            inputs: inputs.collect(),
            first_value: record.first_value,
            n_values: record.n_values(),
            n_outputs: u32::from(record.n_outputs),
            workspace,
            time: self.device.nanoseconds(&record.op, &metas, outputs),
            at: Position { start, peak: self.device.stats().peak_in_use },
            site: Some(record.site),
        });
        for number in record.first_value..record.first_value + record.n_values() {
            self.trace.values.push(plimsoll_plan::Value {
                record: at,
                gone_from: u32::MAX,
                ..Default::default()
            });
            self.open.push(number);
        }
        self.device.pool().reset_peaks();
    }

    /// Backward asks for a value before the op at a position.
    pub fn fetched(&mut self, position: u32, number: u32) {
        let fetches = &mut self.trace.values[number as usize].fetches;
        if fetches.last() != Some(&position) {
            fetches.push(position);
        }
    }

    /// The whole trace, when the step is over.
    pub fn finish(mut self, records: &LongList<Record>, values: &LongList<Value>) -> Trace {
        for (noted, value) in self.trace.values.iter_mut().zip(values.iter()) {
            noted.bytes = value.bytes;
        }
        let passing =
            |source: &Source| matches!(source, Source::Outside(outside) if outside.present().is_none());
        for (noted, record) in self.trace.records.iter_mut().zip(records.iter()) {
            for (noted, input) in noted.inputs.iter_mut().zip(&record.inputs) {
                if passing(&input.source) {
                    *noted = Input::Passing;
                }
            }
        }
        self.trace.depot = self.device.depot().map(|depot| depot.known());
        self.trace
    }
}
