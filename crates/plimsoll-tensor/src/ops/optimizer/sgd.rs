//! Stochastic gradient descent, with momentum and Nesterov's form of it.

use plimsoll_cpu::math::Real;

use super::{Common, Control, Decay, Rule, RuleSample};

/// p ← p - η b, where b is the gradient or, with momentum μ, its running sum: b ← μ b + g. Nesterov's form looks one
/// step ahead: p ← p - η (g + μ b). As in PyTorch, the learning rate is outside the sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// How much of the running sum stays, from step to step; zero keeps none.
    pub momentum: f64,
    /// Whether to look ahead.
    pub nesterov: bool,
}

/// The numbers of a step.
#[derive(Clone, Copy, Debug)]
pub struct Now<T> {
    rate: T,
    momentum: T,
    nesterov: bool,
}

impl Rule for Sgd {
    const NAME: &'static str = "sgd";
    const DOC: &'static str = "Updates parameters by stochastic gradient descent.";
    type Now<T: Real> = Now<T>;
    const CUDA: &'static str = r"
        struct Now { T rate, momentum; bool nesterov; };
        DEVICE Now now_of(const Control& control, const double* a) {
            return {(T)control.learning_rate, (T)a[0], a[1] != 0.0};
        }
        DEVICE T element(const Now& now, T p, T g, T* s) {
            s[0] = now.momentum * s[0] + g;
            return p - now.rate * (now.nesterov ? g + now.momentum * s[0] : s[0]);
        }
    ";

    fn slots(&self) -> Vec<(&'static str, f64)> {
        if self.momentum == 0.0 { vec![] } else { vec![("momentum", 0.0)] }
    }

    fn attributes(&self) -> [f64; 4] {
        [self.momentum, f64::from(u8::from(self.nesterov)), 0.0, 0.0]
    }

    fn now<T: Real>(&self, control: &Control) -> Now<T> {
        Now {
            rate: T::from_f64(control.learning_rate),
            momentum: T::from_f64(self.momentum),
            nesterov: self.nesterov,
        }
    }

    #[inline(always)]
    fn element<T: Real>(now: &Now<T>, p: T, g: T, [sum, ..]: &mut [T; 3]) -> T {
        // Without momentum the sum is zero and stays unused, and so the sum is the gradient.
        *sum = now.momentum * *sum + g;
        let ahead = g + now.momentum * *sum;
        p - now.rate * if now.nesterov { ahead } else { *sum }
    }

    fn samples() -> Vec<RuleSample<Sgd>> {
        let common = Common { decay: Decay::L2(0.05), clip_value: None };
        vec![
            RuleSample {
                name: "plain",
                rule: Sgd { momentum: 0.0, nesterov: false },
                common: Common::default(),
                torch: "torch.optim.SGD(parameters, lr=0.1)",
            },
            RuleSample {
                name: "momentum",
                rule: Sgd { momentum: 0.9, nesterov: false },
                common,
                torch: "torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.05)",
            },
            RuleSample {
                name: "nesterov",
                rule: Sgd { momentum: 0.9, nesterov: true },
                common,
                torch: "torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.05)",
            },
        ]
    }

    fn reference(&self, _step: i32, rate: f64, p: f64, g: f64, states: &mut [f64]) -> f64 {
        let Some(sum) = states.first_mut() else { return p - rate * g };
        *sum = self.momentum * *sum + g;
        match self.nesterov {
            true => p - rate * (g + self.momentum * *sum),
            false => p - rate * *sum,
        }
    }
}
