//! The allowance: one block, and how it is carved.
//!
//! First come the batches, field by field with the widest numbers first, so that every field begins at a multiple of
//! its numbers' size and not one byte is lost between them: `depth + 1` batches take `depth + 1` times their bytes.
//! Then cells for elements that wait, and scratch memory, one for each worker. All of it is a function of spec and
//! options, never of the device, so that a ghost takes the same.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use plimsoll_tensor::{Bytes, Device, Error, Piece, Result};

use super::{Options, Prefetch};
use crate::limits;
use crate::node::{CellPool, NodeRef, Plan, Session};
use crate::spec::Spec;

/// How far ahead the pipeline works at most if it may choose and no allowance is given.
const AUTO_AHEAD: usize = 4;

/// Room for one batch: a piece for each field.
#[derive(Debug)]
pub(crate) struct Slot {
    pub pieces: Vec<Piece>,
    /// Whether it was taken because the consumer held all others; it goes back to the pool.
    pub is_extra: bool,
}

/// The pipeline's memory, carved.
pub(crate) struct Allowance {
    pub slots: Vec<Slot>,
    pub scratch: Vec<Piece>,
    pub session: Arc<Session>,
    /// The most batches that are made ahead.
    pub most_ahead: usize,
}

impl Allowance {
    /// Takes the memory for a dataset that is run as the options say.
    pub fn take(node: &NodeRef, options: &Options, device: &Device) -> Result<Allowance> {
        let spec = node.spec();
        let n_makers = options.n_threads().max(1);
        let least_slots = match options.prefetch {
            Prefetch::Depth(depth) => depth.saturating_add(1),
            Prefetch::Auto => 2,
        };
        let n_most = match options.prefetch {
            Prefetch::Depth(_) => least_slots,
            Prefetch::Auto => AUTO_AHEAD + 1,
        };
        // A maker has at most one item in its hands, and one more may wait for a slot.
        let mut plan = Plan { device, cells: BTreeMap::new() };
        node.reserve(n_makers.min(n_most.saturating_add(1)), &mut plan)?;
        let n_waiting = plan.cells.values().fold(0usize, |sum, &(n, _)| sum.saturating_add(n));
        limits::check("dataset", "elements that wait for their batch", n_waiting, limits::WAITING)?;
        let cells = plan.cells.values().map(|&(n, bytes)| n.checked_mul(bytes));
        let scratch = node.scratch().next_multiple_of(8);
        let beside = cells
            .chain([scratch.checked_mul(n_makers)])
            .try_fold(0usize, |sum, n_bytes| sum.checked_add(n_bytes?));
        let size = Size { slot: spec.n_bytes(), beside: beside.ok_or_else(|| too_large(spec))? };
        let n_slots = match (options.prefetch, options.allowance) {
            (Prefetch::Auto, Some(most)) => size.slots_within(most).clamp(least_slots, n_most.max(64)),
            _ => n_most,
        };
        let n_bytes = size.total(n_slots).ok_or_else(|| too_large(spec))?;
        if let Some(most) = options.allowance.filter(|most| n_bytes as u64 > most.get()) {
            return Err(Error::argument(
                "dataset",
                format!(
                    "{n_slots} batches of {} and {} beside them are {}, and its allowance is {most}; allow more, or \
                     lower the depth of `prefetch`",
                    Bytes::new(size.slot as u64),
                    Bytes::new(size.beside as u64),
                    Bytes::new(n_bytes as u64)
                ),
            ));
        }
        let mut whole = Piece::acquire(device, n_bytes, "dataset")?;
        let slots = carve_slots(&mut whole, spec, n_slots, false);
        drop(whole.take_front(size.gap(n_slots)));
        let mut pools = BTreeMap::new();
        for (&key, &(n, bytes)) in &plan.cells {
            let pieces = (0..n).map(|_| whole.take_front(bytes)).collect();
            pools.insert(key, Arc::new(CellPool(Mutex::new(pieces))));
        }
        let scratch = (0..n_makers).map(|_| whole.take_front(scratch)).collect();
        let session = Arc::new(Session { is_ghost: device.is_ghost(), cells: pools });
        Ok(Allowance { slots, scratch, session, most_ahead: (n_slots - 1).max(1) })
    }
}

/// Bytes of one batch and of everything else.
struct Size {
    slot: usize,
    beside: usize,
}

impl Size {
    /// What is lost between batches and the rest, so that this begins at a multiple of eight.
    fn gap(&self, n_slots: usize) -> usize {
        let slots = n_slots * self.slot;
        if self.beside == 0 { 0 } else { slots.next_multiple_of(8) - slots }
    }

    fn total(&self, n_slots: usize) -> Option<usize> {
        let slots = n_slots.checked_mul(self.slot)?;
        slots.checked_add(8)?;
        (slots + self.gap(n_slots)).checked_add(self.beside)
    }

    fn slots_within(&self, most: Bytes) -> usize {
        let for_slots = (most.get() as usize).saturating_sub(self.beside.saturating_add(8));
        for_slots.checked_div(self.slot).unwrap_or(usize::MAX)
    }
}

fn too_large(spec: &Spec) -> Error {
    Error::argument(
        "dataset",
        format!("batches of {spec}, and what waits for them, are too large to be counted"),
    )
}

/// Cuts `n` slots off the front of a piece.
fn carve_slots(whole: &mut Piece, spec: &Spec, n: usize, is_extra: bool) -> Vec<Slot> {
    let n_fields = spec.fields().len();
    let mut by_width: Vec<usize> = (0..n_fields).collect();
    by_width.sort_by_key(|&idx| Reverse(spec.fields()[idx].dtype().size()));
    let mut slots: Vec<Vec<Option<Piece>>> = (0..n).map(|_| (0..n_fields).map(|_| None).collect()).collect();
    for idx in by_width {
        for slot in &mut slots {
            slot[idx] = Some(whole.take_front(spec.fields()[idx].n_bytes()));
        }
    }
    let slot = |pieces: Vec<Option<Piece>>| Slot { pieces: pieces.into_iter().flatten().collect(), is_extra };
    slots.into_iter().map(slot).collect()
}

/// Room for one batch in a block of its own.
pub(crate) fn extra_slot(spec: &Spec, device: &Device) -> Result<Slot> {
    let mut whole = Piece::acquire(device, spec.n_bytes(), "dataset")?;
    match carve_slots(&mut whole, spec, 1, true).pop() {
        Some(slot) => Ok(slot),
        None => unreachable!("one slot was asked for"),
    }
}
