//! Sums over the leaves of all ranks, by the tree of [`Leaves`].
//!
//! [`TreeSum`] adds up what a rank's own leaves give, in ordinary ops; [`all_reduce`] does the rest of the tree between ranks, and
//! gives all of them the sums; [`reduce_scatter`] gives each rank its shard of them. Small tensors travel together in buckets,
//! large ones alone and in pieces, so that what a collective needs besides its results is bounded, and part of the plan.

use std::sync::Arc;

use plimsoll_tensor::{Error, OpRef, Owner, Result, Tensor, apply, with_owner};

use crate::communicator::Communicator;
use crate::leaves::{Leaves, Whole};
use crate::message::{MESSAGE_BYTES, push_segment};
use crate::reduce::{Reduce, Shares};
use crate::shards::Shards;

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

    /// Takes what the rank's next leaf gives: as many tensors as the others, of the same shapes. Sums of 16-bit floats are
    /// float32.
    ///
    /// # Errors
    /// Other tensors than before; memory that is full.
    pub fn push(&mut self, leaf: usize, values: Vec<Tensor>) -> Result<()> {
        self.whole.push(leaf, values, |left, right| {
            let add = |(left, right)| wide(left)?.into_add(wide(right)?);
            left.into_iter().zip(right).map(add).collect::<Result<_>>()
        })
    }

    /// The leaves.
    pub(crate) fn leaves(&self) -> Leaves {
        self.leaves
    }

    /// The sums of each of `n` tensors, which every leaf gave.
    pub(crate) fn one_by_one(self, n: usize) -> Vec<TreeSum> {
        let leaves = self.leaves;
        let mut sums: Vec<TreeSum> = (0..n).map(|_| TreeSum::new(leaves)).collect();
        for (node, tensors) in self.whole.into_nodes() {
            for (sum, tensor) in sums.iter_mut().zip(tensors) {
                sum.whole.push_node(node, vec![tensor]);
            }
        }
        sums
    }

    /// What is summed so far, by the nodes of the tree that are whole.
    pub(crate) fn into_nodes(self) -> Vec<Vec<Tensor>> {
        self.whole.into_values()
    }

    /// The sums over the leaves of all ranks, which all call this at the same place of their programs.
    ///
    /// # Errors
    /// Those of [`all_reduce`].
    pub fn finish(self, communicator: &Arc<dyn Communicator>) -> Result<Vec<Tensor>> {
        let leaves = self.leaves;
        all_reduce(communicator, leaves, self.whole.into_values())
    }

    /// This rank's pieces of the sums over the leaves of all ranks, which all call this at the same place of their programs. The
    /// tensors are those of the variables with these numbers.
    ///
    /// # Errors
    /// Those of [`reduce_scatter`].
    pub fn finish_sharded(
        self,
        communicator: &Arc<dyn Communicator>,
        shards: &Shards,
        variables: &[usize],
    ) -> Result<Vec<Tensor>> {
        let leaves = self.leaves;
        reduce_scatter(communicator, leaves, self.whole.into_values(), (shards, variables))
    }
}

/// The sums over the leaves of all ranks, from those of this rank's nodes: for each of them a list of tensors.
///
/// # Errors
/// Tensors that are no floats; a rank that fails; memory that is full.
pub fn all_reduce(
    communicator: &Arc<dyn Communicator>,
    leaves: Leaves,
    nodes: Vec<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    reduce(communicator, leaves, nodes, |_| None)
}

/// This rank's pieces of the sums over the leaves of all ranks, each as a row of elements, from the tensors of this rank's nodes:
/// those of the variables with these numbers, as shards cut them.
///
/// # Errors
/// As [`all_reduce`].
pub fn reduce_scatter(
    communicator: &Arc<dyn Communicator>,
    leaves: Leaves,
    nodes: Vec<Vec<Tensor>>,
    (shards, variables): (&Shards, &[usize]),
) -> Result<Vec<Tensor>> {
    let mut variables = variables.iter();
    reduce(communicator, leaves, nodes, |tensors| {
        let (mut start, mut shares) = (0, Shares { segments: Vec::new(), own: Vec::new() });
        for (tensor, &variable) in tensors.iter().zip(variables.by_ref()) {
            for (rank, piece) in shards.pieces(variable) {
                push_segment(&mut shares.segments, rank, start + piece.start..start + piece.end);
            }
            shares.own.push(shards.piece(variable, communicator.rank()).len());
            start += tensor.n_elems();
        }
        Some(shares)
    })
}

/// Sums of the tensors of nodes, bucket by bucket; `shares` says who gets what of a bucket.
fn reduce(
    communicator: &Arc<dyn Communicator>,
    leaves: Leaves,
    mut nodes: Vec<Vec<Tensor>>,
    mut shares: impl FnMut(&[Tensor]) -> Option<Shares>,
) -> Result<Vec<Tensor>> {
    if leaves.n_ranks() == 1 {
        let sums = nodes.pop().ok_or_else(|| Error::argument("all_reduce", "no leaf was computed"))?;
        let is_sharded = shares(&sums).is_some();
        let row = |sum: Tensor| if is_sharded { wide(sum)?.flatten() } else { wide(sum) };
        return sums.into_iter().map(row).collect();
    }
    let mut nodes: Vec<std::vec::IntoIter<Tensor>> = nodes.into_iter().map(Vec::into_iter).collect();
    let mut sums = Vec::new();
    loop {
        let left = nodes.first().map_or(&[][..], |node| node.as_slice());
        let Some(n_tensors) = bucket(left) else { return Ok(sums) };
        let shards = shares(&left[..n_tensors]);
        let mut inputs: Vec<Tensor> = Vec::new();
        for node in &mut nodes {
            for tensor in node.take(n_tensors) {
                inputs.push(wide(tensor)?.contiguous()?);
            }
        }
        let op = Reduce { communicator: communicator.clone(), leaves, n_tensors, shards };
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let mut reduced = with_owner(Owner::Gradients, || apply(OpRef::new(op), &inputs))?;
        // The last two were there for messages.
        reduced.truncate(n_tensors);
        sums.extend(reduced);
    }
}

/// A tensor in the dtype that it is added up in; the tensor itself if that is its own.
fn wide(tensor: Tensor) -> Result<Tensor> {
    with_owner(Owner::Gradients, || tensor.cast(tensor.dtype().accumulator()))
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
