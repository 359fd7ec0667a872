//! TensorBoard's event files: scalars by step, each in a record with checksums.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::protobuf::Message;

// Fields of `Event`, `Summary` and `Summary.Value`.
const WALL_TIME: u64 = 1;
const STEP: u64 = 2;
const FILE_VERSION: u64 = 3;
const SUMMARY: u64 = 5;
const VALUE: u64 = 1;
const TAG: u64 = 1;
const SIMPLE_VALUE: u64 = 2;

/// Writes scalars for TensorBoard, which finds them in the folder while they are written. A value is a float32, as TensorBoard has it.
#[derive(Debug)]
pub struct TensorBoardWriter {
    file: File,
}

impl TensorBoardWriter {
    /// Begins a file in a folder that is there, or in a new one.
    ///
    /// # Errors
    /// A folder or file that cannot be made.
    pub fn start(folder: &Path) -> io::Result<TensorBoardWriter> {
        std::fs::create_dir_all(folder)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // TensorBoard knows event files by this part of their name, and orders them by the time in it.
        let name = format!("events.out.tfevents.{}.plimsoll.{}", now.as_secs(), std::process::id());
        let mut board = TensorBoardWriter { file: plimsoll_file::create(&folder.join(name))? };
        board
            .write(Message::new().double(WALL_TIME, now.as_secs_f64()).text(FILE_VERSION, "brain.Event:2"))?;
        Ok(board)
    }

    /// The values of a step by their names, such as `loss` or `memory/in_use_bytes`.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut summary = Message::new();
        for (tag, value) in values {
            summary =
                summary.message(VALUE, Message::new().text(TAG, tag).float(SIMPLE_VALUE, *value as f32));
        }
        let event = Message::new().double(WALL_TIME, now.as_secs_f64()).number(STEP, step);
        self.write(event.message(SUMMARY, summary))
    }

    /// A record, in one piece: its length and its bytes, each with a checksum.
    fn write(&mut self, event: Message) -> io::Result<()> {
        let bytes = event.into_bytes();
        let length = (bytes.len() as u64).to_le_bytes();
        let mut record = length.to_vec();
        record.extend(masked(crc32c(&length)).to_le_bytes());
        record.extend(&bytes);
        record.extend(masked(crc32c(&bytes)).to_le_bytes());
        self.file.write_all(&record)
    }
}

/// Checksums of data that hold checksums are turned and shifted, as TFRecord has it.
fn masked(sum: u32) -> u32 {
    sum.rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// The checksum of Castagnoli's polynomial; crc32fast has the other one.
fn crc32c(bytes: &[u8]) -> u32 {
    let byte = |sum: u32, byte: &u8| {
        (0..8).fold(
            sum ^ u32::from(*byte),
            |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0x82F6_3B78 } else { sum >> 1 },
        )
    };
    !bytes.iter().fold(!0, byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
    }
}
