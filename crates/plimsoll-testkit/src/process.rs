//! The process's memory as the system sees it.

use std::fs;
use std::io;

/// Figures of `/proc/self/status`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// The most that was ever resident (`VmHWM`).
    pub peak_resident: u64,
    /// What is resident now and backed by no file (`RssAnon`).
    pub anonymous: u64,
}

impl ProcessMemory {
    /// The figures of this process now.
    ///
    /// # Errors
    /// A system that does not show them.
    pub fn now() -> io::Result<ProcessMemory> {
        ProcessMemory::parse(&fs::read_to_string("/proc/self/status")?)
    }

    fn parse(status: &str) -> io::Result<ProcessMemory> {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            let missing =
                || io::Error::new(io::ErrorKind::InvalidData, format!("the status has no `{name}`"));
            Ok::<u64, io::Error>(kib.ok_or_else(missing)? * 1024)
        };
        Ok(ProcessMemory { peak_resident: field("VmHWM")?, anonymous: field("RssAnon")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_read_in_bytes() -> io::Result<()> {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nRssAnon:\t     512 kB\n";
        let memory = ProcessMemory::parse(status)?;
        assert_eq!(memory, ProcessMemory { peak_resident: 2 << 20, anonymous: 512 << 10 });
        assert!(ProcessMemory::parse("VmHWM:\t 1 kB\n").is_err());
        Ok(())
    }
}
