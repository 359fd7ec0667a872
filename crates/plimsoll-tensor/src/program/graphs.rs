//! The CUDA graphs of a program, and the memory that is set aside for them.
//!
//! What a driver takes for executables lies outside the pool, where no limit reaches. So a block of the pool stands for it: as
//! large as the profile's bound for all executables that the program may have, acquired at the second run, the first that could
//! be captured, and never written. It depends on the program and the profile alone, so a ghost acquires the same. Where
//! it cannot be had, or the program does not fit beside it, the program runs launch by launch.

use plimsoll_cuda::{Graphs, MAX_EXECUTABLES};
use plimsoll_memory::{Block, Label, Owner};

use super::Program;
use crate::base::labels;

/// The most launches of an executable for each call of the program; one with more is not captured. Most ops are one launch,
/// and few are more than three.
const LAUNCHES_PER_CALL: usize = 4;

/// The executables of a program.
#[derive(Default)]
pub(super) struct ProgramGraphs {
    state: State,
}

#[derive(Default)]
enum State {
    /// It has not run.
    #[default]
    New,
    /// It has run once.
    RanOnce,
    /// It runs as a graph where it can.
    On { graphs: Graphs, set_aside: Block },
    /// It runs launch by launch.
    Off,
}

impl ProgramGraphs {
    /// A run begins: the second one sets memory aside.
    pub fn begin_run(&mut self, program: &Program) {
        self.state = match std::mem::take(&mut self.state) {
            State::New if program.can_be_graph() => State::RanOnce,
            State::RanOnce => ProgramGraphs::set_aside(program),
            State::New => State::Off,
            state => state,
        };
    }

    fn set_aside(program: &Program) -> State {
        let device = program.device();
        let max_launches = LAUNCHES_PER_CALL * program.calls.len();
        let per_launch = device.profile().map_or(0, |profile| profile.graph_launch_bytes);
        let n_bytes = MAX_EXECUTABLES * max_launches * per_launch;
        match device.acquire(n_bytes, Label::new(Owner::Graph, labels::site("cuda_graph"))) {
            Ok(block) => State::On { graphs: Graphs::new(max_launches), set_aside: block },
            Err(_) => State::Off,
        }
    }

    /// Gives graphs up, with the memory that is set aside; whether there was any.
    pub fn give_up(&mut self) -> bool {
        let was_on = matches!(self.state, State::On { .. });
        self.state = State::Off;
        was_on
    }

    /// The executables, if the program runs as a graph.
    pub fn get(&mut self) -> Option<&mut Graphs> {
        match &mut self.state {
            State::On { graphs, .. } => Some(graphs),
            _ => None,
        }
    }

    /// The bytes of the device that are set aside.
    pub fn bytes(&self) -> u64 {
        match &self.state {
            State::On { set_aside, .. } => set_aside.bytes() as u64,
            _ => 0,
        }
    }
}

impl Program {
    /// Whether it may run as a graph at all.
    fn can_be_graph(&self) -> bool {
        let device = self.device();
        self.devices.len() == 1 && device.profile().is_some() && device.cuda_graphs() && self.calls.len() > 1
    }
}
