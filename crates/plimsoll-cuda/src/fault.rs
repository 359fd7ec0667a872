//! Faults: values that a kernel refuses, such as an index out of range.
//!
//! A kernel cannot return an error to a host that has gone on. It notes the fault in a cell that both sides see and does
//! something harmless instead; the host looks into the cell once it has waited for the kernel. Whose cell it is decides
//! whose error it is: a [`FaultCell`] belongs to whoever claimed it, and nobody else looks into it. What a fault means, and
//! its text, is the business of the op: a cell only knows the number of the call that refused, the position of the element
//! and its value.
//!
//! Which of many faults a cell tells does not depend on the timing of threads: that of the first call, and of that call the
//! one at the lowest position. A cell is four words, which begin with call and position and end with 16 bits of the value each.
//! A kernel keeps the least of each word; the same fault is the least in all four, so they are always parts of one.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;

/// A fault, as a kernel noted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The number of the call, from one on.
    pub call: u64,
    /// The position of the element among those that the kernel was given.
    pub position: u64,
    /// The value that was refused.
    pub value: i64,
}

/// The bits of a word for the value and for the position; the rest are for the call. `prelude.cuh` has the same.
const VALUE_BITS: u32 = 16;
const POSITION_BITS: u32 = 36;

/// What a kernel writes: zeros, or the parts of a fault. `prelude.cuh` has the same.
type Words = [u64; 4];

/// How many cells are made at a time.
const N_AT_ONCE: usize = 64;

/// The cells of a GPU that nobody has claimed.
#[derive(Default)]
pub(crate) struct FaultCells(Mutex<Vec<Place>>);

/// Where a cell lies.
#[derive(Clone, Copy)]
struct Place {
    on_device: *mut u8,
    on_host: *mut Words,
    /// Whether it holds nothing, and no kernel that was given it is still to run.
    is_clean: bool,
}

// SAFETY: cells live as long as the process; the host touches one only on behalf of whoever claimed it, with volatile
// accesses, after having waited for the kernels that were given it.
unsafe impl Send for Place {}

impl FaultCells {
    /// The bytes that are asked for when there are no cells left.
    pub const BYTES: usize = N_AT_ONCE * size_of::<Words>();

    /// Claims a cell; `make` gives so many zero bytes that both sides see, as addresses on device and host, and `clear`
    /// sets a cell to zero after all work before.
    pub fn claim(
        self: &Arc<FaultCells>,
        make: impl FnOnce() -> Result<(*mut u8, *mut u8)>,
        clear: impl FnOnce(*mut u8, usize) -> Result<()>,
    ) -> Result<FaultCell> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if free.is_empty() {
            let (on_device, on_host) = make()?;
            free.extend((0..N_AT_ONCE).map(|idx| Place {
                on_device: on_device.wrapping_add(idx * size_of::<Words>()),
                on_host: on_host.cast::<Words>().wrapping_add(idx),
                is_clean: true,
            }));
        }
        let Some(place) = free.pop() else { unreachable!("there are some") };
        drop(free);
        let cell = FaultCell { cells: self.clone(), place, is_clean: AtomicBool::new(false) };
        if !place.is_clean {
            clear(place.on_device, size_of::<Words>())?;
        }
        Ok(cell)
    }
}

/// A cell in which kernels note the first value that they refuse; others may claim it when it is dropped.
pub struct FaultCell {
    cells: Arc<FaultCells>,
    place: Place,
    is_clean: AtomicBool,
}

// SAFETY: as for `Place`; the flag is atomic.
unsafe impl Sync for FaultCell {}

impl FaultCell {
    /// The most calls that can share a cell.
    pub const MAX_CALLS: u64 = (1 << (u64::BITS - POSITION_BITS - VALUE_BITS)) - 1;

    /// The cell's address on the device, a kernel's `Note*`.
    pub fn address(&self) -> *mut u8 {
        self.place.on_device
    }

    /// The fault that the cell holds, once all kernels that were given it have been waited for. No other may be.
    pub fn take(&self) -> Option<Fault> {
        // SAFETY: the cell is as large and lives as long as the process; no kernel writes it any more.
        let words = unsafe { self.place.on_host.read_volatile() };
        if words[0] != 0 {
            // SAFETY: as above.
            unsafe { self.place.on_host.write_volatile([0; 4]) };
        }
        self.is_clean.store(true, Ordering::Relaxed);
        (words[0] != 0).then(|| {
            let part = |idx: usize| (words[idx] & ((1 << VALUE_BITS) - 1)) << (idx as u32 * VALUE_BITS);
            Fault {
                call: words[0] >> (POSITION_BITS + VALUE_BITS),
                position: words[0] >> VALUE_BITS & ((1 << POSITION_BITS) - 1),
                value: (part(0) | part(1) | part(2) | part(3)) as i64,
            }
        })
    }
}

impl Drop for FaultCell {
    fn drop(&mut self) {
        let is_clean = self.is_clean.load(Ordering::Relaxed);
        let mut free = self.cells.0.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(Place { is_clean, ..self.place });
    }
}

impl fmt::Debug for FaultCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultCell({:?})", self.place.on_device)
    }
}
