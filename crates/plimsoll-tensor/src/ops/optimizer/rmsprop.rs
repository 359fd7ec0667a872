//! RMSprop: the gradient over the root of a running mean of its squares.

use plimsoll_cpu::element::Number;
use plimsoll_cpu::math::Real;

use super::{Common, Control, Rule, RuleSample};

/// v ← ρ v + (1 - ρ) g², d = g / (√v + ε), p ← p - η d. Centered, v is made a variance by the square of the running mean
/// of gradients, a ← ρ a + (1 - ρ) g. With momentum μ, p moves by the running sum b ← μ b + d. As in PyTorch, ε is
/// outside the root.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsProp {
    /// How much of the mean of squares stays, from step to step.
    pub rho: f64,
    /// How much of the running sum stays, from step to step; zero keeps none.
    pub momentum: f64,
    /// What keeps the division from zero.
    pub epsilon: f64,
    /// Whether to divide by a standard deviation instead of a mean of squares.
    pub centered: bool,
}

/// The numbers of a step.
#[derive(Clone, Copy, Debug)]
pub struct Now<T> {
    rate: T,
    rho: T,
    rest: T,
    momentum: T,
    epsilon: T,
    centered: bool,
}

impl Rule for RmsProp {
    const NAME: &'static str = "rmsprop";
    const DOC: &'static str = "Updates parameters by RMSprop.";
    type Now<T: Real> = Now<T>;
    const CUDA: &'static str = r"
        struct Now { T rate, rho, rest, momentum, epsilon; bool centered; };
        DEVICE Now now_of(const Control& control, const double* a) {
            return {(T)control.learning_rate, (T)a[0], (T)(1.0 - a[0]), (T)a[1], (T)a[2], a[3] != 0.0};
        }
        DEVICE T element(const Now& now, T p, T g, T* s) {
            s[0] = now.rho * s[0] + now.rest * (g * g);
            T square = s[0];
            if (now.centered) {
                s[1] += now.rest * (g - s[1]);
                square = m::max(s[0] - s[1] * s[1], (T)0);
            }
            T* sum = now.centered ? s + 2 : s + 1;
            *sum = now.momentum * *sum + g / (m::sqrt(square) + now.epsilon);
            return p - now.rate * *sum;
        }
    ";

    fn slots(&self) -> Vec<(&'static str, f64)> {
        let mut states = vec![("v", 0.0)];
        if self.centered {
            states.push(("mean", 0.0));
        }
        if self.momentum != 0.0 {
            states.push(("momentum", 0.0));
        }
        states
    }

    fn attributes(&self) -> [f64; 4] {
        [self.rho, self.momentum, self.epsilon, f64::from(u8::from(self.centered))]
    }

    fn now<T: Real>(&self, control: &Control) -> Now<T> {
        Now {
            rate: T::from_f64(control.learning_rate),
            rho: T::from_f64(self.rho),
            rest: T::from_f64(1.0 - self.rho),
            momentum: T::from_f64(self.momentum),
            epsilon: T::from_f64(self.epsilon),
            centered: self.centered,
        }
    }

    #[inline(always)]
    fn element<T: Real>(now: &Now<T>, p: T, g: T, [v, second, third]: &mut [T; 3]) -> T {
        *v = now.rho * *v + now.rest * (g * g);
        // Without momentum the sum is zero and stays unused, and so the sum is the direction.
        let sum = |old: T, root: T| now.momentum * old + g / (root + now.epsilon);
        let moved = if now.centered {
            *second = *second + now.rest * (g - *second);
            // Rounding may make the variance of gradients that do not change negative.
            *third = sum(*third, Number::max(*v - *second * *second, T::ZERO).sqrt());
            *third
        } else {
            *second = sum(*second, v.sqrt());
            *second
        };
        p - now.rate * moved
    }

    fn samples() -> Vec<RuleSample<RmsProp>> {
        let sample = |name, momentum, centered, torch| RuleSample {
            name,
            rule: RmsProp { rho: 0.9, momentum, epsilon: 1e-2, centered },
            common: Common::default(),
            torch,
        };
        vec![
            sample("plain", 0.0, false, "torch.optim.RMSprop(parameters, lr=0.1, alpha=0.9, eps=1e-2)"),
            sample(
                "centered",
                0.0,
                true,
                "torch.optim.RMSprop(parameters, lr=0.1, alpha=0.9, eps=1e-2, centered=True)",
            ),
            sample(
                "momentum",
                0.5,
                false,
                "torch.optim.RMSprop(parameters, lr=0.1, alpha=0.9, eps=1e-2, momentum=0.5)",
            ),
            sample(
                "centered with momentum",
                0.5,
                true,
                "torch.optim.RMSprop(parameters, lr=0.1, alpha=0.9, eps=1e-2, momentum=0.5, centered=True)",
            ),
        ]
    }

    fn reference(&self, _step: i32, rate: f64, p: f64, g: f64, states: &mut [f64]) -> f64 {
        states[0] = self.rho * states[0] + (1.0 - self.rho) * g * g;
        let mut square = states[0];
        if self.centered {
            states[1] = self.rho * states[1] + (1.0 - self.rho) * g;
            square -= states[1].powi(2);
        }
        let direction = g / (square.sqrt() + self.epsilon);
        if self.momentum == 0.0 {
            return p - rate * direction;
        }
        let last = states.len() - 1;
        states[last] = self.momentum * states[last] + direction;
        p - rate * states[last]
    }
}
