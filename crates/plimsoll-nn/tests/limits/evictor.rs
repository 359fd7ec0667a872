//! What no plan foresees: values read in the middle of a step, branches that depend on data, lengths drawn at random, and
//! loops with a bare tape. For 500 steps each: never above the limit, the same bits, and no thrashing.

use plimsoll_nn::optimizers::{Optimizer, OptimizerConfig, SGD};
use plimsoll_tensor::{Bytes, Device, GradientTape, Result, Step, Tensor, Variable, set_seed};

use crate::run::device;

const N_STEPS: usize = 500;
const N_LAYERS: usize = 8;
const WIDTH: usize = 32;
const BATCH: usize = 512;

/// How often the flops of a step may be recomputed, all together. A recomputed value stays for its other readers,
/// and what is evicted once more is what costs least, so that under these limits a step repeats about one forward, a third of
/// its flops, and never as much as all of it twice.
const MOST_REPEATS: u64 = 2;

/// How often the evictor lets the work of a step so far be recomputed before it evicts nothing more.
const CAP: u64 = 8;

/// Dense layers, one after the other, whose number a step may choose.
struct Net {
    kernels: Vec<Variable>,
    optimizer: Optimizer,
}

impl Net {
    fn new() -> Result<Net> {
        set_seed(21);
        let kernel = |_| Ok(Variable::new(Tensor::randn([WIDTH, WIDTH])?.mul(0.25)?));
        let kernels: Vec<Variable> = (0..N_LAYERS).map(kernel).collect::<Result<_>>()?;
        let mut optimizer = SGD::new(0.02).momentum(0.9).build();
        optimizer.prepare(&kernels)?;
        Ok(Net { kernels, optimizer })
    }

    fn layer(&self, x: &Tensor, number: usize) -> Result<Tensor> {
        x.matmul(&self.kernels[number])?.tanh()?.dropout(0.1)
    }

    /// Updates the kernels by what the tape says about a loss; those that it does not depend on stay as they are.
    fn update(&mut self, tape: &GradientTape, loss: &Tensor) -> Result<()> {
        let gradients = tape.variable_gradients(loss, &self.kernels)?;
        self.optimizer.apply_gradients(gradients, &self.kernels)
    }
}

/// One training step with the data of its number: a loss, as bits.
type Train = fn(&mut Net, &Device, usize) -> Result<u64>;

/// The floating-point operations of the products of one layer for one row: forward, and two of the same size in backward.
const FLOPS_PER_ROW: u64 = 3 * 2 * (WIDTH * WIDTH) as u64;

/// A batch that depends on the number of the step alone.
fn batch(step: usize, rows: usize) -> Result<Tensor> {
    let values = (0..rows * WIDTH).map(|at| ((at * 31 + step * 17) % 97) as f32 / 48.5 - 1.0).collect();
    Tensor::from_vec(values)?.reshape([rows, WIDTH])
}

/// Reads the loss and a layer's mean in the middle of the step, and goes on by what they say.
fn reads_values(net: &mut Net, device: &Device, step: usize) -> Result<u64> {
    Step::run(device, || {
        let x = batch(step, BATCH)?;
        let tape = GradientTape::new();
        let loss = tape.record(|| {
            let mut h = x.clone();
            for number in 0..N_LAYERS {
                h = net.layer(&h, number)?;
                let mean = h.square()?.mean(..)?.item::<f32>()?;
                if mean > 0.4 {
                    h = h.mul(0.9)?;
                }
            }
            let loss = h.sub(&x)?.square()?.mean(..)?;
            if loss.item::<f32>()? > 0.5 { loss.mul(0.5)?.add(&h.square()?.mean(..)?) } else { Ok(loss) }
        })?;
        net.update(&tape, &loss)?;
        Ok(u64::from(loss.item::<f32>()?.to_bits()))
    })
}

/// Repeats a layer or leaves it out, by what the data say.
fn branches(net: &mut Net, device: &Device, step: usize) -> Result<u64> {
    Step::run(device, || {
        let x = batch(step, BATCH)?;
        let tape = GradientTape::new();
        let loss = tape.record(|| {
            let mut h = x.clone();
            for number in 0..N_LAYERS {
                let first = h.narrow(0, step % BATCH, 1)?.sum(..)?.item::<f32>()?;
                let times = (first.abs() * 8.0) as usize % 3;
                // Every kernel has a gradient, also where its layer is left out.
                h = if times == 0 { h.add(&h.matmul(&net.kernels[number])?.mul(0.01)?)? } else { h };
                for _ in 0..times {
                    h = net.layer(&h, number)?.add(&h.mul(0.5)?)?;
                }
            }
            h.sub(&x)?.square()?.mean(..)
        })?;
        net.update(&tape, &loss)?;
        Ok(u64::from(loss.item::<f32>()?.to_bits()))
    })
}

/// A number of rows that is drawn anew for each step.
fn random_rows(net: &mut Net, device: &Device, step: usize) -> Result<u64> {
    let rows = 64 + (step * 7919 + 13) % 449;
    plain(net, step, rows, |f| Step::run(device, f))
}

/// A bare tape, no step.
fn bare_tape(net: &mut Net, _: &Device, step: usize) -> Result<u64> {
    plain(net, step, BATCH, |f| f())
}

/// BuiltLayer, backward and update, inside what `open` opens.
fn plain(
    net: &mut Net,
    step: usize,
    rows: usize,
    open: impl FnOnce(&mut dyn FnMut() -> Result<u64>) -> Result<u64>,
) -> Result<u64> {
    open(&mut || {
        let x = batch(step, rows)?;
        let tape = GradientTape::new();
        let loss = tape.record(|| {
            let mut h = x.clone();
            for number in 0..N_LAYERS {
                h = net.layer(&h, number)?;
            }
            h.sub(&x)?.square()?.mean(..)
        })?;
        net.update(&tape, &loss)?;
        Ok(u64::from(loss.item::<f32>()?.to_bits()))
    })
}

/// The losses of a run, the most that it committed, what it holds without a step, and the most flops repeated in a step.
fn train(step: Train, limit: Option<u64>) -> Result<(Vec<u64>, u64, u64, u64)> {
    let device = device();
    device.set_limit(limit.map(Bytes::new))?;
    let _on = device.enter();
    let mut net = Net::new()?;
    device.trim();
    device.pool().reset_peaks();
    let fixed = device.stats().committed;
    let (mut losses, mut most) = (Vec::new(), 0);
    for number in 0..N_STEPS {
        let before = device.recomputed();
        losses.push(step(&mut net, &device, number)?);
        most = most.max(device.recomputed().flops - before.flops);
    }
    assert_eq!(device.pool().verify(), Ok(()));
    Ok((losses, device.stats().peak_committed, fixed, most))
}

fn holds(name: &str, step: Train) -> Result<()> {
    let (expected, natural, fixed, none) = train(step, None)?;
    assert_eq!(none, 0, "{name}: without a limit nothing is recomputed");
    let step_flops = FLOPS_PER_ROW * (BATCH * N_LAYERS) as u64;
    for percent in [80, 70, 60] {
        let limit = fixed + (natural - fixed) * percent / 100;
        let (losses, committed, _, repeated) = train(step, Some(limit))?;
        eprintln!(
            "{name} at {percent} %: committed {committed} of {limit}, at most {repeated} flops repeated in a step of {step_flops}"
        );
        assert!(committed <= limit, "{name}: {committed} under {limit}");
        assert_eq!(losses, expected, "{name} at {percent} %");
        assert!(repeated > 0, "{name}: nothing was recomputed at {percent} %");
        assert!(repeated <= MOST_REPEATS * step_flops, "{name}: {repeated} flops repeated in a step");
    }
    Ok(())
}

#[test]
fn a_step_that_reads_values() -> Result<()> {
    holds("reads values", reads_values)
}

#[test]
fn a_step_with_branches() -> Result<()> {
    holds("branches", branches)
}

#[test]
fn random_numbers_of_rows() -> Result<()> {
    holds("random rows", random_rows)
}

#[test]
fn a_bare_tape_loop() -> Result<()> {
    holds("bare tape", bare_tape)
}

/// A chain so long, under a limit so low, that nearly everything would have to be recomputed for every layer.
#[test]
fn thrashing_ends_in_a_report() -> Result<()> {
    const DEEP: usize = 640;
    let device = device();
    let _on = device.enter();
    let net = Net::new()?;
    let x = batch(0, BATCH)?;
    let value = (BATCH * WIDTH * 4) as u64;
    let gradient = || {
        let tape = GradientTape::new();
        let y = tape.record(|| {
            (0..DEEP).try_fold(x.clone(), |h, at| h.matmul(&net.kernels[at % N_LAYERS])?.tanh())
        })?;
        tape.variable_gradients(&y, &net.kernels)
    };
    let step_flops = FLOPS_PER_ROW * (BATCH * DEEP) as u64;
    let mut outcomes = Vec::new();
    for n_values in [DEEP / 3, 8] {
        device.trim();
        let before = (device.recomputed().flops, device.stats().in_use);
        device.set_limit(Some(Bytes::new(device.stats().committed + n_values as u64 * value)))?;
        let outcome = gradient().map(drop);
        let repeated = device.recomputed().flops - before.0;
        eprintln!(
            "room for {n_values} of {DEEP} values: {repeated} flops repeated in a step of {step_flops}: {outcome:?}"
        );
        assert!(repeated <= (CAP + 1) * step_flops, "{repeated} flops repeated in a step of {step_flops}");
        assert_eq!(device.stats().in_use, before.1);
        outcomes.push(outcome);
    }
    // It is the cap that ends it, early in backward: eight times a forward, which is a third of the step's flops.
    assert!(
        device.recomputed().flops > CAP * step_flops / 4,
        "{} flops repeated in all",
        device.recomputed().flops
    );
    outcomes.remove(0)?;
    let error = outcomes.remove(0).unwrap_err();
    assert!(error.is_out_of_memory() && error.to_string().contains("largest holders"), "{error}");
    Ok(())
}
