//! Faults: values that a kernel refuses, such as an index out of range.
//!
//! A kernel cannot return an error to a host that has gone on. It notes the first fault in a cell that both sides see, and
//! does something harmless instead; the host looks into the cell whenever it waits for the device, and returns the error
//! then, with the text that the op gave for it.

use std::sync::{Mutex, PoisonError};

use crate::error::Error;

/// A way in which a kernel can refuse a value. A constant of the op's file.
pub struct FaultKind {
    /// The op.
    pub op: &'static str,
    /// The text for a person, from the value that was refused and the bound that it broke.
    pub text: fn(value: i64, bound: i64) -> String,
}

/// What a kernel writes: zero, or the number of the fault's kind, and two values. `prelude.cuh` has the same.
#[repr(C)]
struct Note {
    kind: u64,
    value: i64,
    bound: i64,
}

/// The cell, and the kinds of faults that kernels were told of.
pub(crate) struct Faults {
    on_device: *mut u8,
    on_host: *mut Note,
    kinds: Mutex<Vec<&'static FaultKind>>,
}

// SAFETY: the cell lives as long as the process; the host reads and clears it with volatile accesses after waiting for
// the device, under the mutex.
unsafe impl Send for Faults {}
// SAFETY: as above.
unsafe impl Sync for Faults {}

impl Faults {
    /// The bytes of a cell.
    pub const CELL_BYTES: usize = size_of::<Note>();

    /// Over a cell at these addresses on the device and on the host.
    pub fn new((on_device, on_host): (*mut u8, *mut u8)) -> Faults {
        Faults { on_device, on_host: on_host.cast(), kinds: Mutex::new(Vec::new()) }
    }

    /// The cell's address on the device, and the number by which kernels name this kind.
    pub fn number(&self, kind: &'static FaultKind) -> (*mut u8, u64) {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kinds.iter().position(|&known| std::ptr::eq(known, kind));
        let idx = known.unwrap_or_else(|| {
            kinds.push(kind);
            kinds.len() - 1
        });
        (self.on_device, idx as u64 + 1)
    }

    /// Whether a fault was noted. A kernel may still be writing the rest of the note.
    pub fn is_noted(&self) -> bool {
        // SAFETY: the cell is as large as a note and lives as long as the process; its first word is written whole.
        unsafe { (&raw const (*self.on_host).kind).read_volatile() != 0 }
    }

    /// The first fault since the last call, after the device has been waited for.
    pub fn take(&self) -> Option<Error> {
        let kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the cell is as large as a note and lives as long as the process; no kernel is running.
        let note = unsafe { self.on_host.read_volatile() };
        if note.kind == 0 {
            return None;
        }
        // SAFETY: as above.
        unsafe { self.on_host.write_volatile(Note { kind: 0, value: 0, bound: 0 }) };
        let kind = kinds.get(note.kind as usize - 1)?;
        Some(Error::of(kind.op, (kind.text)(note.value, note.bound)))
    }
}
