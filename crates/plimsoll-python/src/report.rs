//! A report of memory as a Python object: of a device, or of the moment at which memory ran out.

use plimsoll::memory::Holder;
use pyo3::prelude::*;

/// Who holds the bytes in use: rows by owner and line that add up to them.
#[pyclass(frozen, get_all, module = "plimsoll")]
pub struct Report {
    /// The report as a table, for people.
    text: String,
    /// Bytes of live blocks, rounding included.
    in_use: u64,
    /// Bytes that the pool has taken from the system.
    committed: u64,
    /// The limit on `committed`.
    limit: Option<u64>,
    /// (owner, bytes, blocks, file, line, layer, op), largest first.
    rows: Vec<Row>,
}

type Row = (&'static str, u64, u64, &'static str, u32, &'static str, &'static str);

impl Report {
    /// A report of those holders.
    pub fn new(text: String, in_use: u64, committed: u64, limit: Option<u64>, holders: &[Holder]) -> Report {
        let row = |holder: &Holder| -> Row {
            let site = holder.site;
            (
                holder.owner.name(),
                holder.bytes,
                holder.blocks,
                site.file(),
                site.line(),
                site.scope(),
                site.op(),
            )
        };
        Report { text, in_use, committed, limit, rows: holders.iter().map(row).collect() }
    }
}

#[pymethods]
impl Report {
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> &str {
        &self.text
    }
}
