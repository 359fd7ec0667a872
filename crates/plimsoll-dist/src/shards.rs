//! Which elements of each variable are whose, where a model's state is cut into shards.
//!
//! A variable is cut into chunks of [`NORM_CHUNK`] elements, and every rank has a stretch of them, as many as any other rank or
//! one more. Whose turn it is to have one more goes round from variable to variable, so that small ones are spread over all
//! ranks, too. Chunks are not cut, because the global norm of gradients adds their squares up chunk by chunk: so it has the same
//! bits however many ranks there are. Where a piece lies depends on the variables before it and on nothing that comes later, so
//! that a variable can be cut as soon as it is made.

use std::ops::Range;

use plimsoll_tensor::optimizer::NORM_CHUNK;

/// How variables are cut into pieces, one for each rank; pieces may be empty.
///
/// ```
/// use plimsoll_dist::Shards;
///
/// let mut shards = Shards::new(2);
/// shards.push(40_000);
/// shards.push(10);
/// assert_eq!([shards.piece(0, 0), shards.piece(0, 1)], [0..32_768, 32_768..40_000]);
/// assert_eq!([shards.piece(1, 0), shards.piece(1, 1)], [0..0, 0..10]);
/// ```
#[derive(Clone, Debug)]
pub struct Shards {
    n_ranks: usize,
    /// How many chunks were one more than their variable's others.
    n_dealt: usize,
    variables: Vec<Cut>,
}

/// How one variable is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    n_elems: usize,
    /// The first rank that has one more.
    first_dealt: usize,
}

impl Shards {
    /// No variables yet.
    pub fn new(n_ranks: usize) -> Shards {
        Shards { n_ranks: n_ranks.max(1), n_dealt: 0, variables: Vec::new() }
    }

    /// Cuts the next variable.
    pub fn push(&mut self, n_elems: usize) {
        self.variables.push(Cut { n_elems, first_dealt: self.n_dealt % self.n_ranks });
        self.n_dealt += n_elems.div_ceil(NORM_CHUNK) % self.n_ranks;
    }

    /// How many ranks there are.
    pub fn n_ranks(&self) -> usize {
        self.n_ranks
    }

    /// The elements of a variable that a rank has.
    pub fn piece(&self, variable: usize, rank: usize) -> Range<usize> {
        let Cut { n_elems, first_dealt } = self.variables[variable];
        let n_chunks = n_elems.div_ceil(NORM_CHUNK);
        let (share, n_more) = (n_chunks / self.n_ranks, n_chunks % self.n_ranks);
        // Those that have one more follow each other from the first one on, around the end.
        let last = first_dealt + n_more;
        let n_before = |rank: usize| {
            let up_to_end = rank.min(last).saturating_sub(first_dealt);
            up_to_end + rank.min(last.saturating_sub(self.n_ranks))
        };
        let start = |rank: usize| ((share * rank + n_before(rank)) * NORM_CHUNK).min(n_elems);
        start(rank)..start(rank + 1)
    }

    /// The pieces of a variable that are not empty, each with its rank, in the order of their elements.
    pub fn pieces(&self, variable: usize) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let pieces = (0..self.n_ranks).map(move |rank| (rank, self.piece(variable, rank)));
        pieces.filter(|(_, piece)| !piece.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_each_variable_and_ranks_have_equal_shares() {
        for n_ranks in [1, 2, 3, 4, 7, 64] {
            let mut shards = Shards::new(n_ranks);
            let sizes = [0, 1, 10, 16_384, 16_385, 100_000, 768, 3_000_000, 5, 65_536, 1_000_001];
            sizes.iter().for_each(|&n_elems| shards.push(n_elems));
            let mut n_chunks = vec![0; n_ranks];
            for (variable, n_elems) in sizes.into_iter().enumerate() {
                let mut end = 0;
                for (rank, n_chunks) in n_chunks.iter_mut().enumerate() {
                    let piece = shards.piece(variable, rank);
                    assert_eq!(piece.start, end);
                    assert!(piece.start.is_multiple_of(NORM_CHUNK) || piece.is_empty());
                    *n_chunks += piece.len().div_ceil(NORM_CHUNK);
                    end = piece.end;
                }
                assert_eq!(end, n_elems, "variable {variable} on {n_ranks} ranks");
            }
            let (least, most) = (n_chunks.iter().min(), n_chunks.iter().max());
            assert!(most.unwrap() - least.unwrap() <= 1, "{n_chunks:?}");
        }
    }
}
