//! Messages about several tensors: which elements of which tensors a message has, and where.
//!
//! Elements are counted over a list of tensors, one after the other, as if they were one.

use std::ops::Range;

/// The bytes of a message, and of a bucket of several tensors, at most.
pub(crate) const MESSAGE_BYTES: usize = 1 << 20;

/// Elements that are a rank's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub rank: usize,
    pub range: Range<usize>,
}

/// Adds a segment, as a part of the one before where that goes on with it.
pub(crate) fn push_segment(segments: &mut Vec<Segment>, rank: usize, range: Range<usize>) {
    match segments.last_mut() {
        Some(last) if last.rank == rank && last.range.end == range.start => last.range.end = range.end,
        _ if range.is_empty() => {}
        _ => segments.push(Segment { rank, range }),
    }
}

/// How often bytes travel one after the other until those of one rank are on all of them, or those of all are in one sum.
pub(crate) fn n_rounds(n_ranks: usize) -> u64 {
    n_ranks.next_power_of_two().trailing_zeros().into()
}

/// The elements of each message about some elements, of which one has `most` at most.
pub(crate) fn messages(elements: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let most = most.max(1);
    elements.clone().step_by(most).map(move |start| start..(start + most).min(elements.end))
}

/// The tensors that a message is about, of some that have so many elements: the number of each, which of its elements, and where
/// these are in the message.
pub(crate) fn pieces(
    sizes: impl IntoIterator<Item = usize>,
    message: &Range<usize>,
) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
    let ends = sizes.into_iter().scan(0, |end, size| {
        *end += size;
        Some(*end - size..*end)
    });
    ends.enumerate().filter_map(move |(number, tensor)| {
        let (piece, place) = overlap(tensor, message)?;
        Some((number, piece, place))
    })
}

/// What two ranges have in common, as seen from the beginning of each.
pub(crate) fn overlap(tensor: Range<usize>, message: &Range<usize>) -> Option<(Range<usize>, Range<usize>)> {
    let (start, end) = (tensor.start.max(message.start), tensor.end.min(message.end));
    let from = |first: usize| start - first..end - first;
    (start < end).then(|| (from(tensor.start), from(message.start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_cover_all_elements_and_segments_of_one_rank_are_joined() {
        assert!(messages(3..10, 4).eq([3..7, 7..10]));
        assert_eq!(messages(3..3, 4).count(), 0);
        assert!(pieces([2, 0, 3], &(1..4)).eq([(0, 1..2, 0..1), (2, 0..2, 1..3)]));
        let mut segments = Vec::new();
        for (rank, range) in [(0, 0..4), (0, 4..6), (1, 6..6), (1, 6..9), (0, 9..10)] {
            push_segment(&mut segments, rank, range);
        }
        let expected = [(0, 0..6), (1, 6..9), (0, 9..10)];
        assert!(segments.into_iter().map(|segment| (segment.rank, segment.range)).eq(expected));
    }
}
