//! Adagrad: the gradient over the root of the sum of all its squares so far.

use plimsoll_cpu::math::Real;

use super::{Common, Control, Decay, Rule, RuleSample};

/// v ← v + g², p ← p - η g / (√v + ε).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adagrad {
    /// What the sum of squares begins with.
    pub initial: f64,
    /// What keeps the division from zero.
    pub epsilon: f64,
}

/// The numbers of a step.
#[derive(Clone, Copy, Debug)]
pub struct Now<T> {
    rate: T,
    epsilon: T,
}

impl Rule for Adagrad {
    const NAME: &'static str = "adagrad";
    const DOC: &'static str = "Updates parameters by Adagrad.";
    type Now<T: Real> = Now<T>;
    const CUDA: &'static str = r"
        struct Now { T rate, epsilon; };
        DEVICE Now now_of(const Control& control, const double* a) {
            return {(T)control.learning_rate, (T)a[0]};
        }
        DEVICE T element(const Now& now, T p, T g, T* s) {
            s[0] += g * g;
            return p - now.rate * g / (m::sqrt(s[0]) + now.epsilon);
        }
    ";

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("v", self.initial)]
    }

    fn attributes(&self) -> [f64; 4] {
        [self.epsilon, 0.0, 0.0, 0.0]
    }

    fn now<T: Real>(&self, control: &Control) -> Now<T> {
        Now { rate: T::from_f64(control.learning_rate), epsilon: T::from_f64(self.epsilon) }
    }

    #[inline(always)]
    fn element<T: Real>(now: &Now<T>, p: T, g: T, [v, ..]: &mut [T; 3]) -> T {
        *v = *v + g * g;
        p - now.rate * g / (v.sqrt() + now.epsilon)
    }

    fn samples() -> Vec<RuleSample<Adagrad>> {
        vec![RuleSample {
            name: "plain",
            rule: Adagrad { initial: 0.1, epsilon: 1e-3 },
            common: Common { decay: Decay::L2(0.05), clip_value: None },
            torch: "torch.optim.Adagrad(parameters, lr=0.1, initial_accumulator_value=0.1, eps=1e-3, weight_decay=0.05)",
        }]
    }

    fn reference(&self, _step: i32, rate: f64, p: f64, g: f64, states: &mut [f64]) -> f64 {
        states[0] += g * g;
        p - rate * g / (states[0].sqrt() + self.epsilon)
    }
}
