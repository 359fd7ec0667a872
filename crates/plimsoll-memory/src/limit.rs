//! The limit on committed bytes, and the part of it that is set aside.
//!
//! A driver takes memory of the device for itself, such as that of the executables of CUDA graphs, which no pool hands out and no
//! label explains. So that device and limit hold all the same, a part of the limit is set aside for it: at most as many bytes as
//! are said, and at most a 64th of the limit, so that a larger limit never leaves less; but no less than what has been taken, which
//! a driver may keep. The pool commits what is left, the *capacity*.

/// The largest part of a limit that is set aside: one of so many.
const PARTS: u64 = 64;

/// A limit, if there is one, and the least and the most that is set aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Limit {
    pub bytes: Option<u64>,
    pub least_aside: u64,
    pub most_aside: u64,
}

impl Limit {
    /// The bytes that are set aside.
    pub fn aside(self) -> u64 {
        let wanted = self.bytes.map_or(self.most_aside, |limit| self.most_aside.min(limit / PARTS));
        wanted.max(self.least_aside)
    }

    /// The most bytes that may be committed.
    pub fn capacity(self) -> Option<u64> {
        self.bytes.map(|limit| limit.saturating_sub(self.aside()))
    }

    /// The least limit that leaves so much capacity.
    pub fn for_capacity(self, capacity: u64) -> u64 {
        // A limit of 64 n + r has a capacity of 63 n + r, as long as the share is what bounds it.
        let shared = capacity.saturating_add(capacity.saturating_sub(1) / (PARTS - 1));
        shared.min(capacity.saturating_add(self.most_aside)).max(capacity.saturating_add(self.least_aside))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_for_a_capacity_leaves_it_and_one_byte_less_does_not() {
        for (least_aside, most_aside) in [(0, 0), (0, 1), (0, 5), (3, 5), (0, 100), (20, 100), (100, 100)] {
            let limit = |bytes: u64| Limit { bytes: Some(bytes), least_aside, most_aside };
            for capacity in 1..8000 {
                let least = limit(0).for_capacity(capacity);
                assert!(limit(least).capacity() >= Some(capacity), "{most_aside} {capacity} {least}");
                assert!(limit(least - 1).capacity() < Some(capacity), "{most_aside} {capacity} {least}");
            }
        }
    }

    #[test]
    fn a_larger_limit_leaves_no_less() {
        let capacity = |bytes| Limit { bytes: Some(bytes), least_aside: 0, most_aside: 40 }.capacity();
        assert!((0..10_000).all(|bytes| capacity(bytes) <= capacity(bytes + 1)));
        assert_eq!((capacity(10_000), capacity(128)), (Some(9960), Some(126)));
        let unlimited = Limit { bytes: None, least_aside: 8, most_aside: 40 };
        assert_eq!((unlimited.capacity(), unlimited.aside()), (None, 40));
    }
}
