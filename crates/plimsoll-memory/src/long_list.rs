//! Lists that grow with a model or with the number of its ops, kept in pieces.
//!
//! Nothing of a tensor's size lives outside a pool, and no list of a run shall look as if it did: a vector that grows
//! moves to ever larger blocks of the heap. A long list takes pieces of at most [`PIECE_BYTES`] instead. It refuses to
//! shrink or to be cut: whoever needs that has a short list.

use std::ops::{Index, IndexMut};

/// The most bytes of a piece.
const PIECE_BYTES: usize = 32 << 10;

/// A list in pieces, all of them full but the last, so that no block of the heap grows with it.
///
/// ```
/// use plimsoll_memory::LongList;
/// let mut list: LongList<u64> = (0..100_000).collect();
/// list[99_999] += 1;
/// assert_eq!((list.len(), list.iter().next_back()), (100_000, Some(&100_000)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongList<T> {
    pieces: Vec<Vec<T>>,
}

impl<T> LongList<T> {
    /// The entries of a piece; a power of two, which is what a growing vector comes to.
    const PIECE: usize = {
        let fit = PIECE_BYTES / if size_of::<T>() == 0 { 1 } else { size_of::<T>() };
        if fit == 0 { 1 } else { 1 << fit.ilog2() }
    };

    /// The number of entries.
    pub fn len(&self) -> usize {
        match &*self.pieces {
            [] => 0,
            [full @ .., last] => full.len() * Self::PIECE + last.len(),
        }
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds an entry at the end.
    pub fn push(&mut self, entry: T) {
        match self.pieces.last_mut() {
            Some(piece) if piece.len() < Self::PIECE => piece.push(entry),
            _ => self.pieces.push(vec![entry]),
        }
    }

    /// The entry of that number, if there is one.
    pub fn get_mut(&mut self, idx: usize) -> Option<&mut T> {
        self.pieces.get_mut(idx / Self::PIECE)?.get_mut(idx % Self::PIECE)
    }

    /// The bytes of the heap that the list itself takes.
    pub fn heap_bytes(&self) -> usize {
        let entries: usize = self.pieces.iter().map(Vec::capacity).sum();
        entries * size_of::<T>() + self.pieces.capacity() * size_of::<Vec<T>>()
    }

    /// The entries in their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.pieces.iter().flatten()
    }
}

impl<T> Default for LongList<T> {
    fn default() -> LongList<T> {
        LongList { pieces: Vec::new() }
    }
}

impl<T> Index<usize> for LongList<T> {
    type Output = T;

    fn index(&self, idx: usize) -> &T {
        &self.pieces[idx / Self::PIECE][idx % Self::PIECE]
    }
}

impl<T> IndexMut<usize> for LongList<T> {
    fn index_mut(&mut self, idx: usize) -> &mut T {
        &mut self.pieces[idx / Self::PIECE][idx % Self::PIECE]
    }
}

impl<T> Extend<T> for LongList<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, entries: I) {
        entries.into_iter().for_each(|entry| self.push(entry));
    }
}

impl<T> FromIterator<T> for LongList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> LongList<T> {
        let mut list = LongList::default();
        list.extend(entries);
        list
    }
}

impl<T> IntoIterator for LongList<T> {
    type Item = T;
    type IntoIter = std::iter::Flatten<std::vec::IntoIter<Vec<T>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.pieces.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_places_over_the_edges_of_pieces() {
        type Entry = [usize; 100];
        let n = 3 * LongList::<Entry>::PIECE + 1;
        let mut list: LongList<Entry> = (0..n).map(|idx| [idx; 100]).collect();
        assert_eq!(list.len(), n);
        assert!((0..n).all(|idx| list[idx][0] == idx));
        assert!(list.get_mut(n).is_none());
        list[n - 1][0] = 7;
        assert_eq!(list.iter().next_back().map(|entry| entry[0]), Some(7));
        assert_eq!(list.into_iter().count(), n);
    }

    #[test]
    fn no_piece_is_larger_than_it_may_be() {
        let list: LongList<[u8; 33]> = (0..10_000).map(|_| [0; 33]).collect();
        let bytes = list.pieces.iter().map(|piece| piece.capacity() * 33);
        assert!(bytes.max().is_some_and(|bytes| bytes <= PIECE_BYTES));
        // One that is larger than a piece still has a place.
        assert_eq!(LongList::<[u8; PIECE_BYTES + 1]>::PIECE, 1);
    }
}
