//! Gradients that are summed and passed on while backward runs: each as soon as it is complete, so that they are never there
//! together.

use std::sync::Arc;

use plimsoll_tensor::{Error, Result, Tensor};

use crate::all_reduce::{TreeSum, reduce_scatter};
use crate::communicator::Communicator;
use crate::leaves::Leaves;
use crate::message::MESSAGE_BYTES;
use crate::shards::Shards;

/// The sums of gradients of which a rank's last leaf is being computed: what each gradient completes is reduced over all ranks a
/// bucket at a time, and this rank keeps its pieces. All ranks take their gradients in the same order.
#[derive(Debug)]
pub struct ScatterSum {
    communicator: Arc<dyn Communicator>,
    leaves: Leaves,
    shards: Shards,
    /// The numbers of the gradients' variables in the shards.
    variables: Vec<usize>,
    /// What the rank's leaves before have given.
    sums: Vec<TreeSum>,
    /// Gradients that are complete on this rank, each with its sums by nodes, until there are enough for a message.
    bucket: Vec<(usize, Vec<Tensor>)>,
    n_bytes: usize,
    pieces: Vec<Option<Tensor>>,
}

impl ScatterSum {
    /// The sums of a rank's leaves but the last.
    pub fn new(
        communicator: &Arc<dyn Communicator>,
        sum: TreeSum,
        (shards, variables): (&Shards, Vec<usize>),
    ) -> ScatterSum {
        let (leaves, sums) = (sum.leaves(), sum.one_by_one(variables.len()));
        ScatterSum {
            communicator: communicator.clone(),
            leaves,
            shards: shards.clone(),
            pieces: variables.iter().map(|_| None).collect(),
            variables,
            sums,
            bucket: Vec::new(),
            n_bytes: 0,
        }
    }

    /// Takes the gradient at a position, as the rank's last leaf gives it.
    ///
    /// # Errors
    /// Those of [`reduce_scatter`].
    pub fn push(&mut self, position: usize, gradient: Tensor) -> Result<()> {
        self.n_bytes += gradient.n_bytes();
        let mut sum = std::mem::replace(&mut self.sums[position], TreeSum::new(self.leaves));
        sum.push(self.leaves.of_rank(self.communicator.rank()).end - 1, vec![gradient])?;
        self.bucket.push((position, sum.into_nodes().into_iter().flatten().collect()));
        if self.n_bytes >= MESSAGE_BYTES { self.flush() } else { Ok(()) }
    }

    /// Reduces what is complete on this rank.
    fn flush(&mut self) -> Result<()> {
        self.n_bytes = 0;
        let bucket = std::mem::take(&mut self.bucket);
        let positions: Vec<usize> = bucket.iter().map(|(position, _)| *position).collect();
        let variables: Vec<usize> = positions.iter().map(|&position| self.variables[position]).collect();
        let n_nodes = bucket.first().map_or(0, |(_, nodes)| nodes.len());
        let mut nodes: Vec<Vec<Tensor>> = (0..n_nodes).map(|_| Vec::new()).collect();
        for (_, of_gradient) in bucket {
            nodes.iter_mut().zip(of_gradient).for_each(|(node, tensor)| node.push(tensor));
        }
        if nodes.is_empty() {
            return Ok(());
        }
        let pieces = reduce_scatter(&self.communicator, self.leaves, nodes, (&self.shards, &variables))?;
        for (position, piece) in positions.into_iter().zip(pieces) {
            self.pieces[position] = Some(piece);
        }
        Ok(())
    }

    /// This rank's pieces of the sums, in the order of the variables.
    ///
    /// # Errors
    /// Those of [`reduce_scatter`]; a gradient that was never pushed.
    pub fn finish(mut self) -> Result<Vec<Tensor>> {
        self.flush()?;
        let missing = || Error::argument("reduce_scatter", "a gradient is missing");
        self.pieces.into_iter().map(|piece| piece.ok_or_else(missing)).collect()
    }
}
