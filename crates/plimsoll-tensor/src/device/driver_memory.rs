//! A GPU's memory by its driver's account and by the pool's, which must agree.

use std::fmt;

use plimsoll_memory::Bytes;

/// What a driver says of its GPU's memory, beside what the pool of a device has of it. Whatever the driver counts as used
/// is either committed by the pool, to the byte, or lies outside: the driver's context, loaded kernels, libraries, other
/// pools and other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverMemory {
    /// What there is.
    pub total: u64,
    /// What the driver counts as used.
    pub used: u64,
    /// The part of it that the pool has committed.
    pub committed: u64,
    /// What executables of CUDA graphs of this device's programs take at most of what lies outside the pool.
    pub graphs: u64,
    /// What communicators between GPUs have taken of what lies outside the pool, as the driver counted before and after.
    pub communicators: u64,
}

impl DriverMemory {
    /// What lies outside the pool.
    pub fn outside(&self) -> u64 {
        // The two figures are read one after the other; what others gave back in between is not negative memory.
        self.used.saturating_sub(self.committed)
    }

    /// What is free.
    pub fn free(&self) -> u64 {
        self.total - self.used
    }
}

/// A table whose second and third rows add up to its first, to the byte.
impl fmt::Display for DriverMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.used, "used, as the driver counts:"),
            (self.committed, "committed by the pool"),
            (self.outside(), "outside it: context, kernels, libraries, other processes"),
            (self.graphs, "of that at most for executables of CUDA graphs, set aside from the limit"),
            (self.communicators, "of that for communicators between GPUs, measured when they were made"),
        ];
        let rows = || all.iter().enumerate().filter(|(number, (bytes, _))| *number < 3 || *bytes > 0);
        let widest = rows().map(|(_, (bytes, _))| Bytes::new(*bytes).to_string().len()).max().unwrap_or(0);
        for (number, (bytes, meaning)) in rows() {
            let line = if number == 0 { "" } else { "\n" };
            write!(f, "{line}{:>widest$}  {meaning}", Bytes::new(*bytes).to_string())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_add_up() {
        let memory =
            DriverMemory { total: 8 << 30, used: 5_000_000, committed: 4 << 20, graphs: 0, communicators: 0 };
        assert_eq!(
            (memory.committed + memory.outside(), memory.free()),
            (memory.used, (8 << 30) - 5_000_000)
        );
        let lines: Vec<String> = memory.to_string().lines().map(str::to_owned).collect();
        assert_eq!(lines[0], "4.77 MiB (5,000,000 B)  used, as the driver counts:");
        assert_eq!(lines[1], "4.00 MiB (4,194,304 B)  committed by the pool");
        assert!(lines[2].starts_with("786.81 KiB (805,696 B)  outside it: "), "{}", lines[2]);
        let with_others = DriverMemory { communicators: 4096, ..memory }.to_string();
        let row = with_others.lines().last().unwrap_or_default();
        assert!(row.contains("4,096 B") && row.contains("communicators between GPUs"), "{with_others}");
        assert_eq!((lines.len(), with_others.lines().count()), (3, 4), "rows of nothing are left out");
        // What others gave back between the two looks is no error.
        assert_eq!(DriverMemory { used: 1, ..memory }.outside(), 0);
    }
}
