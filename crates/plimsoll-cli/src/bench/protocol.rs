//! How a workload is timed. On the CPU: one first call, a second of warm-up, five repeats of a second each. On a GPU as
//! the programs that measure others there do it: five calls of warm-up, twenty that are timed one by one, each from a
//! device that has nothing to do until it has nothing to do again.

use std::time::{Duration, Instant};

use plimsoll::Result;

/// How many repeats there are.
const REPEATS: usize = 5;
/// The fewest calls of the warm-up, and of a repeat.
const LEAST_WARM_UP: usize = 2;
const LEAST_CALLS: usize = 3;

/// The calls of the warm-up on a GPU, the first one included, and those that are timed.
const GPU_WARM_UP: usize = 5;
const GPU_CALLS: usize = 20;

/// How long warm-up and repeats are.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// As long as this each.
    Time(Duration),
    /// So many calls each.
    Calls(usize),
}

impl Pace {
    /// One second.
    pub const STANDARD: Pace = Pace::Time(Duration::from_secs(1));

    fn goes_on(self, started: Instant, n_calls: usize, least: usize) -> bool {
        match self {
            Pace::Time(time) => n_calls < least || started.elapsed() < time,
            Pace::Calls(calls) => n_calls < calls,
        }
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// The first call, which takes memory and wakes threads.
    pub first_ms: f64,
    /// The median of the repeats' medians.
    pub median_ms: f64,
    /// The smallest of the repeats' medians.
    pub min_ms: f64,
    /// How many calls were made.
    pub n_calls: usize,
}

/// Times a call.
///
/// # Errors
/// Those of the call.
pub fn measure(pace: Pace, mut call: impl FnMut() -> Result<()>) -> Result<Timing> {
    let mut n_calls = 0;
    let mut timed = || {
        n_calls += 1;
        let started = Instant::now();
        call().map(|()| started.elapsed().as_secs_f64() * 1e3)
    };
    let first_ms = timed()?;
    let (started, mut n_warm_up) = (Instant::now(), 0);
    while pace.goes_on(started, n_warm_up, LEAST_WARM_UP) {
        timed()?;
        n_warm_up += 1;
    }
    let mut medians = Vec::with_capacity(REPEATS);
    for _ in 0..REPEATS {
        let started = Instant::now();
        let mut times = Vec::new();
        while pace.goes_on(started, times.len(), LEAST_CALLS) {
            times.push(timed()?);
        }
        medians.push(median(&mut times));
    }
    let min_ms = medians.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(Timing { first_ms, median_ms: median(&mut medians), min_ms, n_calls })
}

/// Times a call on a GPU; `wait` returns when the device has nothing to do. With a pace in calls, so many are timed.
///
/// # Errors
/// Those of the call and of the device.
pub fn measure_on_gpu(
    pace: Pace,
    mut call: impl FnMut() -> Result<()>,
    wait: impl Fn() -> Result<()>,
) -> Result<Timing> {
    let mut timed = || {
        wait()?;
        let started = Instant::now();
        call()?;
        wait()?;
        Ok(started.elapsed().as_secs_f64() * 1e3)
    };
    let n_timed = match pace {
        Pace::Time(_) => GPU_CALLS,
        Pace::Calls(calls) => calls,
    };
    let first_ms = timed()?;
    (1..GPU_WARM_UP).try_for_each(|_| timed().map(drop))?;
    let mut times = (0..n_timed).map(|_| timed()).collect::<Result<Vec<f64>>>()?;
    let min_ms = times.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(Timing { first_ms, median_ms: median(&mut times), min_ms, n_calls: GPU_WARM_UP + n_timed })
}

/// The middle of some numbers, or the mean of the two in the middle; zero if there are none.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values {
        [] => 0.0,
        _ => (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&mut []), 0.0);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn a_gpu_is_waited_for_around_each_call() -> Result<()> {
        let (n_calls, n_waits) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let count = |cell: &std::cell::Cell<usize>| {
            cell.set(cell.get() + 1);
            Ok(())
        };
        let timing = measure_on_gpu(Pace::STANDARD, || count(&n_calls), || count(&n_waits))?;
        assert_eq!((n_calls.get(), n_waits.get(), timing.n_calls), (25, 50, 25));
        Ok(())
    }

    #[test]
    fn a_pace_in_calls_is_kept_to_the_call() -> Result<()> {
        let mut n_calls = 0;
        let timing = measure(Pace::Calls(4), || {
            n_calls += 1;
            Ok(())
        })?;
        assert_eq!((n_calls, timing.n_calls), (25, 1 + 4 + 5 * 4));
        assert!(timing.min_ms <= timing.median_ms);
        Ok(())
    }
}
