//! Learning rates as pure functions of the step number.
//!
//! A schedule is an attribute of the op that begins a step, which evaluates it on the device: a step that was skipped
//! because of an overflow does not count, and nothing is read back to know. The set is closed for that reason; a rate
//! that follows something else (a metric, a formula of one's own) is set with `set_learning_rate` before the step.

use std::f64::consts::PI;
use std::sync::Arc;

use crate::error::{Error, Result};

/// A learning rate that depends on the number of steps made so far, which is 0 at the first step.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    shape: Curve,
    /// Steps in which the rate rises evenly to the curve's first value; the curve begins after them.
    warmup: f64,
}

/// The rate after the warm-up.
#[derive(Clone, Debug, PartialEq)]
enum Curve {
    Constant(f64),
    Exponential { initial: f64, decay: f64, every: f64, staircase: bool },
    Piecewise { boundaries: Arc<[f64]>, values: Arc<[f64]> },
    Polynomial { initial: f64, last: f64, steps: f64, power: f64 },
    Cosine { initial: f64, last: f64, steps: f64 },
    OneCycle { initial: f64, highest: f64, last: f64, rise: f64, steps: f64 },
}

impl Schedule {
    fn of(shape: Curve) -> Schedule {
        Schedule { shape, warmup: 0.0 }
    }

    /// The same rate at every step.
    #[doc(alias = "ConstantLR")]
    pub fn constant(rate: f64) -> Schedule {
        Schedule::of(Curve::Constant(rate))
    }

    /// `initial · decay^(step / every)`, Keras's `ExponentialDecay`.
    ///
    /// # Errors
    /// `every` is zero.
    #[doc(alias("ExponentialDecay", "ExponentialLR"))]
    pub fn exponential_decay(initial: f64, decay: f64, every: u64) -> Result<Schedule> {
        let every = steps_of("exponential_decay", every)?;
        Ok(Schedule::of(Curve::Exponential { initial, decay, every, staircase: false }))
    }

    /// `initial · decay^⌊step / every⌋`, PyTorch's `StepLR`.
    ///
    /// # Errors
    /// `every` is zero.
    #[doc(alias = "StepLR")]
    pub fn steps(initial: f64, decay: f64, every: u64) -> Result<Schedule> {
        let every = steps_of("steps", every)?;
        Ok(Schedule::of(Curve::Exponential { initial, decay, every, staircase: true }))
    }

    /// `values[k]` where `k` boundaries are at or below the step number: one value more than boundaries.
    ///
    /// # Errors
    /// Another number of values, boundaries that do not rise.
    #[doc(alias("PiecewiseConstantDecay", "MultiStepLR"))]
    pub fn piecewise_constant_decay(boundaries: &[u64], values: &[f64]) -> Result<Schedule> {
        if values.len() != boundaries.len() + 1 {
            return Err(Error::argument(
                "piecewise schedule",
                format!(
                    "{} boundaries make {} pieces, but there are {} values",
                    boundaries.len(),
                    boundaries.len() + 1,
                    values.len()
                ),
            ));
        }
        if !boundaries.is_sorted_by(|a, b| a < b) {
            return Err(Error::argument(
                "piecewise schedule",
                format!("boundaries {boundaries:?} do not rise from each to the next"),
            ));
        }
        let boundaries = boundaries.iter().map(|&step| step as f64).collect();
        Ok(Schedule::of(Curve::Piecewise { boundaries, values: values.into() }))
    }

    /// From `initial` to `last` along a power of the part of `steps` that is left, then `last`.
    ///
    /// # Errors
    /// `steps` is zero.
    #[doc(alias("PolynomialDecay", "PolynomialLR"))]
    pub fn polynomial_decay(initial: f64, last: f64, steps: u64, power: f64) -> Result<Schedule> {
        let steps = steps_of("polynomial_decay", steps)?;
        Ok(Schedule::of(Curve::Polynomial { initial, last, steps, power }))
    }

    /// Evenly from `initial` to `last` in `steps` steps, then `last`.
    ///
    /// # Errors
    /// `steps` is zero.
    #[doc(alias = "LinearLR")]
    pub fn linear(initial: f64, last: f64, steps: u64) -> Result<Schedule> {
        Schedule::polynomial_decay(initial, last, steps, 1.0)
    }

    /// From `initial` to `last` along half a cosine in `steps` steps, then `last`.
    ///
    /// # Errors
    /// `steps` is zero.
    #[doc(alias("CosineDecay", "CosineAnnealingLR"))]
    pub fn cosine_decay(initial: f64, last: f64, steps: u64) -> Result<Schedule> {
        let steps = steps_of("cosine_decay", steps)?;
        Ok(Schedule::of(Curve::Cosine { initial, last, steps }))
    }

    /// PyTorch's `OneCycleLR`: along a cosine from `highest / 25` to `highest` in the first 30 % of `steps`, then along
    /// a cosine to `highest / 250000`, which is reached at the last step and kept.
    ///
    /// # Errors
    /// Fewer than four steps.
    #[doc(alias = "OneCycleLR")]
    pub fn one_cycle(highest: f64, steps: u64) -> Result<Schedule> {
        if steps < 4 {
            return Err(Error::argument(
                "one-cycle schedule",
                format!("{steps} steps are too few to rise and fall; four or more work"),
            ));
        }
        let (initial, steps) = (highest / 25.0, steps as f64);
        let rise = 0.3 * steps - 1.0;
        Ok(Schedule::of(Curve::OneCycle { initial, highest, last: initial / 1e4, rise, steps }))
    }

    /// The same schedule after `steps` steps in which the rate rises evenly from zero to its first value, which is
    /// reached at the step after them.
    #[doc(alias = "warmup_steps")]
    #[must_use]
    pub fn warmed_up(mut self, steps: u64) -> Schedule {
        self.warmup = steps as f64;
        self
    }

    /// The same schedule with every rate multiplied by a factor.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Schedule {
        let shape = match self.shape.clone() {
            Curve::Constant(rate) => Curve::Constant(rate * factor),
            Curve::Exponential { initial, decay, every, staircase } => {
                Curve::Exponential { initial: initial * factor, decay, every, staircase }
            }
            Curve::Piecewise { boundaries, values } => {
                Curve::Piecewise { boundaries, values: values.iter().map(|value| value * factor).collect() }
            }
            Curve::Polynomial { initial, last, steps, power } => {
                Curve::Polynomial { initial: initial * factor, last: last * factor, steps, power }
            }
            Curve::Cosine { initial, last, steps } => {
                Curve::Cosine { initial: initial * factor, last: last * factor, steps }
            }
            Curve::OneCycle { initial, highest, last, rise, steps } => {
                let (initial, highest, last) = (initial * factor, highest * factor, last * factor);
                Curve::OneCycle { initial, highest, last, rise, steps }
            }
        };
        Schedule { shape, warmup: self.warmup }
    }

    /// The rate when `step` steps have been made.
    pub fn at(&self, step: f64) -> f64 {
        if step < self.warmup {
            return self.shape.at(0.0) * (step + 1.0) / (self.warmup + 1.0);
        }
        self.shape.at(step - self.warmup)
    }
}

/// A schedule as a kernel takes it; what the numbers are, `begin_step.cu` says.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CurveParam {
    kind: u64,
    numbers: [f64; 5],
    warmup: f64,
    n_boundaries: u64,
}

impl CurveParam {
    /// No schedule: the rate stays as it is.
    pub const NONE: CurveParam = CurveParam { kind: 0, numbers: [0.0; 5], warmup: 0.0, n_boundaries: 0 };
}

impl Schedule {
    /// The schedule for a kernel, without its pieces.
    pub(super) fn param(&self) -> CurveParam {
        let (kind, numbers) = match self.shape {
            Curve::Constant(rate) => (1, [rate, 0.0, 0.0, 0.0, 0.0]),
            Curve::Exponential { initial, decay, every, staircase } => {
                (if staircase { 3 } else { 2 }, [initial, decay, every, 0.0, 0.0])
            }
            Curve::Piecewise { .. } => (4, [0.0; 5]),
            Curve::Polynomial { initial, last, steps, power } => (5, [initial, last, steps, power, 0.0]),
            Curve::Cosine { initial, last, steps } => (6, [initial, last, steps, 0.0, 0.0]),
            Curve::OneCycle { initial, highest, last, rise, steps } => {
                (7, [initial, highest, last, rise, steps])
            }
        };
        let n_boundaries = self.pieces().len() as u64 / 2;
        CurveParam { kind, numbers, warmup: self.warmup, n_boundaries }
    }

    /// The boundaries and then the values of a piecewise schedule, one more than boundaries.
    pub(super) fn pieces(&self) -> Vec<f64> {
        match &self.shape {
            Curve::Piecewise { boundaries, values } => boundaries.iter().chain(&**values).copied().collect(),
            _ => Vec::new(),
        }
    }
}

impl Curve {
    fn at(&self, step: f64) -> f64 {
        match *self {
            Curve::Constant(rate) => rate,
            Curve::Exponential { initial, decay, every, staircase } => {
                let periods = step / every;
                initial * decay.powf(if staircase { periods.floor() } else { periods })
            }
            Curve::Piecewise { ref boundaries, ref values } => {
                values[boundaries.partition_point(|&boundary| boundary <= step)]
            }
            Curve::Polynomial { initial, last, steps, power } => {
                let left = 1.0 - step.min(steps) / steps;
                last + (initial - last) * left.powf(power)
            }
            Curve::Cosine { initial, last, steps } => eased(initial, last, step.min(steps) / steps),
            Curve::OneCycle { initial, highest, last, rise, steps } => match step <= rise {
                true => eased(initial, highest, step / rise),
                false => eased(highest, last, (step.min(steps - 1.0) - rise) / (steps - 1.0 - rise)),
            },
        }
    }
}

/// From one value to another along half a cosine.
fn eased(from: f64, to: f64, part: f64) -> f64 {
    to + (from - to) * (1.0 + (PI * part).cos()) / 2.0
}

/// A number of steps to divide by.
fn steps_of(name: &str, steps: u64) -> Result<f64> {
    match steps {
        0 => Err(Error::argument("schedule", format!("{name} over 0 steps; one or more work"))),
        steps => Ok(steps as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(actual: f64, expected: f64) {
        assert!((actual - expected).abs() <= 1e-12 * expected.abs().max(1e-3), "{actual} is not {expected}");
    }

    #[test]
    fn curves_begin_end_and_stay() -> Result<()> {
        let cosine = Schedule::cosine_decay(1.0, 0.1, 100)?;
        let linear = Schedule::linear(1.0, 0.5, 10)?;
        for (schedule, step, expected) in [
            (&cosine, 0.0, 1.0),
            (&cosine, 50.0, 0.55),
            (&cosine, 100.0, 0.1),
            (&cosine, 1e6, 0.1),
            (&linear, 4.0, 0.8),
            (&linear, 99.0, 0.5),
        ] {
            near(schedule.at(step), expected);
        }
        Ok(())
    }

    #[test]
    fn steps_fall_at_their_boundaries() -> Result<()> {
        let piecewise = Schedule::piecewise_constant_decay(&[10, 20], &[1.0, 0.5, 0.1])?;
        assert_eq!([0.0, 9.0, 10.0, 19.0, 20.0].map(|step| piecewise.at(step)), [1.0, 1.0, 0.5, 0.5, 0.1]);
        let steps = Schedule::steps(1.0, 0.5, 10)?;
        assert_eq!([9.0, 10.0, 25.0].map(|step| steps.at(step)), [1.0, 0.5, 0.25]);
        near(Schedule::exponential_decay(1.0, 0.5, 10)?.at(5.0), 0.5f64.sqrt());
        Ok(())
    }

    #[test]
    fn the_warm_up_rises_evenly_and_shifts_the_curve() -> Result<()> {
        let schedule = Schedule::linear(1.0, 0.0, 4)?.warmed_up(3);
        let rates = [0.0, 1.0, 2.0, 3.0, 5.0, 7.0].map(|step| schedule.at(step));
        assert_eq!(rates, [0.25, 0.5, 0.75, 1.0, 0.5, 0.0]);
        Ok(())
    }

    /// PyTorch 2.15: `OneCycleLR(SGD([p], lr=1), max_lr=1, total_steps=10)`, its rates at steps 0, 1, 2, 5 and 9.
    #[test]
    fn one_cycle_is_that_of_pytorch() -> Result<()> {
        let schedule = Schedule::one_cycle(1.0, 10)?;
        for (step, expected) in [(0.0, 0.04), (1.0, 0.52), (2.0, 1.0), (5.0, 0.6112620219362893), (9.0, 4e-6)]
        {
            near(schedule.at(step), expected);
        }
        Ok(())
    }

    #[test]
    fn impossible_schedules_are_refused() {
        assert!(Schedule::linear(1.0, 0.0, 0).is_err());
        assert!(Schedule::one_cycle(1.0, 3).is_err());
        let error = Schedule::piecewise_constant_decay(&[10], &[1.0]).expect_err("one value is missing");
        assert!(error.to_string().contains("2 pieces, but there are 1 values"), "{error}");
        assert!(Schedule::piecewise_constant_decay(&[10, 10], &[1.0, 0.5, 0.1]).is_err());
    }
}
