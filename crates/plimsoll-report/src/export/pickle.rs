//! Writing pickles: the few opcodes of protocol 2 that dictionaries, lists, texts and numbers need.

use std::collections::HashMap;

/// Writes one value as a pickle. Texts that come again are written once.
#[derive(Default)]
pub(super) struct Pickler {
    bytes: Vec<u8>,
    texts: HashMap<String, u32>,
    n_memos: u32,
}

impl Pickler {
    pub fn new() -> Pickler {
        Pickler { bytes: vec![0x80, 2], ..Pickler::default() }
    }

    /// The pickle, once its value is complete.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }

    pub fn number(&mut self, number: u64) {
        match i32::try_from(number) {
            Ok(small) => {
                self.bytes.push(b'J');
                self.bytes.extend(small.to_le_bytes());
            }
            Err(_) => {
                // Little-endian, with a sign: a ninth byte keeps the highest bit from being one.
                self.bytes.extend([0x8A, 9]);
                self.bytes.extend(number.to_le_bytes());
                self.bytes.push(0);
            }
        }
    }

    pub fn truth_of(&mut self, key: &str, is_so: bool) {
        self.text(key);
        self.bytes.push(if is_so { 0x88 } else { 0x89 });
    }

    pub fn text(&mut self, text: &str) {
        if let Some(&memo) = self.texts.get(text) {
            self.get(memo);
            return;
        }
        self.bytes.push(b'X');
        self.bytes.extend((text.len() as u32).to_le_bytes());
        self.bytes.extend(text.as_bytes());
        let memo = self.memo();
        self.texts.insert(text.to_owned(), memo);
    }

    /// Remembers the value that was written last; see [`Pickler::get`].
    pub fn memo(&mut self) -> u32 {
        self.bytes.push(b'r');
        self.bytes.extend(self.n_memos.to_le_bytes());
        self.n_memos += 1;
        self.n_memos - 1
    }

    /// A value that is remembered.
    pub fn get(&mut self, memo: u32) {
        self.bytes.push(b'j');
        self.bytes.extend(memo.to_le_bytes());
    }

    /// Begins a list; its values follow, and then [`Pickler::end_list`].
    pub fn begin_list(&mut self) {
        self.bytes.extend(*b"](");
    }

    pub fn end_list(&mut self) {
        self.bytes.push(b'e');
    }

    /// Begins a dictionary; keys and values follow in turn, and then [`Pickler::end_dict`].
    pub fn begin_dict(&mut self) {
        self.bytes.extend(*b"}(");
    }

    pub fn end_dict(&mut self) {
        self.bytes.push(b'u');
    }

    pub fn empty_list(&mut self) {
        self.bytes.push(b']');
    }

    pub fn text_of(&mut self, key: &str, text: &str) {
        self.text(key);
        self.text(text);
    }

    pub fn number_of(&mut self, key: &str, number: u64) {
        self.text(key);
        self.number(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Python's `pickletools.dis` reads them.
    #[test]
    fn values_have_the_opcodes_of_protocol_2() {
        let mut pickler = Pickler::new();
        pickler.begin_dict();
        pickler.number_of("a", 7);
        pickler.text("b");
        pickler.begin_list();
        pickler.text("a");
        pickler.end_list();
        pickler.end_dict();
        let expected = b"\x80\x02}(X\x01\0\0\0ar\0\0\0\0J\x07\0\0\0X\x01\0\0\0br\x01\0\0\0](j\0\0\0\0eu.";
        assert_eq!(pickler.finish(), expected);
        let mut large = Pickler::new();
        large.number(1 << 40);
        assert_eq!(large.finish(), b"\x80\x02\x8a\x09\0\0\0\0\0\x01\0\0\0.");
    }
}
