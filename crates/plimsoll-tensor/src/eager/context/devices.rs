//! The device that a thread's ops run on, and what stands for it while a function is recorded.

use std::sync::Arc;

use plimsoll_memory::{Name, Owner};

use super::{CONTEXT, is_tracing, with_tracer};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::labels::with_owner;
use crate::base::scopes::OpenScope;
use crate::base::shape::Shape;
use crate::device::Device;
use crate::device::storage::Storage;

/// The device of ops that have no inputs. While a function is recorded, it is the ghost that stands for it.
pub(crate) fn device() -> Device {
    recording_device(&entered_device())
}

/// The device of the innermost scope, else the CPU.
fn entered_device() -> Device {
    CONTEXT.with(|context| context.devices.borrow().innermost().cloned()).unwrap_or_else(Device::cpu)
}

/// The device that the user means by the current one: the real one, also while a function is recorded. Values of the host
/// are brought there.
pub(crate) fn current_device() -> Device {
    real_device(&entered_device())
}

/// The ghost that stands for a device while a function is recorded; else the device itself.
pub(crate) fn recording_device(device: &Device) -> Device {
    with_tracer(|tracer| tracer.ghost_of(device)).unwrap_or_else(|| device.clone())
}

/// The device that a ghost stands for while a function is recorded; else the device itself.
pub(crate) fn real_device(device: &Device) -> Device {
    with_tracer(|tracer| tracer.real_of(device)).flatten().unwrap_or_else(|| device.clone())
}

/// Makes a device the current one until the scope is dropped.
pub(crate) fn enter_device(device: Device) -> OpenScope {
    let number = CONTEXT.with(|context| context.devices.borrow_mut().begin(device));
    OpenScope::new(number, |number| {
        // A device whose last handle this is ends when the list is not borrowed any more.
        drop(CONTEXT.try_with(|context| context.devices.borrow_mut().end(number)));
    })
}

impl Device {
    /// The device that ops without inputs run on: the innermost [`Device::enter`] scope, else the CPU.
    pub fn current() -> Device {
        current_device()
    }

    /// Notes in the trace of this device's pool that something begins here, such as a pass backward; while a function is
    /// recorded, that becomes part of its program.
    pub fn mark(&self, name: impl Into<Name>, number: u64) {
        recording_device(self).pool().mark(name, number);
    }

    /// Makes this device the current one until the scope is dropped.
    #[doc(alias = "device")]
    pub fn enter(&self) -> OpenScope {
        enter_device(self.clone())
    }
}

impl Storage {
    /// Room for values of the host on the current device. Inside a function that is being recorded they are a constant of
    /// its program, which lies on the real device and belongs to the graph.
    pub fn for_host_data(shape: &Shape, dtype: DType, op: &'static str) -> Result<Arc<Storage>> {
        let device = current_device();
        match is_tracing() {
            true => with_owner(Owner::Graph, || Storage::new(&device, shape, dtype, op)),
            false => Storage::new(&device, shape, dtype, op),
        }
    }
}
