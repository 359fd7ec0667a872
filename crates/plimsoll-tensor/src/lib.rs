//! Tensors, variables, the op registry and the gradient tape.
//!
//! Everything goes through one function, `execute`, and every byte through the device's pool, labelled with the op, the
//! layer and the user's line. See ARCHITECTURE.md for the rules of execution.

mod axes;
mod check;
mod checksum;
mod context;
mod device;
mod driver_memory;
mod dtype;
mod error;
mod execute;
mod fault;
mod file;
mod foreign;
mod function;
mod graph;
mod layout;
mod nested;
mod npy;
mod offload_store;
pub mod op;
mod operators;
pub mod ops;
mod piece;
mod print;
pub mod program;
mod random;
mod rates;
mod raw;
mod read;
mod remat;
mod report;
mod reshape;
pub mod scopes;
mod shape;
mod step;
mod storage;
mod structure;
mod tape;
mod tensor;
mod update;
mod variable;

pub use axes::{Axes, Integer, IntoAxes};
pub use context::{
    LineGuard, Placement, PlacementLog, Saving, at_callers_line, at_line, callers_place, current_scope,
    enter_layer, enter_line, enter_owner, enter_saving, enter_scope, is_recording, log_placements, scope,
    with_own_places, with_owner, with_saving,
};
pub use device::{Device, Recomputed};
pub use driver_memory::DriverMemory;
pub use dtype::{DType, Element};
pub use error::{Error, ErrorKind, Result};
pub use execute::apply;
pub use file::write_whole;
pub use function::Function;
pub use graph::{Graph, GraphScope, Session};
pub use layout::Layout;
pub use nested::Nested;
pub use npy::NpyArray;
pub use offload_store::Offload;
pub use op::{Op, OpRef};
pub use ops::binary::Rhs;
pub use ops::optimizer;
pub use ops::pooling::Pool2d;
pub use ops::slice::{IntoSlices, Slice};
pub use ops::{
    Activation, AttentionConfig, Conv1dConfig, Conv2dConfig, ConvConfig, GruWeights, LstmState,
    RecurrentWeights,
};
pub use piece::{Piece, Return, elements, elements_mut};
pub use plimsoll_memory::{Bytes, FileBytes, Name, OffsetPlan, Owner, Planned, Rows, Site, Stats};
pub use plimsoll_plan::{Decisions, Trace};
pub use program::{
    CacheInfo, CachedProgram, OwnedVariables, PlannedProgram, Program, ProgramCache, ProgramKey, Recording,
    clear_session,
};
pub use random::{Generator, set_seed};
pub use read::{HostBytes, PendingValue};
pub use report::Report;
pub use reshape::IntoReshape;
pub use scopes::OpenScope;
pub use shape::{IntoExtents, IntoShape, MAX_ELEMS, MAX_RANK, Shape};
pub use step::{OpenStep, RecordInput, Step, StepRecord};
pub use structure::Structure;
pub use tape::{Backward, GradientTape, Saved, SavedValue, Unconnected, custom_gradient, recompute};
pub use tensor::Tensor;
pub use variable::{Variable, with_ghosts};
