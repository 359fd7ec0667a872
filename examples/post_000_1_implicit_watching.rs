//! Post 000, example 1: what a tape holds after a matmul and a sum of two variables of 1000 x 1000.
//!
//! Run it with `cargo run --release --example post_000_1_implicit_watching`.
#![allow(clippy::print_stdout, reason = "an example shows its figures")]

#[path = "shared/table.rs"]
mod table;

use plimsoll::prelude::*;

/// What the example measures, in bytes that were asked for.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// Held by the tape and by nobody else.
    pub own: u64,
    /// In use while z is alive.
    pub with_z: u64,
    /// In use once z is dropped.
    pub without_z: u64,
    /// The most in use during `gradient`, without workspace.
    pub gradient_peak: u64,
    /// The workspace at that moment.
    pub gradient_workspace: u64,
    /// The most that the pool had committed, whatever for.
    pub peak_committed: u64,
    /// A checksum of every bit of dx and dy.
    pub gradient_bits: [u64; 2],
}

/// The bytes in use that were asked for, without rounding.
fn in_use(device: &Device) -> u64 {
    let stats = device.stats();
    stats.in_use - stats.rounding
}

/// Runs the post's program and measures it.
pub fn measure(watch: impl Fn(&GradientTape, &Variable, &Variable) -> Result<()>) -> Result<Figures> {
    set_seed(0);
    let device = Device::separate_cpu();
    let _on = device.enter();
    let x = Variable::new(Tensor::randn([1000, 1000])?).named("x");
    let y = Variable::new(Tensor::randn([1000, 1000])?).named("y");

    let tape = GradientTape::new();
    let (z, loss) = tape.record(|| {
        watch(&tape, &x, &y)?;
        let z = x.matmul(&y)?;
        let loss = z.sum(..)?;
        Ok((z, loss))
    })?;
    let own = tape.saved().own_bytes() as u64;
    let with_z = in_use(&device);
    drop(z);
    let without_z = in_use(&device);

    let committed_before = device.stats().peak_committed;
    device.pool().reset_peaks();
    let [dx, dy] = tape.gradient(&loss, [&x, &y])?;
    let stats = device.stats();
    let peak = stats.peak_rows;
    let gradient_workspace = peak.get(Owner::Workspace);
    Ok(Figures {
        own,
        with_z,
        without_z,
        gradient_peak: peak.total() - peak.rounding() - gradient_workspace,
        gradient_workspace,
        peak_committed: stats.peak_committed.max(committed_before),
        gradient_bits: [bits(&dx)?, bits(&dy)?],
    })
}

/// A checksum of every bit of a matrix, read row by row so that nothing of its size leaves the pool.
fn bits(matrix: &Tensor) -> Result<u64> {
    let mut sum = 0xCBF2_9CE4_8422_2325u64;
    for row in 0..matrix.shape()[0] {
        for value in matrix.narrow(0, row, 1)?.to_vec::<f32>()? {
            sum = (sum ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }
    Ok(sum)
}

#[allow(dead_code, reason = "the tests use `measure` alone")]
fn main() -> Result<()> {
    let figures = measure(|_, _, _| Ok(()))?;
    table::print(
        "post 000, example 1: variables watched by themselves",
        "the large product z is watched and kept",
        "true: while the tape lives, deleting z frees nothing",
        &[
            table::bytes("held by the tape and by nobody else", figures.own),
            table::bytes("in use with z alive", figures.with_z),
            table::bytes("in use with z dropped", figures.without_z),
            table::bytes("most in use during gradient", figures.gradient_peak),
            table::bytes("and the workspace of its products", figures.gradient_workspace),
        ],
    );
    Ok(())
}
