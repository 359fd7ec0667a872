//! The file of a recording, as it is written: frames, each in one piece, in chapters, of which a long recording leaves some out.
//!
//! Leaving out writes the file anew under another name and gives it its own in one act, so that whoever looks at it, whenever the
//! process is killed, finds all that was recorded or all that is kept. Failures, such as a disk that is full, end the
//! recording with a warning; whoever is recorded goes on.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::chapters::{Chapter, chosen};
use crate::code::{FrameKind, MAGIC, VERSION, put};
use crate::stretch::Stretch;

pub(crate) struct Writer {
    path: PathBuf,
    /// Nothing once writing has failed,
    file: Option<File>,
    /// and why it has.
    failure: Option<io::Error>,
    /// How long the file is,
    len: u64,
    /// and what comes before the first chapter.
    head: u64,
    /// What is known of the run.
    about: Value,
    /// The chapters in the file, the present one last.
    chapters: Vec<Chapter>,
    /// How many of the last steps are kept; as many as fit if nobody says so.
    steps: Option<u64>,
}

impl Writer {
    /// Begins a file with what is known of the run.
    pub fn begin(path: &Path, file: File, about: &Value) -> io::Result<Writer> {
        let mut writer = Writer {
            path: path.to_owned(),
            file: Some(file),
            failure: None,
            len: 0,
            head: 0,
            about: Value::Object(serde_json::Map::new()),
            chapters: Vec::new(),
            steps: None,
        };
        writer.write(&[&MAGIC[..], &VERSION.to_le_bytes()].concat())?;
        writer.note_about(about);
        writer.write(&frame(FrameKind::About, about.to_string().as_bytes())?)?;
        writer.head = writer.len;
        Ok(writer)
    }

    /// From now on so many of the last steps are kept.
    pub fn keep_steps(&mut self, steps: u64) {
        self.steps = Some(steps);
    }

    /// Whether anything is written at all.
    pub fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Why the file could not be written to its end, if it could not; asked once.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    /// Adds to what is known of the run.
    pub fn add(&mut self, about: &Value) {
        self.note_about(about);
        self.put_frame(FrameKind::About, about.to_string().as_bytes());
    }

    /// Ends the present chapter; which others are left out is decided then. The next one begins with these live blocks.
    pub fn begin_chapter(&mut self, initial: &[u8]) {
        if let Some(left) = chosen(&self.chapters, self.steps) {
            let written = self.leave_out(left);
            self.check(written);
        }
        self.chapters.push(Chapter::begin(self.len));
        self.put_frame(FrameKind::Initial, initial);
    }

    /// Whether the present chapter has enough, or more than enough.
    pub fn is_full(&self, even_in_a_step: bool) -> bool {
        self.chapters.last().is_none_or(|chapter| match even_in_a_step {
            true => chapter.is_overfull(),
            false => chapter.is_full(self.steps),
        })
    }

    /// A stretch of the present chapter has ended.
    pub fn tell(&mut self, stretch: Stretch) {
        self.chapters.iter_mut().next_back().into_iter().for_each(|chapter| chapter.tell(stretch.clone()));
    }

    /// Memory could not be had.
    pub fn note_shortage(&mut self) {
        self.chapters.iter_mut().next_back().into_iter().for_each(|chapter| chapter.is_short = true);
    }

    /// In one piece, so that a process that is killed leaves whole frames but for the last.
    pub fn put_frame(&mut self, kind: FrameKind, payload: &[u8]) {
        if self.is_open() {
            let written = frame(kind, payload).and_then(|frame| self.write(&frame));
            self.check(written);
        }
    }

    fn note_about(&mut self, about: &Value) {
        if let (Value::Object(all), Value::Object(more)) = (&mut self.about, about) {
            all.extend(more.clone());
        }
    }

    fn check(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            log::warn!("the profile ends here, because it cannot be written: {error}");
            (self.file, self.failure) = (None, Some(error));
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(bytes)?;
        self.len += bytes.len() as u64;
        if let Some(chapter) = self.chapters.last_mut() {
            chapter.bytes.end = self.len;
        }
        Ok(())
    }

    /// Writes the file anew with these chapters.
    fn leave_out(&mut self, mut kept: Vec<Chapter>) -> io::Result<()> {
        let Some(old) = &self.file else { return Ok(()) };
        let mut len = self.head;
        let new = plimsoll_file::replace(&self.path, |out| {
            copy(old, 0..self.head, out)?;
            for chapter in &mut kept {
                if !chapter.left_out.is_empty() {
                    let told = frame(FrameKind::LeftOut, &coded(&chapter.left_out))?;
                    out.write_all(&told)?;
                    len += told.len() as u64;
                }
                copy(old, chapter.bytes.clone(), out)?;
                let start = len;
                len += chapter.bytes.end - chapter.bytes.start;
                chapter.bytes = start..len;
            }
            // What was added in chapters that are gone.
            let about = frame(FrameKind::About, self.about.to_string().as_bytes())?;
            len += about.len() as u64;
            out.write_all(&about)
        })?;
        (self.file, self.len, self.chapters) = (Some(new), len, kept);
        Ok(())
    }
}

fn copy(mut from: &File, bytes: Range<u64>, to: &mut BufWriter<&File>) -> io::Result<()> {
    from.seek(SeekFrom::Start(bytes.start))?;
    let len = bytes.end - bytes.start;
    match io::copy(&mut from.take(len), to)? {
        copied if copied == len => Ok(()),
        _ => Err(io::Error::other("somebody has changed the file")),
    }
}

fn coded(stretches: &[Stretch]) -> Vec<u8> {
    let mut all = Vec::new();
    put(stretches.len() as u64, &mut all);
    stretches.iter().for_each(|stretch| stretch.put(&mut all));
    all
}

fn frame(kind: FrameKind, payload: &[u8]) -> io::Result<Vec<u8>> {
    let len = u32::try_from(payload.len()).map_err(|_| io::Error::other("a frame is too large"))?;
    let mut frame = Vec::with_capacity(payload.len() + 9);
    frame.push(kind as u8);
    frame.extend(len.to_le_bytes());
    frame.extend(crc32fast::hash(payload).to_le_bytes());
    frame.extend(payload);
    Ok(frame)
}
