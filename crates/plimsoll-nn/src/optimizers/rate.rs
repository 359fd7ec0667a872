//! Learning rates that are looked at, set and scaled, with a schedule or without.
//!
//! A rate without a schedule stands in the control buffer, and so in checkpoints. One with a schedule is computed by the op
//! that begins a step; what somebody sets is a factor of the whole schedule, which the op has as an attribute, so programs that
//! were recorded before are not run any more.

use plimsoll_tensor::optimizer::{Control, set_learning_rate};
use plimsoll_tensor::{DType, Error, Result, Tensor, Variable, at_callers_line};

use super::Optimizer;

impl Optimizer {
    /// The learning rate of the last step, or of the first if there was none.
    ///
    /// # Errors
    /// A ghost, which has no values.
    pub fn learning_rate(&self) -> Result<f64> {
        Ok(self.control()?.learning_rate)
    }

    /// Sets the learning rate of the steps from now on, of all variables but those in groups with a rate of their own. An
    /// optimizer with a schedule begins with this rate at the next step and follows the schedule's shape from there: all
    /// its rates, and those of the groups' schedules, are multiplied alike.
    ///
    /// # Errors
    /// A schedule that has come to a rate of zero; memory that is full.
    #[track_caller]
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<()> {
        let _line = at_callers_line();
        let Some(schedule) = &self.begin.schedule else {
            if let Some(control) = &self.control {
                set_rate(control, rate)?;
            }
            self.rate = rate;
            return Ok(());
        };
        // A ghost does not know the step, and needs no rate.
        let step = self.control().map_or(0.0, |control| control.step);
        let scheduled = schedule.at(step);
        if scheduled == 0.0 {
            let detail = format!("the schedule says 0 at step {step}, of which no factor makes {rate}");
            return Err(Error::argument("set_learning_rate", detail));
        }
        self.set_rate_factor(rate / scheduled);
        Ok(())
    }

    /// Multiplies all learning rates by a factor from now on: those of groups, and those of schedules, too.
    ///
    /// # Errors
    /// Memory that is full.
    #[track_caller]
    pub fn scale_learning_rate(&mut self, factor: f64) -> Result<()> {
        let _line = at_callers_line();
        if self.begin.schedule.is_none() {
            let now = self.learning_rate().unwrap_or(self.rate);
            self.set_learning_rate(now * factor)?;
        }
        for (group, control) in self.groups.iter_mut().zip(&self.group_controls) {
            let (Some(rate), None) = (group.rate, &group.schedule) else { continue };
            let now = control.as_ref().and_then(|control| Control::read(control).ok());
            let scaled = now.map_or(rate, |control| control.learning_rate) * factor;
            control.as_ref().map_or(Ok(()), |control| set_rate(control, scaled))?;
            group.rate = Some(scaled);
        }
        self.set_rate_factor(self.rate_factor * factor);
        Ok(())
    }

    /// What the rates of schedules are multiplied by, because somebody has set another rate than they say.
    pub(crate) fn rate_factor(&self) -> f64 {
        self.rate_factor
    }

    pub(crate) fn set_rate_factor(&mut self, factor: f64) {
        let has_schedule =
            self.begin.schedule.is_some() || self.groups.iter().any(|group| group.schedule.is_some());
        if has_schedule && self.rate_factor != factor {
            self.rate_factor = factor;
            self.version += 1;
        }
    }

    /// A number that is another one when ops of its steps have other attributes.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }
}

/// Writes a learning rate into a control buffer.
fn set_rate(control: &Variable, rate: f64) -> Result<()> {
    let _there = control.device().enter();
    let number = Tensor::full_of((), rate, DType::F64)?;
    Variable::update(set_learning_rate(), &[control], &[&number])
}
