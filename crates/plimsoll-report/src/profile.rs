//! A recorded run: its chapters, segments and what they name.

use std::io;
use std::ops::Range;
use std::path::Path;

use serde_json::Value;

use crate::code::Event;
use crate::stretch::Stretch;

/// A line of a program, with the op and the layer that ran there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    pub(crate) about: Value,
    pub(crate) texts: Vec<String>,
    pub(crate) sites: Vec<Site>,
    pub(crate) chapters: Vec<Chapter>,
    pub(crate) patterns: Vec<Pattern>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) stretches: Vec<Stretch>,
    pub(crate) end: Option<Value>,
}

/// What was there when a chapter began; the first begins with the recording.
#[derive(Debug, Default)]
pub(crate) struct Chapter {
    /// The first segment of it.
    pub segment: usize,
    pub moment: u64,
    /// The time of the last mark before,
    pub clock: u64,
    /// and how long all kernels before had run by formula.
    pub worked: u64,
    pub step: u64,
    pub next_serial: u64,
    pub committed: u64,
    /// Serial numbers and the events that took the blocks.
    pub blocks: Vec<(u64, Event)>,
    /// What was left out before it.
    pub stretches: Range<usize>,
}

/// Events in a certain order, and how many of them are marks.
#[derive(Debug)]
pub(crate) struct Pattern {
    pub events: Vec<Event>,
    pub n_marks: usize,
    /// How many of them are events of memory or marks, which pages count.
    pub n_counted: u64,
}

/// One occurrence of a pattern.
#[derive(Debug)]
pub(crate) struct Segment {
    pub pattern: u32,
    /// The number of the moment before it.
    pub begins: u64,
    /// For each mark its number, and the time since recording began.
    pub marks: Vec<(u64, u64)>,
}

impl Profile {
    pub(crate) fn empty() -> Profile {
        Profile {
            about: Value::Object(serde_json::Map::new()),
            texts: Vec::new(),
            sites: Vec::new(),
            chapters: Vec::new(),
            patterns: Vec::new(),
            segments: Vec::new(),
            stretches: Vec::new(),
            end: None,
        }
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

    /// The stretch of that number, which the file has left out.
    pub fn stretch(&self, number: usize) -> &Stretch {
        &self.stretches[number]
    }

    /// How many steps are left out.
    pub fn n_steps_left_out(&self) -> u64 {
        self.stretches.iter().map(|stretch| stretch.n_steps).sum()
    }

    /// How many events there were, repeated ones and those that are left out included: blocks taken, freed and relabelled, and marks.
    pub fn n_events(&self) -> u64 {
        let end = self.segments.last().map(|last| last.begins + self.n_counted(last));
        let begins = self.chapters.last().map(|chapter| chapter.moment);
        end.max(begins).unwrap_or(0)
    }

    /// How many events of a segment pages count.
    pub(crate) fn n_counted(&self, segment: &Segment) -> u64 {
        self.patterns[segment.pattern as usize].n_counted
    }
}
