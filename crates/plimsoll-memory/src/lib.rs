//! Memory pools over any source of pages: limits, labels, statistics and traces. No tensors, no CUDA.
//!
//! A [`Pool`] hands out [`Block`]s from addresses that a [`Source`] reserved once. Every block has a [`Label`]:
//! what it is for, and which line of the program asked for it. The pool can say at any moment who holds each
//! byte, and the rows add up exactly.
//!
//! # Policy
//!
//! **Rounding** depends on the requested size alone: the next multiple of 512 bytes, nothing for zero bytes.
//! Blocks are always split from larger free space, so the bytes *in use* do not depend on placement, on the
//! order of requests or on the pool's past.
//!
//! **Placement.** Three regions keep lifetimes apart: parameters and optimizer state, steps, data. Blocks of up
//! to 16 KiB of all sizes share slabs of 64 KiB. Larger ones go into the smallest free extent that has room
//! and pages, at the lowest address among equals; neighbours merge at once. Only when there is none are pages
//! committed, in granules of the source, at the place that needs the fewest. A planned step knows better: it
//! takes one range, as a block of that size would be placed, and its blocks go to the offsets of an
//! [`OffsetPlan`] in there.
//!
//! **The limit** bounds the bytes *committed* at every moment. What it forbids to commit is first made up for
//! by giving free granules back elsewhere; then the [`Reclaim`] hook is asked, with the lock released; then the
//! request is refused with a report of the largest holders. A part of it may be set aside for memory that a driver
//! takes for itself ([`Pool::set_aside`]).
//!
//! **Giving back.** A release never waits and, in a steady step, calls nobody. Free granules go back by
//! themselves when the last block is dropped (the pool then holds nothing), when a block of parameters,
//! optimizer state or a graph is dropped (a model is being disposed of; from then until the next acquisition
//! every granule goes back as it becomes free), and when a limit asks. [`Pool::trim`] does it on demand.
//! [`Pool::keep_pages`] is for pools that are emptied in every step.
//!
//! **Threads.** One lock guards a pool. A block belongs to the thread that acquired it and may be dropped on any;
//! while its thread has a step open, what others drop of its blocks joins the free list at that step's end, in the
//! order of acquisition, so that their timing cannot be seen in the pool. Several threads may have a step open, and
//! the blocks of each come back at the end of its own.
//!
//! **Ghosts.** The map is a function of the calls made to it. A pool over [`GhostPages`] that is asked the same
//! answers the same, offset by offset, and [`Pool::ghost`] copies a pool to ask it what a step would do.
//!
//! ```
//! use plimsoll_memory::{HostPages, Label, Owner, Pool, Site};
//!
//! let pool = Pool::new(HostPages::new()?);
//! pool.set_limit(Some("64MiB".parse()?))?;
//! let site = Site::intern("src/main.rs", 12, "encoder.0", "matmul");
//! let block = pool.acquire(4_000_000, Label::new(Owner::Saved, site))?;
//! assert_eq!(pool.stats().rows().get(Owner::Saved), 4_000_000);
//! let error = pool.acquire(100_000_000, Label::new(Owner::Temporary, site)).unwrap_err();
//! assert!(error.to_string().contains("src/main.rs:12 encoder.0 matmul"));
//! drop(block);
//! assert_eq!(pool.stats().committed, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What this crate refuses to do: it never polls, sleeps or looks at the clock to decide anything, it never
//! moves a live block, and it knows neither shapes nor devices.

mod bytes;
mod error;
mod extents;
#[cfg(feature = "testing")]
mod fence;
mod file_bytes;
mod ghost;
mod host;
mod label;
mod limit;
mod long_list;
mod map;
mod planned;
mod pool;
mod price;
mod size_tree;
mod slab;
mod snapshot;
mod source;
mod spill_file;
mod state;
mod stats;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;

pub use bytes::{Bytes, ParseBytesError};
pub use error::{Cause, OutOfMemory, Shortage};
pub use file_bytes::FileBytes;
pub use ghost::GhostPages;
pub use host::HostPages;
pub use label::{Label, Name, Owner, Region, Site};
pub use long_list::LongList;
pub use map::rounded_size;
pub use planned::{OffsetError, OffsetPlan, Planned};
pub use pool::{Block, KeptPages, PeakScope, Pool, Reclaim, StepScope};
pub use price::Price;
pub use snapshot::{BlockInfo, Holder, HolderDiff, Snapshot};
pub use source::{GRANULE, Source, SourceError};
pub use spill_file::{SPILL_ALIGNMENT, SpillFile};
pub use stats::{Rows, SourceCalls, Stats};
pub use trace::{Levels, OUT_OF_MEMORY, STEP, TraceEvent, TraceSink, Work};
