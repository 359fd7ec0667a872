//! Adam, and AMSGrad. With decoupled weight decay it is AdamW.

use plimsoll_cpu::element::Number;
use plimsoll_cpu::math::Real;

use super::{Common, Control, Decay, Rule, RuleSample};

/// m ← β₁ m + (1 - β₁) g, v ← β₂ v + (1 - β₂) g², p ← p - η m̂ / (√v̂ + ε), where m̂ = m / (1 - β₁ᵗ) and
/// v̂ = v / (1 - β₂ᵗ) undo that both began as zero. AMSGrad divides by the greatest v so far. With `epsilon_hat`, ε is added to
/// √v, as TensorFlow and Keras have it, and so counts for more in the first steps: it is ε̂ of the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// How much of the mean of gradients stays, from step to step.
    pub beta_1: f64,
    /// How much of the mean of squares stays, from step to step.
    pub beta_2: f64,
    /// What keeps the division from zero.
    pub epsilon: f64,
    /// Whether to divide by the greatest mean of squares so far.
    pub amsgrad: bool,
    /// Whether ε is added to √v instead of √v̂.
    pub epsilon_hat: bool,
}

/// The numbers of a step.
#[derive(Clone, Copy, Debug)]
pub struct Now<T> {
    /// η / (1 - β₁ᵗ).
    rate: T,
    /// 1 / √(1 - β₂ᵗ).
    correction: T,
    beta_2: T,
    rest_1: T,
    rest_2: T,
    epsilon: T,
    amsgrad: bool,
}

impl Rule for Adam {
    const NAME: &'static str = "adam";
    const DOC: &'static str = "Updates parameters by Adam.";
    type Now<T: Real> = Now<T>;
    const CUDA: &'static str = r"
        struct Now { T rate, correction, beta_2, rest_1, rest_2, epsilon; bool amsgrad; };
        DEVICE Now now_of(const Control& control, const double* a) {
            T rate = (T)(control.learning_rate / (1.0 - ::pow(a[0], control.step)));
            T correction = (T)(1.0 / ::sqrt(1.0 - ::pow(a[1], control.step)));
            int flags = (int)a[3];
            T epsilon = flags & 2 ? (T)a[2] * correction : (T)a[2];
            return {rate, correction, (T)a[1], (T)(1.0 - a[0]), (T)(1.0 - a[1]), epsilon, (flags & 1) != 0};
        }
        DEVICE T element(const Now& now, T p, T g, T* s) {
            s[0] += now.rest_1 * (g - s[0]);
            s[1] = now.beta_2 * s[1] + now.rest_2 * (g * g);
            s[2] = m::max(s[2], s[1]);
            T greatest = now.amsgrad ? s[2] : s[1];
            return p - now.rate * s[0] / (m::sqrt(greatest) * now.correction + now.epsilon);
        }
    ";

    fn slots(&self) -> Vec<(&'static str, f64)> {
        let states = [("m", 0.0), ("v", 0.0), ("v_max", 0.0)];
        states[..if self.amsgrad { 3 } else { 2 }].to_vec()
    }

    fn attributes(&self) -> [f64; 4] {
        let flags = u8::from(self.amsgrad) | u8::from(self.epsilon_hat) << 1;
        [self.beta_1, self.beta_2, self.epsilon, f64::from(flags)]
    }

    fn now<T: Real>(&self, control: &Control) -> Now<T> {
        let correction = T::from_f64((1.0 - self.beta_2.powf(control.step)).sqrt().recip());
        let epsilon = T::from_f64(self.epsilon);
        Now {
            rate: T::from_f64(control.learning_rate / (1.0 - self.beta_1.powf(control.step))),
            correction,
            beta_2: T::from_f64(self.beta_2),
            rest_1: T::from_f64(1.0 - self.beta_1),
            rest_2: T::from_f64(1.0 - self.beta_2),
            epsilon: if self.epsilon_hat { epsilon * correction } else { epsilon },
            amsgrad: self.amsgrad,
        }
    }

    #[inline(always)]
    fn element<T: Real>(now: &Now<T>, p: T, g: T, [m, v, v_max]: &mut [T; 3]) -> T {
        *m = *m + now.rest_1 * (g - *m);
        *v = now.beta_2 * *v + now.rest_2 * (g * g);
        *v_max = Number::max(*v_max, *v);
        let greatest = if now.amsgrad { *v_max } else { *v };
        p - now.rate * *m / (greatest.sqrt() * now.correction + now.epsilon)
    }

    fn samples() -> Vec<RuleSample<Adam>> {
        let rule = Adam { beta_1: 0.8, beta_2: 0.9, epsilon: 1e-3, amsgrad: false, epsilon_hat: false };
        vec![
            RuleSample {
                name: "plain",
                rule,
                common: Common { decay: Decay::L2(0.05), clip_value: None },
                torch: "torch.optim.Adam(parameters, lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.05)",
            },
            RuleSample {
                name: "amsgrad",
                rule: Adam { amsgrad: true, ..rule },
                common: Common::default(),
                torch: "torch.optim.Adam(parameters, lr=0.1, betas=(0.8, 0.9), eps=1e-3, amsgrad=True)",
            },
            RuleSample {
                name: "decoupled decay",
                rule,
                common: Common { decay: Decay::Decoupled(0.3), clip_value: None },
                torch: "torch.optim.AdamW(parameters, lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.3)",
            },
        ]
    }

    fn reference(&self, step: i32, rate: f64, p: f64, g: f64, states: &mut [f64]) -> f64 {
        states[0] = self.beta_1 * states[0] + (1.0 - self.beta_1) * g;
        states[1] = self.beta_2 * states[1] + (1.0 - self.beta_2) * g * g;
        let mut square = states[1];
        if let Some(greatest) = states.get_mut(2) {
            *greatest = greatest.max(square);
            square = *greatest;
        }
        let mean = states[0] / (1.0 - self.beta_1.powi(step));
        let correction = (1.0 - self.beta_2.powi(step)).sqrt();
        let epsilon = if self.epsilon_hat { self.epsilon / correction } else { self.epsilon };
        p - rate * mean / (square.sqrt() / correction + epsilon)
    }
}
