//! CUDA graphs of a device: whether programs run so, and the memory that the driver takes for it.
//!
//! Executables lie in memory of the driver's, where no pool hands anything out. So a part of the device's limit is set aside for
//! them, as much as the profile says, and all executables together have no more launches than fit there. It is set aside once for
//! all programs, whether any runs as a graph or not: no plan, no step and no block depends on it, and a ghost has the same.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use plimsoll_cuda::GraphRoom;

use crate::base::error::Result;
use crate::device::Device;

/// Whether programs run as CUDA graphs: yes, unless the environment says otherwise.
static IS_ON: LazyLock<bool> =
    LazyLock::new(|| std::env::var("PLIMSOLL_CUDA_GRAPHS").map_or(true, |value| value != "0"));

/// What a device knows of CUDA graphs.
pub(crate) struct GraphState {
    is_on: AtomicBool,
    room: Arc<GraphRoom>,
}

impl Default for GraphState {
    fn default() -> GraphState {
        GraphState { is_on: AtomicBool::new(*IS_ON), room: Arc::default() }
    }
}

impl GraphState {
    /// Takes over whether another device, whose pool was copied, runs programs as graphs, and what that has taken.
    pub fn take_over(&self, other: &GraphState) {
        self.room.take_over(&other.room);
        self.is_on.store(other.is_on.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Device {
    /// Whether programs (functions, training steps, sessions) run as CUDA graphs from their second or third run on: a few calls of
    /// the driver instead of one for each launch, with the same bits. On unless this or `PLIMSOLL_CUDA_GRAPHS=0` says
    /// otherwise; a program that ran while it was off stays as it is.
    ///
    /// A program that uses several devices runs launch by launch; one that offloads or reads a value runs as a graph between its
    /// copies. What the driver takes for executables lies outside the pool. For a GPU, at most 32 MiB of the limit, and at most a 64th of
    /// it, are set aside for that; programs that find no room there run launch by launch.
    ///
    /// # Errors
    /// What is in use does not fit beside what would be set aside; then programs run as before.
    #[doc(alias("cudagraphs", "CUDAGraph"))]
    pub fn set_cuda_graphs(&self, is_on: bool) -> Result<()> {
        let state = &self.0.graphs;
        let was_on = state.is_on.swap(is_on, Ordering::Relaxed);
        let set = self.set_graph_room();
        if set.is_err() {
            state.is_on.store(was_on, Ordering::Relaxed);
        }
        set
    }

    /// Whether programs run as CUDA graphs: see [`Device::set_cuda_graphs`].
    pub fn cuda_graphs(&self) -> bool {
        self.0.graphs.is_on.load(Ordering::Relaxed)
    }

    /// How many runs of programs on this device's GPU were started as CUDA graphs so far.
    pub fn n_graph_launches(&self) -> u64 {
        self.gpu().map_or(0, |gpu| gpu.n_graph_launches())
    }

    /// The most bytes that the driver has taken for executables of this device's programs. They are in no block; a part of the limit is
    /// set aside for them.
    pub fn graph_bytes(&self) -> u64 {
        self.profile().map_or(0, |profile| profile.graph_bytes_for(self.0.graphs.room.peak_launches()))
    }

    /// The room that executables of its programs share.
    pub(crate) fn graph_room(&self) -> &Arc<GraphRoom> {
        &self.0.graphs.room
    }

    /// Sets aside what executables may take under the limit as it is, and no less than what they have taken.
    pub(crate) fn set_graph_room(&self) -> Result<()> {
        let Some(profile) = self.profile() else { return Ok(()) };
        let most = if self.cuda_graphs() { profile.graph_bytes } else { 0 };
        self.0.pool.set_aside(self.graph_bytes(), most)?;
        let aside = if self.cuda_graphs() { self.0.pool.aside() } else { 0 };
        self.0.graphs.room.set_max_launches(profile.graph_launches(aside));
        Ok(())
    }
}
