//! What a dry run is watched for: who holds what at the peak, and how memory rises and falls in a step.
//!
//! The tracker is given the events of the ghost's pool as they happen. It keeps those of one segment, a step or what lies
//! between two, so its size is that of a step and not of a run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use plimsoll_memory::{Holder, Label, LongList, STEP, Site, Snapshot, TraceEvent, rounded_size};

/// When the most is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeakAt {
    /// The optimizer step, counted from one; zero while everything is being made.
    pub step: u64,
    /// What went on: `setup`, `forward`, `backward`, `update`, `evaluate` or `save`.
    pub phase: &'static str,
    /// The layer whose op asked for the last block.
    pub layer: &'static str,
    /// The op that asked for it.
    pub op: &'static str,
}

/// One op of a step, with all its memory held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// What goes on: `forward`, `backward` or `update`.
    pub phase: &'static str,
    /// The op, its layer and line.
    pub site: Site,
    /// The bytes in use while it runs.
    pub in_use: u64,
    /// The bytes committed.
    pub committed: u64,
    /// How long it takes, by formula.
    pub nanoseconds: u64,
}

/// The names of the marks with which something else begins.
pub(crate) const EVALUATE: &str = "evaluate";
pub(crate) const SAVE: &str = "save";
const BETWEEN_STEPS: [&str; 2] = [EVALUATE, SAVE];
/// What goes on before the first mark.
const SETUP: &str = "setup";

/// A live block.
#[derive(Clone, Copy, Debug)]
struct LiveBlock {
    bytes: u64,
    label: Label,
}

/// What is known of a run so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeakTracker {
    /// The live blocks by the numbers of their acquisitions.
    live: BTreeMap<u64, LiveBlock>,
    in_use: u64,
    step: u64,
    phase: &'static str,
    peak: u64,
    peak_at: PeakAt,
    /// The blocks at the peak.
    held: Vec<LiveBlock>,
    /// The step that needs most: its own peak, and its ops.
    busiest: (u64, Vec<Moment>),
    /// The longest step.
    nanoseconds: u64,
    /// The events since the last segment ended.
    segment: LongList<TraceEvent>,
}

impl PeakTracker {
    /// A tracker of a run that begins while these blocks are there.
    pub fn new(before: &Snapshot) -> PeakTracker {
        let block = |block: &plimsoll_memory::BlockInfo| {
            let label = Label::new(block.owner, block.site);
            (block.serial, LiveBlock { bytes: block.rounded, label })
        };
        PeakTracker {
            live: before.blocks().iter().map(block).collect(),
            in_use: before.in_use(),
            phase: SETUP,
            ..PeakTracker::default()
        }
    }

    /// Something happens in the pool.
    pub fn note(&mut self, event: &TraceEvent) {
        let begins_segment = match *event {
            TraceEvent::Mark { name, .. } => name == STEP || BETWEEN_STEPS.contains(&name.as_str()),
            // Who reads what changes nothing of the peak.
            TraceEvent::Read { .. }
            | TraceEvent::Write { .. }
            | TraceEvent::Held { .. }
            | TraceEvent::Flush => return,
            _ => false,
        };
        if begins_segment {
            self.end_segment();
        }
        self.segment.push(*event);
    }

    /// Takes in the segment that is complete.
    pub fn end_segment(&mut self) {
        let segment = std::mem::take(&mut self.segment);
        self.process(&segment);
    }

    fn process(&mut self, trace: &LongList<TraceEvent>) {
        let before = (self.live.clone(), self.in_use);
        let (mut peak, mut at) = (0, None);
        let mut moments = Vec::new();
        let begins_step = |event: &TraceEvent| matches!(event, TraceEvent::Mark { name: STEP, .. });
        let is_step = trace.iter().any(begins_step);
        for (position, event) in trace.iter().enumerate() {
            self.apply(event);
            match *event {
                TraceEvent::Acquire { label, .. } if self.in_use > peak => {
                    let (layer, op) = (label.site.scope(), label.site.op());
                    peak = self.in_use;
                    at = Some((position, PeakAt { step: self.step, phase: self.phase, layer, op }));
                }
                TraceEvent::Work { site, nanoseconds, committed, .. } if is_step => {
                    moments.push(Moment {
                        phase: self.phase,
                        site,
                        in_use: self.in_use,
                        committed,
                        nanoseconds,
                    });
                }
                _ => {}
            }
        }
        // What was in use before the segment is a peak of the one before.
        if let Some((position, at)) = at.filter(|_| peak > self.peak) {
            let mut then = PeakTracker { live: before.0, in_use: before.1, ..PeakTracker::default() };
            trace.iter().take(position + 1).for_each(|event| then.apply(event));
            (self.peak, self.peak_at) = (peak, at);
            self.held = then.live.into_values().collect();
        }
        if is_step {
            moments.retain(|moment| matches!(moment.phase, "forward" | "backward" | "update"));
            let time = moments.iter().map(|moment| moment.nanoseconds).sum();
            self.nanoseconds = self.nanoseconds.max(time);
            if peak > self.busiest.0 {
                self.busiest = (peak, moments);
            }
        }
    }

    fn apply(&mut self, event: &TraceEvent) {
        match *event {
            TraceEvent::Acquire { serial, bytes, label, .. } => {
                let bytes = rounded_size(bytes);
                self.in_use += bytes;
                self.live.insert(serial, LiveBlock { bytes, label });
            }
            TraceEvent::Release { serial } => {
                self.in_use -= self.live.remove(&serial).map_or(0, |held| held.bytes);
            }
            TraceEvent::Relabel { serial, label } => {
                if let Some(held) = self.live.get_mut(&serial) {
                    held.label = label;
                }
            }
            TraceEvent::Mark { name: STEP, number } => self.step = number,
            TraceEvent::Mark { name, .. } => self.phase = name.as_str(),
            _ => {}
        }
    }

    pub fn peak_at(&self) -> PeakAt {
        self.peak_at
    }

    pub fn step_nanoseconds(&self) -> u64 {
        self.nanoseconds
    }

    pub fn into_timeline(self) -> Vec<Moment> {
        self.busiest.1
    }

    /// The bytes at the peak by layer, largest first.
    pub fn layers(&self) -> Vec<(&'static str, u64)> {
        let mut layers: BTreeMap<&'static str, u64> = BTreeMap::new();
        for held in &self.held {
            *layers.entry(held.label.site.scope()).or_default() += held.bytes;
        }
        let mut layers: Vec<_> = layers.into_iter().collect();
        layers.sort_by_key(|&(_, bytes)| Reverse(bytes));
        layers
    }

    /// The bytes at the peak by owner and site, largest first; ties in the order of owners, then of first blocks.
    pub fn holders(&self) -> Vec<Holder> {
        let mut positions = HashMap::new();
        let mut holders: Vec<Holder> = Vec::new();
        for &LiveBlock { bytes, label } in &self.held {
            let position = *positions.entry(label).or_insert(holders.len());
            if position == holders.len() {
                holders.push(Holder { owner: label.owner, site: label.site, bytes: 0, blocks: 0 });
            }
            holders[position].bytes += bytes;
            holders[position].blocks += 1;
        }
        holders.sort_by_key(|holder| (Reverse(holder.bytes), holder.owner));
        holders
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use plimsoll_memory::{GhostPages, Owner, Pool, Work};

    use super::*;

    #[test]
    fn the_peak_is_studied_whichever_segment_it_lies_in() {
        let pool = Pool::new(GhostPages::new(1 << 30));
        let label = |owner, layer| Label::new(owner, Site::intern("a.rs", 1, layer, "matmul"));
        let take = |bytes, owner, layer| pool.acquire(bytes, label(owner, layer)).expect("a ghost has room");
        let _before = take(1000, Owner::Parameters, "first");
        let tracker = Arc::new(Mutex::new(PeakTracker::new(&pool.snapshot())));
        let sink = tracker.clone();
        pool.set_trace_sink(Some(Box::new(move |event, _| sink.lock().unwrap().note(event))));
        let weights = take(2000, Owner::Temporary, "first");
        for step in 1..4 {
            pool.mark(STEP, step);
            if step == 1 {
                let setup = PeakAt { step: 0, phase: "setup", layer: "first", op: "matmul" };
                assert_eq!(tracker.lock().unwrap().peak_at(), setup);
            }
            pool.mark("forward", 0);
            let saved = take(5000 + 100 * (step as usize % 3), Owner::Saved, "second");
            pool.mark("backward", 0);
            weights.relabel(Owner::Parameters);
            let gradient = take(700, Owner::Gradients, "first");
            let site = label(Owner::Workspace, "first").site;
            pool.mark_work(&Work { site, nanoseconds: 10 * step, repeats: true, reads: &[], writes: &[] });
            drop((gradient, saved));
        }
        pool.mark(EVALUATE, 0);
        pool.set_trace_sink(None);
        let tracker = Arc::into_inner(tracker).unwrap().into_inner().unwrap();
        assert_eq!(tracker.peak_at(), PeakAt { step: 2, phase: "backward", layer: "first", op: "matmul" });
        assert_eq!(tracker.peak, pool.stats().peak_in_use);
        let bytes = |holders: Vec<Holder>| holders.iter().map(|h| (h.owner, h.bytes)).collect::<Vec<_>>();
        let expected = [(Owner::Saved, 5632), (Owner::Parameters, 3072), (Owner::Gradients, 1024)];
        assert_eq!(bytes(tracker.holders()), expected);
        assert_eq!(tracker.layers(), [("second", 5632), ("first", 4096)]);
        assert_eq!(tracker.step_nanoseconds(), 30);
        let timeline = tracker.into_timeline();
        assert_eq!((timeline.len(), timeline[0].in_use, timeline[0].phase), (1, 9728, "backward"));
    }
}
