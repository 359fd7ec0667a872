//! Datasets and the input pipeline.
//!
//! A [`Dataset`] says where elements come from and what is done with them: it is a value, like a query. Iterating it
//! gives batches of tensors. Three things set it apart:
//!
//! - **Bytes are bounded and counted.** The pipeline takes one block of the device's pool when iteration begins, known
//!   from the spec of the elements, and lends batches out of it. `prefetch(2)` on tensors is the tensors and three
//!   batches, to the byte; there is no second copy anywhere.
//! - **Batches are a function of (dataset, seed, epoch, number)**, whatever the number of workers, and an epoch can be
//!   entered in the middle.
//! - **Nothing outlives the iterator.** Threads end when it is dropped, unless [`Dataset::start_threads`] keeps them, and an error or a panic in a worker comes out of
//!   it at its place in the order.
//!
//! Elements are plain memory ([`Example`]) until they are a batch. This crate makes no tensors on the way and runs no
//! ops; it refuses elements whose size has no bound, because no allowance could be known for them.

#![forbid(unsafe_code)]

mod batch;
mod bucket;
mod cache;
mod combine;
mod dataset;
mod example;
mod limits;
mod map;
mod node;
mod order;
mod pipeline;
mod shuffle;
mod source;
mod spec;

pub use batch::Padding;
pub use dataset::Dataset;
pub use example::{Example, ExampleMut, WriteExample};
pub use pipeline::{AUTOTUNE, Batch, Batches, Prefetch, Threads, is_asked_to_stop, stop_waiting_when};
pub use shuffle::Buffer;
pub use source::csv::Csv;
pub use source::slices::IntoSlices;
pub use source::tokens::{TokenType, Tokens};
pub use spec::{Field, Key, Spec};
