//! The bytes in use while a chain of ops is repeated.

/// What each part of a chain adds and takes away.
pub(crate) struct Passage {
    pub parts: Vec<Part>,
    /// The values that stay when the chain has ended.
    pub staying: Vec<Staying>,
}

/// One part of a chain: an op that is repeated, or a value that is moved back.
pub(crate) struct Part {
    /// The bytes of what it makes.
    pub made: u64,
    /// Scratch memory while it runs.
    pub workspace: u64,
    /// The bytes of what nobody needs any more when it has ended.
    pub gone: u64,
}

/// A value that stays, although no part after `end` reads it.
pub(crate) struct Staying {
    pub number: u32,
    pub bytes: u64,
    pub end: usize,
}

impl Passage {
    /// From now on only these stay; the others go as soon as the chain no longer reads them.
    pub fn give_up(&mut self, stay: &[u32]) {
        let parts = &mut self.parts;
        self.staying.retain(|value| {
            let stays = stay.contains(&value.number);
            if !stays {
                parts[value.end].gone += value.bytes;
            }
            stays
        });
    }

    /// The most bytes in use, of which there are so many before the chain begins.
    pub fn peak(&self, before: u64) -> u64 {
        let (mut now, mut most) = (before, before);
        for part in &self.parts {
            now += part.made;
            most = most.max(now + part.workspace);
            now -= part.gone;
        }
        most
    }
}
