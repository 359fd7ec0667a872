//! The dynamic loss scale of training in float16.

use plimsoll_tensor::optimizer::Scaling;

/// What the loss is multiplied by before backward, so that small gradients do not vanish in float16. A step whose
/// gradients overflow is skipped and halves the scale; a run of good steps doubles it. The scale is part of the
/// optimizer's control buffer, and so of its checkpoints.
#[doc(alias("LossScaleOptimizer", "GradScaler"))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    pub(super) initial: f64,
    growth_interval: u32,
    factor: f64,
}

impl LossScale {
    /// Keras's scale: it begins at 2¹⁵, and doubles after 2000 good steps.
    pub fn new() -> LossScale {
        LossScale { initial: 32_768.0, growth_interval: 2000, factor: 2.0 }
    }

    /// This scale with another beginning.
    pub fn initial(self, initial: f64) -> LossScale {
        LossScale { initial, ..self }
    }

    /// This scale growing after that many good steps.
    pub fn growth_interval(self, growth_interval: u32) -> LossScale {
        LossScale { growth_interval, ..self }
    }

    /// This scale growing and shrinking by another factor than two.
    pub fn factor(self, factor: f64) -> LossScale {
        LossScale { factor, ..self }
    }

    pub(super) fn scaling(self) -> Scaling {
        Scaling { growth_interval: self.growth_interval, factor: self.factor }
    }
}

impl Default for LossScale {
    fn default() -> LossScale {
        LossScale::new()
    }
}
