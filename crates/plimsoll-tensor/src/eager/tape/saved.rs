//! `tape.saved()`: what a tape saves, value by value.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use plimsoll_memory::{Bytes, Site};

use crate::base::dtype::DType;
use crate::base::shape::Shape;
use crate::eager::op::Form;
use crate::eager::tape::TapeCore;
use crate::eager::tape::slot::{Slot, SlotValue};

/// The values that a tape saves for backward.
///
/// Saving is by storage: a storage that several ops save is one row's bytes and shared in the others, so that the
/// bytes add up to what the pool's snapshot shows.
#[derive(Clone, Debug)]
pub struct Saved {
    values: Vec<SavedValue>,
}

/// One value that a tape saves.
#[derive(Clone, Debug)]
pub struct SavedValue {
    /// The op whose backward reads it.
    pub op: &'static str,
    /// In which form it is saved.
    pub form: Form,
    /// Its shape; none for a derived value.
    pub shape: Option<Shape>,
    /// Its dtype; none for a derived value.
    pub dtype: Option<DType>,
    /// The bytes that were asked for; zero if derived, or if an earlier row holds the same storage.
    pub bytes: usize,
    /// Whether tapes alone hold the bytes: dropping this tape frees them.
    pub own: bool,
    /// The user's line and layer.
    pub site: Site,
}

impl Saved {
    pub(crate) fn of(tape: &TapeCore) -> Saved {
        let state = tape.lock();
        let mut seen = HashSet::new();
        Saved { values: state.slots.iter().flatten().map(|slot| row(slot, &mut seen)).collect() }
    }

    /// The values in the order in which they were saved.
    pub fn values(&self) -> &[SavedValue] {
        &self.values
    }

    /// All bytes that the tape keeps alive or shares.
    pub fn bytes(&self) -> usize {
        self.values.iter().map(|value| value.bytes).sum()
    }

    /// The bytes that tapes alone hold.
    pub fn own_bytes(&self) -> usize {
        self.values.iter().filter(|value| value.own).map(|value| value.bytes).sum()
    }
}

fn row(slot: &Slot, seen: &mut HashSet<usize>) -> SavedValue {
    let (shape, dtype, bytes, own) = match &slot.value {
        SlotValue::Derived { .. } => (None, None, 0, false),
        SlotValue::Value { storage, meta } => {
            let first = seen.insert(Arc::as_ptr(storage) as usize);
            let bytes = if first { storage.n_bytes() } else { 0 };
            let own = Arc::strong_count(storage) == storage.n_slots();
            (Some(*meta.shape()), Some(meta.dtype), bytes, own)
        }
        SlotValue::Logged { step_log, number, meta } => {
            let present = step_log.storage(*number);
            let first = present.as_ref().is_some_and(|storage| seen.insert(Arc::as_ptr(storage) as usize));
            let bytes = present.filter(|_| first).map_or(0, |storage| storage.n_bytes());
            (Some(*meta.shape()), Some(meta.dtype), bytes, step_log.is_own(*number))
        }
    };
    SavedValue { op: slot.op, form: slot.form, shape, dtype, bytes, own, site: slot.site }
}

impl fmt::Display for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<16} {:<10} {:<18} {:>14}  {:<6} made at", "op", "form", "shape", "bytes", "held")?;
        for value in &self.values {
            let shape = match (value.shape, value.dtype) {
                (Some(shape), Some(dtype)) => format!("{shape} {dtype}"),
                _ => "-".to_owned(),
            };
            let held = match (value.form, value.bytes, value.own) {
                (Form::Derived, ..) => "-",
                (_, 0, _) => "above",
                (.., true) => "own",
                (.., false) => "shared",
            };
            writeln!(
                f,
                "{:<16} {:<10} {:<18} {:>14}  {:<6} {}",
                value.op,
                value.form.name(),
                shape,
                Bytes::new(value.bytes as u64).grouped(),
                held,
                value.site
            )?;
        }
        write!(
            f,
            "{} values, {} B, of which {} B are the tape's own",
            self.values.len(),
            Bytes::new(self.bytes() as u64).grouped(),
            Bytes::new(self.own_bytes() as u64).grouped()
        )
    }
}
