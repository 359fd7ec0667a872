//! What is worth knowing of a profile: the peak and who held it, how steps went, and what grows from step to step.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::ops::Range;

use plimsoll_memory::{Bytes, OUT_OF_MEMORY, Owner, Price, Rows};
use serde_json::Value;

use crate::action::Action;
use crate::growth::{GROWING_STEPS, Growth, Held, Watch};
use crate::profile::Profile;
use crate::replay::{Change, Moment};
use crate::stretch::Stretch;
use crate::unused;
use crate::works::{Holding, Works};

/// How many rows a table has in the terminal.
pub(crate) const N_ROWS: usize = 20;

/// What a profile says.
#[derive(Debug)]
pub struct Explanation {
    pub(crate) about: Value,
    pub(crate) is_plan: bool,
    pub(crate) is_complete: bool,
    pub(crate) n_events: u64,
    /// How many steps there were of which only summaries are in the profile.
    pub n_steps_left_out: u64,
    /// At how many moments the pool's own count of bytes is in the profile, and is the same.
    pub n_checked: u64,
    /// The moment of the most bytes in use, with its blocks; the first if there are several.
    pub peak: Moment,
    /// The most bytes committed at any moment.
    pub peak_committed: u64,
    /// The steps, in order.
    pub steps: Vec<StepSummary>,
    /// What had grown over the last steps, largest first.
    pub growth: Vec<Growth>,
    /// Who held the bytes at the peak, and what having them again would take, largest first. They add up.
    pub holders: Vec<Holding>,
    /// The first time that memory could not be had, if it ever was.
    pub shortage: Option<Shortage>,
    /// What would help, as whoever recorded the profile has planned it, or else as far as the trace alone can tell.
    pub actions: Vec<Action>,
    /// Whether the trace alone tells what would help.
    pub is_of_trace: bool,
}

/// Memory that could not be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The bytes that were asked for; of a run that was refused as a whole, the least limit that it needs.
    pub bytes: u64,
    /// The bytes that were in use.
    pub in_use: u64,
    /// The step,
    pub step: u64,
    /// and what went on in it.
    pub phase: String,
}

impl Shortage {
    /// The shortage that a moment marks, if it does, in a phase that began before.
    fn at(profile: &Profile, moment: &Moment, phase: &str) -> Option<Shortage> {
        let Some(Change::Mark(name, bytes)) = moment.change else { return None };
        let Moment { in_use, step, .. } = *moment;
        let is_it = profile.text(name) == OUT_OF_MEMORY.as_str();
        is_it.then(|| Shortage { bytes, in_use, step, phase: phase.to_owned() })
    }
}

/// How a step went, or several that the profile has left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSummary {
    /// Its number, or that of the first.
    pub step: u64,
    /// How many they are.
    pub n_steps: u64,
    /// The time until the next step began, or until the last mark of the profile, of several for each; of a plan, what its kernels
    /// take by formula.
    pub nanoseconds: u64,
    /// The most bytes in use.
    pub peak: u64,
    /// The bytes in use when it began.
    pub in_use: u64,
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
        let (mut last_ns, mut n_checked, mut n_kept, mut is_open) = (0, 0, 0, false);
        let (mut shortage, mut phase) = (None, "setup".to_owned());
        profile.replay(|moment| {
            if matches!(moment.change, Some(Change::Mark(..))) {
                shortage = shortage.take().or_else(|| Shortage::at(profile, moment, &phase));
                phase.clone_from(&moment.phase);
            }
            peak_committed = peak_committed.max(moment.committed);
            if moment.in_use > peak {
                (peak, peak_event) = (moment.in_use, moment.event);
            }
            if moment.begins_step {
                end_step(&mut steps, &mut is_open, now(moment));
                let (step, in_use, nanoseconds) = (moment.step, moment.in_use, now(moment));
                steps.push(StepSummary { step, n_steps: 1, nanoseconds, peak: in_use, in_use });
                (is_open, n_kept) = (true, n_kept + 1);
            } else if let Some(Change::LeftOut(stretch)) = moment.change {
                let stretch = profile.stretch(stretch);
                let time = if is_plan { &stretch.worked } else { &stretch.nanoseconds };
                end_step(&mut steps, &mut is_open, time.start);
                steps.extend(StepSummary::of(stretch, time));
            } else if let Some(step) = steps.last_mut() {
                step.peak = step.peak.max(moment.in_use);
            }
            (last_ns, n_checked) = (now(moment), moment.n_checked());
            true
        })?;
        end_step(&mut steps, &mut is_open, last_ns);
        let mut second = SecondPass::default();
        second.run(profile, peak_event, n_kept)?;
        let none = || io::Error::new(io::ErrorKind::InvalidData, "this profile has no events");
        let peak = second.peak.take().ok_or_else(none)?;
        let growth = second.watch.growth(|site| profile.site(site).clone());
        let listed = profile.about().get("actions").is_some();
        let actions = match listed {
            true => Action::listed(profile.about()),
            false => unused::actions(profile, &peak)?,
        };
        Ok(Explanation {
            about: profile.about().clone(),
            is_plan,
            is_complete: profile.is_complete(),
            n_events: profile.n_events(),
            n_steps_left_out: profile.n_steps_left_out(),
            n_checked,
            holders: second.holders(profile, &peak),
            peak,
            peak_committed,
            steps,
            growth,
            shortage,
            is_of_trace: !listed && !actions.is_empty(),
            actions,
        })
    }

    /// The bytes in use at the peak by owner; the rows add up.
    pub fn owners(&self) -> Rows {
        self.peak.rows()
    }
}

impl StepSummary {
    /// The steps of a stretch that is left out, if it has any, which take that time together.
    fn of(stretch: &Stretch, time: &Range<u64>) -> Option<StepSummary> {
        let Stretch { step, n_steps, most: peak, in_use, .. } = *stretch;
        let nanoseconds = (time.end - time.start).checked_div(n_steps)?;
        Some(StepSummary { step, n_steps, nanoseconds, peak, in_use })
    }
}

/// What began at that time has ended now, if it has not ended before.
fn end_step(steps: &mut [StepSummary], is_open: &mut bool, now: u64) {
    if let Some(step) = steps.last_mut().filter(|_| std::mem::take(is_open)) {
        step.nanoseconds = now.saturating_sub(step.nanoseconds);
    }
}

/// What is found in the second pass, once it is known where the peak is.
#[derive(Default)]
struct SecondPass {
    peak: Option<Moment>,
    watch: Watch<u32>,
    works: Works,
    /// The prices of the blocks of the peak.
    prices: HashMap<u64, Price>,
    /// The first op after the peak that reads a block, with step and phase.
    read_next: HashMap<u64, (u32, u64, String)>,
    /// Who keeps them alive, by the last answer before the peak, or else the first one after it.
    held: HashMap<u64, (u32, u64)>,
}

impl SecondPass {
    fn run(&mut self, profile: &Profile, peak_event: u64, n_steps: usize) -> io::Result<()> {
        let (mut n_begun, mut reads, mut writes) = (0, Vec::new(), Vec::new());
        let mut unmade: HashSet<u64> = HashSet::new();
        profile.replay(|moment| {
            self.works.see(moment);
            match (&self.peak, moment.change) {
                (None, _) if moment.event == peak_event => {
                    let price = |&serial: &u64| (serial, self.works.price(profile, moment, serial));
                    self.prices = moment.blocks.keys().map(price).collect();
                    let is_unmade = |serial: &u64| self.works.made_by(*serial).is_none();
                    unmade = moment.blocks.keys().copied().filter(is_unmade).collect();
                    let held = |&serial: &u64| Some((serial, self.works.held(serial)?));
                    self.held = moment.blocks.keys().filter_map(held).collect();
                    self.peak = Some(moment.clone());
                }
                (Some(peak), Some(Change::Read(serial))) if peak.blocks.contains_key(&serial) => {
                    reads.push(serial);
                }
                (Some(peak), Some(Change::Held(serial, by, frees))) if peak.blocks.contains_key(&serial) => {
                    self.held.entry(serial).or_insert((by, frees));
                }
                (Some(_), Some(Change::Write(serial))) if unmade.contains(&serial) => writes.push(serial),
                (Some(peak), Some(Change::Work(site, ..))) => {
                    // What the peak was waiting for.
                    for serial in writes.drain(..).filter(|serial| unmade.remove(serial)) {
                        self.prices.insert(serial, self.works.price(profile, peak, serial));
                    }
                    for serial in reads.drain(..) {
                        let here = || (site, moment.step, moment.phase.clone());
                        self.read_next.entry(serial).or_insert_with(here);
                    }
                }
                _ => {}
            }
            if moment.begins_step {
                n_begun += 1;
                // The last of these marks is one at which the watch looks at all blocks.
                if n_begun + GROWING_STEPS >= n_steps {
                    self.watch.mark(moment.next_serial(), |see| {
                        for (&serial, block) in &moment.blocks {
                            see(Held { serial, owner: block.owner, site: block.site, bytes: block.bytes });
                        }
                    });
                }
            }
            true
        })
    }

    /// The blocks of the peak by owner and line.
    fn holders(&self, profile: &Profile, peak: &Moment) -> Vec<Holding> {
        let mut rows: BTreeMap<(Owner, u32), Vec<u64>> = BTreeMap::new();
        for (&serial, block) in &peak.blocks {
            rows.entry((block.owner, block.site)).or_default().push(serial);
        }
        let mut holders: Vec<Holding> = rows
            .into_iter()
            .map(|((owner, site), serials)| {
                let bytes = |serial: u64| peak.blocks[&serial].bytes;
                let price = serials.iter().map(|serial| self.prices[serial].clone()).reduce(Price::and);
                // Of equal ones the first, since the latest maximum is taken.
                let largest = serials.iter().rev().copied().max_by_key(|&serial| bytes(serial)).unwrap_or(0);
                let next = self.read_next.get(&largest);
                let held = self.held.get(&largest);
                Holding {
                    owner,
                    site: profile.site(site).clone(),
                    blocks: serials.len() as u64,
                    bytes: serials.iter().copied().map(bytes).sum(),
                    price: price.unwrap_or(Price::Recompute { nanoseconds: 0, n_ops: 0 }),
                    read_next: next
                        .map(|(site, step, phase)| (profile.site(*site).clone(), *step, phase.clone())),
                    held: held.map(|&(by, frees)| (profile.text(by).to_owned(), frees)),
                }
            })
            .collect();
        holders.sort_by_key(|row| (Reverse(row.bytes), row.owner));
        holders
    }
}

pub(crate) fn grouped(bytes: u64) -> String {
    Bytes::new(bytes).grouped()
}
