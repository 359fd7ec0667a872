//! The op behind sums over all ranks: [`all_reduce`](crate::all_reduce()) and [`reduce_scatter`](crate::reduce_scatter()).
//!
//! The sums are made a message at a time: each message goes through the whole tree of [`Leaves`], and what comes of it goes to all
//! ranks, or to the one whose shard it is of. So a rank needs no more than two messages besides what it is given and what it
//! keeps.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use plimsoll_cuda::Gpu;
use plimsoll_tensor::op::{AverageOutputs, Cost, Gradient, Meta, Op, Output, Outputs, Run, Transfer};
use plimsoll_tensor::{DType, Error, Result, Shape};

use crate::bytes::{self, DeviceBytes, DeviceBytesMut};
use crate::communicator::Communicator;
use crate::leaves::{Leaves, Node, local_nodes};
use crate::message::{MESSAGE_BYTES, Segment, messages, n_rounds, pieces};

/// Adds up tensors of all ranks. Its inputs are those of one node of this rank after the other; its outputs are the sums, or this
/// rank's pieces of them, and the memory of two messages.
pub(crate) struct Reduce {
    pub communicator: Arc<dyn Communicator>,
    pub leaves: Leaves,
    pub n_tensors: usize,
    /// Who gets which elements of the sums; nothing if all ranks get all of them.
    pub shards: Option<Shares>,
}

/// The pieces of some tensors that ranks have of them.
pub(crate) struct Shares {
    /// Whose which elements are, counted over all tensors.
    pub segments: Vec<Segment>,
    /// How many elements of each tensor are this rank's.
    pub own: Vec<usize>,
}

impl fmt::Debug for Reduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segments = self.shards.as_ref().map(|shards| &shards.segments);
        write!(f, "Reduce({:?}, {} tensors, {segments:?})", self.leaves, self.n_tensors)
    }
}

impl Op for Reduce {
    fn name(&self) -> &'static str {
        if self.shards.is_some() { "reduce_scatter" } else { "all_reduce" }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let dtype = inputs[0].dtype;
        if !matches!(dtype, DType::F32 | DType::F64) || inputs.iter().any(|meta| meta.dtype != dtype) {
            let detail = format!("tensors of {dtype} are not added up; all must be float32, or all float64");
            return Err(Error::dtype(self.name(), detail));
        }
        let tensors = &inputs[..self.n_tensors];
        let n_elems: usize = tensors.iter().map(|meta| meta.n_elems()).sum();
        let message = Shape::new(&[n_elems.min(MESSAGE_BYTES / dtype.size())])?;
        let mut shapes: Vec<Shape> = match &self.shards {
            None => tensors.iter().map(|meta| *meta.shape()).collect(),
            Some(shards) => shards.own.iter().map(|&n| Shape::new(&[n])).collect::<Result<_>>()?,
        };
        shapes.extend([message, message]);
        Ok(shapes.into_iter().map(|shape| Output::New { shape, dtype }).collect())
    }

    fn has_effect(&self) -> bool {
        true
    }

    /// Where each rank gets its part of the sums.
    fn average_outputs(&self, inputs: &[&Meta]) -> Option<AverageOutputs> {
        self.shards.as_ref()?;
        let sums = inputs[..self.n_tensors].iter().map(|meta| meta.n_bytes());
        let message = sums.clone().sum::<usize>().min(MESSAGE_BYTES);
        let parts = sums.map(|n_bytes| n_bytes / self.leaves.n_ranks());
        Some(AverageOutputs { n_bytes: parts.chain([message, message]).collect(), are_parts: true })
    }

    fn cost(&self, inputs: &[&Meta], _: &[&Meta]) -> Cost {
        let n_bytes = inputs.iter().fold(0, |sum: u64, meta| sum.saturating_add(meta.n_bytes() as u64));
        Cost { flops: n_bytes / 4, bytes: n_bytes.saturating_mul(2) }
    }

    /// Up the tree, and then to all ranks, or from the first one to the owners of all parts.
    fn transfer(&self, inputs: &[&Meta]) -> Option<Transfer> {
        let n_bytes = inputs[..self.n_tensors].iter().map(|meta| meta.n_bytes() as u64).sum::<u64>();
        let n_ranks = self.leaves.n_ranks();
        let down = if self.shards.is_some() { 1 } else { n_rounds(n_ranks) };
        Some(Transfer { n_bytes: n_bytes.saturating_mul(n_rounds(n_ranks) + down), n_ranks })
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("gradients are added up over ranks when they are complete")
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let dtype = run.inputs()[0].dtype();
        let mut operands = bytes::operands(run, self.name())?;
        let none = || DeviceBytesMut::from(&mut [][..]);
        let message = operands.outputs.pop().unwrap_or_else(none);
        let sum = operands.outputs.pop().unwrap_or_else(none);
        let (communicator, rank) = (&*self.communicator, self.communicator.rank());
        let tree = Reduction {
            leaves: self.leaves,
            communicator,
            nodes: local_nodes(self.leaves, rank),
            partials: operands.inputs.chunks(self.n_tensors).collect(),
            dtype,
            sum,
            message,
            range: 0..0,
        };
        match &self.shards {
            None => tree.give_all(&mut operands.outputs),
            Some(shards) => tree.give_owners(&shards.segments, &mut operands.outputs),
        }
    }

    fn run_cuda(&self, run: &mut Run<'_>, _: &Gpu) -> Result<()> {
        self.run(run)
    }
}

/// Where the sum of a node is.
#[derive(Clone, Copy)]
enum Held {
    /// On that rank.
    Elsewhere(usize),
    /// Among this rank's inputs.
    Partial(usize),
    /// In this rank's sum.
    Sum,
}

/// A message that goes through the tree.
struct Reduction<'a, 'b> {
    leaves: Leaves,
    communicator: &'a dyn Communicator,
    /// The nodes that this rank has added up itself,
    nodes: Vec<Node>,
    /// and the tensors of each.
    partials: Vec<&'a [DeviceBytes<'b>]>,
    dtype: DType,
    sum: DeviceBytesMut<'a>,
    message: DeviceBytesMut<'a>,
    /// The bytes of the message, counted over all tensors.
    range: Range<usize>,
}

impl Reduction<'_, '_> {
    /// Makes the sums of all elements, on all ranks.
    fn give_all(mut self, outputs: &mut [DeviceBytesMut<'_>]) -> Result<()> {
        let n_bytes = self.partials.first().map_or(0, |tensors| tensors.iter().map(DeviceBytes::len).sum());
        for range in messages(0..n_bytes, self.sum.len()) {
            let sum = self.sum_of(range.clone())?;
            self.communicator.broadcast_device(0, self.sum.range(sum.clone()))?;
            self.put_out(&range, outputs)?;
        }
        Ok(())
    }

    /// Makes the sums of all elements, each on the rank whose shard it is of.
    fn give_owners(mut self, segments: &[Segment], outputs: &mut [DeviceBytesMut<'_>]) -> Result<()> {
        let (rank, size, most) = (self.communicator.rank(), self.dtype.size(), self.sum.len());
        let mut n_own = 0;
        for Segment { rank: owner, range: segment } in segments {
            for range in messages(segment.start * size..segment.end * size, most) {
                let sum = self.sum_of(range)?;
                // The root of the tree begins with the first leaf, which is the first rank's.
                match (rank == 0, rank == *owner) {
                    (true, false) => {
                        self.communicator.send_device(*owner, self.sum.as_bytes().range(sum.clone()))?
                    }
                    (false, true) => self.communicator.recv_device(0, self.sum.range(sum.clone()))?,
                    _ => {}
                }
                if rank == *owner {
                    let own = n_own..n_own + sum.len();
                    self.put_out(&own, outputs)?;
                    n_own = own.end;
                }
            }
        }
        Ok(())
    }

    /// Puts a sum where its bytes belong, counted over all outputs.
    fn put_out(&self, range: &Range<usize>, outputs: &mut [DeviceBytesMut<'_>]) -> Result<()> {
        let sizes: Vec<usize> = outputs.iter().map(DeviceBytesMut::len).collect();
        for (number, piece, place) in pieces(sizes, range) {
            outputs[number].range(piece).copy_from(self.sum.as_bytes().range(place))?;
        }
        Ok(())
    }

    /// Adds up some bytes over all ranks; on the first rank the result is their sum. Returns where it is in `sum`.
    fn sum_of(&mut self, range: Range<usize>) -> Result<Range<usize>> {
        self.range = range;
        if let Held::Partial(at) = self.reduce(self.leaves.root())? {
            self.begin_sum(at)?;
        }
        Ok(0..self.range.len())
    }

    /// Adds up a node, with the ranks that have parts of it. All ranks go through the nodes in the same order, so that nobody
    /// waits for somebody who waits for them.
    fn reduce(&mut self, node: Node) -> Result<Held> {
        let rank = self.communicator.rank();
        if let Some(owner) = self.leaves.owner(node) {
            let known = self.nodes.iter().position(|known| *known == node).filter(|_| owner == rank);
            return Ok(known.map_or(Held::Elsewhere(owner), Held::Partial));
        }
        let (left, right) = node.children(&self.leaves);
        let left = self.reduce(left)?;
        let Some(right) = right else { return Ok(left) };
        let right = self.reduce(right)?;
        match (left, right) {
            (Held::Elsewhere(to), Held::Partial(_) | Held::Sum) => {
                self.send(to, right)?;
                Ok(left)
            }
            (Held::Elsewhere(_), Held::Elsewhere(_)) => Ok(left),
            (Held::Partial(at), Held::Elsewhere(from)) => {
                self.begin_sum(at)?;
                self.add_received(from)?;
                Ok(Held::Sum)
            }
            (Held::Sum, Held::Elsewhere(from)) => {
                self.add_received(from)?;
                Ok(Held::Sum)
            }
            // The sum of two floats is the same whichever comes first.
            (Held::Partial(at), Held::Sum) | (Held::Sum, Held::Partial(at)) => {
                self.add_partial(at)?;
                Ok(Held::Sum)
            }
            (Held::Partial(one), Held::Partial(other)) => {
                self.begin_sum(one)?;
                self.add_partial(other)?;
                Ok(Held::Sum)
            }
            (Held::Sum, Held::Sum) => Err(Error::argument("all_reduce", "a rank has two sums under way")),
        }
    }

    fn begin_sum(&mut self, at: usize) -> Result<()> {
        let partial = self.partials[at];
        for (number, piece, place) in pieces(partial.iter().map(DeviceBytes::len), &self.range) {
            self.sum.range(place).copy_from(partial[number].range(piece))?;
        }
        Ok(())
    }

    fn add_partial(&mut self, at: usize) -> Result<()> {
        let partial = self.partials[at];
        for (number, piece, place) in pieces(partial.iter().map(DeviceBytes::len), &self.range) {
            self.sum.range(place).add(partial[number].range(piece), self.dtype)?;
        }
        Ok(())
    }

    fn send(&mut self, to: usize, held: Held) -> Result<()> {
        let all = 0..self.range.len();
        let Held::Partial(at) = held else {
            return self.communicator.send_device(to, self.sum.as_bytes().range(all));
        };
        let partial = self.partials[at];
        for (number, piece, place) in pieces(partial.iter().map(DeviceBytes::len), &self.range) {
            self.message.range(place).copy_from(partial[number].range(piece))?;
        }
        self.communicator.send_device(to, self.message.as_bytes().range(all))
    }

    fn add_received(&mut self, from: usize) -> Result<()> {
        let all = 0..self.range.len();
        self.communicator.recv_device(from, self.message.range(all.clone()))?;
        self.sum.range(all.clone()).add(self.message.as_bytes().range(all), self.dtype)
    }
}
