//! An explanation in words, for a terminal.

use std::cmp::Reverse;
use std::fmt;

use plimsoll_memory::{Bytes, Owner, Price};
use serde_json::Value;

use crate::action::Action;
use crate::explain::{Explanation, N_ROWS, Shortage, StepSummary, grouped};
use crate::growth::GROWING_STEPS;
use crate::profile::Site;
use crate::works::Holding;

impl fmt::Display for Site {
    /// `encoder.dense matmul (src/main.rs:10, described at src/model.rs:7)`; texts of a file are shown without control
    /// characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |text: &str| text.chars().filter(|c| !c.is_control()).collect::<String>();
        let layer = if self.scope.is_empty() { String::new() } else { format!("{} ", plain(&self.scope)) };
        write!(f, "{layer}{}", plain(&self.op))?;
        match (&self.described, self.file.is_empty()) {
            (Some((file, line)), _) => write!(f, " ({}:{line})", plain(file)),
            (None, false) => write!(f, " ({}:{})", plain(&self.file), self.line),
            (None, true) => Ok(()),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show_head(f)?;
        self.show_owners(f)?;
        self.show_holders(f)?;
        self.show_why(f)?;
        self.show_steps(f)?;
        self.show_growth(f)?;
        self.show_actions(f)
    }
}

impl Explanation {
    fn show_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |key: &str| self.about.get(key).and_then(Value::as_str);
        let number = |key: &str| self.about.get(key).and_then(Value::as_u64);
        if let Some(recipe) = text("recipe") {
            write!(f, "{recipe}")?;
            text("device").map_or(Ok(()), |device| write!(f, " on {device}"))?;
            number("batch").map_or(Ok(()), |batch| write!(f, ", batch {batch}"))?;
            writeln!(f)?;
        }
        let kind =
            if self.about.get("is_plan").and_then(Value::as_bool) == Some(true) { "a plan" } else { "a run" };
        let n_steps: u64 = self.steps.iter().map(|step| step.n_steps).sum();
        writeln!(
            f,
            "the profile of {kind}: {} events, {n_steps} step{}",
            self.n_events,
            if n_steps == 1 { "" } else { "s" }
        )?;
        if self.n_steps_left_out > 0 {
            let n = self.n_steps_left_out;
            writeln!(
                f,
                "of {n} steps in the middle only summaries are there: the profile of a long run is bounded"
            )?;
        }
        if !self.is_complete {
            writeln!(f, "the recording was cut off: what came after its last step is missing")?;
        }
        writeln!(
            f,
            "at most {} in use at a time, {} committed",
            Bytes::new(self.peak.in_use),
            Bytes::new(self.peak_committed)
        )?;
        if let Some(refused) = text("refused") {
            let shown: String = refused.chars().filter(|c| !c.is_control()).collect();
            writeln!(f, "refused: {shown}")?;
        }
        if let Some(Shortage { bytes, in_use, step, phase, .. }) = &self.shortage {
            let place = if *step == 0 { phase.clone() } else { format!("step {step}, {phase}") };
            let (asked, held) = (Bytes::new(*bytes), Bytes::new(*in_use));
            writeln!(f, "out of memory: {asked} could not be had in {place}, with {held} in use")?;
        }
        self.show_run(f)?;
        let during = if self.peak.step == 0 { String::new() } else { format!("step {}, ", self.peak.step) };
        writeln!(f, "the peak is reached in {during}{}", self.peak.phase)
    }

    /// What is known of the run beside its blocks: prediction, limit and what it took to keep it, what lies outside the pool.
    fn show_run(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |key: &str| self.about.get(key).and_then(Value::as_u64);
        if let Some(predicted) = number("predicted_peak_bytes") {
            let equal = if predicted == self.peak.in_use { "as predicted" } else { "which differs" };
            writeln!(f, "predicted {}, {equal}", Bytes::new(predicted))?;
        }
        if let Some(limit) = number("limit_bytes") {
            writeln!(f, "limit {}", Bytes::new(limit))?;
        }
        if let Some(ops) = number("recomputed_ops").filter(|ops| *ops > 0) {
            writeln!(
                f,
                "recomputed to keep the limit: {ops} ops, {} flop",
                grouped(number("recomputed_flops").unwrap_or(0))
            )?;
        }
        if let Some(bytes) = number("offloaded_bytes").filter(|bytes| *bytes > 0) {
            writeln!(f, "offloaded to keep the limit: {}", Bytes::new(bytes))?;
        }
        if let Some(outside) = number("outside_bytes") {
            let who = match number("driver_used_bytes") {
                Some(used) => {
                    format!("context, kernels, libraries, other processes; the driver counts {used} B")
                }
                None => "code, stacks and libraries of the process".to_owned(),
            };
            writeln!(f, "outside the pool at the end {} ({who})", Bytes::new(outside))?;
        }
        Ok(())
    }

    fn show_owners(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nbytes at the peak by owner")?;
        for (owner, bytes) in self.owners().iter().filter(|(_, bytes)| *bytes > 0) {
            let share = 100.0 * bytes as f64 / self.peak.in_use.max(1) as f64;
            writeln!(f, "  {:>18}  {share:>5.1} %  {owner}", grouped(bytes))?;
        }
        writeln!(f, "  {:>18}  100.0 %  in use", grouped(self.peak.in_use))?;
        match self.n_checked {
            0 => Ok(()),
            n => {
                writeln!(f, "the pool's own count is in the profile at {n} moments, and is the same")
            }
        }
    }

    fn show_holders(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nwho holds them (bytes, blocks, owner, ms to recompute, layer, op and line)")?;
        for Holding { owner, site, blocks, bytes, price, .. } in self.holders.iter().take(N_ROWS) {
            let ms = match price {
                Price::Recompute { nanoseconds, .. } => format!("{:.3}", *nanoseconds as f64 / 1e6),
                Price::Never(_) => "-".to_owned(),
            };
            writeln!(f, "  {:>18}  {blocks:>6}  {owner:<10}  {ms:>9}  {site}", grouped(*bytes))?;
        }
        let rest = self.holders.iter().skip(N_ROWS);
        match rest.clone().count() {
            0 => Ok(()),
            n => {
                let (blocks, bytes) =
                    rest.fold((0, 0), |(blocks, bytes), row| (blocks + row.blocks, bytes + row.bytes));
                writeln!(f, "  {:>18}  {blocks:>6}  {n} more rows", grouped(bytes))
            }
        }
    }

    /// Why the largest of each owner are alive, and what it would take to have them again. Scratch memory goes with its op.
    fn show_why(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nwhy the largest of each owner are alive, and what having them again would take")?;
        let mut shown = vec![Owner::Workspace];
        for row in &self.holders {
            if shown.contains(&row.owner) {
                continue;
            }
            shown.push(row.owner);
            self.show_why_alive(f, row)?;
        }
        Ok(())
    }

    fn show_why_alive(&self, f: &mut fmt::Formatter<'_>, row: &Holding) -> fmt::Result {
        writeln!(f, "  {:>18}  {}  {}", grouped(row.bytes), row.owner, row.site)?;
        let indent = " ".repeat(22);
        if let Some((by, frees)) = &row.held {
            let by: String = by.chars().filter(|c| !c.is_control()).collect();
            writeln!(f, "{indent}kept alive by {by}; {} B go if that lets go", grouped(*frees))?;
        }
        match &row.read_next {
            Some((site, 0, phase)) => writeln!(f, "{indent}read next by {site}, in {phase}")?,
            Some((site, step, phase)) => writeln!(f, "{indent}read next by {site}, in step {step}, {phase}")?,
            None => writeln!(f, "{indent}no op of this recording reads it again")?,
        }
        let offload = self.offload_ms(row.bytes);
        let offload = offload.map_or(String::new(), |ms| format!("; {ms:.3} ms to offload and reload"));
        writeln!(f, "{indent}{}{offload}", row.price)
    }

    /// How long moving so many bytes out of the device and back takes, by formula, where it has somewhere to move them to.
    fn offload_ms(&self, bytes: u64) -> Option<f64> {
        let rate =
            self.about.get("offload_bytes_per_second").and_then(Value::as_u64).filter(|rate| *rate > 0);
        rate.map(|rate| 2e3 * bytes as f64 / rate as f64)
    }

    fn show_steps(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps.is_empty() {
            return Ok(());
        }
        let mut times: Vec<u64> = self.steps.iter().map(|step| step.nanoseconds).collect();
        times.sort_unstable();
        let median = times[times.len() / 2] as f64 / 1e6;
        let by = if self.is_plan { " by formula" } else { "" };
        writeln!(f, "\nsteps, {median:.2} ms in the middle{by}")?;
        writeln!(f, "  {:>8}  {:>12}  {:>18}  {:>18}", "step", "ms", "most in use", "in use before")?;
        let mut shown: Vec<&StepSummary> = self.steps.iter().take(3).collect();
        let busiest = self.steps.iter().max_by_key(|step| (step.peak, Reverse(step.step)));
        shown.extend(busiest.filter(|step| step.step > 3));
        let last = self.steps.last().filter(|last| last.step > 3 && Some(*last) != busiest);
        shown.extend(last);
        for step in shown {
            let ms = step.nanoseconds as f64 / 1e6;
            let (peak, before) = (grouped(step.peak), grouped(step.in_use));
            writeln!(f, "  {:>8}  {ms:>12.2}  {peak:>18}  {before:>18}", step.step)?;
        }
        Ok(())
    }

    /// What would help, if whoever recorded the profile has planned it.
    fn show_actions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.actions.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\nwhat would help (bytes less at the peak, ms a step more by formula, options or code to write)"
        )?;
        for Action { advice, saved_bytes, more_ms, .. } in &self.actions {
            let text: String = advice.text().chars().filter(|c| !c.is_control()).collect();
            writeln!(f, "  {:>18}  {more_ms:>+12.2}  {text}", grouped(*saved_bytes))?;
        }
        if self.is_of_trace {
            return writeln!(
                f,
                "  that is what the trace alone can tell; `train`, `plan` and `nn::plan::actions` plan other changes"
            );
        }
        match self.about["actions"]["is_complete"].as_bool() {
            Some(false) => writeln!(f, "  more was not tried, because there was no time for it"),
            _ => Ok(()),
        }
    }

    fn show_growth(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.growth.is_empty() {
            return match self.steps.len() > GROWING_STEPS {
                true => writeln!(f, "\nnothing has grown over the last {GROWING_STEPS} steps"),
                false => Ok(()),
            };
        }
        writeln!(
            f,
            "\nwhat grew over the last {GROWING_STEPS} steps (bytes a step, blocks a step, bytes now, owner, where they were made)"
        )?;
        for growth in self.growth.iter().take(N_ROWS) {
            let (per_step, bytes) = (grouped(growth.per_step), grouped(growth.bytes));
            let blocks = growth.added_blocks as f64 / GROWING_STEPS as f64;
            writeln!(
                f,
                "  {per_step:>14}  {blocks:>6.1}  {bytes:>18}  {:<10}  {}",
                growth.owner, growth.site
            )?;
        }
        Ok(())
    }
}
