//! The CUDA graphs of a program.
//!
//! The first run makes kernels and asks libraries for their ways, so it goes launch by launch; from the second on launches are
//! recorded. What the driver takes for executables is the business of the device ([`crate::Device::set_cuda_graphs`]).

use plimsoll_cuda::Graphs;

use super::Program;
use crate::base::error::Result;

/// The executables of a program.
#[derive(Default)]
pub(super) enum ProgramGraphs {
    /// It has not run.
    #[default]
    New,
    /// It has run once.
    RanOnce,
    /// It runs as a graph where it can.
    On(Graphs),
    /// It runs launch by launch.
    Off,
}

impl ProgramGraphs {
    /// A run begins.
    ///
    /// # Errors
    /// Executables have taken more than a limit leaves that was set directly on the pool.
    pub fn begin_run(&mut self, program: &Program) -> Result<()> {
        *self = match std::mem::take(self) {
            ProgramGraphs::New if program.can_be_graph() => ProgramGraphs::RanOnce,
            ProgramGraphs::New => ProgramGraphs::Off,
            ProgramGraphs::RanOnce => ProgramGraphs::On(Graphs::new(program.device().graph_room())),
            state => state,
        };
        match self {
            ProgramGraphs::On(_) => program.device().set_graph_room(),
            _ => Ok(()),
        }
    }

    /// The executables, if the program runs as a graph.
    pub fn get(&self) -> Option<&Graphs> {
        match self {
            ProgramGraphs::On(graphs) => Some(graphs),
            _ => None,
        }
    }

    /// The most bytes that the driver takes for them.
    pub fn bytes(&self, program: &Program) -> u64 {
        let device = program.device();
        let per_launch = device.profile().map_or(0, |profile| profile.graph_launch_bytes);
        self.get().map_or(0, |graphs| (graphs.n_launches() * per_launch) as u64)
    }
}

impl Program {
    /// Whether it may run as a graph at all.
    fn can_be_graph(&self) -> bool {
        let device = self.device();
        self.devices.len() == 1 && device.profile().is_some() && device.cuda_graphs() && self.calls.len() > 1
    }
}
