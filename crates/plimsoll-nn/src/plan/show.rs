//! A plan as a person reads it in a terminal.

use std::fmt;

use plimsoll_tensor::Bytes;

use super::{Moment, Plan};

/// Rows of a list.
const LISTED: usize = 8;
/// Rows of the timeline, and the length of its bars.
const TIMELINE: usize = 16;
const BAR: usize = 32;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peak, committed) = (Bytes::new(self.peak_bytes), Bytes::new(self.committed_bytes));
        writeln!(f, "at most {peak} in use at a time, {committed} taken from the device")?;
        match (self.limit.map(Bytes::new), self.fits()) {
            (Some(limit), true) => writeln!(f, "fits the limit of {limit}")?,
            (Some(limit), false) => writeln!(f, "does not fit the limit of {limit}")?,
            (None, _) => writeln!(f, "there is no limit")?,
        }
        self.show_overhead(f)?;
        let at = self.peak_at;
        let place: Vec<&str> = [at.layer, at.op].into_iter().filter(|word| !word.is_empty()).collect();
        writeln!(f, "the peak is reached in step {}, {}: {}", at.step, at.phase, place.join(" "))?;
        self.show_owners(f)?;
        self.show_layers(f)?;
        self.show_holders(f)?;
        self.show_timeline(f)
    }
}

impl Plan {
    /// What keeping the limit costs, if it costs anything.
    fn show_overhead(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ops, gigaflops) = (self.repeated.ops, self.repeated.flops as f64 / 1e9);
        if ops > 0 {
            let ops = grouped(ops);
            writeln!(f, "keeping the limit recomputes {ops} ops of the run ({gigaflops:.3} GFLOP)")?;
        }
        if self.offloaded_bytes > 0 {
            let bytes = Bytes::new(self.offloaded_bytes);
            writeln!(f, "keeping the limit offloads {bytes} in the run")?;
        }
        Ok(())
    }

    fn share(&self, bytes: u64) -> f64 {
        100.0 * bytes as f64 / self.peak_bytes.max(1) as f64
    }

    fn row(&self, f: &mut fmt::Formatter<'_>, bytes: u64, what: impl fmt::Display) -> fmt::Result {
        writeln!(f, "  {:>18}  {:>5.1} %  {what}", grouped(bytes), self.share(bytes))
    }

    fn show_owners(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nbytes at the peak by owner")?;
        let rows = self.owners.iter().filter(|(_, bytes)| *bytes > 0);
        for (owner, bytes) in rows {
            self.row(f, bytes, owner)?;
        }
        self.row(f, self.peak_bytes, "in use")
    }

    fn show_layers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nby layer")?;
        for (layer, bytes) in self.layers.iter().take(LISTED) {
            self.row(f, *bytes, if layer.is_empty() { "outside all layers" } else { layer })?;
        }
        let rest: Vec<u64> = self.layers.iter().skip(LISTED).map(|(_, bytes)| *bytes).collect();
        if rest.is_empty() {
            return Ok(());
        }
        self.row(f, rest.iter().sum(), format!("{} other layers", rest.len()))
    }

    fn show_holders(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nlargest holders")?;
        for holder in self.holders.iter().take(LISTED) {
            self.row(f, holder.bytes, format!("{:<11} {:#}", holder.owner, holder.site))?;
        }
        Ok(())
    }

    /// The step that needs most, in rows that each stand for a few ops: the largest of each is shown.
    fn show_timeline(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.timeline.is_empty() {
            return Ok(());
        }
        let (n_ops, time) = (self.timeline.len(), self.step_nanoseconds as f64 / 1e6);
        writeln!(f, "\nthe step that needs most: {n_ops} ops, about {time:.1} ms by formula")?;
        let most = self.committed_bytes.max(1);
        for ops in self.timeline.chunks(n_ops.div_ceil(TIMELINE)) {
            let Some(moment) = ops.iter().max_by_key(|moment| moment.in_use) else { continue };
            let place = [moment.site.scope(), moment.site.op()].join(" ");
            let (phase, bar, in_use) = (moment.phase, bar(moment, most), grouped(moment.in_use));
            writeln!(f, "  {phase:<8} {bar} {in_use:>18}  {}", place.trim_start())?;
        }
        Ok(())
    }
}

/// Bytes in use as `#`, committed as `-`.
fn bar(moment: &Moment, most: u64) -> String {
    let length = |bytes: u64| (bytes as u128 * BAR as u128 / u128::from(most)) as usize;
    let (in_use, committed) = (length(moment.in_use).min(BAR), length(moment.committed).min(BAR));
    let free = committed.saturating_sub(in_use);
    format!("{}{}{}", "#".repeat(in_use), "-".repeat(free), " ".repeat(BAR - in_use - free))
}

fn grouped(bytes: u64) -> String {
    Bytes::new(bytes).grouped()
}
