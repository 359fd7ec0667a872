//! A safe layer over CUDA: context, streams, pages, kernels compiled at run time, matrix products, convolutions.
//!
//! It knows GPUs, not ops: whoever launches says which kernel, with what, and for which op, so that errors can name it.
//! Nothing of CUDA is needed to build it or to run on a machine without a GPU: libraries are looked for when the first
//! GPU is opened, and one that is missing is an error that says what was looked for.
//!
//! A [`Gpu`] is a back end: the driver (`driver`), or, with the feature `emulated`, the host itself
//! (`emulated`), on which every kernel of the test suites runs where there is no GPU. What callers see is the same.
//!
//! Rules that hold everywhere here: one compute stream, so that program order is execution order, and copies beside it that
//! are ordered by events (`copies`); kernels never
//! allocate; nothing is timed to choose an algorithm; freeing never synchronises, giving pages back does.

mod backend;
mod convolution;
mod copies;
mod driver;
mod dry_gpu;
#[cfg(feature = "emulated")]
mod emulated;
mod error;
mod fault;
mod generated;
mod gpu;
mod graph;
mod graph_room;
mod kernel;
mod matmul;
mod nccl;
mod other_streams;
mod pages;
mod pending;
mod pinned;
mod profile;
mod segments;

pub use backend::{Grid, MemoryInfo, REGION_BYTES};
pub use convolution::{Convolution, ConvolutionOperands, Direction};
pub use copies::Copied;
pub use driver::{LibraryInfo, compile, libraries, profile_of};
pub use dry_gpu::KernelText;
#[cfg(feature = "emulated")]
pub use emulated::{Failure, WaitsFor, fail_at, take_waits};
pub use error::{Error, Result};
pub use fault::{Fault, FaultCell};
pub use generated::Generated;
pub use gpu::{Gpu, Posted};
pub use graph::GraphRecording;
pub use graph_room::GraphRoom;
pub use kernel::{Kernel, Param, Template};
pub use matmul::{Epilogue, Matmul, MatmulOperands, Matrix, Scalar};
pub use nccl::{NcclCommunicator, NcclId, nccl_id};
pub use other_streams::DEFAULT_STREAM;
pub use pages::Pages;
pub use pinned::{Pinned, PinnedBlock};
pub use profile::{Profile, Rates};
pub use segments::Graphs;
