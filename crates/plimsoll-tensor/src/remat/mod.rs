//! Rematerialisation for eager code under a limit: the log of a step, from which evicted values are recomputed.
//!
//! A [`StepLog`] knows how each value of a step was computed, which values backward will read, and where they are. Every op
//! leaves a record (op, inputs, variable versions); records outlive values. A tape slot of a logged step does not hold its
//! value: it names it here, and the log retains the value, or has evicted it and recomputes it from its records when backward
//! asks, or has offloaded it to the device's [`OffloadStore`](crate::device::offload_store::OffloadStore) and reloads it. A value that
//! several ops save is one entry, so it is evicted once and recomputed once. Which values are evicted is up to `eviction`:
//! what is planned runs from a program and needs no log.
//!
//! What is recomputed comes from the same ops and the same inputs, without a tape and without side effects, so it is the
//! same to the bit. A log refuses to recompute what it cannot recompute exactly: from a variable that was assigned meanwhile,
//! or from an input that came from outside and is gone.

mod eviction;
mod offload;
mod recompute;
mod recompute_inputs;
mod verify;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use plimsoll_memory::{LongList, Site, rounded_size};
use smallvec::SmallVec;

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::device::Device;
use crate::device::holders::Holder;
use crate::device::offload_store::Offloaded;
use crate::device::storage::Storage;
use crate::device::survey::{self, HolderKind, Keeper, Survey};
use crate::eager::check;
use crate::eager::context;
use crate::eager::execute::{Arg, Order};
use crate::eager::op::{AuxOutput, Cost, Meta, OpRef, SavedRef, Second, Tensors};
use crate::eager::op_log::OpLog;

use recompute_inputs::RecomputeInputs;
use verify::Sums;

/// How many operations take as long as moving a byte: about ten on the CPUs and GPUs of today.
const OPERATIONS_PER_BYTE: u64 = 10;

/// The log of one step, or of one tape outside a step.
pub(crate) struct StepLog {
    /// Tells the values of this log from those of others.
    serial: u32,
    state: Mutex<StepLogState>,
}

struct StepLogState {
    records: LongList<OpRecord>,
    values: LongList<Value>,
    /// The work of all records.
    work: u64,
    /// The work of what was recomputed.
    recomputed: u64,
    /// What the values were when they were first computed, if what is recomputed is compared with it.
    sums: Option<Sums>,
}

/// One op that ran.
struct OpRecord {
    op: OpRef,
    inputs: SmallVec<[Input; 2]>,
    /// The number of the first value that it made; its outputs and then its auxiliary outputs follow each other.
    first_value: u32,
    n_outputs: u16,
    n_aux: u16,
    /// Which inputs' gradients were wanted, so that the same auxiliary outputs are recomputed.
    wanted: SmallVec<[bool; 4]>,
    /// Whether its sums have a fixed order, so that it gives the same bits again; what has none is never recomputed.
    order: Order,
    /// The user's line and layer.
    site: Site,
    /// What it takes: operations, and bytes read and written, of which one counts as much as a few operations.
    work: u64,
}

/// What a record read.
#[derive(Clone)]
struct Input {
    source: Source,
    /// Boxed, because an op may have hundreds of inputs, such as the norm of all gradients.
    meta: Box<Meta>,
}

/// Where an input came from.
#[derive(Clone)]
enum Source {
    /// A value of this log.
    Value(u32),
    /// Something that was there before, such as the batch or a variable's value.
    Outside(Outside),
}

/// A value that the log did not see being computed, and does not hold.
#[derive(Clone)]
struct Outside {
    storage: Weak<Storage>,
    /// How often the storage had been written over when it was read.
    n_overwrites: u32,
}

impl Outside {
    fn new(storage: &Arc<Storage>) -> Outside {
        Outside { storage: Arc::downgrade(storage), n_overwrites: storage.n_overwrites() }
    }

    /// The value as it was read; nothing if it was dropped or written over since.
    fn present(&self) -> Option<Arc<Storage>> {
        self.storage.upgrade().filter(|storage| storage.n_overwrites() == self.n_overwrites)
    }
}

/// One value that the step made.
struct Value {
    record: u32,
    /// The bytes as the pool rounds them.
    bytes: u64,
    /// The bytes asked for, and the type of their elements: what is recomputed must have the same.
    form: (usize, DType),
    /// The tape slots that name it.
    n_slots: u32,
    /// The value, if it is retained for them.
    retained: Option<Arc<Storage>>,
    /// The value, for as long as anybody holds it.
    weak: Weak<Storage>,
    /// What the value is recomputed from, held while the value is evicted.
    recompute_inputs: RecomputeInputs,
    /// The value outside the device's memory, once it was offloaded, for as long as slots name it.
    offloaded: Option<Arc<Offloaded>>,
    /// The same, for as long as anybody holds it: slots, or values that are recomputed from it.
    weak_offloaded: Weak<Offloaded>,
}

impl StepLog {
    /// An empty log, which compares what it recomputes with what was first computed if told to.
    fn new(verifies: bool) -> Arc<StepLog> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let state = StepLogState {
            records: LongList::default(),
            values: LongList::default(),
            work: 0,
            recomputed: 0,
            sums: verifies.then(Sums::default),
        };
        Arc::new(StepLog { serial: NEXT.fetch_add(1, Ordering::Relaxed), state: Mutex::new(state) })
    }

    /// The log of a step or tape on `device`: none where there is no limit, so that nothing is ever evicted.
    pub fn on(device: &Device) -> Option<Arc<StepLog>> {
        device.pool().limit()?;
        let step_log = StepLog::new(device.verifies() && !device.is_ghost());
        let weak: Weak<StepLog> = Arc::downgrade(&step_log);
        survey::list(device, weak.clone());
        device.evict_from(weak);
        Some(step_log)
    }

    fn lock(&self) -> MutexGuard<'_, StepLogState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds a record, with the numbers of what it made.
    fn push(&self, record: OpRecord, made: &[&Arc<Storage>]) {
        let mut state = self.lock();
        let position = state.records.len() as u32;
        for &storage in made {
            storage.set_tag(self.tag(state.values.len() as u32));
            if let Some(sums) = &mut state.sums {
                sums.note(storage);
            }
            let (bytes, form) =
                (rounded_size(storage.n_bytes() as u64), (storage.n_bytes(), storage.dtype()));
            let weak = Arc::downgrade(storage);
            state.values.push(Value {
                record: position,
                bytes,
                form,
                n_slots: 0,
                retained: None,
                weak,
                recompute_inputs: RecomputeInputs::default(),
                offloaded: None,
                weak_offloaded: Weak::new(),
            });
        }
        state.work = state.work.saturating_add(record.work);
        state.records.push(record);
    }

    /// What a record says about an input: the value that the op read, wherever it came from. A variable that is assigned
    /// later, at once or at the step's end, does not change that.
    fn input(&self, arg: &Arg<'_>) -> Input {
        let (storage, meta) = (arg.storage(), Box::new(*arg.meta()));
        let source = match self.number(storage) {
            Some(number) => Source::Value(number),
            None => Source::Outside(Outside::new(storage)),
        };
        Input { source, meta }
    }
}

impl Keeper for StepLog {
    fn tell(self: Arc<Self>, survey: &mut Survey<'_>) {
        let Some(state) = survey.lock(&self.state) else { return };
        for (number, value) in state.values.iter().enumerate().filter(|(_, value)| value.n_slots > 0) {
            let logged = survey.link("logged", self.tag(number as u32));
            value.retained.iter().for_each(|retained| survey.holds(logged, retained, Holder::Slot));
            if !value.recompute_inputs.in_memory().is_empty() {
                let evictor = survey.link_for(HolderKind::Evictor, "recompute", logged);
                let inputs = value.recompute_inputs.in_memory().iter();
                inputs.for_each(|input| survey.holds(evictor, input, Holder::Evictor));
            }
        }
    }
}

impl OpLog for StepLog {
    fn tag(&self, number: u32) -> u64 {
        u64::from(self.serial) << 32 | u64::from(number)
    }

    fn record(
        &self,
        op: &OpRef,
        args: &[Arg<'_>],
        outputs: &Tensors,
        aux_outputs: &[(AuxOutput, Arc<Storage>)],
        wanted: SmallVec<[bool; 4]>,
        order: Order,
    ) -> Result<()> {
        let inputs: SmallVec<[Input; 2]> = args.iter().map(|arg| self.input(arg)).collect();
        let metas: SmallVec<[&Meta; 3]> = args.iter().map(Arg::meta).collect();
        let output_metas: SmallVec<[&Meta; 2]> = outputs.iter().map(|output| output.meta()).collect();
        let work = work(op.get().cost(&metas, &output_metas));
        let (first_value, site) = (self.lock().values.len() as u32, context::site(op.name()));
        let made = outputs.iter().map(|output| output.data().value());
        let made: SmallVec<[&Arc<Storage>; 4]> =
            made.chain(aux_outputs.iter().map(|(_, made)| made)).collect();
        let (n_outputs, n_aux) = (outputs.len() as u16, aux_outputs.len() as u16);
        let op = op.clone();
        let second = op.get().second(&metas);
        let first = OpRecord { op, inputs, first_value, n_outputs, n_aux, wanted, order, site, work };
        let Some(second) = second else {
            self.push(first, &made);
            return Ok(());
        };
        let earlier = n_outputs.saturating_sub(1).into();
        check::saved(&first.op, "second", &second.reads, [first.inputs.len(), earlier, 0])?;
        let (first, second) = first.split(second, &output_metas);
        let (own, others) = made.split_at(n_outputs as usize - 1);
        self.push(first, own);
        self.push(second, others);
        Ok(())
    }

    fn number_of(&self, tag: u64) -> Option<u32> {
        ((tag >> 32) as u32 == self.serial).then_some(tag as u32)
    }

    fn retain_for_slot(&self, number: u32, storage: &Arc<Storage>) {
        let mut state = self.lock();
        let value = &mut state.values[number as usize];
        value.n_slots += 1;
        if value.retained.is_none() {
            value.retained = Some(storage.clone());
            storage.add_slot();
        }
    }

    fn add_slot(&self, number: u32) {
        self.lock().values[number as usize].n_slots += 1;
    }

    fn has_slots(&self, number: u32) -> bool {
        self.lock().values[number as usize].n_slots > 0
    }

    fn drop_slot(&self, number: u32) {
        let (retained, offloaded, recompute_inputs) = {
            let mut state = self.lock();
            let value = &mut state.values[number as usize];
            value.n_slots -= 1;
            if value.n_slots > 0 {
                return;
            }
            (value.retained.take(), value.offloaded.take(), std::mem::take(&mut value.recompute_inputs))
        };
        retained.iter().for_each(|storage| storage.remove_slot());
        drop((retained, offloaded, recompute_inputs));
    }

    fn storage(&self, number: u32) -> Option<Arc<Storage>> {
        self.lock().values[number as usize].weak.upgrade()
    }

    fn is_own(&self, number: u32) -> bool {
        self.lock().values[number as usize]
            .retained
            .as_ref()
            .is_some_and(|retained| Arc::strong_count(retained) == 1)
    }

    fn fetch(&self, number: u32) -> Result<Arc<Storage>> {
        self.value(number)
    }
}

impl OpRecord {
    /// The records of two ops of which this one does the work, given the metas of its outputs.
    fn split(mut self, second: Second, outputs: &[&Meta]) -> (OpRecord, OpRecord) {
        let n_first = self.n_outputs - 1;
        let read = |saved_ref: SavedRef| match saved_ref {
            SavedRef::Input(idx) => (self.inputs[idx].clone(), self.wanted.get(idx) == Some(&true)),
            SavedRef::Output(idx) => {
                let source = Source::Value(self.first_value + idx as u32);
                (Input { source, meta: Box::new(*outputs[idx]) }, self.wanted.contains(&true))
            }
            SavedRef::Aux(_) => unreachable!("the second makes the auxiliary outputs"),
        };
        let (inputs, wanted): (SmallVec<[Input; 2]>, SmallVec<[bool; 4]>) =
            second.reads.into_iter().map(read).unzip();
        let metas: SmallVec<[&Meta; 3]> = inputs.iter().map(|input| &*input.meta).collect();
        let work = work(second.op.get().cost(&metas, &outputs[n_first as usize..]));
        let second = OpRecord {
            op: second.op,
            first_value: self.first_value + u32::from(n_first),
            n_outputs: 1,
            n_aux: self.n_aux,
            wanted,
            order: self.order,
            site: self.site,
            work,
            inputs: inputs.clone(),
        };
        self.n_outputs = n_first;
        self.n_aux = 0;
        self.work = self.work.saturating_sub(work).max(1);
        (self, second)
    }
}

/// What an op takes: operations, and bytes read and written, of which one counts as much as a few operations.
fn work(cost: Cost) -> u64 {
    cost.flops.saturating_add(OPERATIONS_PER_BYTE.saturating_mul(cost.bytes))
}
