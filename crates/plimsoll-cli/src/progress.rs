//! The bar on stderr: how far a run is, its loss, its memory against the limit, and its speed.
//!
//! It fits on one line: in a narrow terminal what matters least is left out. There is none when stderr is no terminal,
//! and no colour where `NO_COLOR` is set. At most one bar is on the screen, and whoever writes on stderr meanwhile does
//! so through [`with_bar_hidden`], or the line would be torn.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use plimsoll::Bytes;

/// How often the bar is drawn in a second, at most.
const DRAWN_A_SECOND: u8 = 20;

/// The bar that is on the screen.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// A bar that may be hidden.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    limit: Option<u64>,
}

/// What the bar shows after a step.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// The step that has ended, counted from 1.
    pub step: u64,
    /// Its loss.
    pub loss: f64,
    /// How long it took.
    pub ms: f64,
    /// Its examples.
    pub examples: usize,
    /// The most bytes in use so far.
    pub peak: u64,
}

impl Progress {
    /// A bar for a run that ends with step `steps`.
    pub fn new(steps: u64, limit: Option<u64>) -> Progress {
        if !io::stderr().is_terminal() {
            return Progress { bar: ProgressBar::hidden(), limit };
        }
        let target =
            ProgressDrawTarget::term_like_with_hz(Box::new(Narrow(Term::buffered_stderr())), DRAWN_A_SECOND);
        let bar = ProgressBar::with_draw_target(Some(steps), target)
            .with_style(style(cells(columns())))
            .with_message("starting");
        bar.enable_steady_tick(Duration::from_millis(500));
        *shown() = Some(bar.clone());
        Progress { bar, limit }
    }

    /// Shows that so many steps were taken before; they do not count for the time that is left.
    pub fn resume_from(&self, step: u64) {
        self.bar.set_position(step);
        self.bar.reset_eta();
    }

    /// Shows a step.
    pub fn step(&self, step: Shown) {
        self.bar.set_position(step.step);
        let digits = self.bar.length().unwrap_or(step.step).to_string().len();
        self.bar.set_message(fitting(&parts(step, self.limit), room(columns(), digits)));
    }

    /// Shows that the steps are done and the model is being evaluated.
    pub fn evaluating(&self) {
        self.bar.set_message("evaluating");
    }
}

impl Drop for Progress {
    /// Takes the bar away, however the run has ended.
    fn drop(&mut self) {
        shown().take();
        self.bar.finish_and_clear();
    }
}

/// Writes on the terminal while the bar, if there is one, is out of the way.
pub fn with_bar_hidden<R>(write: impl FnOnce() -> R) -> R {
    let bar = shown().clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

fn shown() -> MutexGuard<'static, Option<ProgressBar>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stderr as a terminal with less room than it has. A bar fills its line to the edge; the `^C` that terminals write
/// when it is pressed would go to the next line, and the bar could not be taken away any more.
#[derive(Debug)]
struct Narrow(Term);

impl TermLike for Narrow {
    fn width(&self) -> u16 {
        u16::try_from(columns()).unwrap_or(u16::MAX)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_up(n)
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_down(n)
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_right(n)
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_left(n)
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.0.write_line(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.0.write_str(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

/// How wide the terminal is now, without the room for `^C`.
fn columns() -> usize {
    let columns = Term::stderr().size_checked().map_or(80, |(_, columns)| usize::from(columns));
    columns.saturating_sub("^C".len() + 1).max(1)
}

/// How wide the bar itself is.
fn cells(columns: usize) -> usize {
    if columns < 100 { 10 } else { 30 }
}

/// The room that is left for words beside the bar, the numbers of steps and the time.
fn room(columns: usize, digits: usize) -> usize {
    columns.saturating_sub(cells(columns) + 2 * digits + " /, 10m left, ".len())
}

fn style(cells: usize) -> ProgressStyle {
    let has_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let bar = if has_colour { format!("{{bar:{cells}.cyan/dim}}") } else { format!("{{bar:{cells}}}") };
    let template = format!("{bar} {{pos}}/{{len}}, {{eta}} left, {{msg}}");
    ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// What is said of a step, what matters most first.
fn parts(shown: Shown, limit: Option<u64>) -> [String; 4] {
    let speed = shown.examples as f64 / shown.ms.max(1e-3) * 1e3;
    let against = match limit {
        Some(limit) => format!(" of {} ({:.0} %)", scaled(limit), share(shown.peak, limit)),
        None => ", no limit".to_owned(),
    };
    let loss = format!("loss {:.4}", shown.loss);
    [loss, format!(", {}", scaled(shown.peak)), against, format!(", {speed:.0} examples/s")]
}

/// As many of the parts as there is room for; the first in any case.
fn fitting(parts: &[String], room: usize) -> String {
    let mut text = String::new();
    for part in parts {
        if !text.is_empty() && text.len() + part.len() > room {
            break;
        }
        text.push_str(part);
    }
    text
}

/// A number of bytes in three or four digits, such as `12.3 MiB`.
pub fn scaled(bytes: u64) -> String {
    let text = Bytes::new(bytes).to_string();
    text.split(" (").next().unwrap_or_default().to_owned()
}

/// Which part of the whole something is, in percent.
pub fn share(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Shown = Shown { step: 3, loss: 0.123_45, ms: 4.0, examples: 32, peak: 3 << 20 };

    #[test]
    fn the_bar_tells_loss_memory_against_the_limit_and_speed() {
        let text = |limit| parts(STEP, limit).concat();
        assert_eq!(text(Some(12 << 20)), "loss 0.1235, 3.00 MiB of 12.00 MiB (25 %), 8000 examples/s");
        assert_eq!(text(None), "loss 0.1235, 3.00 MiB, no limit, 8000 examples/s");
    }

    #[test]
    fn a_narrow_terminal_gets_what_matters_most() {
        let line = |columns| fitting(&parts(STEP, Some(12 << 20)), room(columns, 4));
        assert_eq!(line(120), "loss 0.1235, 3.00 MiB of 12.00 MiB (25 %), 8000 examples/s");
        assert_eq!(line(80), "loss 0.1235, 3.00 MiB of 12.00 MiB (25 %)");
        assert_eq!(line(60), "loss 0.1235, 3.00 MiB");
        assert_eq!(line(20), "loss 0.1235");
    }
}
