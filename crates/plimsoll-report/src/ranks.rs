//! The profiles of the ranks of one run, side by side.
//!
//! Each rank of a run records a profile of its own, which says which rank it is of. Together they are a table with a row for each; what
//! there is to know of one rank its own profile says.

use std::fmt;
use std::io;

use plimsoll_memory::Bytes;
use serde_json::Value;

use crate::explain::{Explanation, grouped};

/// The ranks of a run; [`Display`](fmt::Display) says what each held at most, and when.
#[derive(Debug)]
pub struct Ranks<'a> {
    /// By their numbers.
    ranks: Vec<(u64, &'a Explanation)>,
}

impl<'a> Ranks<'a> {
    /// The ranks of one run, in any order.
    ///
    /// # Errors
    /// A profile that is of no run of several ranks, or of another run, or of a rank that is there already.
    pub fn of(explanations: &'a [Explanation]) -> io::Result<Ranks<'a>> {
        let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let number =
            |explanation: &Explanation, key: &str| explanation.about.get(key).and_then(Value::as_u64);
        let mut ranks: Vec<(u64, &Explanation)> = Vec::new();
        for explanation in explanations {
            let (Some(rank), Some(n_ranks)) = (number(explanation, "rank"), number(explanation, "ranks"))
            else {
                return wrong("a profile does not say which rank it is of".to_owned());
            };
            let is_same = |key: &str| explanations[0].about.get(key) == explanation.about.get(key);
            if let Some(key) =
                ["version", "recipe", "batch", "ranks", "is_plan"].iter().find(|key| !is_same(key))
            {
                return wrong(format!("the profile of rank {rank} is of another run: its {key} differs"));
            }
            if rank >= n_ranks || ranks.iter().any(|(known, _)| *known == rank) {
                return wrong(format!("there are two profiles of rank {rank}, or the run has no such rank"));
            }
            ranks.push((rank, explanation));
        }
        ranks.sort_by_key(|(rank, _)| *rank);
        Ok(Ranks { ranks })
    }

    /// The rank that had most bytes in use, and its explanation.
    pub fn worst(&self) -> Option<(u64, &'a Explanation)> {
        // Of equal ones the first.
        self.ranks.iter().rev().max_by_key(|(_, explanation)| explanation.peak.in_use).copied()
    }
}

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ranks (rank, most in use, committed, as predicted, when)", self.ranks.len())?;
        for (rank, explanation) in &self.ranks {
            let Explanation { peak, peak_committed, about, .. } = explanation;
            let predicted = match about.get("predicted_peak_bytes").and_then(Value::as_u64) {
                None => "not predicted",
                Some(bytes) if bytes == peak.in_use => "as predicted",
                Some(_) => "not as predicted",
            };
            let step = if peak.step == 0 { String::new() } else { format!("step {}, ", peak.step) };
            let (in_use, committed) = (grouped(peak.in_use), grouped(*peak_committed));
            writeln!(f, "  {rank:>5}  {in_use:>18}  {committed:>18}  {predicted:>16}  {step}{}", peak.phase)?;
        }
        match (self.worst(), self.ranks.iter().map(|(_, explanation)| explanation.peak.in_use).min()) {
            (Some((rank, worst)), Some(least)) if worst.peak.in_use > least => {
                let more = Bytes::new(worst.peak.in_use - least);
                writeln!(f, "rank {rank} holds most, {more} more than the one that holds least")
            }
            _ => Ok(()),
        }
    }
}
