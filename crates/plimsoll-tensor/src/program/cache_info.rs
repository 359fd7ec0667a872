//! What a function keeps: its signatures, with what their programs take and how often they were used.

use std::fmt;

use plimsoll_memory::Bytes;

/// The programs of a function, as [`Function::cache`](crate::Function::cache) lists them; prints as a table.
#[doc(alias("cache_info", "lru_cache"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheInfo {
    /// The programs, the most recently used first.
    pub programs: Vec<CachedProgram>,
    /// The most bytes of the heap that they may take together.
    pub most_bytes: u64,
    /// How many programs were dropped because there was no room for them.
    pub n_evicted: u64,
}

/// One signature of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedProgram {
    /// Dtype and shape of each tensor, and where they lie if not on the CPU.
    pub signature: String,
    /// The bytes of the heap that its program, plans and key take.
    pub heap_bytes: u64,
    /// The bytes of devices that it alone owns: constants that were made while it was recorded, owner `graph`, and what the driver
    /// takes for its CUDA graphs at most.
    pub device_bytes: u64,
    /// How often it was run.
    pub n_calls: u64,
    /// How often it was found, so that nothing was recorded.
    pub n_hits: u64,
}

impl CacheInfo {
    /// The bytes of the heap that all programs take.
    pub fn heap_bytes(&self) -> u64 {
        self.programs.iter().map(|program| program.heap_bytes).sum()
    }

    /// The bytes of devices that all programs own.
    pub fn device_bytes(&self) -> u64 {
        self.programs.iter().map(|program| program.device_bytes).sum()
    }
}

impl fmt::Display for CacheInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.programs.iter().map(|program| program.signature.chars().count()).max();
        let width = width.unwrap_or(0).max("signature".len());
        let heads = ["heap", "device", "calls", "hits"];
        writeln!(
            f,
            "{:width$}  {:>24}  {:>24}  {:>8}  {:>8}",
            "signature", heads[0], heads[1], heads[2], heads[3]
        )?;
        for program in &self.programs {
            let (heap, device) = (Bytes::new(program.heap_bytes), Bytes::new(program.device_bytes));
            let (heap, device) = (heap.to_string(), device.to_string());
            writeln!(
                f,
                "{:width$}  {heap:>24}  {device:>24}  {:>8}  {:>8}",
                program.signature, program.n_calls, program.n_hits
            )?;
        }
        let (programs, evicted) = (self.programs.len(), self.n_evicted);
        let (heap, most) = (Bytes::new(self.heap_bytes()), Bytes::new(self.most_bytes));
        write!(f, "{programs} programs, {heap} of at most {most}, {evicted} evicted")
    }
}
