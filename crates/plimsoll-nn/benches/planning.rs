//! What planning costs where every batch has another length: `cargo bench -p plimsoll-nn --bench planning`.
//!
//! An encoder-decoder of the size of w5 is trained as a function under a limit that binds. Told are, for lengths that are new,
//! how many steps' time recording and planning take, and for 200 lengths over 400 steps, or 2,000 with `--long`, how much slower
//! they are than steps whose plans are all known.

#![allow(clippy::print_stdout, reason = "a benchmark tells its figures")]

use std::sync::Mutex;
use std::time::Instant;

use plimsoll_nn::optimizers::{AdamW, Optimizer, OptimizerConfig};
use plimsoll_tensor::{Bytes, DType, Device, Function, GradientTape, Result, Tensor, Variable, set_seed};

const WIDTH: usize = 256;
const WORDS: usize = 1024;
const BATCH: usize = 8;
/// Weights of a layer: queries, keys, values, and two of its feed-forward part.
const PER_LAYER: usize = 5;

/// The weights and their optimizer.
struct Translator {
    weights: Vec<Variable>,
    optimizer: Mutex<Optimizer>,
}

impl Translator {
    fn new() -> Result<Translator> {
        set_seed(1);
        let weight = |shape: [usize; 2]| Ok(Variable::new(Tensor::randn(shape)?.affine(0.05, 0.0)?));
        let square = [WIDTH, WIDTH];
        let layer = [square, square, square, [WIDTH, 4 * WIDTH], [4 * WIDTH, WIDTH]];
        let mut shapes = vec![[WORDS, WIDTH], [WORDS, WIDTH]];
        // Two layers of the encoder; two of the decoder, each with one that looks at itself and one that looks across.
        (0..6).for_each(|_| shapes.extend(layer));
        shapes.push([WIDTH, WORDS]);
        let weights: Vec<Variable> = shapes.into_iter().map(weight).collect::<Result<_>>()?;
        let mut optimizer = AdamW::new(1e-3).build();
        optimizer.prepare(&weights)?;
        Ok(Translator { weights, optimizer: Mutex::new(optimizer) })
    }

    /// A layer: what `x` makes of `memory`, and a feed-forward part.
    fn layer(&self, number: usize, x: &Tensor, memory: &Tensor) -> Result<Tensor> {
        let w = &self.weights[2 + PER_LAYER * number..];
        let scores = x.matmul(&w[0])?.matmul(&memory.matmul(&w[1])?.transpose(-1, -2)?)?;
        let seen = scores.affine(1.0 / 16.0, 0.0)?.softmax(-1)?.matmul(&memory.matmul(&w[2])?)?;
        let x = x.add(&seen)?;
        x.add(&x.matmul(&w[3])?.gelu()?.matmul(&w[4])?)
    }

    fn step(&self, source: &Tensor, target: &Tensor) -> Result<Tensor> {
        let tape = GradientTape::new();
        let loss = tape.record(|| {
            let mut memory = self.weights[0].embedding(source)?;
            for number in 0..2 {
                memory = self.layer(number, &memory, &memory)?;
            }
            let mut x = self.weights[1].embedding(target)?;
            for number in [2, 4] {
                x = self.layer(number, &x, &x)?;
                x = self.layer(number + 1, &x, &memory)?;
            }
            let logits = x.matmul(&self.weights[2 + PER_LAYER * 6])?;
            logits.log_softmax(-1)?.mul(&target.one_hot(WORDS, DType::F32)?)?.sum(-1)?.mean(..)?.neg()
        })?;
        let gradients = tape.variable_gradients(&loss, &self.weights)?;
        self.optimizer.lock().expect("nobody panics").apply_gradients(gradients, &self.weights)?;
        Ok(loss.stop_gradient())
    }
}

fn words(length: usize) -> Result<Tensor> {
    Tensor::uniform([BATCH, length], 0.0, WORDS as f64, DType::F32)?.cast(DType::I64)
}

fn main() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let translator = Translator::new()?;
    let train = Function::new(move |(source, target): (Tensor, Tensor)| translator.step(&source, &target));
    let batch =
        |(source, target): (usize, usize)| Ok::<_, plimsoll_tensor::Error>((words(source)?, words(target)?));
    let timed = |lengths: (usize, usize)| -> Result<f64> {
        let (batch, started) = (batch(lengths)?, Instant::now());
        train.call(batch)?;
        Ok(started.elapsed().as_secs_f64() * 1e3)
    };
    let natural = train.plan(batch((160, 120))?)?.committed;
    device.set_limit(Some(Bytes::new(natural * 3 / 4)))?;
    println!("natural at 160 words {}, limit {}", Bytes::new(natural), Bytes::new(natural * 3 / 4));
    for length in [160, 152, 144, 136].map(|source| (source, source * 3 / 4)) {
        let first = timed(length)?;
        let warm = (0..3).map(|_| timed(length)).collect::<Result<Vec<f64>>>()?;
        let step = warm.into_iter().fold(f64::INFINITY, f64::min);
        println!(
            "{length:?} words: step {step:.1} ms, new {first:.1} ms, planning {:.2} steps",
            (first - step) / step
        );
    }
    let lengths: Vec<(usize, usize)> =
        (0..200).map(|number| (160 - number % 20, 120 - number / 20)).collect();
    let mean = |n: usize| -> Result<f64> {
        let steps = (0..n).map(|step| timed(lengths[step * 7 % lengths.len()]));
        Ok(steps.sum::<Result<f64>>()? / n as f64)
    };
    let n_steps = if std::env::args().any(|argument| argument == "--long") { 2000 } else { 400 };
    let (first, known) = (mean(n_steps)?, mean(2 * lengths.len())?);
    println!(
        "{n_steps} steps of 200 lengths: {first:.1} ms each, {known:.1} ms when every plan is known, {:.2}×",
        first / known
    );
    Ok(())
}
