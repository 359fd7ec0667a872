//! Passes: from a program to one that computes the same bits with fewer calls.
//!
//! Each pass is a function of a program and says what it would change; [`Program::with_passes`] applies them in order, puts one op in the place
//! of the three that residual blocks end in, and fuses what is left. A pass keeps eager's bits: it removes or joins whole calls and never changes what a call computes or in which order sums
//! are made; draws keep their numbers, and a program takes as many as before. One rule is held here for all of them: **a pass that raises the peak is not
//! applied**, because memory is what a program is planned for.

mod block_ends;
mod casts;
mod dead_calls;
mod equal_calls;
mod fusion;
mod replace;
mod uses;

use super::Program;
use crate::base::error::Result;
use fusion::Holding;

/// What a pass would do to a program, in pieces that can be done one by one.
type Pass = fn(&Program) -> Vec<Change>;

/// The passes, in their order: what the others make dead goes last.
const PASSES: [Pass; 3] = [casts::identities, equal_calls::repeated, dead_calls::unread];

/// How many pieces of a pass are tried one by one where all of them together raise the peak: each try is a dry run.
const MOST_TRIES: usize = 64;

/// A change of a program: values that are read in place of others, and calls that are not made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    /// Values (old, new): whoever reads the old one reads the new one.
    replaced: Vec<(u32, u32)>,
    /// The calls that go.
    removed: Vec<u32>,
}

impl Program {
    /// The program after all passes; nothing if they change nothing.
    ///
    /// # Errors
    /// Memory beyond all addresses of a device.
    pub(super) fn with_passes(&self) -> Result<Option<Program>> {
        // What is planned from another rank's calls must have as many.
        if self.has_basis() {
            return Ok(None);
        }
        let mut passed: Option<Program> = None;
        for pass in PASSES {
            let before = passed.as_ref().unwrap_or(self);
            if let Some(after) = before.unless_peak_rises(&pass(before), Program::replacing)? {
                passed = Some(after);
            }
        }
        let before = passed.as_ref().unwrap_or(self);
        if let Some(joined) = before.unless_peak_rises(&block_ends::all(before), Program::joining)? {
            passed = Some(joined);
        }
        let before = passed.as_ref().unwrap_or(self);
        let groups = fusion::groups(before, Holding::WithinPeaks);
        let all = before.fusing(&groups);
        if !groups.is_empty() && !all.raises_peak_of(before)? {
            return Ok(Some(all));
        }
        let groups = fusion::groups(before, Holding::WithinSavings);
        let fused = before.unless_peak_rises(&groups, Program::fusing)?;
        Ok(fused.or(passed))
    }

    /// The program with those changes that do not raise its peak; nothing if there are none.
    fn unless_peak_rises<C: Clone>(
        &self,
        changes: &[C],
        applied: impl Fn(&Program, &[C]) -> Program,
    ) -> Result<Option<Program>> {
        if changes.is_empty() {
            return Ok(None);
        }
        let all = applied(self, changes);
        if !all.raises_peak_of(self)? {
            return Ok(Some(all));
        }
        let (mut kept, mut best) = (Vec::new(), None);
        for change in changes.iter().take(MOST_TRIES) {
            kept.push(change.clone());
            let changed = applied(self, &kept);
            match changed.raises_peak_of(self)? {
                true => _ = kept.pop(),
                false => best = Some(changed),
            }
        }
        Ok(best)
    }

    /// Whether this program has more bytes in use at its peak than another, on any device. Ranks that run the same plans have the
    /// same calls, so what differs from rank to rank is left out.
    fn raises_peak_of(&self, other: &Program) -> Result<bool> {
        if self.shares_plans() {
            let mut pairs = self.average_peaks().into_iter().zip(other.average_peaks());
            return Ok(pairs.any(|(ours, theirs)| ours > theirs));
        }
        let pairs = self.footprints()?.into_iter().zip(other.footprints()?);
        Ok(pairs.into_iter().any(|(ours, theirs)| ours.peak > theirs.peak))
    }
}
