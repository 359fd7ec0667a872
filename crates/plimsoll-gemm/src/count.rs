//! Counting that cannot overflow: formulas over extents that a user chose end at the largest number instead.
//!
//! A workspace of that many bytes is refused by whoever is asked for it, and work of that many steps is simply much, so a
//! formula need not know how it fails. The rule: whatever multiplies extents of two different tensors is counted here.

/// The product, or the largest number.
pub(crate) fn product<const N: usize>(factors: [usize; N]) -> usize {
    // A factor of zero wins over all others, wherever it stands.
    if factors.contains(&0) { 0 } else { factors.into_iter().fold(1, usize::saturating_mul) }
}

/// The least multiple of `of` that is not less, or the largest number.
pub(crate) fn padded(n: usize, of: usize) -> usize {
    n.checked_next_multiple_of(of).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_end_at_the_largest_number() {
        assert_eq!(
            (product([3, 4, 5]), product([1 << 40, 1 << 40]), product([1 << 40, 1 << 40, 0])),
            (60, usize::MAX, 0)
        );
        assert_eq!((padded(65, 64), padded(0, 64), padded(usize::MAX - 3, 64)), (128, 0, usize::MAX));
    }
}
