//! Two profiles side by side: what one needs more than the other, and who takes it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use plimsoll_memory::Bytes;

use crate::explain::{Explanation, N_ROWS, grouped};
use crate::works::Holding;

/// Two runs, or a run and its plan, compared at their peaks; [`Display`](fmt::Display) says how they differ.
#[derive(Debug)]
pub struct Comparison<'a> {
    /// The one that is asked about.
    pub this: &'a Explanation,
    /// The one that it is compared with.
    pub other: &'a Explanation,
}

impl Comparison<'_> {
    /// What differs at the peaks, the largest difference first: owner, layer, op and line, bytes of this and of the other.
    pub fn rows(&self) -> Vec<(String, u64, u64)> {
        let mut rows: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for Holding { owner, site, bytes, .. } in &self.this.holders {
            rows.entry(format!("{owner:<10}  {site}")).or_default().0 += bytes;
        }
        for Holding { owner, site, bytes, .. } in &self.other.holders {
            rows.entry(format!("{owner:<10}  {site}")).or_default().1 += bytes;
        }
        let mut rows: Vec<(String, u64, u64)> = rows
            .into_iter()
            .filter(|(_, (this, other))| this != other)
            .map(|(text, (this, other))| (text, this, other))
            .collect();
        rows.sort_by_key(|(_, this, other)| Reverse(this.abs_diff(*other)));
        rows
    }
}

impl fmt::Display for Comparison<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (this, other) = (&self.this.peak, &self.other.peak);
        writeln!(f, "at most in use   {}  against  {}", Bytes::new(this.in_use), Bytes::new(other.in_use))?;
        let committed = [self.this, self.other].map(|run| Bytes::new(run.peak_committed));
        writeln!(f, "at most committed  {}  against  {}", committed[0], committed[1])?;
        let place = |step: u64, phase: &str| match step {
            0 => phase.to_owned(),
            _ => format!("step {step}, {phase}"),
        };
        writeln!(
            f,
            "the peaks are in {} and {}",
            place(this.step, &this.phase),
            place(other.step, &other.phase)
        )?;
        writeln!(f, "\nbytes at the peaks by owner (difference, this, the other)")?;
        let (owners, others) = (self.this.owners(), self.other.owners());
        let totals = [("in use", this.in_use)].into_iter().zip([("in use", other.in_use)]);
        for ((owner, bytes), (_, beside)) in owners.iter().zip(others.iter()).chain(totals) {
            if bytes + beside > 0 {
                write_row(f, bytes, beside, owner)?;
            }
        }
        let rows = self.rows();
        if rows.is_empty() {
            return writeln!(f, "\nthe same lines hold the same bytes");
        }
        writeln!(f, "\nwho holds other bytes (difference, this, the other, owner, layer, op and line)")?;
        rows.iter().take(N_ROWS).try_for_each(|(text, this, other)| write_row(f, *this, *other, text))?;
        match rows.len().saturating_sub(N_ROWS) {
            0 => Ok(()),
            n => writeln!(f, "  {n} more rows differ"),
        }
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, this: u64, other: u64, text: &str) -> fmt::Result {
    let sign = if this > other {
        "+"
    } else if this < other {
        "-"
    } else {
        ""
    };
    let difference = format!("{sign}{}", grouped(this.abs_diff(other)));
    writeln!(f, "  {difference:>16}  {:>18}  {:>18}  {text}", grouped(this), grouped(other))
}
