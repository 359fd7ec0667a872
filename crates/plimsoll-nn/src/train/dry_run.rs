//! Dry runs: going through a run on a ghost without going through all of it.
//!
//! A ghost's pool answers requests as the real one would, so a run on a ghost has the peaks of the real one. It need not be
//! as long: a pool's answers depend on its state and on nothing else (see `Pool::fingerprint`), and a step asks for the same
//! blocks whenever its batch has the same shape, because no shape and no workspace depends on a value. So a step that finds
//! the pool as an earlier one of its kind found it does what that one did, and so do all that follow it: from then on
//! steps are a cycle, and whatever a cycle can reach has been reached. Whole cycles are skipped; the steps that are left,
//! the short batch, the evaluation and the saving are gone through again, from the state in which the real run comes to them.
//! The same holds for the batches of an evaluation, and for epochs.
//!
//! To be sure that it is a cycle, not only the pool's state must be as before but also the number of requests that led to it;
//! what else decides about requests, such as what an optimizer or a plan for the limit keeps, is made in the first step of its
//! kind. Batches are skipped only as far as the data are sure that they are alike. Callbacks are not told of what is
//! skipped: one that takes memory of the device only at certain steps is not foreseen. On a device that is no ghost
//! nothing is ever skipped.

use plimsoll_tensor::{Bytes, Device, Recomputed};

/// The iterations of a loop so far, by the states in which they found the pool of a ghost.
pub(super) struct CycleSkipper {
    /// The ghosts that the run is on; none on devices with values.
    ghosts: Vec<Device>,
    found: Vec<(Vec<Found>, Vec<Effort>)>,
    /// The requests that had been made of each when the last iteration began.
    n_requests: Vec<u64>,
}

/// What an iteration finds on a device.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Found {
    fingerprint: u64,
    /// The requests of the iteration before.
    n_requests: u64,
}

/// What had been recomputed and offloaded on a device by then.
type Effort = (Recomputed, Bytes);

impl CycleSkipper {
    /// A loop that begins, of a run on these devices.
    pub fn new(devices: &[Device]) -> CycleSkipper {
        let all_ghosts = devices.iter().all(Device::is_ghost);
        let ghosts = if all_ghosts { devices.to_vec() } else { Vec::new() };
        CycleSkipper { n_requests: vec![0; ghosts.len()], ghosts, found: Vec::new() }
    }

    /// An iteration begins, with which `n_left` of one kind are to come: how many of them can be skipped. At least one is
    /// always left. What the skipped ones would have recomputed and offloaded is counted on the ghosts.
    pub fn skip(&mut self, n_left: u64) -> u64 {
        if self.ghosts.is_empty() {
            return 0;
        }
        let found = self.look_around();
        let now: Vec<Effort> =
            self.ghosts.iter().map(|ghost| (ghost.recomputed(), ghost.offloaded())).collect();
        let earlier = self.found.iter().rposition(|(earlier, _)| *earlier == found);
        self.found.push((found, now.clone()));
        let Some(earlier) = earlier else { return 0 };
        let cycle = (self.found.len() - 1 - earlier) as u64;
        let n_cycles = n_left.saturating_sub(1) / cycle;
        // Each cycle does again what this one did.
        let times = |now: u64, before: u64| n_cycles * (now - before);
        for (ghost, (now, before)) in self.ghosts.iter().zip(now.iter().zip(&self.found[earlier].1)) {
            let (ops, flops) = (times(now.0.ops, before.0.ops), times(now.0.flops, before.0.flops));
            let offloaded = Bytes::new(times(now.1.get(), before.1.get()));
            ghost.count_skipped(Recomputed { ops, flops }, offloaded);
        }
        n_cycles * cycle
    }

    fn look_around(&mut self) -> Vec<Found> {
        let look_at = |(ghost, before): (&Device, &mut u64)| {
            let n_requests = ghost.stats().n_acquired;
            let before = std::mem::replace(before, n_requests);
            Found { fingerprint: ghost.pool().fingerprint(), n_requests: n_requests - before }
        };
        self.ghosts.iter().zip(&mut self.n_requests).map(look_at).collect()
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_tensor::{Result, Tensor};

    use super::*;

    #[test]
    fn nothing_is_skipped_on_a_device_with_values() {
        let mut skipper = CycleSkipper::new(&[Device::separate_cpu()]);
        assert_eq!([skipper.skip(9), skipper.skip(9), skipper.skip(9)], [0; 3]);
    }

    #[test]
    fn iterations_that_repeat_are_skipped_in_whole_cycles() -> Result<()> {
        let ghost = Device::ghost_cpu();
        let _on = ghost.enter();
        let _model = Tensor::zeros([1000])?;
        let mut skipper = CycleSkipper::new(std::slice::from_ref(&ghost));
        let (mut kept, mut skipped) = (Vec::new(), Vec::new());
        for iteration in 0..8u64 {
            skipped.push(skipper.skip(20 - iteration));
            // Every other iteration leaves a block behind, which the next one drops.
            match iteration.is_multiple_of(2) {
                true => kept.push(Tensor::zeros([100_000])?),
                false => kept.clear(),
            }
        }
        let first = skipped.iter().position(|&n| n > 0).expect("it is a cycle");
        // Of the iterations to come, at least one is left, and as many as make the cycle whole.
        assert_eq!(skipped[first], (20 - first as u64 - 1) / 2 * 2, "{skipped:?}");
        Ok(())
    }

    #[test]
    fn what_is_skipped_counts_as_recomputed_and_offloaded() {
        let ghost = Device::ghost_cpu();
        let mut skipper = CycleSkipper::new(std::slice::from_ref(&ghost));
        let each = Recomputed { ops: 3, flops: 70 };
        let mut n_gone_through = 0;
        let mut n_left = 100;
        while n_left > 0 {
            n_left -= skipper.skip(n_left);
            ghost.count_skipped(each, Bytes::new(5));
            (n_left, n_gone_through) = (n_left - 1, n_gone_through + 1);
        }
        assert!(n_gone_through < 10, "{n_gone_through}");
        assert_eq!(ghost.recomputed(), Recomputed { ops: 300, flops: 7000 });
        assert_eq!(ghost.offloaded(), Bytes::new(500));
    }
}
