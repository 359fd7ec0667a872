//! Sums over the leaves of all ranks, by the tree of [`Leaves`].
//!
//! [`TreeSum`] adds up what a rank's own leaves give, in ordinary ops; [`all_reduce`] does the rest of the tree between ranks. Small
//! tensors travel together in buckets, large ones alone and in pieces, so that what a collective needs besides its results
//! is bounded, and part of the plan.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use plimsoll_tensor::op::{Gradient, Meta, Op, Output, Outputs, Run};
use plimsoll_tensor::{DType, Error, OpRef, Owner, Result, Shape, Tensor, apply, with_owner};

use crate::bytes::{Number, bytes_of, bytes_of_mut};
use crate::communicator::Communicator;
use crate::leaves::{Leaves, Node, Whole, local_nodes};

/// The bytes of a message, and of a bucket of several tensors, at most.
const MESSAGE_BYTES: usize = 1 << 20;

const NAME: &str = "all_reduce";

/// The sums of a rank's leaves so far: for each node of the tree that is whole, a list of tensors.
///
/// ```
/// use plimsoll_dist::{Leaves, TreeSum, local};
/// use plimsoll_tensor::{Result, Tensor};
///
/// let communicator = local::alone();
/// let mut sum = TreeSum::new(Leaves::new(3, 1)?);
/// for leaf in 0..3 {
///     sum.push(leaf, vec![Tensor::full([2], leaf as f64)?])?;
/// }
/// assert_eq!(sum.finish(&communicator)?[0].to_vec::<f32>()?, [3.0, 3.0]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct TreeSum {
    leaves: Leaves,
    whole: Whole<Vec<Tensor>>,
}

impl TreeSum {
    /// Nothing yet.
    pub fn new(leaves: Leaves) -> TreeSum {
        TreeSum { leaves, whole: Whole::new(leaves) }
    }

    /// Takes what the rank's next leaf gives: as many tensors as the others, of the same shapes.
    ///
    /// # Errors
    /// Other tensors than before; memory that is full.
    pub fn push(&mut self, leaf: usize, values: Vec<Tensor>) -> Result<()> {
        self.whole.push(leaf, values, |left, right| {
            left.into_iter().zip(right).map(|(left, right)| left.into_add(right)).collect::<Result<_>>()
        })
    }

    /// The sums over the leaves of all ranks, which all call this at the same place of their programs.
    ///
    /// # Errors
    /// Those of [`all_reduce`].
    pub fn finish(self, communicator: &Arc<dyn Communicator>) -> Result<Vec<Tensor>> {
        let leaves = self.leaves;
        all_reduce(communicator, leaves, self.whole.into_values())
    }
}

/// The sums over the leaves of all ranks, from those of this rank's nodes: for each of them a list of tensors.
///
/// # Errors
/// Tensors that are neither float32 nor float64; a rank that fails; memory that is full.
pub fn all_reduce(
    communicator: &Arc<dyn Communicator>,
    leaves: Leaves,
    mut nodes: Vec<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    if leaves.n_ranks() == 1 {
        return nodes.pop().ok_or_else(|| Error::argument(NAME, "no leaf was computed"));
    }
    let mut nodes: Vec<std::vec::IntoIter<Tensor>> = nodes.into_iter().map(Vec::into_iter).collect();
    let mut sums = Vec::new();
    loop {
        let left = nodes.first().map_or(&[][..], |node| node.as_slice());
        let Some(n_tensors) = bucket(left) else { return Ok(sums) };
        let device = left[0].device();
        // Ranks exchange memory of the host.
        let host = device.host();
        let mut inputs: Vec<Tensor> = Vec::new();
        for node in &mut nodes {
            for tensor in node.take(n_tensors) {
                inputs.push(tensor.to_device(&host)?.contiguous()?);
            }
        }
        let op = AllReduce { communicator: communicator.clone(), leaves, n_tensors };
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let mut reduced = with_owner(Owner::Gradients, || apply(OpRef::new(op), &inputs))?;
        // The last one was there for messages.
        reduced.truncate(n_tensors);
        for sum in reduced {
            sums.push(sum.to_device(&device)?);
        }
    }
}

/// How many tensors from the first on travel together; nothing if there are none.
fn bucket(tensors: &[Tensor]) -> Option<usize> {
    let first = tensors.first()?;
    let mut n_bytes = first.n_bytes();
    let fits = |tensor: &&Tensor| {
        n_bytes += tensor.n_bytes();
        let is_alike = tensor.dtype() == first.dtype() && tensor.device() == first.device();
        is_alike && n_bytes <= MESSAGE_BYTES
    };
    Some(1 + tensors[1..].iter().take_while(fits).count())
}

/// Adds up tensors of all ranks. Its inputs are those of one node of this rank after the other; its outputs are the sums, and
/// the memory of a message.
struct AllReduce {
    communicator: Arc<dyn Communicator>,
    leaves: Leaves,
    n_tensors: usize,
}

impl fmt::Debug for AllReduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AllReduce({:?}, {} tensors)", self.leaves, self.n_tensors)
    }
}

impl Op for AllReduce {
    fn name(&self) -> &'static str {
        NAME
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let dtype = inputs[0].dtype;
        if !matches!(dtype, DType::F32 | DType::F64) || inputs.iter().any(|meta| meta.dtype != dtype) {
            let detail = format!("tensors of {dtype} are not added up; all must be float32, or all float64");
            return Err(Error::dtype(NAME, detail));
        }
        let tensors = &inputs[..self.n_tensors];
        let n_elems: usize = tensors.iter().map(|meta| meta.n_elems()).sum();
        let message = Shape::new(&[n_elems.min(MESSAGE_BYTES / dtype.size())])?;
        let shapes = tensors.iter().map(|meta| *meta.shape()).chain([message]);
        Ok(shapes.map(|shape| Output::New { shape, dtype }).collect())
    }

    fn has_effect(&self) -> bool {
        true
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("gradients are added up over ranks when they are complete")
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        match run.inputs()[0].dtype() {
            DType::F64 => self.reduce::<f64>(run),
            _ => self.reduce::<f32>(run),
        }
    }
}

impl AllReduce {
    fn reduce<T: Number>(&self, run: &mut Run<'_>) -> Result<()> {
        let (inputs, mut outputs) = run.slices::<T>(NAME)?;
        let message: &mut [T] = outputs.pop().unwrap_or_default();
        let nodes = local_nodes(self.leaves, self.communicator.rank());
        let partials = inputs.chunks(self.n_tensors).collect();
        let mut reduction = Reduction {
            op: self,
            communicator: &*self.communicator,
            nodes,
            partials,
            sums: &mut outputs,
            message,
        };
        if let Held::Partial(at) = reduction.reduce(self.leaves.root())? {
            reduction.begin_sum(at);
        }
        reduction.broadcast()
    }
}

/// Where the sum of a node is.
#[derive(Clone, Copy)]
enum Held {
    /// On that rank.
    Elsewhere(usize),
    /// Among this rank's inputs.
    Partial(usize),
    /// In the outputs of this rank.
    Sum,
}

/// A collective that is under way.
struct Reduction<'a, 'b, T> {
    op: &'a AllReduce,
    communicator: &'a dyn Communicator,
    /// The nodes that this rank has added up itself,
    nodes: Vec<Node>,
    /// and the tensors of each.
    partials: Vec<&'a [&'b [T]]>,
    sums: &'a mut [&'b mut [T]],
    message: &'a mut [T],
}

impl<T: Number> Reduction<'_, '_, T> {
    /// Adds up a node, with the ranks that have parts of it. All ranks go through the nodes in the same order, so that nobody
    /// waits for somebody who waits for them.
    fn reduce(&mut self, node: Node) -> Result<Held> {
        let rank = self.communicator.rank();
        if let Some(owner) = self.op.leaves.owner(node) {
            let known = self.nodes.iter().position(|known| *known == node).filter(|_| owner == rank);
            return Ok(known.map_or(Held::Elsewhere(owner), Held::Partial));
        }
        let (left, right) = node.children(&self.op.leaves);
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
                self.begin_sum(at);
                self.add_received(from)?;
                Ok(Held::Sum)
            }
            (Held::Sum, Held::Elsewhere(from)) => {
                self.add_received(from)?;
                Ok(Held::Sum)
            }
            // The sum of two floats is the same whichever comes first.
            (Held::Partial(at), Held::Sum) | (Held::Sum, Held::Partial(at)) => {
                self.add_partial(at);
                Ok(Held::Sum)
            }
            (Held::Partial(one), Held::Partial(other)) => {
                self.begin_sum(one);
                self.add_partial(other);
                Ok(Held::Sum)
            }
            (Held::Sum, Held::Sum) => Err(Error::argument(NAME, "a rank has two sums under way")),
        }
    }

    fn begin_sum(&mut self, at: usize) {
        for (sum, partial) in self.sums.iter_mut().zip(self.partials[at]) {
            sum.copy_from_slice(partial);
        }
    }

    fn add_partial(&mut self, at: usize) {
        for (sum, partial) in self.sums.iter_mut().zip(self.partials[at]) {
            add(sum, partial);
        }
    }

    fn send(&mut self, to: usize, held: Held) -> Result<()> {
        for range in self.messages() {
            let message = &mut self.message[..range.len()];
            match held {
                Held::Partial(at) => pieces(self.partials[at], &range, |of, piece, place| {
                    message[place].copy_from_slice(&of[piece]);
                }),
                _ => pieces(self.sums, &range, |of, piece, place| {
                    message[place].copy_from_slice(&of[piece]);
                }),
            }
            self.communicator.send(to, bytes_of(message))?;
        }
        Ok(())
    }

    fn add_received(&mut self, from: usize) -> Result<()> {
        for range in self.messages() {
            let message = &mut self.message[..range.len()];
            self.communicator.recv(from, bytes_of_mut(message))?;
            pieces_mut(self.sums, &range, |of, piece, place| add(&mut of[piece], &message[place]));
        }
        Ok(())
    }

    /// Gives all ranks what the first one has.
    fn broadcast(&mut self) -> Result<()> {
        let is_first = self.communicator.is_first();
        for range in self.messages() {
            let message = &mut self.message[..range.len()];
            if is_first {
                pieces(self.sums, &range, |of, piece, place| message[place].copy_from_slice(&of[piece]));
            }
            self.communicator.broadcast(bytes_of_mut(message))?;
            if !is_first {
                pieces_mut(self.sums, &range, |of, piece, place| of[piece].copy_from_slice(&message[place]));
            }
        }
        Ok(())
    }

    /// The elements of each message, counted over all tensors.
    fn messages(&self) -> impl Iterator<Item = Range<usize>> + use<T> {
        let n_elems: usize = self.sums.iter().map(|sum| sum.len()).sum();
        let most = self.message.len().max(1);
        (0..n_elems.div_ceil(most)).map(move |number| number * most..((number + 1) * most).min(n_elems))
    }
}

fn add<T: Number>(sum: &mut [T], other: &[T]) {
    for (sum, other) in sum.iter_mut().zip(other) {
        *sum += *other;
    }
}

/// The tensors that a message is about: which of their elements, and where these are in the message.
fn pieces<T, S: std::ops::Deref<Target = [T]>>(
    tensors: &[S],
    message: &Range<usize>,
    mut f: impl FnMut(&[T], Range<usize>, Range<usize>),
) {
    let mut start = 0;
    for tensor in tensors {
        if let Some((piece, place)) = overlap(start..start + tensor.len(), message) {
            f(tensor, piece, place);
        }
        start += tensor.len();
    }
}

fn pieces_mut<T>(
    tensors: &mut [&mut [T]],
    message: &Range<usize>,
    mut f: impl FnMut(&mut [T], Range<usize>, Range<usize>),
) {
    let mut start = 0;
    for tensor in tensors {
        let n = tensor.len();
        if let Some((piece, place)) = overlap(start..start + n, message) {
            f(tensor, piece, place);
        }
        start += n;
    }
}

/// What two ranges have in common, as seen from the beginning of each.
fn overlap(tensor: Range<usize>, message: &Range<usize>) -> Option<(Range<usize>, Range<usize>)> {
    let (start, end) = (tensor.start.max(message.start), tensor.end.min(message.end));
    let from = |first: usize| start - first..end - first;
    (start < end).then(|| (from(tensor.start), from(message.start)))
}
