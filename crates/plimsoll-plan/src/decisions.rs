//! What a plan says about the values of a step.

use std::collections::HashSet;

use plimsoll_memory::Site;

/// Which values are not kept for backward, how they come back, and which are kept once they have.
///
/// Values and positions are those of the [`Trace`](crate::Trace) that the decisions were made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// For each value, whether forward lets it go.
    pub dropped: Vec<bool>,
    /// For each value, whether it is moved elsewhere when it is made, and moved back instead of computed again once it was
    /// let go.
    pub offloaded: Vec<bool>,
    /// Values (position, number) that begin to move back when the op at a position begins, in this order.
    pub prefetched: Vec<(u32, u32)>,
    /// Values (position, number) that have been read, and go when the op at that position begins.
    pub released_before: HashSet<(u32, u32)>,
    /// Values (position, number) that go when the op at that position has ended: it read them, or they have had the time
    /// since they were made to move elsewhere.
    pub released_after: HashSet<(u32, u32)>,
    /// Values (position, number) that come back at a position and stay for later readers.
    pub retained: HashSet<(u32, u32)>,
    /// The records that are repeated, each as often as that.
    pub repeated: Vec<(u32, u32)>,
    /// The bytes that are moved elsewhere.
    pub offloaded_bytes: u64,
    /// The extra time that repeating and moving take, by the cost model, in nanoseconds.
    pub extra_time: u64,
    /// The most bytes in use that are expected.
    pub expected_peak: u64,
    /// The values that forward lets go or moves, one by one, for people to read.
    pub choices: Vec<Choice>,
}

/// A value that forward lets go or moves, and what that saves and costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The op that makes it, with its layer and line, if the trace says so.
    pub site: Option<Site>,
    /// The bytes that are free from forward to backward.
    pub bytes: u64,
    /// Whether it is moved elsewhere and back, and not computed again.
    pub is_moved: bool,
    /// The time that it takes to move it, or to repeat the op that makes it as often as it is repeated, by the cost model
    /// in nanoseconds. Ops that are repeated on the way to it count where they are listed, or not at all.
    pub time: u64,
}

impl Decisions {
    /// The bytes of the heap that they take, roughly.
    pub(crate) fn heap_bytes(&self) -> usize {
        let n_pairs =
            self.released_before.capacity() + self.released_after.capacity() + self.retained.capacity();
        let n_pairs = n_pairs + self.repeated.len() + self.prefetched.len();
        let choices = self.choices.len() * size_of::<Choice>();
        self.dropped.len() + self.offloaded.len() + n_pairs * size_of::<(u32, u32)>() + choices
    }

    /// Takes up what was decided about other values of the same step: those on another device.
    pub fn join(&mut self, other: &Decisions) {
        let either = |ours: &mut Vec<bool>, theirs: &[bool]| {
            ours.iter_mut().zip(theirs).for_each(|(ours, theirs)| *ours |= theirs);
        };
        either(&mut self.dropped, &other.dropped);
        either(&mut self.offloaded, &other.offloaded);
        self.prefetched.extend(&other.prefetched);
        self.released_before.extend(&other.released_before);
        self.released_after.extend(&other.released_after);
        self.retained.extend(&other.retained);
        self.repeated.extend(&other.repeated);
        self.offloaded_bytes += other.offloaded_bytes;
        self.extra_time += other.extra_time;
        self.choices.extend(&other.choices);
    }

    /// The values that forward lets go, or that are moved.
    pub(crate) fn not_kept(&self) -> impl Iterator<Item = u32> {
        let pairs = self.dropped.iter().zip(&self.offloaded);
        (0u32..).zip(pairs).filter(|(_, (dropped, moved))| **dropped || **moved).map(|(number, _)| number)
    }

    /// How many values forward lets go or moves.
    pub fn n_dropped(&self) -> usize {
        self.not_kept().count()
    }
}
