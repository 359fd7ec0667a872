//! What became of a run, epoch by epoch, in few bytes.
//!
//! A run may have a million epochs, and what it retains of them lies outside every pool. So epochs are kept as a table:
//! one number for the step and one for each value (the loss, the loss on held-out data, metrics), eight bytes each, with names
//! kept once. With room to grow that is at most 24 bytes for each value of an epoch; [`Trainer::keep_epochs`](super::Trainer::keep_epochs)
//! bounds how many are kept.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::event::{EpochEvent, Evaluation};

/// Epochs that are kept in one piece of memory.
const EPOCHS_PER_CHUNK: usize = 512;
/// The values of an epoch that are always there: its step and its loss.
const ALWAYS: usize = 2;

/// What became of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The epochs that ended while it was fitted.
    pub epochs: Epochs,
    /// The steps of the whole run so far.
    pub steps: u64,
    /// The loss of the last step; nothing if there was none.
    pub loss: Option<f64>,
    /// Why it ended before its time, if it did.
    pub stopped: Option<String>,
}

/// The last epochs of a run, in order.
#[derive(Clone, PartialEq)]
pub struct Epochs {
    chunks: VecDeque<Chunk>,
    /// How many are kept at most.
    most: usize,
}

/// Epochs with numbers that follow one another and with the same values.
#[derive(Clone, Debug, PartialEq)]
struct Chunk {
    first_epoch: u64,
    /// The names of the training metrics.
    trained: Arc<[String]>,
    /// The names of the metrics on held-out data, if there are such data.
    metrics: Option<Arc<[String]>>,
    /// For each epoch: its step, its loss, the training metrics, the loss on held-out data, the metrics on them.
    values: Vec<f64>,
}

impl Default for Epochs {
    fn default() -> Epochs {
        Epochs::keeping(usize::MAX)
    }
}

impl Epochs {
    /// No epochs yet, and never more than so many, the last ones.
    pub(super) fn keeping(most: usize) -> Epochs {
        Epochs { chunks: VecDeque::new(), most }
    }

    pub(super) fn push(&mut self, event: &EpochEvent) {
        match self.chunks.back_mut().filter(|chunk| chunk.takes(event)) {
            Some(chunk) => chunk.push(event),
            None => {
                let chunk = Chunk::new(event, self.chunks.back());
                self.chunks.push_back(chunk);
            }
        }
        while self.chunks.len() > 1 && self.n_kept() - self.chunks[0].len() >= self.most {
            self.chunks.pop_front();
        }
    }

    /// The epochs that are in memory, which may be a few more than are shown.
    fn n_kept(&self) -> usize {
        self.chunks.iter().map(Chunk::len).sum()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.n_kept().min(self.most)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = EpochEvent> + '_ {
        let all = self.chunks.iter().flat_map(|chunk| (0..chunk.len()).map(|idx| chunk.get(idx)));
        all.skip(self.n_kept() - self.len())
    }

    /// One of them; the first has the number 0.
    pub fn get(&self, idx: usize) -> Option<EpochEvent> {
        self.iter().nth(idx)
    }

    /// The last one.
    pub fn last(&self) -> Option<EpochEvent> {
        let chunk = self.chunks.back().filter(|_| !self.is_empty())?;
        Some(chunk.get(chunk.len() - 1))
    }
}

impl fmt::Debug for Epochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Chunk {
    /// A chunk that begins with an epoch; the names that are known already are not kept twice.
    fn new(event: &EpochEvent, before: Option<&Chunk>) -> Chunk {
        let names = |known: Option<&Arc<[String]>>, metrics: &[(String, f64)]| match known {
            Some(known) if same_names(known, metrics) => known.clone(),
            _ => metrics.iter().map(|(name, _)| name.clone()).collect(),
        };
        let known = before.and_then(|chunk| chunk.metrics.as_ref());
        let metrics = event.held_out.as_ref().map(|held_out| names(known, &held_out.metrics));
        let trained = names(before.map(|chunk| &chunk.trained), &event.metrics);
        let mut chunk = Chunk { first_epoch: event.epoch, trained, metrics, values: Vec::new() };
        chunk.push(event);
        chunk
    }

    fn width(&self) -> usize {
        ALWAYS + self.trained.len() + self.metrics.as_ref().map_or(0, |metrics| 1 + metrics.len())
    }

    fn len(&self) -> usize {
        self.values.len() / self.width()
    }

    /// Whether an epoch belongs here.
    fn takes(&self, event: &EpochEvent) -> bool {
        let is_alike = match (&self.metrics, &event.held_out) {
            (None, None) => true,
            (Some(names), Some(held_out)) => same_names(names, &held_out.metrics),
            _ => false,
        };
        let is_alike = is_alike && same_names(&self.trained, &event.metrics);
        is_alike && self.len() < EPOCHS_PER_CHUNK && event.epoch == self.first_epoch + self.len() as u64
    }

    fn push(&mut self, event: &EpochEvent) {
        if self.values.len() == self.values.capacity() {
            // By a quarter: a short run takes little, and a long one soon has whole chunks.
            let more = (self.len() / 4).max(8).min(EPOCHS_PER_CHUNK - self.len());
            self.values.reserve_exact(more * self.width());
        }
        // Steps are whole numbers far below 2⁵³, so nothing of them is lost.
        self.values.extend([event.step as f64, event.loss]);
        self.values.extend(event.metrics.iter().map(|(_, value)| value));
        if let Some(held_out) = &event.held_out {
            self.values.push(held_out.loss);
            self.values.extend(held_out.metrics.iter().map(|(_, value)| value));
        }
    }

    fn get(&self, idx: usize) -> EpochEvent {
        let values = &self.values[idx * self.width()..][..self.width()];
        let (always, values) = values.split_at(ALWAYS);
        let (trained, values) = values.split_at(self.trained.len());
        let with_names =
            |names: &[String], values: &[f64]| names.iter().cloned().zip(values.iter().copied()).collect();
        let held_out = self.metrics.as_ref().zip(values.split_first());
        EpochEvent {
            epoch: self.first_epoch + idx as u64,
            step: always[0] as u64,
            loss: always[1],
            metrics: with_names(&self.trained, trained),
            held_out: held_out
                .map(|(names, (&loss, values))| Evaluation { loss, metrics: with_names(names, values) }),
        }
    }
}

fn same_names(names: &[String], metrics: &[(String, f64)]) -> bool {
    names.iter().eq(metrics.iter().map(|(name, _)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(epoch: u64, n_metrics: Option<usize>) -> EpochEvent {
        let number = epoch as f64;
        let metrics = |n| (0..n).map(|k| (format!("metric {k}"), number / (k + 2) as f64)).collect();
        let held_out = n_metrics.map(|n| Evaluation { loss: 2.0 * number, metrics: metrics(n) });
        let trained = if n_metrics == Some(3) { metrics(2) } else { Vec::new() };
        EpochEvent { epoch, step: 45 * epoch, loss: number.sqrt(), metrics: trained, held_out }
    }

    impl Epochs {
        /// What lies on the heap, but for the names.
        fn n_bytes(&self) -> usize {
            let values: usize = self.chunks.iter().map(|chunk| chunk.values.capacity()).sum();
            values * size_of::<f64>() + self.chunks.capacity() * size_of::<Chunk>()
        }
    }

    #[test]
    fn what_was_told_is_read_back_whatever_changes_in_between() {
        let mut epochs = Epochs::default();
        let mut told = Vec::new();
        for epoch in 3..2000 {
            // Sometimes other metrics, none, or a number that does not follow.
            let n_metrics = [Some(1), Some(1), None, Some(3)][epoch as usize / 300 % 4];
            told.push(event(if epoch > 1500 { epoch + 7 } else { epoch }, n_metrics));
            epochs.push(told.last().unwrap());
        }
        assert!(epochs.iter().eq(told.iter().cloned()));
        assert_eq!((epochs.len(), epochs.last()), (told.len(), told.last().cloned()));
        assert_eq!((epochs.get(0), epochs.get(told.len())), (told.first().cloned(), None));
        assert_eq!((Epochs::default().last(), Epochs::default().is_empty()), (None, true));
    }

    #[test]
    fn an_epoch_takes_at_most_24_bytes_for_each_of_its_values() {
        for (n_metrics, n_values) in [(None, 1), (Some(0), 2), (Some(1), 3), (Some(5), 7)] {
            let mut epochs = Epochs::default();
            for epoch in 1..=100_000 {
                epochs.push(&event(epoch, n_metrics));
                let allowed = 24 * n_values * epoch as usize + 24 * n_values * 8 + 1024;
                assert!(epochs.n_bytes() <= allowed, "{} after {epoch}", epochs.n_bytes());
            }
            assert!(epochs.n_bytes() <= 24 * n_values * 100_000);
        }
    }

    #[test]
    fn a_bound_keeps_the_last_ones() {
        for most in [0, 1, 7, 512, 513, 3000] {
            let mut epochs = Epochs::keeping(most);
            (1..=5000).for_each(|epoch| epochs.push(&event(epoch, Some(1))));
            assert!(epochs.iter().map(|event| event.epoch).eq(5001 - most as u64..=5000), "{most}");
            assert_eq!((epochs.len(), epochs.last().is_some()), (most, most > 0));
            assert!(epochs.n_kept() < most + EPOCHS_PER_CHUNK + 1, "{most}: {}", epochs.n_kept());
        }
    }
}
