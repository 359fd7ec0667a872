//! The lines of handles: for those who look for the one tensor too many, which line made or cloned each.
//!
//! In Rust a value moves without a trace, so a handle has no line of its own. While lines are noted, each tensor that is
//! made and each clone notes its line until it is dropped, and a clone is a handle of its own. Off, as it is unless somebody
//! asks, a tensor carries a zero and looks at one flag when it is made.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use plimsoll_memory::Site;

use crate::base::labels;
use crate::device::Device;
use crate::device::storage::Storage;
use crate::device::survey::BlockKey;

static IS_ON: AtomicBool = AtomicBool::new(false);
static NEXT: AtomicU64 = AtomicU64::new(1);
static LINES: Mutex<BTreeMap<u64, (BlockKey, Site)>> = Mutex::new(BTreeMap::new());

/// Whether from now on the line of each tensor that is made or cloned is noted, so that
/// [`Device::why_alive`] can name it. It takes time and memory; it is off unless somebody asks.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, trace_handles};
///
/// let device = Device::separate_cpu();
/// let _on = device.enter();
/// trace_handles(true);
/// let x = Tensor::ones([1000])?;
/// let kept = x.clone();
/// drop(x);
/// let why = device.why_alive();
/// let [clone] = why.of(&kept).expect("it is alive").handle_lines.as_slice() else { panic!("one handle") };
/// assert_eq!(clone.op(), "clone");
/// trace_handles(false);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub fn trace_handles(is_on: bool) {
    IS_ON.store(is_on, Ordering::Relaxed);
}

/// Whether lines are noted now.
#[inline]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// The number under which the line of a handle is noted until it is dropped; zero if it is not.
#[derive(Default)]
pub(crate) struct HandleLine(u64);

impl HandleLine {
    /// Notes the present line for a handle of a storage, if lines are noted.
    #[inline]
    pub fn of(storage: &Storage, op: &'static str) -> HandleLine {
        if is_on() { HandleLine::note(storage, labels::site(op)) } else { HandleLine(0) }
    }

    #[cold]
    fn note(storage: &Storage, site: Site) -> HandleLine {
        let Some(key) = storage.key() else { return HandleLine(0) };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        LINES.lock().unwrap_or_else(PoisonError::into_inner).insert(number, (key, site));
        HandleLine(number)
    }
}

impl Drop for HandleLine {
    #[inline]
    fn drop(&mut self) {
        if self.0 != 0 {
            LINES.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
        }
    }
}

/// The lines of all handles of a device's blocks that are noted, oldest first, by the number of the block's acquisition.
pub(crate) fn on(device: &Device) -> HashMap<u64, Vec<Site>> {
    let mut lines: HashMap<u64, Vec<Site>> = HashMap::new();
    for &(key, site) in LINES.lock().unwrap_or_else(PoisonError::into_inner).values() {
        if let Some(serial) = key.serial_on(device) {
            lines.entry(serial).or_default().push(site);
        }
    }
    lines
}
