//! Changes to contents that were good, drawn from a seed.

/// Words that parsers look for, and numbers that are hard to count.
const WORDS: [&[u8]; 24] = [
    b"\"",
    b"'",
    b",",
    b"\n",
    b"\r\n",
    b"{",
    b"}",
    b"[",
    b"]",
    b"(",
    b")",
    b":",
    b"0",
    b"-1",
    b"1e999",
    b"NaN",
    b"18446744073709551615",
    b"9223372036854775807",
    b"4294967296",
    b"null",
    b"\xFF\xFE",
    b"\xEF\xBB\xBF",
    b"{x..}",
    b"\\u0000",
];
/// The most that contents grow to.
const LONGEST: usize = 64 << 10;

/// Draws contents for one parser.
pub struct Mutator {
    state: u64,
    corpus: Vec<Vec<u8>>,
}

impl Mutator {
    /// Contents that follow from seed, name and corpus.
    pub fn new(seed: u64, name: &str, corpus: Vec<Vec<u8>>) -> Mutator {
        let state =
            name.bytes().fold(seed, |state, byte| state.wrapping_mul(31).wrapping_add(u64::from(byte)));
        Mutator { state, corpus }
    }

    /// A number of Vigna's splitmix64, below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end.max(1) as u64) as usize
    }

    /// The next contents: one of the corpus with one to six changes.
    pub fn next(&mut self) -> Vec<u8> {
        let chosen = self.below(self.corpus.len());
        let mut contents = self.corpus[chosen].clone();
        for _ in 0..1 + self.below(6) {
            self.change(&mut contents);
            contents.truncate(LONGEST);
        }
        contents
    }

    fn change(&mut self, contents: &mut Vec<u8>) {
        let len = contents.len();
        let (at, end) = (self.below(len + 1), self.below(len + 1));
        let (start, end) = (at.min(end), at.max(end));
        match self.below(9) {
            0 if len > 0 => contents[at % len] ^= 1 << self.below(8),
            1 if len > 0 => contents[at % len] = [0, 1, 0x7F, 0x80, 0xFF, b' ', b'9', b'\n'][self.below(8)],
            2 => contents.truncate(at),
            3 => drop(contents.drain(start..end.min(start + 16))),
            4 => {
                let word = WORDS[self.below(WORDS.len())];
                contents.splice(at..at, word.iter().copied());
            }
            5 => {
                let word = WORDS[self.below(WORDS.len())];
                contents.splice(start..end.min(start + word.len()), word.iter().copied());
            }
            6 => {
                // A part again and again.
                let part = contents[start..end.min(start + 64)].repeat(1 + self.below(40));
                contents.splice(at..at, part);
            }
            7 => {
                let other = self.below(self.corpus.len());
                let other = &self.corpus[other];
                let from = end.min(other.len());
                let part = other[start.min(from)..from].to_vec();
                contents.splice(start..end, part);
            }
            _ => {
                // A number in eight bytes, as the formats write lengths.
                let number = [0, 1, 7, 1 << 31, 1 << 32, 1 << 60, u64::MAX, self.state][self.below(8)];
                let bytes = if self.below(2) == 0 { number.to_le_bytes() } else { number.to_be_bytes() };
                contents.splice(start..end.min(start + 8), bytes);
            }
        }
    }
}
