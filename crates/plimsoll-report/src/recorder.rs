//! What is told of a pool's events, and writes them.
//!
//! Events are put together in segments: a step, or what lies between two. A segment is written as soon as it is complete, so that a
//! process that is killed has left all steps that had ended: in one piece with a checksum, as a pattern the first time, as
//! the number of its pattern when it comes again. Times and the numbers of steps lie beside the pattern, because they are never
//! the same.
//!
//! Of a long run only some chapters are kept (see [`chapters`](crate::chapters)), so neither the file nor what is remembered of it
//! grows without end.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use plimsoll_memory::{Levels, Name, OUT_OF_MEMORY, STEP, Snapshot, Stats, TraceEvent};

use crate::code::{BlockRef, Event, FrameKind, N_ROWS, put};
use crate::definitions::Definitions;
use crate::stretch::{Stretch, counted};
use crate::writer::Writer;

/// Marks of other names than a step's with which a segment begins.
pub(crate) const SEGMENTS: [&str; 2] = ["evaluate", "save"];
/// A segment of so many bytes is written before it is complete: a loop without steps has no end.
const MOST_SEGMENT: usize = 1 << 20;
/// The bytes of patterns that are remembered, to be recognised when they come again.
const MOST_PATTERNS: usize = 4 << 20;

pub(crate) struct Recorder {
    writer: Writer,
    started: Instant,
    last_ns: u64,
    definitions: Definitions,
    /// The events of the present segment,
    segment: Vec<u8>,
    /// and the numbers and times of its marks.
    marks: Vec<u8>,
    next_serial: u64,
    /// The number of the next acquisition when the last step but one began, and when the last one did.
    begins: [u64; 2],
    /// Whether steps are marked; where nobody marks them, each one of the pool counts.
    has_marks: bool,
    committed: u64,
    /// The number of the present moment, as pages count them,
    moment: u64,
    /// the present step,
    step: u64,
    /// and how long the kernels so far would have run by formula.
    worked: u64,
    /// What is to be known of the present step if it is left out.
    stretch: Stretch,
    /// Whether a work has begun to tell what it reads and writes.
    is_in_work: bool,
    /// How many requests come before what the pool counts is written down again.
    until_check: u64,
    /// The patterns of the chapter that are remembered, with their numbers; the latest last.
    patterns: Vec<(u32, Vec<u8>)>,
    n_patterns: u32,
    /// Whether a block could not be had.
    is_short: bool,
}

impl Recorder {
    /// Begins a file with what is known of the run, and the blocks that are there.
    pub fn begin(
        path: &Path,
        file: File,
        about: &serde_json::Value,
        before: &Snapshot,
        stats: &Stats,
    ) -> io::Result<Recorder> {
        let mut recorder = Recorder {
            writer: Writer::begin(path, file, about)?,
            started: Instant::now(),
            last_ns: 0,
            definitions: Definitions::default(),
            segment: Vec::new(),
            marks: Vec::new(),
            next_serial: stats.n_acquired,
            begins: [0, stats.n_acquired],
            has_marks: false,
            committed: stats.committed,
            moment: 0,
            step: 0,
            worked: 0,
            stretch: Stretch::begin(0, 0, 0, 0, &stats.rows()),
            is_in_work: false,
            until_check: 0,
            patterns: Vec::new(),
            n_patterns: 0,
            is_short: false,
        };
        recorder.begin_chapter(before);
        recorder.writer.take_failure().map_or(Ok(recorder), Err)
    }

    /// From now on so many of the last steps are kept.
    pub fn keep_steps(&mut self, steps: u64) {
        self.writer.keep_steps(steps);
    }

    /// An event of the pool, and what that counts then.
    pub fn note(&mut self, noted: &TraceEvent, levels: &Levels<'_>) {
        if !self.writer.is_open() {
            return;
        }
        let is_flush = matches!(noted, TraceEvent::Flush);
        if is_flush || self.segment.len() > MOST_SEGMENT || begins_segment(noted) {
            self.end_segment_before(noted, levels);
        }
        if levels.committed != self.committed {
            self.committed = levels.committed;
            Event::Committed { bytes: levels.committed }.put(&mut self.segment);
        }
        let Some(event) = self.event(noted) else { return };
        event.put(&mut self.segment);
        self.moment += u64::from(event.is_counted());
        self.is_in_work = matches!(noted, TraceEvent::Read { .. } | TraceEvent::Write { .. });
        if noted.is_request() {
            self.count(levels);
            self.check(levels);
        }
        if matches!(noted, TraceEvent::Mark { name: OUT_OF_MEMORY, .. }) {
            // Whatever becomes of the process, this is what somebody will want to see.
            self.is_short = true;
            self.writer.note_shortage();
            self.end_segment();
        }
    }

    /// As the file has it; nothing for what only says that something is complete.
    fn event(&mut self, noted: &TraceEvent) -> Option<Event> {
        Some(match *noted {
            TraceEvent::Acquire { region, offset, bytes, label, .. } => {
                self.next_serial += 1;
                let site = self.definitions.site(label.site);
                Event::Acquire { region, offset, bytes, owner: label.owner, site }
            }
            TraceEvent::Release { serial } => Event::Release { back: self.next_serial - serial },
            TraceEvent::Relabel { serial, label } => {
                let (back, site) = (self.next_serial - serial, self.definitions.site(label.site));
                Event::Relabel { back, owner: label.owner, site }
            }
            TraceEvent::Mark { name, number } => self.mark(name, number),
            TraceEvent::Read { serial } => Event::Read { block: self.block(serial) },
            TraceEvent::Write { serial } => Event::Write { block: self.block(serial) },
            TraceEvent::Work { site, nanoseconds, repeats, .. } => {
                self.worked = self.worked.saturating_add(nanoseconds);
                Event::Work { site: self.definitions.site(site), nanoseconds, repeats }
            }
            TraceEvent::Held { serial, by, frees } => {
                Event::Held { block: self.block(serial), by: self.definitions.text(by.as_str()), frees }
            }
            TraceEvent::Flush => return None,
        })
    }

    /// What comes before an event is complete, or long enough.
    fn end_segment_before(&mut self, noted: &TraceEvent, levels: &Levels<'_>) {
        let (is_flush, begins) = (matches!(noted, TraceEvent::Flush), begins_segment(noted));
        // Between two works nothing changes with the event, so the blocks are those of the moment before.
        let is_between = !noted.is_request() && !self.is_in_work;
        if !is_flush && !begins && !is_between && self.segment.len() <= 2 * MOST_SEGMENT {
            return;
        }
        self.end_segment();
        self.has_marks |= begins;
        if begins || !is_flush || !self.has_marks {
            self.begins = [self.begins[1], self.next_serial];
        }
        let is_step = matches!(noted, TraceEvent::Mark { name: STEP, .. });
        let is_end = is_between && self.writer.is_full(self.has_marks && !is_step);
        if is_step || is_end {
            self.end_stretch(levels);
        }
        if is_end {
            self.begin_chapter(&levels.snapshot());
        }
        if let TraceEvent::Mark { name: STEP, number } = *noted {
            (self.step, self.stretch.step, self.stretch.n_steps) = (number, number, 1);
        }
    }

    /// Ends what is told of a step, and begins the same for what comes next.
    fn end_stretch(&mut self, levels: &Levels<'_>) {
        let now = self.now();
        let next = Stretch::begin(self.step, self.moment, now, self.worked, levels.rows);
        let mut ended = std::mem::replace(&mut self.stretch, next);
        (ended.moments.end, ended.nanoseconds.end, ended.worked.end) = (self.moment, now, self.worked);
        ended.committed = ended.committed.max(self.committed);
        self.writer.tell(ended);
    }

    /// Begins a chapter with the blocks that are there: it defines everything that it names.
    fn begin_chapter(&mut self, there: &Snapshot) {
        self.definitions = Definitions::default();
        self.patterns.clear();
        self.n_patterns = 0;
        let mut blocks = Vec::new();
        put(there.blocks().len() as u64, &mut blocks);
        for block in there.blocks() {
            let site = self.definitions.site(block.site);
            put(self.next_serial - block.serial, &mut blocks);
            let (region, owner) = (block.region, block.owner);
            let event = Event::Acquire { region, offset: block.offset, bytes: block.requested, owner, site };
            event.put(&mut blocks);
        }
        let mut payload = self.definitions.take();
        for number in [self.next_serial, self.committed, self.moment, self.last_ns, self.worked, self.step] {
            put(number, &mut payload);
        }
        payload.extend(blocks);
        self.writer.begin_chapter(&deflated(&payload));
    }

    /// Notes the extremes.
    fn count(&mut self, levels: &Levels<'_>) {
        let stretch = &mut self.stretch;
        if levels.in_use > stretch.most {
            (stretch.most, stretch.most_at) = (levels.in_use, self.moment);
            stretch.rows = counted(levels.rows);
        }
        stretch.least = stretch.least.min(levels.in_use);
        stretch.committed = stretch.committed.max(self.committed);
    }

    /// Writes down what the pool counts, after one request of four, and of these once in eight times owner by owner, so that
    /// whoever reads the file can hold its own count against it. When, looks random and is the same in steps that are.
    fn check(&mut self, levels: &Levels<'_>) {
        if self.until_check > 0 {
            self.until_check -= 1;
            return;
        }
        let random = (self.segment.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
        self.until_check = random & 7;
        if random >> 3 == 0 {
            for (row, (_, bytes)) in (0u8..).zip(levels.rows.iter()) {
                Event::Level { row, bytes }.put(&mut self.segment);
            }
        }
        Event::Level { row: N_ROWS as u8, bytes: levels.in_use }.put(&mut self.segment);
    }

    /// How a block is named so that a step that repeats is the same bytes: what is older than the step before stays while
    /// steps come and go, and of what is not, each step has its own.
    fn block(&self, serial: u64) -> BlockRef {
        match serial < self.begins[0] {
            true => BlockRef::Serial(serial),
            false => BlockRef::Back(self.next_serial.saturating_sub(serial)),
        }
    }

    /// Whether a block could not be had while this was recorded.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn mark(&mut self, name: Name, number: u64) -> Event {
        let now = self.now();
        put(number, &mut self.marks);
        put(now - self.last_ns, &mut self.marks);
        self.last_ns = now;
        Event::Mark { name: self.definitions.text(name.as_str()) }
    }

    /// Writes what there is of the present segment.
    fn end_segment(&mut self) {
        if self.segment.is_empty() {
            return;
        }
        let (segment, marks) = (std::mem::take(&mut self.segment), std::mem::take(&mut self.marks));
        self.until_check = 0;
        let known = self.patterns.iter().position(|(_, pattern)| *pattern == segment);
        let mut payload = self.definitions.take();
        let Some(known) = known else {
            put(segment.len() as u64, &mut payload);
            payload.extend(&segment);
            payload.extend(&marks);
            self.writer.put_frame(FrameKind::Pattern, &deflated(&payload));
            return self.remember(segment);
        };
        // Those that came last are looked at first in the list's place, and forgotten last.
        let pattern = self.patterns.remove(known);
        put(pattern.0.into(), &mut payload);
        payload.extend(&marks);
        self.patterns.push(pattern);
        self.writer.put_frame(FrameKind::Repeat, &payload);
    }

    fn remember(&mut self, pattern: Vec<u8>) {
        self.patterns.push((self.n_patterns, pattern));
        self.n_patterns += 1;
        let mut bytes: usize = self.patterns.iter().map(|(_, pattern)| pattern.len()).sum();
        while bytes > MOST_PATTERNS {
            bytes -= self.patterns.remove(0).1.len();
        }
    }

    /// Ends the file as it should be.
    ///
    /// # Errors
    /// Why it could not be written to its end, of which a warning has told already.
    pub fn end(&mut self, end: &serde_json::Value) -> io::Result<()> {
        self.end_segment();
        self.writer.put_frame(FrameKind::End, end.to_string().as_bytes());
        self.writer.take_failure().map_or(Ok(()), Err)
    }

    /// Adds to what is known of the run.
    pub fn add(&mut self, about: &serde_json::Value) {
        self.writer.add(about);
    }
}

fn begins_segment(event: &TraceEvent) -> bool {
    match *event {
        TraceEvent::Mark { name, .. } => name == STEP || SEGMENTS.contains(&name.as_str()),
        _ => false,
    }
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    // Memory takes everything.
    let _always = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}
