//! `device.report()`: who holds the bytes in use.

use std::fmt;

use plimsoll_memory::{Snapshot, Stats};

use crate::device::Device;

/// The bytes of a device by owner; the rows add up to the bytes in use.
#[derive(Clone, Debug)]
pub struct Report {
    device: String,
    stats: Stats,
    snapshot: Snapshot,
}

impl Report {
    pub(crate) fn of(device: &Device) -> Report {
        Report { device: device.name().to_owned(), stats: device.stats(), snapshot: device.snapshot() }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "memory of {}", self.device)?;
        self.snapshot.fmt(f)?;
        writeln!(f)?;
        write!(
            f,
            "in use {} B, committed {} B, peak in use {} B, peak committed {} B",
            grouped(self.stats.in_use),
            grouped(self.stats.committed),
            grouped(self.stats.peak_in_use),
            grouped(self.stats.peak_committed)
        )
    }
}

/// A number with its thousands set apart.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(12_000_004), "12,000,004");
    }
}
