//! The bytes in use while a chain of ops is recomputed.

/// What each link of a chain allocates and frees.
pub(crate) struct ChainMemory {
    pub links: Vec<ChainLink>,
    /// The values that are retained when the chain has ended.
    pub retained: Vec<Retained>,
}

/// One link of a chain: an op that is recomputed, or a value that is reloaded.
pub(crate) struct ChainLink {
    /// The bytes of what it makes.
    pub made: u64,
    /// Scratch memory while it runs.
    pub workspace: u64,
    /// The bytes of what nothing needs any more when it has ended.
    pub freed: u64,
}

/// A value that is retained, although no link after `end` reads it.
pub(crate) struct Retained {
    pub number: u32,
    pub bytes: u64,
    pub end: usize,
}

impl ChainMemory {
    /// From now on a value is not retained: it is freed as soon as the chain no longer reads it.
    pub fn give_up(&mut self, number: u32) {
        let links = &mut self.links;
        self.retained.retain(|value| {
            if value.number == number {
                links[value.end].freed += value.bytes;
            }
            value.number != number
        });
    }

    /// The peak of bytes in use, of which there are `before` when the chain begins.
    pub fn peak(&self, before: u64) -> u64 {
        let (mut now, mut most) = (before, before);
        for link in &self.links {
            now += link.made;
            most = most.max(now + link.workspace);
            now -= link.freed;
        }
        most
    }
}
