//! Reading a profile back, with checks.
//!
//! A file that was cut off, because its process was killed or its disk was full, is read up to the last frame that is whole,
//! and says so. Anything else that is wrong with it is an error: nothing in a file is trusted.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::read::DeflateDecoder;
use serde_json::Value;

use crate::code::{Event, FrameKind, Input, MAGIC, OLDEST_VERSION, VERSION, damaged};

/// The most bytes that a frame may have, compressed or not: a recorder writes far less.
const MOST_FRAME: u64 = 16 << 20;

/// A line of a program, with the op and the layer that ran there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The file.
    pub file: String,
    /// The line in it.
    pub line: u64,
    /// The layers around it, outermost first, with dots between them.
    pub scope: String,
    /// The op.
    pub op: String,
    /// File and line of the place that described the layer, if that is known.
    pub described: Option<(String, u64)>,
}

/// A recorded run.
#[derive(Debug)]
pub struct Profile {
    about: Value,
    texts: Vec<String>,
    sites: Vec<Site>,
    pub(crate) initial: Initial,
    pub(crate) patterns: Vec<Pattern>,
    pub(crate) segments: Vec<Segment>,
    end: Option<Value>,
}

/// What was there when recording began.
#[derive(Debug, Default)]
pub(crate) struct Initial {
    pub next_serial: u64,
    pub committed: u64,
    /// Serial numbers and the events that took the blocks.
    pub blocks: Vec<(u64, Event)>,
}

/// Events in a certain order, and how many of them are marks.
#[derive(Debug)]
pub(crate) struct Pattern {
    pub events: Vec<Event>,
    n_marks: usize,
    /// How many of them are events of memory or marks, which pages count.
    pub n_counted: u64,
}

/// One occurrence of a pattern.
#[derive(Debug)]
pub(crate) struct Segment {
    pub pattern: u32,
    /// For each mark its number, and the time since recording began.
    pub marks: Vec<(u64, u64)>,
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
        let mut profile = Profile {
            about: Value::Object(serde_json::Map::new()),
            texts: Vec::new(),
            sites: Vec::new(),
            initial: Initial::default(),
            patterns: Vec::new(),
            segments: Vec::new(),
            end: None,
        };
        let mut clock = 0;
        while let Some((kind, payload)) = next_frame(&mut file)? {
            profile.take_in(kind, &payload, &mut clock)?;
        }
        Ok(profile)
    }

    /// Copies the file of a profile, whole or not at all.
    ///
    /// # Errors
    /// A file that cannot be read, or one that cannot be written.
    pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
        let mut source = plimsoll_file::open(from)?;
        plimsoll_file::write_whole(to, |target| io::copy(&mut source, target).map(drop))
    }

    /// What was known of the run, as a JSON object.
    pub fn about(&self) -> &Value {
        &self.about
    }

    /// Whether recording ended as it should; otherwise the end of the run is missing.
    pub fn is_complete(&self) -> bool {
        self.end.is_some()
    }

    /// What the pool said at the end: `in_use` and `committed`.
    pub fn end(&self) -> Option<&Value> {
        self.end.as_ref()
    }

    /// The site of that number.
    pub fn site(&self, number: u32) -> &Site {
        &self.sites[number as usize]
    }

    /// How many sites there are; they are numbered from zero.
    pub fn n_sites(&self) -> u32 {
        self.sites.len() as u32
    }

    /// The text of that number, such as the name of a mark.
    pub fn text(&self, number: u32) -> &str {
        &self.texts[number as usize]
    }

    /// How many events there are, repeated ones included: blocks taken, freed and relabelled, and marks.
    pub fn n_events(&self) -> u64 {
        self.segments.iter().map(|segment| self.patterns[segment.pattern as usize].n_counted).sum()
    }

    fn take_in(&mut self, kind: FrameKind, payload: &[u8], clock: &mut u64) -> io::Result<()> {
        let json = || {
            serde_json::from_slice::<Value>(payload).map_err(|_| damaged("it holds no JSON where it should"))
        };
        match kind {
            FrameKind::About => {
                if let (Value::Object(all), Value::Object(more)) = (&mut self.about, json()?) {
                    all.extend(more);
                }
            }
            FrameKind::End => self.end = Some(json()?),
            FrameKind::Initial => self.take_initial(&inflated(payload)?)?,
            FrameKind::Pattern => {
                let raw = inflated(payload)?;
                let mut input = Input(&raw);
                self.take_definitions(&mut input)?;
                let pattern = self.pattern(&mut input)?;
                self.patterns.push(pattern);
                self.take_segment(self.patterns.len() as u32 - 1, &mut input, clock)?;
            }
            FrameKind::Repeat => {
                let mut input = Input(payload);
                self.take_definitions(&mut input)?;
                let pattern = input.index(self.patterns.len(), "pattern")?;
                self.take_segment(pattern, &mut input, clock)?;
            }
        }
        Ok(())
    }

    fn take_initial(&mut self, raw: &[u8]) -> io::Result<()> {
        let mut input = Input(raw);
        self.take_definitions(&mut input)?;
        let (next_serial, committed, n_blocks) = (input.number()?, input.number()?, input.number()?);
        let mut blocks = Vec::new();
        for _ in 0..n_blocks {
            let back = input.number()?;
            let serial =
                next_serial.checked_sub(back).ok_or_else(|| damaged("a block is older than the pool"))?;
            blocks.push((serial, input.event(self.sites.len(), self.texts.len())?));
        }
        self.initial = Initial { next_serial, committed, blocks };
        Ok(())
    }

    fn take_definitions(&mut self, input: &mut Input<'_>) -> io::Result<()> {
        for _ in 0..input.number()? {
            match input.byte()? {
                0 => self.texts.push(input.text()?),
                1 => {
                    let text = |input: &mut Input<'_>| {
                        Ok::<_, io::Error>(
                            self.texts[input.index(self.texts.len(), "text")? as usize].clone(),
                        )
                    };
                    let (file, line) = (text(input)?, input.number()?);
                    let (scope, op) = (text(input)?, text(input)?);
                    let described = (text(input)?, input.number()?);
                    let described = Some(described).filter(|(_, line)| *line > 0);
                    self.sites.push(Site { file, line, scope, op, described });
                }
                _ => return Err(damaged("a definition is unknown")),
            }
        }
        Ok(())
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
            let event = coded.event(self.sites.len(), self.texts.len())?;
            pattern.n_marks += usize::from(matches!(event, Event::Mark { .. }));
            pattern.n_counted += u64::from(event.is_counted());
            pattern.events.push(event);
        }
        Ok(pattern)
    }

    fn take_segment(&mut self, pattern: u32, input: &mut Input<'_>, clock: &mut u64) -> io::Result<()> {
        let mut marks = Vec::new();
        for _ in 0..self.patterns[pattern as usize].n_marks {
            let number = input.number()?;
            *clock = clock.checked_add(input.number()?).ok_or_else(|| damaged("a time is too late"))?;
            marks.push((number, *clock));
        }
        self.segments.push(Segment { pattern, marks });
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
