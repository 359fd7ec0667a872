//! Data parallelism: each rank computes its share of the leaves of a batch, and everything is summed over all leaves by one tree.
//!
//! A leaf is computed in the same shape on any rank, from the same variables, with draws that follow from its number, and what it
//! gives is added up in an order that follows from the number of leaves ([`Leaves`]): loss, gradients and
//! running statistics. So all ranks have the same sums and make the same update, and the bits of a run do not depend on how many
//! ranks there are. Every rank is given the whole batch and looks at its own part.

use plimsoll_dist::{Leaves, ScatterSum, Strategy, TreeSum};
use plimsoll_tensor::{Device, Error, Generator, Result, Tensor, Unconnected, Variable};
use sha2::{Digest, Sha256};

use super::Trainer;
use super::examples::Batch;
use super::step::{Stepper, parts};
use crate::buffers::collected;
use crate::shards::Zero;

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
        let parts = parts(n_examples, leaves.n_leaves());
        // Loss and buffers are for all ranks; of gradients a rank may get its shard.
        let (mut sum, mut gradient_sum) = (TreeSum::new(leaves), TreeSum::new(leaves));
        let (mut buffers, mut pieces): (Vec<Variable>, _) = (Vec::new(), None);
        let own = leaves.of_rank(communicator.rank());
        let first = if self.is_as_first_rank { leaves.of_rank(0).start } else { own.start };
        for leaf in own.clone() {
            let range = parts[leaf - own.start + first].clone();
            let share = range.len() as f64 / n_examples as f64;
            let part = batch.part(range.start, range.len())?;
            let mut scattered = match &self.zero {
                Some(zero) if zero.sums_in_backward() && leaf + 1 == own.end => {
                    let before = std::mem::replace(&mut gradient_sum, TreeSum::new(leaves));
                    Some(ScatterSum::new(communicator, before, zero.cut(&self.variables)))
                }
                _ => None,
            };
            let (computed, updates) = collected(|| match &mut scattered {
                None => self.gradients_of_part(&part, Some(share)),
                Some(sum) => {
                    let take = &mut |position, gradient| sum.push(position, gradient);
                    Ok((self.gradients_of_part_each(&part, share, take)?, Vec::new()))
                }
            });
            let (loss, gradients) = computed?;
            match scattered {
                None => gradient_sum.push(leaf, gradients)?,
                Some(sum) => pieces = Some(sum.finish()?),
            }
            let mut values = vec![loss];
            for (_, value) in &updates {
                values.push(value.mul(share)?);
            }
            buffers = updates.into_iter().map(|(buffer, _)| buffer).collect();
            sum.push(leaf, values)?;
        }
        let mut sums = sum.finish(communicator)?.into_iter();
        let loss = sums.next().ok_or_else(|| Error::argument("fit", "a rank computed no leaf"))?;
        let gradients = match (&self.zero, pieces) {
            (_, Some(pieces)) => pieces,
            (None, None) => gradient_sum.finish(communicator)?,
            (Some(zero), None) => {
                let (shards, numbers) = zero.cut(&self.variables);
                gradient_sum.finish_sharded(communicator, shards, &numbers)?
            }
        };
        for (buffer, mean) in buffers.iter().zip(sums) {
            buffer.assign(&mean)?;
        }
        Ok((loss, gradients))
    }

    /// Cuts the variables into shards, if the ranks have such and they are not cut yet.
    pub(super) fn cut_variables(&mut self) -> Result<()> {
        let Some(strategy) = &self.strategy else {
            return match self.zero {
                None => Ok(()),
                Some(_) => Err(Error::argument(
                    "strategy",
                    "the model was built by `with_strategy`; give its trainer the same strategy",
                )),
            };
        };
        if self.zero.is_none() {
            self.zero = Zero::of(strategy)?;
        }
        let stage = strategy.zero_stage()?;
        let Some(zero) = &mut self.zero else { return Ok(()) };
        if !zero.is_of(strategy)? {
            let detail =
                "the model was built by `with_strategy` for another strategy; give its trainer that one";
            return Err(Error::argument("strategy", detail));
        }
        if stage >= 2 && matches!(self.unconnected, Unconnected::Zeros) {
            return Err(Error::argument(
                "zero",
                "gradients of zeros for unconnected variables are known when backward is over, and stages 2 and 3 sum gradients while \
                 it runs; take stage 1",
            ));
        }
        if !self.optimizer.is_elementwise() {
            return Err(Error::argument(
                "zero",
                "this optimizer looks at whole variables, and ZeRO cuts them into shards; take one that treats every element by \
                 itself, such as AdamW, or stage 0",
            ));
        }
        zero.cover(&self.variables)
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
        let mut variables = self.stepper.all_variables.clone();
        let zero = self.stepper.zero.as_ref();
        match zero {
            None => {
                variables.extend(self.stepper.other_variables().into_iter().map(|(_, variable)| variable))
            }
            // Of shards every rank has others.
            Some(zero) => {
                variables.retain(|variable| !zero.covers(variable));
                variables.extend(self.optimizer().controls().cloned());
            }
        }
        let mut run = vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("model", self.model().kind().to_owned()),
            ("loss", self.stepper.loss.name().to_owned()),
            ("position", format!("step {}, batch {}", self.state.step, self.state.batch)),
            ("generator", format!("seed {}, draw {}", generator.seed(), generator.next_draw())),
            ("variables", variables.len().to_string()),
            ("values of the variables", sha256_of(&variables)?),
        ];
        run.extend(zero.map(|zero| ("values of the variables in shards", zero.checksum())));
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

    /// Gives `f` the bytes of a variable of the model in full precision, wherever they are: at once, or, of one that is cut into
    /// shards, in several parts, in order, as they are brought together from all ranks. So all ranks call this for the same variables in
    /// the same order.
    ///
    /// # Errors
    /// A rank that fails; a ghost, which has no values.
    pub fn with_bytes_of(&self, variable: &Variable, mut f: impl FnMut(&[u8])) -> Result<()> {
        if let Some(zero) = &self.stepper.zero
            && zero.with_whole_bytes(variable, &mut f)?
        {
            return Ok(());
        }
        variable.master().unwrap_or(variable).value().with_bytes(f)
    }

    /// Waits until all ranks have come here, so that a file that the first one wrote is there for all.
    pub(super) fn wait_for_ranks(&self) -> Result<()> {
        self.stepper.strategy.as_ref().map_or(Ok(()), |strategy| strategy.communicator().barrier())
    }
}
