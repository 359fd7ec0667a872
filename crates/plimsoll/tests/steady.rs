//! Ten thousand training-like steps with varying shapes: bytes in use return to the same value after every step, and
//! when the last tensor is dropped everything goes back to the system by itself.
//!
//! One test in a process of its own, because the resident set belongs to the process.

use plimsoll::prelude::*;
use plimsoll_testkit::ProcessMemory;

/// The anonymous pages of this process, in bytes.
fn resident() -> u64 {
    ProcessMemory::now().expect("Linux tells").anonymous
}

/// Two layers, and the steps that train them on batches of random sizes.
struct Training {
    w1: Variable,
    w2: Variable,
}

impl Training {
    fn new() -> Result<Training> {
        Ok(Training {
            w1: Variable::new(Tensor::normal([24, 48], 0.0, 0.1, DType::F32)?),
            w2: Variable::new(Tensor::normal([48, 10], 0.0, 0.1, DType::F32)?),
        })
    }

    fn step(&self, device: &Device, batch: usize) -> Result<()> {
        Step::run(device, || {
            let x = Tensor::randn([batch, 24])?.owned_by(Owner::Data);
            let tape = GradientTape::new();
            let loss = tape.record(|| {
                let y = x.matmul(&self.w1)?.relu()?.matmul(&self.w2)?;
                y.mul(&y)?.sum(..)
            })?;
            let [d1, d2] = tape.gradient(&loss, [&self.w1, &self.w2])?;
            self.w1.assign_sub(&d1.mul(1e-5)?)?;
            self.w2.assign_sub(&d2.mul(1e-5)?)
        })
    }
}

#[test]
fn ten_thousand_steps_leave_no_trace() -> Result<()> {
    let device = Device::separate_cpu();
    let cycle = |n_steps: usize| -> Result<()> {
        let _on = device.enter();
        set_seed(1);
        let training = Training::new()?;
        let before = device.stats().in_use;
        let mut random = 12345u64;
        for step in 0..n_steps {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            training.step(&device, 1 + (random >> 33) as usize % 300)?;
            assert_eq!(device.stats().in_use, before, "after step {step}");
        }
        Ok(())
    };
    cycle(50)?;
    let warm = resident();
    cycle(10_000)?;
    assert_eq!((device.stats().in_use, device.stats().committed), (0, 0));
    let growth = resident().saturating_sub(warm);
    assert!(growth <= 2 << 20, "{growth} B more than after the first cycle");
    Ok(())
}
