//! `device.report()`: who holds the bytes in use.

use std::fmt;

use plimsoll_memory::{Bytes, Snapshot, Stats};

use crate::device::Device;

/// The bytes of a device by owner; the rows add up to the bytes in use.
#[derive(Clone, Debug)]
pub struct Report {
    device: String,
    stats: Stats,
    snapshot: Snapshot,
    foreign: Bytes,
    graphs: Bytes,
}

impl Report {
    pub(crate) fn of(device: &Device) -> Report {
        Report {
            device: device.name().to_owned(),
            stats: device.stats(),
            snapshot: device.snapshot(),
            foreign: device.foreign_bytes(),
            graphs: Bytes::new(device.graph_bytes()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "memory of {}", self.device)?;
        self.snapshot.fmt(f)?;
        writeln!(f)?;
        let outside = [
            (self.foreign, "foreign     memory that others have, in no pool"),
            (
                self.graphs,
                "driver      executables of CUDA graphs at most, set aside from the limit, in no pool",
            ),
        ];
        for (bytes, what) in outside.iter().filter(|(bytes, _)| bytes.get() > 0) {
            writeln!(f, "{:>20}           {what}", bytes.grouped())?;
        }
        write!(
            f,
            "in use {} B, committed {} B, peak in use {} B, peak committed {} B",
            Bytes::new(self.stats.in_use).grouped(),
            Bytes::new(self.stats.committed).grouped(),
            Bytes::new(self.stats.peak_in_use).grouped(),
            Bytes::new(self.stats.peak_committed).grouped()
        )
    }
}
