//! Data parallelism: each rank computes its share of the leaves of a batch, and everything is summed over all leaves by one tree.
//!
//! A leaf is computed in the same shape on any rank, from the same variables, with draws that follow from its number, and what it
//! gives is added up in an order that follows from the number of leaves ([`Leaves`]): loss, gradients and
//! running statistics. So all ranks have the same sums and make the same update, and the bits of a run do not depend on how many
//! ranks there are. Every rank is given the whole batch and looks at its own part.

use plimsoll_dist::{Leaves, Strategy, TreeSum};
use plimsoll_tensor::{Device, Error, Generator, Result, Tensor, Variable};
use sha2::{Digest, Sha256};

use super::Trainer;
use super::examples::Batch;
use super::step::{Stepper, parts};
use crate::buffers::collected;
use crate::optimizers::wide;

impl Stepper {
    /// The mean loss of a batch over all ranks, and the gradient of each variable. Running statistics are assigned their mean
    /// over the leaves.
    pub(super) fn gradients_of_ranks(
        &mut self,
        strategy: &Strategy,
        batch: &Batch,
        n_examples: usize,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let (leaves, communicator) = (strategy.share_out(self.n_parts)?, strategy.communicator());
        check_leaves(leaves, n_examples)?;
        let (parts, n_variables) = (parts(n_examples, leaves.n_leaves()), self.variables.len());
        let mut sum = TreeSum::new(leaves);
        let mut buffers: Vec<Variable> = Vec::new();
        for leaf in leaves.of_rank(communicator.rank()) {
            let range = parts[leaf].clone();
            let share = range.len() as f64 / n_examples as f64;
            let part = batch.part(range.start, range.len())?;
            let (computed, updates) = collected(|| self.gradients_of_part(&part, Some(share)));
            let (loss, gradients) = computed?;
            let mut values = vec![loss];
            for gradient in gradients {
                values.push(wide(gradient)?);
            }
            for (_, value) in &updates {
                values.push(value.mul(share)?);
            }
            buffers = updates.into_iter().map(|(buffer, _)| buffer).collect();
            sum.push(leaf, values)?;
        }
        let mut sums = sum.finish(communicator)?.into_iter();
        let loss = sums.next().ok_or_else(|| Error::argument("fit", "a rank computed no leaf"))?;
        let gradients = sums.by_ref().take(n_variables).collect();
        for (buffer, mean) in buffers.iter().zip(sums) {
            buffer.assign(&mean)?;
        }
        Ok((loss, gradients))
    }
}

/// Refuses a batch that has fewer examples than leaves.
fn check_leaves(leaves: Leaves, n_examples: usize) -> Result<()> {
    match n_examples < leaves.n_leaves() {
        true => Err(Error::argument(
            "fit",
            format!(
                "a batch of {n_examples} examples has fewer than the {} leaves of the run; take batches of another size, so that the \
                 last one of an epoch has as many, or fewer leaves",
                leaves.n_leaves()
            ),
        )),
        false => Ok(()),
    }
}

/// The checksum of the values of variables, straight from where they are.
fn sha256_of(variables: &[Variable]) -> Result<String> {
    let mut sum = Sha256::new();
    for variable in variables {
        variable.value().with_bytes(|bytes| sum.update(bytes))?;
    }
    Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Runs a program of this rank's leaves, of which each takes the draws of its number; then all draws of the batch are taken.
pub(super) fn with_draws_of_rank<R>(
    strategy: &Strategy,
    n_draws: u64,
    run: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let (rank, size) = (strategy.communicator().rank() as u64, strategy.communicator().size() as u64);
    let before = Generator::current();
    let after = |n_ranks: u64| Generator::at(before.seed(), before.next_draw() + n_ranks * n_draws);
    after(rank).make_current();
    let ended = run();
    if ended.is_ok() {
        after(size).make_current()
    } else {
        before.make_current()
    }
    ended
}

impl Trainer {
    /// This run by several ranks together, each of which calls it with a trainer, data and settings that are the same: see
    /// [`Strategy`]. The bits are the same for every number of ranks. The first rank writes checkpoints.
    ///
    /// ```
    /// use plimsoll_dist::{Strategy, local};
    /// use plimsoll_nn::layers::Dense;
    /// use plimsoll_nn::losses::MeanSquaredError;
    /// use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
    /// use plimsoll_nn::train::{Batch, Trainer, Until};
    /// use plimsoll_nn::Layer;
    /// use plimsoll_tensor::Tensor;
    ///
    /// let data = vec![Batch::new(Tensor::randn([8, 3])?, Tensor::ones([8, 1])?)];
    /// let strategy = Strategy::data_parallel(local::alone()).leaves(4);
    /// let mut trainer =
    ///     Trainer::new(Dense::new(1).build([3])?, Adam::new(0.01).build(), MeanSquaredError).strategy(strategy);
    /// trainer.fit(&data, Until::Steps(5))?;
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    #[doc(alias = "distribute_strategy")]
    #[must_use]
    pub fn strategy(mut self, strategy: Strategy) -> Trainer {
        self.stepper.strategy = Some(strategy);
        self
    }

    /// Notes the number of leaves as something that the numbers of the run follow from.
    pub(super) fn note_leaves(&mut self) -> Result<()> {
        let Some(strategy) = &self.stepper.strategy else { return Ok(()) };
        let leaves = strategy.share_out(self.stepper.n_parts)?;
        self.state.settings.insert("a number of leaves".to_owned(), leaves.n_leaves().to_string());
        Ok(())
    }

    /// Refuses what ranks cannot do together, and ranks that are about to do something else than the first.
    pub(super) fn check_ranks(&mut self, device: &Device) -> Result<()> {
        let Some(strategy) = self.stepper.strategy.clone() else { return Ok(()) };
        let refuse = |what: &str| Err(Error::argument("strategy", what));
        if self.stepper.own.is_some() {
            return refuse(
                "a train step of one's own is given whole batches; it cannot be shared out to ranks",
            );
        }
        if !self.stepper.metrics.is_empty() {
            return refuse(
                "training metrics count the examples of one rank; use `Trainer::metric`, which evaluations tell on all of them",
            );
        }
        self.note_leaves()?;
        if device.is_ghost() {
            return Ok(());
        }
        let generator = self.generator.unwrap_or_else(Generator::current);
        let variables = self.stepper.other_variables().into_iter().map(|(_, variable)| variable);
        let variables: Vec<Variable> = self.stepper.all_variables.iter().cloned().chain(variables).collect();
        let mut run = vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("model", self.model().kind().to_owned()),
            ("loss", self.stepper.loss.name().to_owned()),
            ("position", format!("step {}, batch {}", self.state.step, self.state.batch)),
            ("generator", format!("seed {}, draw {}", generator.seed(), generator.next_draw())),
            ("variables", variables.len().to_string()),
            ("values of the variables", sha256_of(&variables)?),
        ];
        run.extend(self.state.settings.iter().map(|(name, value)| (name.as_str(), value.clone())));
        strategy.agree(&run)
    }

    /// Tells the other ranks if this one cannot go on, so that none waits for it.
    pub(super) fn report_failure<R>(&self, ended: &Result<R>) {
        if let (Err(error), Some(strategy)) = (ended, &self.stepper.strategy)
            && !self.device().is_ghost()
        {
            strategy.communicator().report_failure(&error.to_string());
        }
    }

    /// Whether this rank writes files: the first, or the only one.
    pub(super) fn writes_files(&self) -> bool {
        self.stepper.strategy.as_ref().is_none_or(|strategy| strategy.communicator().is_first())
    }

    /// Waits until all ranks have come here, so that a file that the first one wrote is there for all.
    pub(super) fn wait_for_ranks(&self) -> Result<()> {
        self.stepper.strategy.as_ref().map_or(Ok(()), |strategy| strategy.communicator().barrier())
    }
}
