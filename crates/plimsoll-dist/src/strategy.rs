//! How a model is trained by several ranks together.

use std::sync::Arc;

use plimsoll_tensor::{Error, Result};

use crate::communicator::Communicator;
use crate::leaves::Leaves;

/// How a model is trained by several ranks together: each has all of the model and computes its share of every batch
/// (*data parallelism*), with the same bits for every number of ranks.
///
/// ```
/// use plimsoll_dist::{Strategy, local};
///
/// let strategy = Strategy::data_parallel(local::alone()).leaves(8);
/// assert_eq!(strategy.share_out(1)?.of_rank(0), 0..8);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[doc(alias("DistributedDataParallel", "MultiWorkerMirroredStrategy", "MirroredStrategy"))]
#[derive(Clone, Debug)]
pub struct Strategy {
    communicator: Arc<dyn Communicator>,
    n_leaves: Option<usize>,
    zero_stage: usize,
}

impl Strategy {
    /// Every rank has the whole model, and computes its share of the leaves of each batch.
    pub fn data_parallel(communicator: Arc<dyn Communicator>) -> Strategy {
        Strategy { communicator, n_leaves: None, zero_stage: 0 }
    }

    /// This strategy with so many leaves of a batch, which the number of ranks must divide. The bits of a run depend on it, and
    /// not on the number of ranks. Unless it is said, there are as many as a batch is worked through in parts
    /// (`Trainer::accumulate`), or, where it is worked through whole, as there are ranks.
    #[must_use]
    pub fn leaves(self, n_leaves: usize) -> Strategy {
        Strategy { n_leaves: Some(n_leaves), ..self }
    }

    /// This strategy with what a model needs besides its activations cut into shards, one for each rank (ZeRO): at stage 1 the
    /// optimizer's state, at stage 2 gradients, too, at stage 3 parameters, too; at stage 0, as without this, every rank has all.
    /// The bits are those of stage 0.
    #[doc(alias("FullyShardedDataParallel", "FSDP", "DeepSpeed"))]
    #[must_use]
    pub fn zero(self, stage: usize) -> Strategy {
        Strategy { zero_stage: stage, ..self }
    }

    /// This strategy with the ranks of another communicator.
    #[must_use]
    pub fn over(self, communicator: Arc<dyn Communicator>) -> Strategy {
        Strategy { communicator, ..self }
    }

    /// The stage of ZeRO.
    ///
    /// # Errors
    /// A stage that there is not.
    pub fn zero_stage(&self) -> Result<usize> {
        match self.zero_stage {
            stage @ 0..=3 => Ok(stage),
            stage => Err(Error::argument("zero", format!("there is no stage {stage}; there are 0 to 3"))),
        }
    }

    /// The ranks.
    pub fn communicator(&self) -> &Arc<dyn Communicator> {
        &self.communicator
    }

    /// The leaves of a batch that is worked through in so many parts.
    ///
    /// # Errors
    /// Leaves that the number of ranks does not divide.
    pub fn share_out(&self, n_parts: usize) -> Result<Leaves> {
        let n_ranks = self.communicator.size();
        let unless_said = if n_parts > 1 { n_parts } else { n_ranks };
        Leaves::new(self.n_leaves.unwrap_or(unless_said), n_ranks)
    }

    /// Makes sure that all ranks are about to do the same: compares what each says of its run, name by name.
    ///
    /// # Errors
    /// Ranks that say something else: the error, on every rank, names the first of them and what differs. A transport that
    /// fails.
    pub fn agree(&self, run: &[(&str, String)]) -> Result<()> {
        let lines: Vec<String> = run.iter().map(|(name, value)| format!("{name}\t{value}")).collect();
        let all = self.communicator.all_gather(lines.join("\n").as_bytes())?;
        let texts: Vec<String> =
            all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
        let Some((rank, other)) = texts.iter().enumerate().find(|(_, text)| **text != texts[0]) else {
            return Ok(());
        };
        let pairs = texts[0].lines().zip(other.lines());
        let differs = pairs.into_iter().find(|(first, other)| first != other);
        let detail = match differs.map(|(first, other)| (first.split_once('\t'), other.split_once('\t'))) {
            Some((Some((name, first)), Some((same, other)))) if name == same => {
                format!("{name} is {other:?} there and {first:?} on rank 0")
            }
            _ => "its run is described otherwise than that of rank 0".to_owned(),
        };
        Err(Error::argument("distributed", format!("rank {rank} does something else: {detail}")))
    }
}
