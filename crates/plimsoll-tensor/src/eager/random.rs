//! The random generator: a seed and the number of draws taken.
//!
//! The bits of a draw depend on (seed, draw number, element) alone, so they are equal on every device and for any
//! number of threads, and a record can repeat its draw. The issuing thread takes draw numbers in program order.

use plimsoll_cpu::random::Draw;

use crate::eager::context;

/// A counter-based generator: cheap to copy, nothing hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generator {
    seed: u64,
    next_draw: u64,
}

impl Generator {
    /// A generator at its first draw.
    pub const fn new(seed: u64) -> Generator {
        Generator { seed, next_draw: 0 }
    }

    /// This thread's generator as it is now.
    pub fn current() -> Generator {
        context::generator()
    }

    /// Makes this generator the thread's own.
    pub fn make_current(self) {
        context::set_generator(self);
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The number of the next draw.
    pub fn next_draw(&self) -> u64 {
        self.next_draw
    }

    /// A generator that goes on from a draw: how a resumed run continues.
    pub fn at(seed: u64, next_draw: u64) -> Generator {
        Generator { seed, next_draw }
    }
}

/// Starts this thread's generator anew from a seed.
#[doc(alias("manual_seed", "seed", "PRNGKey"))]
pub fn set_seed(seed: u64) {
    Generator::new(seed).make_current();
}

/// Takes the next draw of this thread's generator.
pub(crate) fn draw() -> Draw {
    let mut generator = context::generator();
    let draw = Draw { seed: generator.seed, number: generator.next_draw };
    generator.next_draw += 1;
    context::set_generator(generator);
    draw
}
