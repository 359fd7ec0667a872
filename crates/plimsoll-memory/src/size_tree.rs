//! Free extents ordered by (size, address): the index of best fit.
//!
//! A treap over the extents' own numbers. Its links live in one vector that only ever grows, so inserting and
//! removing allocate nothing in steady state; its priorities are a hash of the extent's number, so that a copy
//! of the tree goes on exactly like the original.

/// The number of an extent; numbers of vanished extents are used again.
pub(crate) type ExtentId = u32;

/// No extent.
pub(crate) const NONE: ExtentId = u32::MAX;

/// An ordered set of extents.
#[derive(Clone, Debug)]
pub(crate) struct SizeTree {
    root: ExtentId,
    /// Indexed by extent number; meaningful for members only.
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    /// (bytes, start), unique because extents do not overlap.
    key: (u64, u64),
    children: [ExtentId; 2],
}

/// A child position: of a node, or the root where the node is `NONE`.
type Slot = (ExtentId, usize);

const UNUSED: Link = Link { key: (0, 0), children: [NONE; 2] };

impl SizeTree {
    pub(crate) fn new() -> Self {
        Self { root: NONE, links: Vec::new() }
    }

    /// The smallest member of at least `bytes`, the one at the lowest address among equals.
    pub(crate) fn best_fit(&self, bytes: u64) -> Option<ExtentId> {
        let (mut node, mut best) = (self.root, NONE);
        while node != NONE {
            let link = self.link(node);
            let fits = link.key.0 >= bytes;
            if fits {
                best = node;
            }
            node = link.children[usize::from(!fits)];
        }
        (best != NONE).then_some(best)
    }

    /// The size of the largest member, or zero.
    pub(crate) fn largest(&self) -> u64 {
        let (mut node, mut bytes) = (self.root, 0);
        while node != NONE {
            bytes = self.link(node).key.0;
            node = self.link(node).children[1];
        }
        bytes
    }

    /// Adds an extent that is not a member.
    pub(crate) fn insert(&mut self, id: ExtentId, bytes: u64, start: u64) {
        if self.links.len() <= id as usize {
            self.links.resize(id as usize + 1, UNUSED);
        }
        let key = (bytes, start);
        let mut slot = (NONE, 0);
        let mut below = self.root;
        while below != NONE && priority(below) >= priority(id) {
            slot = (below, usize::from(self.link(below).key < key));
            below = self.child(slot);
        }
        self.links[id as usize] = Link { key, children: [NONE; 2] };
        self.set_child(slot, id);
        // What hung here is split into the keys below and above the new one.
        let (mut lower, mut upper) = ((id, 0), (id, 1));
        while below != NONE {
            if self.link(below).key < key {
                self.set_child(lower, below);
                lower = (below, 1);
                below = self.child(lower);
            } else {
                self.set_child(upper, below);
                upper = (below, 0);
                below = self.child(upper);
            }
        }
        self.set_child(lower, NONE);
        self.set_child(upper, NONE);
    }

    /// Removes a member.
    pub(crate) fn remove(&mut self, id: ExtentId) {
        let key = self.link(id).key;
        let mut slot = (NONE, 0);
        let mut node = self.root;
        while node != id {
            slot = (node, usize::from(self.link(node).key < key));
            node = self.child(slot);
        }
        let [mut lower, mut upper] = self.link(id).children;
        while lower != NONE && upper != NONE {
            if priority(lower) >= priority(upper) {
                self.set_child(slot, lower);
                slot = (lower, 1);
                lower = self.child(slot);
            } else {
                self.set_child(slot, upper);
                slot = (upper, 0);
                upper = self.child(slot);
            }
        }
        self.set_child(slot, if lower != NONE { lower } else { upper });
    }

    fn link(&self, id: ExtentId) -> &Link {
        &self.links[id as usize]
    }

    fn child(&self, (node, side): Slot) -> ExtentId {
        if node == NONE { self.root } else { self.links[node as usize].children[side] }
    }

    fn set_child(&mut self, (node, side): Slot, child: ExtentId) {
        if node == NONE {
            self.root = child;
        } else {
            self.links[node as usize].children[side] = child;
        }
    }
}

/// A fixed scrambling of the number: neighbouring numbers get unrelated priorities.
fn priority(id: ExtentId) -> u64 {
    let x = (u64::from(id) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Inserts and removes in a scrambled order and compares every answer with an ordered set.
    #[test]
    fn agrees_with_an_ordered_set() {
        let mut tree = SizeTree::new();
        let mut model = BTreeSet::new();
        let mut member = vec![None; 97];
        for round in 0..5000u64 {
            let id = (priority(round as u32) % 97) as usize;
            match member[id].take() {
                Some(key) => {
                    tree.remove(id as u32);
                    assert!(model.remove(&(key, id)));
                }
                None => {
                    let key = (512 * (priority(round as u32 + 7) % 20), id as u64);
                    tree.insert(id as u32, key.0, key.1);
                    model.insert((key, id));
                    member[id] = Some(key);
                }
            }
            for wanted in [0, 512, 4096, 9000, 20000] {
                let expected = model.range(((wanted, 0), 0)..).next().map(|&(_, id)| id as u32);
                assert_eq!(tree.best_fit(wanted), expected, "round {round}, {wanted} bytes");
            }
            assert_eq!(tree.largest(), model.last().map_or(0, |&((bytes, _), _)| bytes));
        }
    }
}
