//! The bar on stderr: how far a run is, its loss, its speed, and its memory against the limit.
//!
//! There is none when stderr is no terminal, and no colour where `NO_COLOR` is set.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use plimsoll::Bytes;

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
        if !std::io::stderr().is_terminal() {
            return Progress { bar: ProgressBar::hidden(), limit };
        }
        let bar =
            ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr()).with_style(style());
        bar.enable_steady_tick(Duration::from_millis(500));
        Progress { bar, limit }
    }

    /// Shows that so many steps were taken before; they do not count for the time that is left.
    pub fn go_on_from(&self, step: u64) {
        self.bar.set_position(step);
        self.bar.reset_eta();
    }

    /// Shows a step.
    pub fn step(&self, shown: Shown) {
        self.bar.set_position(shown.step);
        self.bar.set_message(message(shown, self.limit));
    }

    /// Writes text while the bar is out of the way.
    pub fn beside<R>(&self, write: impl FnOnce() -> R) -> R {
        self.bar.suspend(write)
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn style() -> ProgressStyle {
    let has_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let bar = if has_colour { "{bar:30.cyan/dim}" } else { "{bar:30}" };
    let template = format!("{bar} {{pos}}/{{len}} {{msg}}, {{eta}} left");
    ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn message(shown: Shown, limit: Option<u64>) -> String {
    let speed = shown.examples as f64 / shown.ms.max(1e-3) * 1e3;
    let peak = scaled(shown.peak);
    let memory = match limit {
        Some(limit) => format!("{peak} of {} ({:.0} %)", scaled(limit), share(shown.peak, limit)),
        None => format!("{peak}, no limit"),
    };
    format!("loss {:.4}, {speed:.0} examples/s, {memory}", shown.loss)
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

    #[test]
    fn the_bar_tells_loss_speed_and_memory_against_the_limit() {
        let shown = Shown { step: 3, loss: 0.123_45, ms: 4.0, examples: 32, peak: 3 << 20 };
        let text = message(shown, Some(12 << 20));
        assert_eq!(text, "loss 0.1235, 8000 examples/s, 3.00 MiB of 12.00 MiB (25 %)");
        assert_eq!(message(shown, None), "loss 0.1235, 8000 examples/s, 3.00 MiB, no limit");
    }
}
