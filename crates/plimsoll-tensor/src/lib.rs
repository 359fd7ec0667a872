//! Tensors, variables, the op registry and the gradient tape.
//!
//! Everything goes through one function, `execute`, and every byte through the device's pool, labelled with the op, the
//! layer and the user's line. See ARCHITECTURE.md for the rules of execution.

mod autograd;
mod base;
mod device;
mod eager;
mod function;
mod graph;
mod io;
#[cfg_attr(
    not(feature = "testing"),
    allow(dead_code, reason = "what the registry says to tests and documents alone")
)]
pub mod ops;
pub mod program;
mod remat;

pub use autograd::{GradientTape, OpenStep, Step, Unconnected, custom_gradient, recompute, with_ghosts};
pub use base::axes::{Axes, Integer, IntoAxes};
pub use base::dtype::{DType, Element};
pub use base::error::{Error, ErrorKind, Result};
pub use base::labels::{
    LineGuard, at_callers_line, at_line, callers_place, current_scope, enter_layer, enter_line, enter_owner,
    enter_scope, scope, with_own_places, with_owner,
};
pub use base::layout::Layout;
pub use base::reshape::IntoReshape;
pub use base::scopes;
pub use base::scopes::OpenScope;
pub use base::shape::{IntoExtents, IntoShape, MAX_ELEMS, MAX_RANK, Shape};
pub use device::driver_memory::DriverMemory;
pub use device::handle_lines::trace_handles;
pub use device::holders::Holders;
pub use device::offload_store::Offload;
pub use device::piece::{Piece, Return, elements, elements_mut};
pub use device::report::Report;
pub use device::survey::HolderKind;
pub use device::why_alive::{AliveBlock, AliveRow, Freed, HeldBy, HolderId, WhyAlive};
pub use device::{Device, Recomputed};
pub use eager::context::{
    Placement, PlacementLog, Saving, enter_saving, is_recording, is_tracing, log_placements, with_saving,
    without_tapes,
};
pub use eager::execute::apply;
pub use eager::op;
pub use eager::op::{Op, OpRef};
pub use eager::random::{Generator, set_seed};
pub use eager::step_state::{RecordInput, StepRecord};
pub use eager::tape::{Backward, Saved, SavedValue};
pub use eager::tensor::Tensor;
pub use eager::variable::Variable;
pub use function::Function;
pub use function::nested::Nested;
pub use function::structure::Structure;
pub use graph::{Graph, GraphScope, Session};
pub use io::export::{Export, Reader};
pub use io::file::write_whole;
pub use io::npy::NpyArray;
pub use io::read::{HostBytes, PendingValue};
pub use ops::binary::Rhs;
pub use ops::optimizer;
pub use ops::pooling::Pool2d;
pub use ops::slice::{IntoSlices, Slice};
pub use ops::{
    Activation, AttentionConfig, Conv1dConfig, Conv2dConfig, ConvConfig, GruWeights, LstmState,
    RecurrentWeights,
};
pub use plimsoll_memory::{Bytes, FileBytes, Name, OffsetPlan, Owner, Planned, Price, Rows, Site, Stats};
pub use plimsoll_plan::{Decisions, Trace};
pub use program::{
    CacheInfo, CachedProgram, GatheredVariable, OwnedVariables, PlannedProgram, Program, ProgramCache,
    ProgramKey, Recording, clear_session,
};
