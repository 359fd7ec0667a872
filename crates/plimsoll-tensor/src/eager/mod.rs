//! Eager execution: tensors, variables, ops as values, the tape that records them, and the one function that runs them.
//!
//! The modules of this room know each other, by nature: an op's backward makes tensors, a tensor holds its node of a tape,
//! `execute` records what it runs, and a variable reads what the open step has staged. What can be said without the others is
//! below; what needs ops (making gradients, steps, assignments) is above. Of what is above, the room knows two traits: the
//! [`OpLog`](op_log::OpLog), which restores evicted values, and the [`Recorder`](recorder::Recorder), which makes programs.

pub(crate) mod check;
pub(crate) mod context;
pub(crate) mod execute;
pub mod op;
pub(crate) mod op_log;
pub(crate) mod random;
pub(crate) mod recorder;
pub(crate) mod run;
pub(crate) mod step_state;
pub(crate) mod tape;
pub(crate) mod tensor;
pub(crate) mod update;
pub(crate) mod variable;
