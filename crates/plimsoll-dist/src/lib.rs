//! Distributed training: ranks, how they exchange bytes, and sums whose bits do not depend on how many ranks there are.
//!
//! A *rank* is one of the processes, or threads, that train one model together. A [`Communicator`] is what a rank has of the
//! others: it moves bytes, and nothing else. All additions are made here, in one order: the examples of an optimizer step are
//! cut into [`Leaves`], micro-batches whose number is a setting of the run; what each leaf gives is added up by a binary tree over
//! the numbers of the leaves. A rank computes a stretch of leaves, adds up what it can, and [`all_reduce()`] does the rest of the
//! tree between ranks. So a run has the same bits for every number of ranks.
//!
//! A collective is a call of the program of a step, with an ordered effect: it is planned, limited and reported like any other
//! call, never merged, left out or moved, and a ghost skips its transfer and nothing else. It is not repeated either, but for one that
//! brings the parts of a variable together: where a plan does so, all ranks run that plan.
//!
//! Nothing here is needed to build: MPI and NCCL are found at run time ([`mpi`], [`nccl`]), and ranks inside one process need no
//! library ([`local`]).

mod agreements;
mod all_reduce;
mod bytes;
mod communicator;
mod gather;
mod ghost;
mod launcher;
mod leaves;
pub mod local;
mod message;
pub mod mpi;
pub mod nccl;
mod peers;
mod reduce;
mod scatter_sum;
mod shards;
mod strategy;

/// The names of the ops with which ranks exchange bytes.
pub const COLLECTIVES: [&str; 3] = ["all_reduce", "reduce_scatter", "all_gather"];

pub use agreements::{Agreements, Settled};
pub use all_reduce::{TreeSum, all_reduce, reduce_scatter};
pub use bytes::{DeviceBytes, DeviceBytesMut};
pub use communicator::Communicator;
pub use gather::{gather_op, gather_rows, gather_update};
pub use ghost::ghost;
pub use launcher::{Launch, launched};
pub use leaves::Leaves;
pub use peers::peers;
pub use scatter_sum::ScatterSum;
pub use shards::Shards;
pub use strategy::Strategy;
