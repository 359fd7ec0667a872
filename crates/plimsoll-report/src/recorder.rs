//! What is told of a pool's events, and writes them.
//!
//! Events are put together in segments: a step, or what lies between two. A segment is written as soon as it is complete, so that a
//! process that is killed has left all steps that had ended: in one piece with a checksum, as a pattern the first time, as
//! the number of its pattern when it comes again. Times and the numbers of steps lie beside the pattern, because they are never
//! the same.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, Write};
use std::time::Instant;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use plimsoll_memory::{Levels, Name, OUT_OF_MEMORY, STEP, Site, Snapshot, Stats, TraceEvent};

use crate::code::{BlockRef, Event, FrameKind, MAGIC, N_ROWS, VERSION, put, put_text};

/// Marks of other names than a step's with which a segment begins.
const SEGMENTS: [&str; 2] = ["evaluate", "save"];
/// A segment of so many bytes is written before it is complete: a loop without steps has no end.
const MOST_SEGMENT: usize = 1 << 20;
/// The bytes of patterns that are remembered, to be recognised when they come again.
const MOST_PATTERNS: usize = 4 << 20;

/// The number of a site that the file does not know.
const UNKNOWN: u32 = u32::MAX;

pub(crate) struct Recorder {
    /// Nothing once writing has failed,
    file: Option<File>,
    /// and why it has.
    failure: Option<io::Error>,
    started: Instant,
    last_ns: u64,
    texts: HashMap<&'static str, u32>,
    /// The numbers of sites in the file, by their own, since each event has one; [`UNKNOWN`] for those that it has not.
    sites: Vec<u32>,
    n_sites: u32,
    /// Texts and sites that the file does not know yet,
    definitions: Vec<u8>,
    n_definitions: u64,
    /// the events of the present segment,
    segment: Vec<u8>,
    /// and the numbers and times of its marks.
    marks: Vec<u8>,
    next_serial: u64,
    /// The number of the next acquisition when the last step but one began, and when the last one did.
    begins: [u64; 2],
    /// Whether steps are marked; where nobody marks them, each one of the pool counts.
    has_marks: bool,
    committed: u64,
    /// How many requests come before what the pool counts is written down again.
    until_check: u64,
    /// The patterns that are remembered, with their numbers; the latest last.
    patterns: Vec<(u32, Vec<u8>)>,
    n_patterns: u32,
    /// Whether a block could not be had.
    is_short: bool,
}

impl Recorder {
    /// Begins a file with what is known of the run, and the blocks that are there.
    pub fn begin(
        file: File,
        about: &serde_json::Value,
        before: &Snapshot,
        stats: &Stats,
    ) -> io::Result<Recorder> {
        let committed = stats.committed;
        let mut recorder = Recorder {
            file: Some(file),
            failure: None,
            started: Instant::now(),
            last_ns: 0,
            texts: HashMap::new(),
            sites: Vec::new(),
            n_sites: 0,
            definitions: Vec::new(),
            n_definitions: 0,
            segment: Vec::new(),
            marks: Vec::new(),
            next_serial: stats.n_acquired,
            begins: [0, stats.n_acquired],
            has_marks: false,
            committed,
            until_check: 0,
            patterns: Vec::new(),
            n_patterns: 0,
            is_short: false,
        };
        let mut head = MAGIC.to_vec();
        head.extend(VERSION.to_le_bytes());
        recorder.write_bytes(&head)?;
        recorder.write_frame(FrameKind::About, about.to_string().as_bytes())?;
        let mut blocks = Vec::new();
        put(before.blocks().len() as u64, &mut blocks);
        for block in before.blocks() {
            let site = recorder.site(block.site);
            put(recorder.next_serial - block.serial, &mut blocks);
            let (region, owner) = (block.region, block.owner);
            let event = Event::Acquire { region, offset: block.offset, bytes: block.requested, owner, site };
            event.put(&mut blocks);
        }
        let mut payload = recorder.take_definitions();
        [recorder.next_serial, committed].into_iter().for_each(|number| put(number, &mut payload));
        payload.extend(blocks);
        recorder.write_frame(FrameKind::Initial, &deflated(&payload)?)?;
        Ok(recorder)
    }

    /// An event of the pool, and what that counts then.
    pub fn note(&mut self, noted: &TraceEvent, levels: &Levels<'_>) {
        if self.file.is_none() {
            return;
        }
        let is_flush = matches!(noted, TraceEvent::Flush);
        let begins_step = begins_segment(noted);
        if is_flush || begins_step || self.segment.len() > MOST_SEGMENT {
            self.end_segment();
            self.has_marks |= begins_step;
            if begins_step || !is_flush || !self.has_marks {
                self.begins = [self.begins[1], self.next_serial];
            }
        }
        if levels.committed != self.committed {
            self.committed = levels.committed;
            Event::Committed { bytes: levels.committed }.put(&mut self.segment);
        }
        let event = match *noted {
            TraceEvent::Acquire { region, offset, bytes, label, .. } => {
                self.next_serial += 1;
                Event::Acquire { region, offset, bytes, owner: label.owner, site: self.site(label.site) }
            }
            TraceEvent::Release { serial } => Event::Release { back: self.next_serial - serial },
            TraceEvent::Relabel { serial, label } => {
                let (back, site) = (self.next_serial - serial, self.site(label.site));
                Event::Relabel { back, owner: label.owner, site }
            }
            TraceEvent::Mark { name, number } => self.mark(name, number),
            TraceEvent::Read { serial } => Event::Read { block: self.block(serial) },
            TraceEvent::Write { serial } => Event::Write { block: self.block(serial) },
            TraceEvent::Work { site, nanoseconds, repeats, .. } => {
                Event::Work { site: self.site(site), nanoseconds, repeats }
            }
            TraceEvent::Held { serial, by, frees } => {
                Event::Held { block: self.block(serial), by: self.text(by.as_str()), frees }
            }
            TraceEvent::Flush => return,
        };
        event.put(&mut self.segment);
        if noted.is_request() {
            self.check(levels);
        }
        if matches!(noted, TraceEvent::Mark { name: OUT_OF_MEMORY, .. }) {
            // Whatever becomes of the process, this is what somebody will want to see.
            self.is_short = true;
            self.end_segment();
        }
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
        Event::Level { row: N_ROWS as u8, bytes: levels.rows.total() }.put(&mut self.segment);
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

    fn mark(&mut self, name: Name, number: u64) -> Event {
        let now = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        put(number, &mut self.marks);
        put(now - self.last_ns, &mut self.marks);
        self.last_ns = now;
        Event::Mark { name: self.text(name.as_str()) }
    }

    /// Writes what there is of the present segment.
    fn end_segment(&mut self) {
        let written = self.try_end_segment();
        self.check_written(written);
    }

    /// A failure, such as a disk that is full, ends the recording with a warning; whoever is recorded goes on.
    fn check_written(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            log::warn!("the profile ends here, because it cannot be written: {error}");
            (self.file, self.failure) = (None, Some(error));
        }
    }

    fn try_end_segment(&mut self) -> io::Result<()> {
        if self.segment.is_empty() {
            return Ok(());
        }
        let (segment, marks) = (std::mem::take(&mut self.segment), std::mem::take(&mut self.marks));
        self.until_check = 0;
        let known = self.patterns.iter().position(|(_, pattern)| *pattern == segment);
        let mut payload = self.take_definitions();
        let Some(known) = known else {
            put(segment.len() as u64, &mut payload);
            payload.extend(&segment);
            payload.extend(&marks);
            self.write_frame(FrameKind::Pattern, &deflated(&payload)?)?;
            self.remember(segment);
            return Ok(());
        };
        // Those that came last are looked at first in the list's place, and forgotten last.
        let pattern = self.patterns.remove(known);
        put(pattern.0.into(), &mut payload);
        payload.extend(&marks);
        self.patterns.push(pattern);
        self.write_frame(FrameKind::Repeat, &payload)
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
        if self.file.is_some() {
            let written = self.write_frame(FrameKind::End, end.to_string().as_bytes());
            self.check_written(written);
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Adds to what is known of the run.
    pub fn add(&mut self, about: &serde_json::Value) {
        if self.file.is_some() {
            let written = self.write_frame(FrameKind::About, about.to_string().as_bytes());
            self.check_written(written);
        }
    }

    /// The number of a site, which the file learns of with the next segment.
    fn site(&mut self, site: Site) -> u32 {
        let at = site.number() as usize;
        match self.sites.get(at) {
            Some(&number) if number != UNKNOWN => return number,
            Some(_) => {}
            None => self.sites.resize(at + 1, UNKNOWN),
        }
        let texts = [site.file(), site.scope(), site.op()].map(|text| self.text(text));
        let described = site.described().map(|(file, line)| (self.text(file), line));
        let (described_file, described_line) = described.unwrap_or((texts[0], 0));
        self.n_definitions += 1;
        self.definitions.push(1);
        let [file, scope, op] = texts;
        for number in [file, site.line(), scope, op, described_file, described_line] {
            put(number.into(), &mut self.definitions);
        }
        self.sites[at] = self.n_sites;
        self.n_sites += 1;
        self.sites[at]
    }

    fn text(&mut self, text: &'static str) -> u32 {
        let number = self.texts.len() as u32;
        match self.texts.entry(text) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.definitions.push(0);
                put_text(text, &mut self.definitions);
                self.n_definitions += 1;
                *new.insert(number)
            }
        }
    }

    /// What the file does not know yet, with its number in front.
    fn take_definitions(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        put(std::mem::take(&mut self.n_definitions), &mut all);
        all.append(&mut self.definitions);
        all
    }

    fn write_frame(&mut self, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
        let len = u32::try_from(payload.len()).map_err(|_| io::Error::other("a frame is too large"))?;
        let mut frame = Vec::with_capacity(payload.len() + 9);
        frame.push(kind as u8);
        frame.extend(len.to_le_bytes());
        frame.extend(crc32fast::hash(payload).to_le_bytes());
        frame.extend(payload);
        self.write_bytes(&frame)
    }

    /// In one piece, so that a process that is killed leaves whole frames but for the last.
    fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
    }
}

fn begins_segment(event: &TraceEvent) -> bool {
    match *event {
        TraceEvent::Mark { name, .. } => name == STEP || SEGMENTS.contains(&name.as_str()),
        _ => false,
    }
}

fn deflated(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()
}
