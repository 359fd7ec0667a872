//! Protobuf's wire format, as far as our messages go: numbers, doubles, floats, texts, and messages inside messages.

use crate::code::put;

/// A message that is being written.
#[derive(Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub fn new() -> Message {
        Message::default()
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn tag(&mut self, field: u64, wire_type: u64) {
        put(field << 3 | wire_type, &mut self.0);
    }

    pub fn number(mut self, field: u64, number: u64) -> Message {
        self.tag(field, 0);
        put(number, &mut self.0);
        self
    }

    pub fn double(mut self, field: u64, number: f64) -> Message {
        self.tag(field, 1);
        self.0.extend(number.to_le_bytes());
        self
    }

    pub fn float(mut self, field: u64, number: f32) -> Message {
        self.tag(field, 5);
        self.0.extend(number.to_le_bytes());
        self
    }

    pub fn text(self, field: u64, text: &str) -> Message {
        self.bytes(field, text.as_bytes())
    }

    pub fn message(self, field: u64, message: Message) -> Message {
        self.bytes(field, &message.0)
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Message {
        self.tag(field, 2);
        put(bytes.len() as u64, &mut self.0);
        self.0.extend(bytes);
        self
    }
}
