//! What is worth knowing of a profile: the peak and who held it, how steps went, and what grows from step to step.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::io;

use plimsoll_memory::{Bytes, Owner, Rows};
use serde_json::Value;

use crate::growth::{GROWING_STEPS, Growth, Held, Watch};
use crate::profile::{Profile, Site};
use crate::replay::Moment;

/// How many rows a table has in the terminal.
pub(crate) const N_ROWS: usize = 20;

/// What a profile says.
#[derive(Debug)]
pub struct Explanation {
    about: Value,
    is_plan: bool,
    is_complete: bool,
    n_events: u64,
    /// The moment of the most bytes in use, with its blocks; the first if there are several.
    pub peak: Moment,
    /// The most bytes committed at any moment.
    pub peak_committed: u64,
    /// The steps, in order.
    pub steps: Vec<StepSummary>,
    /// What had grown over the last steps, largest first.
    pub growth: Vec<Growth>,
    /// Who held the bytes at the peak, largest first: owner, line, blocks, bytes. They add up.
    pub holders: Vec<(Owner, Site, u64, u64)>,
}

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSummary {
    /// Its number.
    pub step: u64,
    /// The time until the next step began, or until the last mark of the profile; of a plan, what its kernels take by formula.
    pub nanoseconds: u64,
    /// The most bytes in use.
    pub peak: u64,
    /// The bytes in use when it began.
    pub in_use: u64,
}

/// Something to do about the peak, as whoever recorded the profile has planned it.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// The options to write.
    pub options: String,
    /// By so much the peak is lower.
    pub saved_bytes: u64,
    /// The most bytes in use at a time then.
    pub peak_bytes: u64,
    /// By so much a step takes longer, by formula; less than zero if it is faster.
    pub more_ms: f64,
}

impl Action {
    /// The actions that a profile lists, in a form that is known.
    pub fn listed(about: &Value) -> Vec<Action> {
        let actions = &about["actions"];
        let known = actions["rows"].as_array().filter(|_| actions["version"] == 1);
        let action = |row: &Value| {
            Some(Action {
                options: row["options"].as_str()?.to_owned(),
                saved_bytes: row["saved_bytes"].as_u64()?,
                peak_bytes: row["peak_bytes"].as_u64()?,
                more_ms: row["more_ms"].as_f64()?,
            })
        };
        known.into_iter().flatten().filter_map(action).collect()
    }
}

impl Explanation {
    /// Explains a profile.
    ///
    /// # Errors
    /// A damaged profile.
    pub fn of(profile: &Profile) -> io::Result<Explanation> {
        let (mut peak, mut peak_committed, mut peak_event) = (0, 0, 0);
        let mut steps: Vec<StepSummary> = Vec::new();
        let is_plan = profile.about().get("is_plan").and_then(Value::as_bool) == Some(true);
        // A dry run takes no time that says anything; what its kernels would take does.
        let now = |moment: &Moment| if is_plan { moment.worked } else { moment.nanoseconds };
        let mut last_ns = 0;
        profile.replay(|moment| {
            peak_committed = peak_committed.max(moment.committed);
            if moment.in_use > peak {
                (peak, peak_event) = (moment.in_use, moment.event);
            }
            if moment.begins_step {
                end_step(&mut steps, now(moment));
                let (step, in_use) = (moment.step, moment.in_use);
                steps.push(StepSummary { step, nanoseconds: now(moment), peak: in_use, in_use });
            } else if let Some(step) = steps.last_mut() {
                step.peak = step.peak.max(moment.in_use);
            }
            last_ns = now(moment);
            true
        })?;
        end_step(&mut steps, last_ns);
        let (peak, growth) = second_pass(profile, peak_event, steps.len())?;
        Ok(Explanation {
            about: profile.about().clone(),
            is_plan,
            is_complete: profile.is_complete(),
            n_events: profile.n_events(),
            holders: holders(profile, &peak),
            peak,
            peak_committed,
            steps,
            growth,
        })
    }

    /// The bytes in use at the peak by owner; the rows add up.
    pub fn owners(&self) -> Rows {
        self.peak.rows()
    }
}

/// What began at that time has ended now.
fn end_step(steps: &mut [StepSummary], now: u64) {
    if let Some(step) = steps.last_mut() {
        step.nanoseconds = now.saturating_sub(step.nanoseconds);
    }
}

/// The peak with its blocks, and what grew over the last steps.
fn second_pass(profile: &Profile, peak_event: u64, n_steps: usize) -> io::Result<(Moment, Vec<Growth>)> {
    let (mut peak, mut n_begun) = (None, 0);
    let mut watch: Watch<u32> = Watch::default();
    profile.replay(|moment| {
        if moment.event == peak_event || peak.is_none() {
            peak = Some(moment.clone());
        }
        if moment.begins_step {
            n_begun += 1;
            // The last of these marks is one at which the watch looks at all blocks.
            if n_begun + GROWING_STEPS >= n_steps {
                watch.mark(moment.next_serial(), |see| {
                    for (&serial, block) in &moment.blocks {
                        see(Held { serial, owner: block.owner, site: block.site, bytes: block.bytes });
                    }
                });
            }
        }
        true
    })?;
    let peak =
        peak.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this profile has no events"))?;
    Ok((peak, watch.growth(|site| profile.site(site).clone())))
}

fn holders(profile: &Profile, moment: &Moment) -> Vec<(Owner, Site, u64, u64)> {
    let mut held: BTreeMap<(Owner, u32), (u64, u64)> = BTreeMap::new();
    for block in moment.blocks.values() {
        let (blocks, bytes) = held.entry((block.owner, block.site)).or_default();
        (*blocks, *bytes) = (*blocks + 1, *bytes + block.bytes);
    }
    let mut holders: Vec<(Owner, Site, u64, u64)> = held
        .into_iter()
        .map(|((owner, site), (blocks, bytes))| (owner, profile.site(site).clone(), blocks, bytes))
        .collect();
    holders.sort_by_key(|&(owner, _, _, bytes)| (Reverse(bytes), owner));
    holders
}

pub(crate) fn grouped(bytes: u64) -> String {
    Bytes::new(bytes).grouped()
}

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
        writeln!(f, "the profile of {kind}: {} events, {} steps", self.n_events, self.steps.len())?;
        if !self.is_complete {
            writeln!(f, "the recording was cut off: what came after its last step is missing")?;
        }
        writeln!(
            f,
            "at most {} in use at a time, {} committed",
            Bytes::new(self.peak.in_use),
            Bytes::new(self.peak_committed)
        )?;
        if let Some(predicted) = number("predicted_peak_bytes") {
            let equal = if predicted == self.peak.in_use { "as predicted" } else { "which differs" };
            writeln!(f, "predicted {}, {equal}", Bytes::new(predicted))?;
        }
        if let Some(limit) = number("limit_bytes") {
            writeln!(f, "limit {}", Bytes::new(limit))?;
        }
        let during = if self.peak.step == 0 { String::new() } else { format!("step {}, ", self.peak.step) };
        writeln!(f, "the peak is reached in {during}{}", self.peak.phase)
    }

    fn show_owners(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nbytes at the peak by owner")?;
        for (owner, bytes) in self.owners().iter().filter(|(_, bytes)| *bytes > 0) {
            let share = 100.0 * bytes as f64 / self.peak.in_use.max(1) as f64;
            writeln!(f, "  {:>18}  {share:>5.1} %  {owner}", grouped(bytes))?;
        }
        writeln!(f, "  {:>18}  100.0 %  in use", grouped(self.peak.in_use))
    }

    fn show_holders(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nwho holds them (bytes, blocks, owner, layer, op and line)")?;
        for (owner, site, blocks, bytes) in self.holders.iter().take(N_ROWS) {
            writeln!(f, "  {:>18}  {blocks:>6}  {owner:<10}  {site}", grouped(*bytes))?;
        }
        let rest = self.holders.iter().skip(N_ROWS);
        match rest.clone().count() {
            0 => Ok(()),
            n => {
                let (blocks, bytes) =
                    rest.fold((0, 0), |(blocks, bytes), row| (blocks + row.2, bytes + row.3));
                writeln!(f, "  {:>18}  {blocks:>6}  {n} more rows", grouped(bytes))
            }
        }
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
        let actions = Action::listed(&self.about);
        if actions.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nwhat would help (bytes less at the peak, ms a step more by formula, options)")?;
        for Action { options, saved_bytes, more_ms, .. } in actions {
            let options: String = options.chars().filter(|c| !c.is_control()).collect();
            writeln!(f, "  {:>18}  {more_ms:>+12.2}  {options}", grouped(saved_bytes))?;
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
