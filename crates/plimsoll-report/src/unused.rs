//! What the trace of a run alone can tell about lowering its peak: values that are alive there though no op uses them any more.
//!
//! Nobody but the program knows the options of a run, or how else a loop could be written. But the trace says when each block
//! was used last, so what the peak would be if a line's values were dropped then follows from it to the byte: the whole
//! recording is gone through again without them. Reading a value in the program itself leaves no trace, so the advice says that
//! no op uses the values, and not that nobody does.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::io;

use plimsoll_memory::Owner;

use crate::action::{Action, Advice};
use crate::profile::Profile;
use crate::replay::{Block, Change, Moment};

/// So many lines are looked at, those with the most bytes at the peak.
const MOST_LINES: usize = 32;
/// So many actions are listed.
const MOST_ACTIONS: usize = 10;

/// Lines whose values could be dropped earlier, each with what the peak is lower by then.
pub(crate) fn actions(profile: &Profile, peak: &Moment) -> io::Result<Vec<Action>> {
    let sites = sites(peak);
    if sites.is_empty() {
        return Ok(Vec::new());
    }
    let mut uses = Uses { lines: sites.keys().copied().zip(0..).collect(), ..Uses::default() };
    profile.replay(|moment| uses.see(moment))?;
    let peaks = uses.peaks_without(profile)?;
    let action = |((site, (owner, _)), peak_then): ((u32, (Owner, u64)), u64)| {
        let saved_bytes = peak.in_use.saturating_sub(peak_then);
        let said = format!("drop the {owner} values of {} sooner: no op uses them then", profile.site(site));
        (saved_bytes > 0).then_some(Action {
            advice: Advice::Code(said),
            saved_bytes,
            peak_bytes: peak_then,
            more_ms: 0.0,
        })
    };
    let mut actions: Vec<Action> = sites.into_iter().zip(peaks).filter_map(action).collect();
    actions.sort_by_key(|action| action.peak_bytes);
    actions.truncate(MOST_ACTIONS);
    Ok(actions)
}

/// The lines that hold most at the peak of what a program can drop, with an owner and the bytes.
fn sites(peak: &Moment) -> BTreeMap<u32, (Owner, u64)> {
    let mut sites: BTreeMap<u32, (Owner, u64)> = BTreeMap::new();
    for block in peak.blocks.values().filter(|block| can_drop(block.owner)) {
        sites.entry(block.site).or_insert((block.owner, 0)).1 += block.bytes;
    }
    let mut largest: Vec<(u32, (Owner, u64))> = sites.into_iter().collect();
    largest.sort_by_key(|(site, (_, bytes))| (Reverse(*bytes), *site));
    largest.truncate(MOST_LINES);
    largest.into_iter().collect()
}

/// Whether a program can do without a value of that owner once it is used no more. Variables are there for the next step, and
/// scratch memory goes by itself.
fn can_drop(owner: Owner) -> bool {
    matches!(owner, Owner::Gradients | Owner::Saved | Owner::Temporary | Owner::Data)
}

/// When blocks of some lines were used last.
#[derive(Default)]
struct Uses {
    /// The lines, by the numbers of their sites.
    lines: HashMap<u32, usize>,
    /// Blocks that outlive their last use by an acquisition at least: the event of that use, and the line.
    last: HashMap<u64, (u64, usize)>,
    /// The number of acquisitions when a live block was used last.
    taken_then: HashMap<u64, u64>,
    n_taken: u64,
    /// What the next work uses.
    operands: Vec<u64>,
}

impl Uses {
    fn see(&mut self, moment: &Moment) -> bool {
        if moment.event == 0 {
            let there = moment.blocks.iter().map(|(&serial, block)| (serial, *block));
            there.collect::<Vec<_>>().into_iter().for_each(|(serial, block)| self.used(serial, &block, 0));
        }
        match moment.change {
            Some(Change::Taken(serial)) => {
                self.n_taken += 1;
                self.used(serial, &moment.blocks[&serial], moment.event);
            }
            Some(Change::Read(serial) | Change::Write(serial)) => self.operands.push(serial),
            Some(Change::Work(..)) => {
                for serial in std::mem::take(&mut self.operands) {
                    if let Some(block) = moment.blocks.get(&serial) {
                        self.used(serial, block, moment.event);
                    }
                }
            }
            // If nothing was taken since, dropping it earlier would change no peak.
            Some(Change::Freed(serial, _)) if self.taken_then.remove(&serial) == Some(self.n_taken) => {
                self.last.remove(&serial);
            }
            // What becomes a variable's value is none that could be dropped.
            Some(Change::Relabelled(serial, _)) if !can_drop(moment.blocks[&serial].owner) => {
                self.last.remove(&serial);
                self.taken_then.remove(&serial);
            }
            _ => {}
        }
        true
    }

    fn used(&mut self, serial: u64, block: &Block, event: u64) {
        if !can_drop(block.owner) {
            return;
        }
        // A block that was relabelled stays with the line that it was first counted for.
        let known = self.last.get(&serial).map(|&(_, line)| line);
        if let Some(line) = known.or_else(|| self.lines.get(&block.site).copied()) {
            self.last.insert(serial, (event, line));
            self.taken_then.insert(serial, self.n_taken);
        }
    }

    /// The peak of the recording if the values of a line were dropped after their last use, for each line.
    fn peaks_without(self, profile: &Profile) -> io::Result<Vec<u64>> {
        let mut ends: HashMap<u64, Vec<u64>> = HashMap::new();
        for (&serial, &(event, _)) in &self.last {
            ends.entry(event).or_default().push(serial);
        }
        let (mut unused, mut peaks) = (vec![0u64; self.lines.len()], vec![0u64; self.lines.len()]);
        let mut dropped: HashMap<u64, u64> = HashMap::new();
        profile.replay(|moment| {
            for (peak, unused) in peaks.iter_mut().zip(&unused) {
                *peak = (*peak).max(moment.in_use.saturating_sub(*unused));
            }
            if let Some(Change::Freed(serial, _)) = moment.change
                && let Some(bytes) = dropped.remove(&serial)
            {
                unused[self.last[&serial].1] -= bytes;
            }
            for serial in ends.remove(&moment.event).into_iter().flatten() {
                if let Some(block) = moment.blocks.get(&serial) {
                    unused[self.last[&serial].1] += block.bytes;
                    dropped.insert(serial, block.bytes);
                }
            }
            true
        })?;
        Ok(peaks)
    }
}
