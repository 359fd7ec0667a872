//! What several examples measure alike.

use plimsoll::prelude::*;

/// The bytes in use that were asked for, without rounding.
#[allow(dead_code, reason = "not every example asks for it")]
pub fn in_use(device: &Device) -> u64 {
    let stats = device.stats();
    stats.in_use - stats.rounding
}

/// The bytes of an owner.
#[allow(dead_code, reason = "not every example asks for it")]
pub fn owned(device: &Device, owner: Owner) -> u64 {
    device.stats().rows().get(owner)
}

/// A checksum of every bit of some tensors, read row by row so that nothing of their size leaves the pool.
#[allow(dead_code, reason = "not every example asks for it")]
pub fn bits<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<u64> {
    let mut sum = 0xCBF2_9CE4_8422_2325u64;
    for tensor in tensors {
        for row in 0..tensor.shape().first().copied().unwrap_or(0) {
            for value in tensor.narrow(0, row, 1)?.to_vec::<f32>()? {
                sum = (sum ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01B3);
            }
        }
    }
    Ok(sum)
}
