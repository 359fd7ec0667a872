//! Decisions: what a plan does with the values of a step.

use std::collections::HashSet;

use plimsoll_memory::Site;

/// Which values are evicted, how they are restored, and which are retained once they have been.
///
/// Values and positions are those of the [`Trace`](crate::Trace) that the decisions were made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// For each value, whether forward evicts it.
    pub evicted: Vec<bool>,
    /// For each value, whether it is offloaded when it is made, and reloaded instead of recomputed once it was evicted.
    pub offloaded: Vec<bool>,
    /// Values (position, number) whose reload begins when the op at a position begins, in this order.
    pub prefetched: Vec<(u32, u32)>,
    /// Values (position, number) that have been read and are evicted when the op at that position begins.
    pub evicted_before: HashSet<(u32, u32)>,
    /// Values (position, number) that are evicted when the op at that position has ended: it read them, or their offload
    /// has had the time since they were made.
    pub evicted_after: HashSet<(u32, u32)>,
    /// Values (position, number) that are restored at a position and retained for later readers.
    pub retained: HashSet<(u32, u32)>,
    /// Records and how often each is recomputed.
    pub recomputed: Vec<(u32, u32)>,
    /// The bytes that are offloaded.
    pub offloaded_bytes: u64,
    /// The extra time of recomputation and offload, by the cost model, in nanoseconds.
    pub extra_time: u64,
    /// The expected peak of bytes in use.
    pub expected_peak: u64,
    /// The values that forward evicts or offloads, one by one, for people to read.
    pub choices: Vec<Choice>,
}

/// A value that forward evicts or offloads, and what that saves and costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The op that makes it, with its layer and line, if the trace says so.
    pub site: Option<Site>,
    /// The bytes that are free from forward to backward.
    pub bytes: u64,
    /// Whether it is offloaded and reloaded rather than recomputed.
    pub is_offloaded: bool,
    /// The time of offload and reload, or of all recomputations of the op that makes it, by the cost model in nanoseconds.
    /// Other ops that are recomputed on the way to it count where they are listed, or not at all.
    pub time: u64,
}

impl Decisions {
    /// The heap bytes that they take.
    pub(crate) fn heap_bytes(&self) -> usize {
        let sets = [&self.evicted_before, &self.evicted_after, &self.retained];
        let sets: usize = sets.iter().map(|set| set_bytes(set.capacity())).sum();
        let pairs = (self.recomputed.capacity() + self.prefetched.capacity()) * size_of::<(u32, u32)>();
        let choices = self.choices.capacity() * size_of::<Choice>();
        self.evicted.capacity() + self.offloaded.capacity() + sets + pairs + choices
    }

    /// Adds what was decided about other values of the same step: those on another device.
    pub fn join(&mut self, other: &Decisions) {
        let either = |ours: &mut Vec<bool>, theirs: &[bool]| {
            ours.iter_mut().zip(theirs).for_each(|(ours, theirs)| *ours |= theirs);
        };
        either(&mut self.evicted, &other.evicted);
        either(&mut self.offloaded, &other.offloaded);
        self.prefetched.extend(&other.prefetched);
        self.evicted_before.extend(&other.evicted_before);
        self.evicted_after.extend(&other.evicted_after);
        self.retained.extend(&other.retained);
        self.recomputed.extend(&other.recomputed);
        self.offloaded_bytes += other.offloaded_bytes;
        self.extra_time += other.extra_time;
        self.choices.extend(&other.choices);
    }

    /// The values that forward evicts or offloads.
    pub(crate) fn not_retained(&self) -> impl Iterator<Item = u32> {
        let pairs = self.evicted.iter().zip(&self.offloaded);
        (0u32..)
            .zip(pairs)
            .filter(|(_, (evicted, offloaded))| **evicted || **offloaded)
            .map(|(number, _)| number)
    }

    /// How many values forward evicts or offloads.
    pub fn n_evicted(&self) -> usize {
        self.not_retained().count()
    }
}

/// The heap bytes of a set of pairs: it has eight places for each seven that it says it has, and a byte more for each.
fn set_bytes(capacity: usize) -> usize {
    (capacity * 8).div_ceil(7) * (size_of::<(u32, u32)>() + 1)
}
