//! PyTorch's memory snapshot: segments with their blocks at the end, and the events before.
//!
//! Its viewer goes back from the end to find what was there at the beginning, so segments are those of the end. Regions stand
//! for segments, at addresses far apart. Frames are op, layer and lines, innermost first.

use std::collections::{BTreeMap, HashMap};
use std::io;

use plimsoll_memory::Region;

use super::pickle::Pickler;
use crate::page::timeline::{Life, Timeline};
use crate::profile::{Profile, Site};
use crate::replay::{Block, Change, Moment};

/// How many events the viewer can be given: it draws each.
const MOST_EVENTS: u64 = 100_000;

/// The address at which a region begins.
fn base(region: Region) -> u64 {
    (region as u64 + 1) << 44
}

fn address(block: &Block) -> u64 {
    base(block.region) + block.offset
}

/// A profile as such a snapshot.
pub(super) fn pickled(profile: &Profile) -> io::Result<Vec<u8>> {
    let timeline = Timeline::of(profile)?;
    let end = end_of(profile)?;
    let mut extents: BTreeMap<u64, u64> = BTreeMap::new();
    for Life { block, .. } in &timeline.lives {
        let extent = extents.entry(base(block.region)).or_default();
        *extent = (*extent).max(block.offset + block.bytes);
    }
    let mut trace = Vec::new();
    trace_events(profile, timeline.last, |event| trace.push(event))?;
    let mut writer = Writer { out: Pickler::new(), frames: HashMap::new(), profile };
    writer.out.begin_dict();
    writer.out.text("segments");
    writer.segments(&extents, &end);
    writer.out.text("device_traces");
    writer.traces(&extents, &trace);
    writer.out.text("allocator_settings");
    writer.out.begin_dict();
    writer.out.text_of("PYTORCH_CUDA_ALLOC_CONF", "");
    writer.out.number_of("max_split_size", 0);
    writer.out.truth_of("expandable_segments", false);
    writer.out.end_dict();
    writer.out.end_dict();
    Ok(writer.out.finish())
}

/// The blocks at the end.
fn end_of(profile: &Profile) -> io::Result<Moment> {
    let (mut end, mut last) = (Moment::begin(profile)?, 0);
    profile.replay(|moment| {
        last = moment.event;
        true
    })?;
    profile.replay(|moment| {
        if moment.event == last {
            end = moment.clone();
        }
        true
    })?;
    Ok(end)
}

/// An event of the trace.
struct Traced {
    action: &'static str,
    address: u64,
    bytes: u64,
    microseconds: u64,
    site: u32,
}

/// The last events, as PyTorch has them.
fn trace_events(profile: &Profile, last: u64, mut see: impl FnMut(Traced)) -> io::Result<()> {
    profile.replay(|moment| {
        if last - moment.number >= MOST_EVENTS {
            return true;
        }
        let microseconds = moment.nanoseconds / 1000;
        let mut tell = |action, block: &Block| {
            let (address, bytes, site) = (address(block), block.bytes, block.site);
            see(Traced { action, address, bytes, microseconds, site });
        };
        match moment.change {
            Some(Change::Taken(serial)) => {
                moment.blocks.get(&serial).iter().for_each(|block| tell("alloc", block))
            }
            Some(Change::Freed(_, block)) => {
                tell("free_requested", &block);
                tell("free_completed", &block);
            }
            _ => {}
        }
        true
    })
}

struct Writer<'a> {
    out: Pickler,
    /// Frames that were written, by site.
    frames: HashMap<u32, u32>,
    profile: &'a Profile,
}

impl Writer<'_> {
    fn segments(&mut self, extents: &BTreeMap<u64, u64>, end: &Moment) {
        self.out.begin_list();
        for (&start, &extent) in extents {
            let here = |block: &&Block| base(block.region) == start;
            let mut blocks: Vec<&Block> = end.blocks.values().filter(here).collect();
            blocks.sort_by_key(|block| block.offset);
            let allocated: u64 = blocks.iter().map(|block| block.bytes).sum();
            let requested = blocks.iter().map(|block| block.requested).sum();
            self.out.begin_dict();
            self.out.number_of("device", 0);
            self.out.number_of("address", start);
            self.out.number_of("total_size", extent);
            self.out.number_of("allocated_size", allocated);
            self.out.number_of("active_size", allocated);
            self.out.number_of("requested_size", requested);
            self.out.number_of("stream", 0);
            self.out.text_of("segment_type", "large");
            self.out.truth_of("is_expandable", false);
            self.out.text("frames");
            self.out.empty_list();
            self.out.text("blocks");
            self.blocks(start, extent, &blocks);
            self.out.end_dict();
        }
        self.out.end_list();
    }

    /// Blocks and what lies between them, from the first address to the last.
    fn blocks(&mut self, start: u64, extent: u64, blocks: &[&Block]) {
        self.out.begin_list();
        let mut end = 0;
        for block in blocks {
            if block.offset > end {
                self.block(start + end, block.offset - end, None);
            }
            self.block(start + block.offset, block.bytes, Some(block));
            end = block.offset + block.bytes;
        }
        if extent > end {
            self.block(start + end, extent - end, None);
        }
        self.out.end_list();
    }

    fn block(&mut self, address: u64, bytes: u64, block: Option<&Block>) {
        self.out.begin_dict();
        self.out.number_of("address", address);
        self.out.number_of("size", bytes);
        self.out.number_of("requested_size", block.map_or(0, |block| block.requested));
        self.out.text_of("state", if block.is_some() { "active_allocated" } else { "inactive" });
        self.frames(block.map(|block| block.site));
        self.out.end_dict();
    }

    /// The events of each device, of which there is one.
    fn traces(&mut self, extents: &BTreeMap<u64, u64>, trace: &[Traced]) {
        self.out.begin_list();
        self.out.begin_list();
        for (&address, &bytes) in extents {
            self.event("segment_alloc", address, bytes, 0, None);
        }
        for event in trace {
            self.event(event.action, event.address, event.bytes, event.microseconds, Some(event.site));
        }
        self.out.end_list();
        self.out.end_list();
    }

    fn event(&mut self, action: &str, address: u64, bytes: u64, microseconds: u64, site: Option<u32>) {
        self.out.begin_dict();
        self.out.text_of("action", action);
        self.out.number_of("addr", address);
        self.out.number_of("size", bytes);
        self.out.number_of("stream", 0);
        self.out.number_of("time_us", microseconds);
        self.frames(site);
        self.out.end_dict();
    }

    /// The lines of a site, each time the same list.
    fn frames(&mut self, site: Option<u32>) {
        self.out.text("frames");
        let Some(number) = site else { return self.out.empty_list() };
        if let Some(&memo) = self.frames.get(&number) {
            return self.out.get(memo);
        }
        let Site { file, line, scope, op, described } = self.profile.site(number);
        let name = if scope.is_empty() { op.clone() } else { format!("{scope} {op}") };
        self.out.begin_list();
        if let Some((file, line)) = described {
            self.frame(file, *line, &name);
        }
        self.frame(file, *line, if described.is_some() { "call" } else { &name });
        self.out.end_list();
        let memo = self.out.memo();
        self.frames.insert(number, memo);
    }

    fn frame(&mut self, file: &str, line: u64, name: &str) {
        self.out.begin_dict();
        self.out.text_of("filename", file);
        self.out.number_of("line", line);
        self.out.text_of("name", name);
        self.out.end_dict();
    }
}
