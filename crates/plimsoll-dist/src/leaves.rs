//! The tree by which the leaves of a batch are added up. Its shape depends on the number of leaves alone.
//!
//! Level 0 are the leaves; node `i` of level `k` covers the leaves from `i · 2^k` up to the next, as far as there are any, and is the
//! sum of its two children, or its left one where there is no right one. The root covers all. Ranks compute equal stretches of
//! leaves, whatever nodes these cover whole; where a node's children are on different ranks, the right one is sent to the left
//! one's. So no addition depends on how many ranks there are.

use std::ops::Range;

use plimsoll_tensor::{Error, Result};

/// The leaves of a batch: how many, and which of them a rank computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    n_leaves: usize,
    n_ranks: usize,
}

impl Leaves {
    /// So many leaves on so many ranks.
    ///
    /// # Errors
    /// Leaves that cannot be shared out equally; the error names the next number that can be.
    pub fn new(n_leaves: usize, n_ranks: usize) -> Result<Leaves> {
        if n_ranks > 0 && n_leaves > 0 && n_leaves.is_multiple_of(n_ranks) {
            return Ok(Leaves { n_leaves, n_ranks });
        }
        let next = n_leaves.max(1).next_multiple_of(n_ranks.max(1));
        Err(Error::argument(
            "leaves",
            format!(
                "{n_leaves} leaves cannot be shared out equally to {n_ranks} ranks; the next number that can is {next}"
            ),
        ))
    }

    /// How many there are.
    pub fn n_leaves(&self) -> usize {
        self.n_leaves
    }

    /// How many ranks compute them.
    pub fn n_ranks(&self) -> usize {
        self.n_ranks
    }

    /// The leaves that a rank computes.
    pub fn of_rank(&self, rank: usize) -> Range<usize> {
        let share = self.n_leaves / self.n_ranks;
        rank * share..(rank + 1) * share
    }

    /// The rank that computes a leaf.
    pub(crate) fn rank_of(&self, leaf: usize) -> usize {
        leaf / (self.n_leaves / self.n_ranks)
    }

    /// The root of the tree.
    pub(crate) fn root(&self) -> Node {
        Node { level: self.n_leaves.next_power_of_two().trailing_zeros(), index: 0 }
    }

    /// The leaves that a node covers.
    pub(crate) fn covered(&self, node: Node) -> Range<usize> {
        let end = ((node.index + 1) << node.level).min(self.n_leaves);
        node.index << node.level..end
    }

    /// The rank whose leaves a node covers, if it is one rank's.
    pub(crate) fn owner(&self, node: Node) -> Option<usize> {
        let covered = self.covered(node);
        let (first, last) = (self.rank_of(covered.start), self.rank_of(covered.end - 1));
        (first == last).then_some(first)
    }
}

/// A node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    level: u32,
    index: usize,
}

impl Node {
    /// A leaf.
    pub fn leaf(number: usize) -> Node {
        Node { level: 0, index: number }
    }

    /// The children, and whether the right one covers any leaf.
    pub fn children(self, leaves: &Leaves) -> (Node, Option<Node>) {
        let child = |index| Node { level: self.level - 1, index };
        let right = child(2 * self.index + 1);
        let is_there = right.index << right.level < leaves.n_leaves;
        (child(2 * self.index), is_there.then_some(right))
    }

    /// The parent, and whether this is its right child.
    fn parent(self) -> (Node, bool) {
        (Node { level: self.level + 1, index: self.index / 2 }, !self.index.is_multiple_of(2))
    }
}

/// The nodes that are whole so far, from left to right, with what each of them sums up to.
#[derive(Debug)]
pub(crate) struct Whole<V> {
    leaves: Leaves,
    nodes: Vec<(Node, V)>,
}

impl<V> Whole<V> {
    pub fn new(leaves: Leaves) -> Whole<V> {
        Whole { leaves, nodes: Vec::new() }
    }

    /// The next leaf of a rank: whatever it completes is added up, `left + right`.
    pub fn push<E>(
        &mut self,
        leaf: usize,
        value: V,
        mut add: impl FnMut(V, V) -> Result<V, E>,
    ) -> Result<(), E> {
        let (mut node, mut value) = (Node::leaf(leaf), value);
        while node != self.leaves.root() {
            let (parent, is_right) = node.parent();
            let sibling = self.nodes.pop_if(|(other, _)| is_right && other.parent().0 == parent);
            match sibling {
                Some((_, left)) => value = add(left, value)?,
                // It has no sibling, so that the parent is the same sum.
                None if !is_right && parent.children(&self.leaves).1.is_none() => {}
                None => break,
            }
            node = parent;
        }
        self.nodes.push((node, value));
        Ok(())
    }

    /// The nodes, with their sums.
    pub fn into_nodes(self) -> Vec<(Node, V)> {
        self.nodes
    }

    /// Takes a node that was whole elsewhere, right of all others.
    pub fn push_node(&mut self, node: Node, value: V) {
        self.nodes.push((node, value));
    }

    /// The sums, in the order of [`local_nodes`].
    pub fn into_values(self) -> Vec<V> {
        self.nodes.into_iter().map(|(_, value)| value).collect()
    }
}

/// The nodes that a rank has when all its leaves are added up, from left to right.
pub(crate) fn local_nodes(leaves: Leaves, rank: usize) -> Vec<Node> {
    let mut whole = Whole::new(leaves);
    for leaf in leaves.of_rank(rank) {
        let added: Result<(), std::convert::Infallible> = whole.push(leaf, (), |(), ()| Ok(()));
        let Ok(()) = added;
    }
    whole.nodes.into_iter().map(|(node, ())| node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sum as it was made, such as `((0+1)+2)`.
    fn of_node(leaves: &Leaves, node: Node) -> String {
        if node.level == 0 {
            return node.index.to_string();
        }
        match node.children(leaves) {
            (left, None) => of_node(leaves, left),
            (left, Some(right)) => format!("({}+{})", of_node(leaves, left), of_node(leaves, right)),
        }
    }

    #[test]
    fn the_tree_is_balanced_and_covers_all_leaves() -> Result<()> {
        let tree = |n: usize| Leaves::new(n, 1).map(|leaves| of_node(&leaves, leaves.root()));
        assert_eq!([tree(1)?, tree(3)?, tree(4)?], ["0", "((0+1)+2)", "((0+1)+(2+3))"]);
        assert_eq!(tree(6)?, "(((0+1)+(2+3))+(4+5))");
        assert_eq!(tree(7)?, "(((0+1)+(2+3))+((4+5)+6))");
        Ok(())
    }

    #[test]
    fn ranks_add_up_nodes_of_the_tree_and_nothing_else() -> Result<()> {
        for n_leaves in 1..=24 {
            for n_ranks in (1..=n_leaves).filter(|n| n_leaves % n == 0) {
                let leaves = Leaves::new(n_leaves, n_ranks)?;
                let mut covered = Vec::new();
                for rank in 0..n_ranks {
                    let mut whole = Whole::new(leaves);
                    for leaf in leaves.of_rank(rank) {
                        whole.push(leaf, leaf.to_string(), |a, b| Ok::<_, Error>(format!("({a}+{b})")))?;
                    }
                    for ((node, value), local) in whole.nodes.iter().zip(local_nodes(leaves, rank)) {
                        assert_eq!((*node, leaves.owner(*node)), (local, Some(rank)));
                        assert_eq!(*value, of_node(&leaves, *node));
                        covered.extend(leaves.covered(*node));
                    }
                }
                assert!(covered.into_iter().eq(0..n_leaves), "{leaves:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn leaves_that_cannot_be_shared_out_are_refused_with_the_next_number() {
        for (leaves, ranks, next) in [(1, 4, 4), (6, 4, 8), (5, 3, 6), (0, 2, 2)] {
            let error = Leaves::new(leaves, ranks).expect_err("they cannot").to_string();
            assert!(error.ends_with(&format!("the next number that can is {next}")), "{error}");
        }
    }
}
