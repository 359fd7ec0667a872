//! Chapters of a profile's file, and which of them a long recording leaves out.
//!
//! A file is written chapter by chapter. Each begins with all live blocks and defines its own texts, lines and patterns, so that
//! any other can be left out without being read. The first stays, the one with the peak, the first in which memory
//! could not be had, and the last ones; of the others their [stretches](Stretch) stay.

use std::ops::Range;

use crate::stretch::{Stretch, bounded};

/// A chapter with so many bytes is full,
const FULL: u64 = 1 << 20;
/// or one that has a quarter of the steps to keep, if it has at least so many.
const LEAST: u64 = 32 << 10;
/// As many of the last chapters are kept as have so many bytes together,
const LAST_BYTES: u64 = 4 << 20;
/// and so many steps: what grows is told by the last eleven.
const LAST_STEPS: u64 = 16;
/// How many stretches tell of a chapter,
const MOST_STRETCHES: usize = 64;
/// and of chapters that are left out between two that are not.
const MOST_LEFT_OUT: usize = 512;

/// Part of a recording.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chapter {
    /// Where in the file it lies.
    pub bytes: Range<u64>,
    pub n_steps: u64,
    /// The most bytes in use.
    most: u64,
    /// Whether memory could not be had.
    pub is_short: bool,
    stretches: Vec<Stretch>,
    /// How many steps a stretch has.
    steps_each: u64,
    /// What was left out before it.
    pub left_out: Vec<Stretch>,
}

impl Chapter {
    /// The one that begins at that place of the file.
    pub fn begin(at: u64) -> Chapter {
        Chapter { bytes: at..at, steps_each: 1, ..Chapter::default() }
    }

    fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }

    /// Whether another one should begin, where so many of the last steps are to be kept.
    pub fn is_full(&self, steps: Option<u64>) -> bool {
        let has_steps = steps.is_some_and(|steps| self.n_steps >= steps.div_ceil(4));
        self.len() >= FULL || has_steps && self.len() >= LEAST
    }

    /// Whether another one must begin, even in the middle of a step.
    pub fn is_overfull(&self) -> bool {
        self.len() >= 4 * FULL
    }

    /// Takes in a stretch that has ended.
    pub fn tell(&mut self, stretch: Stretch) {
        self.n_steps += stretch.n_steps;
        self.most = self.most.max(stretch.most);
        match self.stretches.last_mut().filter(|last| last.n_steps < self.steps_each) {
            Some(last) => last.join(&stretch),
            None => self.stretches.push(stretch),
        }
        if self.stretches.len() > MOST_STRETCHES {
            bounded(&mut self.stretches, MOST_STRETCHES);
            self.steps_each *= 2;
        }
    }
}

/// The chapters that stay, with what is left out before each; nothing if too little would be left out to write the file anew.
pub(crate) fn chosen(chapters: &[Chapter], steps: Option<u64>) -> Option<Vec<Chapter>> {
    let is_kept = kept(chapters, steps);
    let bytes = |of: bool| -> u64 {
        chapters.iter().zip(&is_kept).filter(|(_, is)| **is == of).map(|(chapter, _)| chapter.len()).sum()
    };
    if 2 * bytes(false) < bytes(true) || bytes(false) == 0 {
        return None;
    }
    let (mut all, mut left_out) = (Vec::new(), Vec::new());
    for (chapter, is_kept) in chapters.iter().zip(is_kept) {
        left_out.extend_from_slice(&chapter.left_out);
        match is_kept {
            false => left_out.extend_from_slice(&chapter.stretches),
            true => {
                bounded(&mut left_out, MOST_LEFT_OUT);
                all.push(Chapter { left_out: std::mem::take(&mut left_out), ..chapter.clone() });
            }
        }
    }
    Some(all)
}

fn kept(chapters: &[Chapter], steps: Option<u64>) -> Vec<bool> {
    let mut is_kept = vec![false; chapters.len()];
    let all_steps: u64 = chapters.iter().map(|chapter| chapter.n_steps).sum();
    let wanted_steps = steps.unwrap_or(LAST_STEPS).min(all_steps);
    let wanted_bytes = if steps.is_some() && all_steps > 0 { 0 } else { LAST_BYTES };
    let (mut n_steps, mut n_bytes) = (0, 0);
    for (is_kept, chapter) in is_kept.iter_mut().zip(chapters).rev() {
        *is_kept = n_steps < wanted_steps || n_bytes < wanted_bytes;
        (n_steps, n_bytes) = (n_steps + chapter.n_steps, n_bytes + chapter.len());
    }
    // Of equal peaks the first counts, and the latest maximum is taken.
    let peak = (0..chapters.len()).rev().max_by_key(|&nth| chapters[nth].most);
    let first = peak.map(|_| 0);
    let short = chapters.iter().position(|chapter| chapter.is_short);
    [first, peak, short].into_iter().flatten().for_each(|nth| is_kept[nth] = true);
    is_kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chapter(from: u64, len: u64, n_steps: u64, most: u64) -> Chapter {
        let stretch = Stretch { step: from, n_steps, most, ..Stretch::default() };
        Chapter { bytes: from..from + len, n_steps, most, stretches: vec![stretch], ..Chapter::begin(from) }
    }

    /// However long a run is, its file has at most so many bytes.
    #[test]
    fn a_long_recording_is_bounded_and_keeps_its_peak() {
        let mut chapters: Vec<Chapter> = Vec::new();
        let (mut n_steps, mut most_bytes) = (0, 0);
        for nth in 0..1000 {
            let most = if nth == 300 { 9 } else { 7 };
            chapters.push(chapter(nth * FULL, FULL, 20, most));
            chapters[0].is_short |= nth == 0;
            n_steps += 20;
            if let Some(left) = chosen(&chapters, None) {
                chapters = left;
            }
            most_bytes = most_bytes.max(chapters.iter().map(Chapter::len).sum());
            let told: u64 = chapters
                .iter()
                .map(|it| it.n_steps + it.left_out.iter().map(|left| left.n_steps).sum::<u64>())
                .sum();
            assert_eq!(told, n_steps, "each step is in a chapter or a stretch");
        }
        assert!(most_bytes <= 10 * FULL, "{most_bytes}");
        assert!(chapters.iter().any(|it| it.bytes.start == 300 * FULL), "the peak");
        assert_eq!((chapters[0].bytes.start, chapters.last().unwrap().bytes.start), (0, 999 * FULL));
        assert!(chapters.iter().all(|it| it.left_out.len() <= MOST_LEFT_OUT));
    }

    #[test]
    fn as_many_steps_are_kept_as_were_asked_for() {
        let mut chapters: Vec<Chapter> = Vec::new();
        for nth in 0..400 {
            chapters.push(chapter(nth * LEAST, LEAST, 25, 7));
            if let Some(left) = chosen(&chapters, Some(100)) {
                chapters = left;
            }
            let last: u64 = chapters.iter().rev().take(4).map(|it| it.n_steps).sum();
            assert!(nth < 4 || last == 100 && chapters.len() <= 8, "{nth}: {}", chapters.len());
            let starts: Vec<u64> = chapters.iter().rev().take(4).map(|it| it.bytes.start / LEAST).collect();
            assert!(nth < 4 || starts == [nth, nth - 1, nth - 2, nth - 3], "{starts:?}");
        }
    }

    #[test]
    fn a_chapter_has_few_stretches_which_add_up() {
        let mut chapter = Chapter::begin(0);
        for step in 1..=1000 {
            chapter.tell(Stretch { step, n_steps: 1, most: step, ..Stretch::default() });
        }
        assert!((MOST_STRETCHES / 2..=MOST_STRETCHES).contains(&chapter.stretches.len()));
        assert_eq!(chapter.stretches.iter().map(|it| it.n_steps).sum::<u64>(), 1000);
        assert_eq!((chapter.n_steps, chapter.most), (1000, 1000));
        let mut next = 1;
        for stretch in &chapter.stretches {
            assert_eq!((stretch.step, stretch.most), (next, next + stretch.n_steps - 1));
            next += stretch.n_steps;
        }
    }
}
