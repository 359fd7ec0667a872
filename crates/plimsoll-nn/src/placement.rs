//! Where a layer computes, in a model that is spread over several devices.
//!
//! A layer has its variables on the device that it is built on: the one that [`Layer::on`](crate::Layer::on) says, or the current
//! one. In a model that is all on one device nothing follows from that: what goes in must be there, too. As soon as one layer is on
//! another device than the model around it, the model is spread, and each of its layers that has variables, or was placed
//! itself, brings its inputs to its device; a copy that a tape records. A layer without variables computes where its first
//! input is, so that nothing travels for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_tensor::{Device, Result, Tensor};

use crate::deferred::Deferred;

/// The device of a layer, and whether the model that it belongs to is spread.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    /// The device that it was built on.
    device: Device,
    /// Whether its inputs are brought there: it has variables, or was placed there by itself.
    takes_inputs: bool,
    /// Shared by all layers that were built together.
    is_spread: Arc<AtomicBool>,
}

impl Placement {
    /// A layer that is being built on a device, inside another one if that is so.
    pub fn new(device: Device, outer: Option<&Placement>) -> Placement {
        let Some(outer) = outer else {
            return Placement { device, takes_inputs: false, is_spread: Arc::default() };
        };
        let is_elsewhere = device != outer.device;
        outer.is_spread.fetch_or(is_elsewhere, Ordering::Relaxed);
        Placement { device, takes_inputs: is_elsewhere, is_spread: outer.is_spread.clone() }
    }

    /// This placement, of a layer that turned out to have variables or was placed by itself.
    pub fn taking_inputs(self, takes_inputs: bool) -> Placement {
        Placement { takes_inputs: self.takes_inputs || takes_inputs, ..self }
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether layers of the model are on several devices.
    pub fn is_spread(&self) -> bool {
        self.is_spread.load(Ordering::Relaxed)
    }

    /// What goes into the layer, where the layer computes; nothing if it is there already.
    pub fn copy_here(&self, x: &Deferred) -> Result<Option<Deferred>> {
        if !self.is_spread() {
            return Ok(None);
        }
        let Some(first) = x.device() else { return Ok(None) };
        let to = if self.takes_inputs { &self.device } else { &first };
        // What is tried on a ghost, for its shapes, stays there.
        if first.is_ghost() != to.is_ghost() || x.is_on(to) {
            return Ok(None);
        }
        x.nested_values()?
            .try_map(&mut |values: &Tensor| values.to_device(to))
            .map(|moved| Some(Deferred::nested(moved)))
    }
}
