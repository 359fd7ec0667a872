//! Checksums of values, for the checks that `PLIMSOLL_VERIFY=1` turns on.

use std::sync::LazyLock;

use crate::base::error::Result;
use crate::device::storage::Storage;

/// Whether every device verifies from the beginning.
pub(crate) static VERIFIES: LazyLock<bool> =
    LazyLock::new(|| std::env::var("PLIMSOLL_VERIFY").is_ok_and(|value| value == "1"));

/// How many bytes of a GPU's memory are looked at together.
const PIECE: usize = 1 << 16;

/// Stands for the bytes of a storage.
pub(crate) fn checksum(storage: &Storage) -> Result<u64> {
    let mut sum = storage.n_bytes() as u64;
    if storage.device().is_host() {
        mix(&mut sum, storage.bytes());
        return Ok(sum);
    }
    for start in (0..storage.n_bytes()).step_by(PIECE) {
        let bytes: Vec<u8> = storage.copy_out(start, PIECE.min(storage.n_bytes() - start))?;
        mix(&mut sum, &bytes);
    }
    Ok(sum)
}

/// Mixes bytes into a sum, eight at a time.
fn mix(sum: &mut u64, bytes: &[u8]) {
    for bytes in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        *sum = (*sum ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }
}
