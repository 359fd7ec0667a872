//! Reading a profile back, with checks.
//!
//! A file that was cut off, because its process was killed or its disk was full, is read up to the last frame that is whole,
//! and says so. Anything else that is wrong with it is an error: nothing in a file is trusted.

use std::collections::HashMap;
use std::fs::File;
use std::hash::Hash;
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::read::DeflateDecoder;
use serde_json::Value;

use crate::code::{Event, FrameKind, Input, MAGIC, OLDEST_VERSION, VERSION, damaged};
use crate::profile::{Chapter, Pattern, Profile, Segment, Site};
use crate::stretch::Stretch;

/// The most bytes that a frame may have, compressed or not: a recorder writes far less.
const MOST_FRAME: u64 = 16 << 20;
/// Files before this version have one chapter.
const CHAPTERS: u32 = 3;
/// More moments than any run has.
const MOST_MOMENTS: u64 = 1 << 50;

/// Things that are numbered as they come, each once.
struct Numbered<T>(HashMap<T, u32>);

impl<T: Clone + Eq + Hash> Numbered<T> {
    fn number(&mut self, thing: &T, all: &mut Vec<T>) -> u32 {
        if let Some(&known) = self.0.get(thing) {
            return known;
        }
        let number = all.len() as u32;
        self.0.insert(thing.clone(), number);
        all.push(thing.clone());
        number
    }
}

/// A profile that is being read.
struct Reader {
    profile: Profile,
    version: u32,
    known_texts: Numbered<String>,
    known_sites: Numbered<Site>,
    /// What the texts and the sites of the present chapter are called over all chapters,
    texts: Vec<u32>,
    sites: Vec<u32>,
    /// and its first pattern.
    first_pattern: usize,
    /// The time of the last mark,
    clock: u64,
    /// and the present moment.
    moment: u64,
    /// What is known of what was left out before the next chapter.
    left_out: Vec<Stretch>,
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// A file that cannot be read, is no profile, is of a later version, or is damaged.
    pub fn read(path: &Path) -> io::Result<Profile> {
        let mut file = BufReader::new(plimsoll_file::open(path)?);
        let mut head = [0; 12];
        file.read_exact(&mut head).map_err(|_| no_profile())?;
        let (magic, version) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(no_profile());
        }
        let version = u32::from_le_bytes([version[0], version[1], version[2], version[3]]);
        if !(OLDEST_VERSION..=VERSION).contains(&version) {
            let detail = "this profile was written by another version of Plimsoll; record it again, or use that version";
            return Err(io::Error::new(io::ErrorKind::InvalidData, detail));
        }
        let mut reader = Reader {
            profile: Profile::empty(),
            version,
            known_texts: Numbered(HashMap::new()),
            known_sites: Numbered(HashMap::new()),
            texts: Vec::new(),
            sites: Vec::new(),
            first_pattern: 0,
            clock: 0,
            moment: 0,
            left_out: Vec::new(),
        };
        while let Some((kind, payload)) = next_frame(&mut file)? {
            reader.take_in(kind, &payload)?;
        }
        Ok(reader.profile)
    }
}

impl Reader {
    fn take_in(&mut self, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
        let json = || {
            serde_json::from_slice::<Value>(payload).map_err(|_| damaged("it holds no JSON where it should"))
        };
        match kind {
            FrameKind::About => {
                if let (Value::Object(all), Value::Object(more)) = (&mut self.profile.about, json()?) {
                    all.extend(more);
                }
            }
            FrameKind::End => self.profile.end = Some(json()?),
            FrameKind::Initial => self.take_chapter(&inflated(payload)?)?,
            FrameKind::Pattern => {
                let raw = inflated(payload)?;
                let mut input = Input(&raw);
                self.take_definitions(&mut input)?;
                let pattern = self.pattern(&mut input)?;
                self.profile.patterns.push(pattern);
                self.take_segment(self.profile.patterns.len() - 1, &mut input)?;
            }
            FrameKind::Repeat => {
                let mut input = Input(payload);
                self.take_definitions(&mut input)?;
                let pattern = input.index(self.profile.patterns.len() - self.first_pattern, "pattern")?;
                self.take_segment(self.first_pattern + pattern as usize, &mut input)?;
            }
            FrameKind::LeftOut => {
                let mut input = Input(payload);
                for _ in 0..input.number()? {
                    self.left_out.push(Stretch::read(&mut input)?);
                }
            }
        }
        Ok(())
    }

    fn take_chapter(&mut self, raw: &[u8]) -> io::Result<()> {
        let is_first = self.profile.chapters.is_empty();
        if !is_first && self.version < CHAPTERS {
            return Err(damaged("it begins twice"));
        }
        (self.texts, self.sites) = (Vec::new(), Vec::new());
        self.first_pattern = self.profile.patterns.len();
        let mut input = Input(raw);
        self.take_definitions(&mut input)?;
        let (next_serial, committed) = (input.number()?, input.number()?);
        let mut number = || if self.version < CHAPTERS { Ok(0) } else { input.number() };
        let (moment, clock, worked, step) = (number()?, number()?, number()?, number()?);
        let mut blocks = Vec::new();
        for _ in 0..input.number()? {
            let back = input.number()?;
            let serial =
                next_serial.checked_sub(back).ok_or_else(|| damaged("a block is older than the pool"))?;
            blocks.push((serial, self.event(&mut input)?));
        }
        if moment < self.moment || clock < self.clock || moment > MOST_MOMENTS || is_first && moment > 0 {
            return Err(damaged("a chapter begins when it cannot"));
        }
        let left_out = std::mem::take(&mut self.left_out);
        let mut end = self.moment;
        let mut times = (self.clock, 0);
        for stretch in &left_out {
            let Stretch { moments, nanoseconds, worked: by_formula, n_steps, .. } = stretch;
            let is_after = moments.start >= end && moments.end <= moment;
            // Only a step has a mark with a time.
            let begins = if *n_steps > 0 { (nanoseconds.start, by_formula.start) } else { times };
            let is_later =
                begins.0 >= times.0 && begins.0 <= clock && begins.1 >= times.1 && begins.1 <= worked;
            if !is_after || !is_later {
                return Err(damaged("what was left out is elsewhere"));
            }
            (end, times) = (moments.end, begins);
        }
        (self.moment, self.clock) = (moment, clock);
        let (n_before, segment) = (self.profile.stretches.len(), self.profile.segments.len());
        self.profile.stretches.extend(left_out);
        let stretches = n_before..self.profile.stretches.len();
        let chapter =
            Chapter { segment, moment, clock, worked, step, next_serial, committed, blocks, stretches };
        self.profile.chapters.push(chapter);
        Ok(())
    }

    fn take_definitions(&mut self, input: &mut Input<'_>) -> io::Result<()> {
        for _ in 0..input.number()? {
            match input.byte()? {
                0 => {
                    let number = self.known_texts.number(&input.text()?, &mut self.profile.texts);
                    self.texts.push(number);
                }
                1 => {
                    let text = |input: &mut Input<'_>| {
                        let local = input.index(self.texts.len(), "text")? as usize;
                        Ok::<_, io::Error>(self.profile.texts[self.texts[local] as usize].clone())
                    };
                    let (file, line) = (text(input)?, input.number()?);
                    let (scope, op) = (text(input)?, text(input)?);
                    let described = (text(input)?, input.number()?);
                    let described = Some(described).filter(|(_, line)| *line > 0);
                    let site = Site { file, line, scope, op, described };
                    let number = self.known_sites.number(&site, &mut self.profile.sites);
                    self.sites.push(number);
                }
                _ => return Err(damaged("a definition is unknown")),
            }
        }
        Ok(())
    }

    fn event(&self, input: &mut Input<'_>) -> io::Result<Event> {
        let event = input.event(self.sites.len(), self.texts.len())?;
        Ok(event.renumbered(&self.sites, &self.texts))
    }

    fn pattern(&self, input: &mut Input<'_>) -> io::Result<Pattern> {
        let len = input.number()?;
        if len > input.0.len() as u64 {
            return Err(damaged("a pattern is longer than its frame"));
        }
        let (events, rest) = input.0.split_at(len as usize);
        input.0 = rest;
        let mut coded = Input(events);
        let mut pattern = Pattern { events: Vec::new(), n_marks: 0, n_counted: 0 };
        while !coded.is_empty() {
            let event = self.event(&mut coded)?;
            pattern.n_marks += usize::from(matches!(event, Event::Mark { .. }));
            pattern.n_counted += u64::from(event.is_counted());
            pattern.events.push(event);
        }
        Ok(pattern)
    }

    fn take_segment(&mut self, pattern: usize, input: &mut Input<'_>) -> io::Result<()> {
        let Pattern { n_marks, n_counted, .. } = self.profile.patterns[pattern];
        let mut marks = Vec::new();
        for _ in 0..n_marks {
            let number = input.number()?;
            let clock = self.clock.checked_add(input.number()?);
            self.clock = clock.ok_or_else(|| damaged("a time is too late"))?;
            marks.push((number, self.clock));
        }
        self.profile.segments.push(Segment { pattern: pattern as u32, begins: self.moment, marks });
        self.moment += n_counted;
        Ok(())
    }
}

/// The next frame; nothing at the end of the file, or where it was cut off.
fn next_frame(file: &mut BufReader<File>) -> io::Result<Option<(FrameKind, Vec<u8>)>> {
    let mut head = [0; 9];
    if !filled(file, &mut head)? {
        return Ok(None);
    }
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (len, sum) = (word(1), word(5));
    let kind = FrameKind::from_byte(head[0]).ok_or_else(|| damaged("a frame is of no known kind"))?;
    if u64::from(len) > MOST_FRAME {
        return Err(damaged("a frame is too long"));
    }
    let mut payload = Vec::new();
    file.take(len.into()).read_to_end(&mut payload)?;
    if payload.len() < len as usize {
        return Ok(None);
    }
    match crc32fast::hash(&payload) == sum {
        true => Ok(Some((kind, payload))),
        false => Err(damaged("a checksum is wrong")),
    }
}

/// Fills a buffer; whether there was enough.
fn filled(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn inflated(payload: &[u8]) -> io::Result<Vec<u8>> {
    let mut raw = Vec::new();
    let read = DeflateDecoder::new(payload).take(MOST_FRAME + 1).read_to_end(&mut raw);
    read.map_err(|_| damaged("a frame cannot be unpacked"))?;
    match raw.len() as u64 <= MOST_FRAME {
        true => Ok(raw),
        false => Err(damaged("a frame is too long when it is unpacked")),
    }
}

fn no_profile() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "it is no profile of Plimsoll's; `train --profile FILE` writes one",
    )
}
