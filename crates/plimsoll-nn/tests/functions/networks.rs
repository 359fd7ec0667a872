//! Training steps that no `Trainer` makes: two optimizers, gradients of gradients, shared and frozen networks.

use std::sync::Mutex;

use crate::sweep::on_gpu;
use plimsoll_nn::layers::{Conv2D, Conv2DTranspose, Dense, Sequential};
use plimsoll_nn::losses::{BinaryCrossentropy, Loss};
use plimsoll_nn::optimizers::{Adam, Optimizer, OptimizerConfig};
use plimsoll_nn::{Layer, Mode, Model};
use plimsoll_tensor::{Activation, DType, GradientTape, Result, Tensor, Variable, set_seed};

/// The examples of a batch: a GPU's pool has larger granules, which more of them fill.
fn n_examples() -> usize {
    if on_gpu() { 32 * 512 } else { 512 }
}

/// A step: from a batch to numbers that it tells.
pub type StepFn = Box<dyn Fn(Vec<Tensor>) -> Result<Vec<Tensor>> + Send + Sync>;

/// What is trained.
pub struct Network {
    pub step: StepFn,
    /// Everything that a step changes.
    pub state: Vec<Variable>,
    /// A batch.
    pub batch: Vec<Tensor>,
}

/// A chain of dense layers.
fn dense(widths: &[usize], last: Activation) -> Sequential {
    let (end, inner) = widths.split_last().expect("at least one layer");
    let chain = inner
        .iter()
        .fold(Sequential::new(), |chain, &width| chain.add(Dense::new(width).activation(Activation::Gelu)));
    chain.add(Dense::new(*end).activation(last))
}

/// A model with its optimizer.
struct Trained {
    model: Model,
    variables: Vec<Variable>,
    optimizer: Mutex<Optimizer>,
}

impl Trained {
    fn new(model: Model) -> Result<Trained> {
        let (variables, mut optimizer) = (model.trainable_variables(), Adam::new(1e-3).build());
        optimizer.prepare(&variables)?;
        Ok(Trained { model, variables, optimizer: Mutex::new(optimizer) })
    }

    fn state(&self) -> Vec<Variable> {
        let optimizer = self.optimizer.lock().expect("nobody panics").variables();
        self.variables.iter().cloned().chain(optimizer).collect()
    }

    fn call(&self, x: &Tensor) -> Result<Tensor> {
        self.model.forward(x, Mode::Train)
    }

    /// Updates the model by the gradient of a loss.
    fn descend(&self, tape: &GradientTape, loss: &Tensor) -> Result<()> {
        let gradients = tape.variable_gradients(loss, &self.variables)?;
        self.optimizer.lock().expect("nobody panics").apply_gradients(gradients, &self.variables)
    }
}

/// Generator and discriminator: the second optimizer's step sees what the first has changed.
pub fn gan() -> Result<Network> {
    set_seed(1);
    let generator = Trained::new(dense(&[64, 64, 64, 32], Activation::Tanh).build([16])?)?;
    let discriminator = Trained::new(dense(&[64, 64, 64, 1], Activation::None).build([32])?)?;
    let state = [generator.state(), discriminator.state()].concat();
    let step: StepFn = Box::new(move |batch: Vec<Tensor>| {
        let loss = BinaryCrossentropy::new().from_logits(true);
        let (real, ones, zeros) =
            (&batch[0], Tensor::ones([n_examples(), 1])?, Tensor::zeros([n_examples(), 1])?);
        let noise = Tensor::randn([n_examples(), 16])?;
        let tape = GradientTape::new();
        let critic_loss = tape.record(|| {
            let fake = generator.call(&noise)?.stop_gradient();
            let real = loss.call(&ones, &discriminator.call(real)?)?;
            real.add(&loss.call(&zeros, &discriminator.call(&fake)?)?)
        })?;
        discriminator.descend(&tape, &critic_loss)?;
        let tape = GradientTape::new();
        let fooled = tape.record(|| loss.call(&ones, &discriminator.call(&generator.call(&noise)?)?))?;
        generator.descend(&tape, &fooled)?;
        Ok(vec![critic_loss.stop_gradient(), fooled.stop_gradient()])
    });
    Ok(Network { step, state, batch: vec![Tensor::randn([n_examples(), 32])?] })
}

/// A critic whose gradient with respect to its input is part of its loss.
pub fn wgan_gp() -> Result<Network> {
    set_seed(2);
    let critic = Trained::new(dense(&[64, 64, 64, 1], Activation::None).build([32])?)?;
    let state = critic.state();
    let step: StepFn = Box::new(move |batch: Vec<Tensor>| {
        let (real, fake) = (&batch[0], &batch[1]);
        let share = Tensor::uniform([n_examples(), 1], 0.0, 1.0, DType::F32)?;
        let between = real.mul(&share)?.add(&fake.mul(&share.affine(-1.0, 1.0)?)?)?;
        let tape = GradientTape::new();
        let loss = tape.record(|| {
            let inner = GradientTape::new();
            inner.watch(&between)?;
            let score = inner.record(|| critic.call(&between)?.sum(..))?;
            let [local_grad] = inner.gradient(&score, [&between])?;
            let norm = local_grad.square()?.sum(-1)?.affine(1.0, 1e-12)?.sqrt()?;
            let penalty = norm.affine(1.0, -1.0)?.square()?.mean(..)?;
            let distance = critic.call(fake)?.mean(..)?.sub(&critic.call(real)?.mean(..)?)?;
            distance.add(&penalty.affine(10.0, 0.0)?)
        })?;
        critic.descend(&tape, &loss)?;
        Ok(vec![loss.stop_gradient()])
    });
    let batch = vec![Tensor::randn([n_examples(), 32])?, Tensor::randn([n_examples(), 32])?];
    Ok(Network { step, state, batch })
}

/// A variational autoencoder with its own loss and a draw in the middle.
pub fn vae() -> Result<Network> {
    set_seed(3);
    let encoder = Trained::new(dense(&[96, 64, 16], Activation::None).build([48])?)?;
    let decoder = Trained::new(dense(&[64, 96, 48], Activation::None).build([8])?)?;
    let state = [encoder.state(), decoder.state()].concat();
    let step: StepFn = Box::new(move |batch: Vec<Tensor>| {
        let tape = GradientTape::new().persistent(true);
        let loss = tape.record(|| {
            let code = encoder.call(&batch[0])?;
            let (mean, log_variance) = (code.narrow(1, 0, 8)?, code.narrow(1, 8, 8)?);
            let deviation = log_variance.affine(0.5, 0.0)?.exp()?;
            let drawn = mean.add(&deviation.mul(&Tensor::randn([n_examples(), 8])?)?)?;
            let rebuilt = decoder.call(&drawn)?.sub(&batch[0])?.square()?.sum(-1)?.mean(..)?;
            let spread = mean.square()?.add(&log_variance.exp()?)?.sub(&log_variance)?.affine(0.5, -0.5)?;
            rebuilt.add(&spread.sum(-1)?.mean(..)?)
        })?;
        encoder.descend(&tape, &loss)?;
        decoder.descend(&tape, &loss)?;
        Ok(vec![loss.stop_gradient()])
    });
    Ok(Network { step, state, batch: vec![Tensor::randn([n_examples(), 48])?] })
}

/// One encoder for two inputs.
pub fn siamese() -> Result<Network> {
    set_seed(4);
    let encoder = Trained::new(dense(&[96, 96, 64, 32], Activation::None).build([24])?)?;
    let state = encoder.state();
    let step: StepFn = Box::new(move |batch: Vec<Tensor>| {
        let tape = GradientTape::new();
        let loss = tape.record(|| {
            let distance = encoder.call(&batch[0])?.sub(&encoder.call(&batch[1])?)?.square()?.sum(-1)?;
            let far = distance.affine(-1.0, 1.0)?.relu()?;
            batch[2].mul(&distance)?.add(&batch[2].affine(-1.0, 1.0)?.mul(&far)?)?.mean(..)
        })?;
        encoder.descend(&tape, &loss)?;
        Ok(vec![loss.stop_gradient()])
    });
    let same = Tensor::uniform([n_examples()], 0.0, 2.0, DType::F32)?.cast(DType::I32)?.cast(DType::F32)?;
    let batch = vec![Tensor::randn([n_examples(), 24])?, Tensor::randn([n_examples(), 24])?, same];
    Ok(Network { step, state, batch })
}

/// A student that learns from a frozen teacher, and from a tensor that the function captures.
pub fn distillation() -> Result<Network> {
    set_seed(5);
    let teacher = dense(&[128, 128, 10], Activation::None).frozen().build([24])?;
    let student = Trained::new(dense(&[64, 64, 64, 10], Activation::None).build([24])?)?;
    let (state, weights) = (student.state(), Tensor::uniform([n_examples(), 1], 0.5, 1.5, DType::F32)?);
    let step: StepFn = Box::new(move |batch: Vec<Tensor>| {
        let soft = teacher.infer(&batch[0])?.affine(0.5, 0.0)?.softmax(-1)?;
        let tape = GradientTape::new();
        let loss = tape.record(|| {
            let logs = student.call(&batch[0])?.affine(0.5, 0.0)?.log_softmax(-1)?;
            soft.mul(&logs)?.mul(&weights)?.sum(-1)?.mean(..)?.neg()
        })?;
        student.descend(&tape, &loss)?;
        Ok(vec![loss.stop_gradient()])
    });
    Ok(Network { step, state, batch: vec![Tensor::randn([n_examples(), 24])?] })
}

/// Learning to learn: the loss after one step of descent, differentiated through that step.
pub fn maml() -> Result<Network> {
    set_seed(6);
    let shapes: [&[usize]; 4] = [&[8, 64], &[64, 64], &[64, 64], &[64, 1]];
    let weights: Vec<Variable> = shapes
        .iter()
        .map(|&shape| Ok(Variable::new(Tensor::randn(shape)?.affine(0.2, 0.0)?)))
        .collect::<Result<_>>()?;
    let mut optimizer = Adam::new(1e-3).build();
    optimizer.prepare(&weights)?;
    let state = weights.iter().cloned().chain(optimizer.variables()).collect();
    let optimizer = Mutex::new(optimizer);
    let step: StepFn = Box::new(move |batch: Vec<Tensor>| {
        let error = |weights: &[Tensor], x: &Tensor, y: &Tensor| {
            let (last, inner) = weights.split_last().expect("four layers");
            let hidden = inner.iter().try_fold(x.clone(), |x, w| x.matmul(w)?.tanh())?;
            hidden.matmul(last)?.sub(y)?.square()?.mean(..)
        };
        let outer = GradientTape::new();
        let loss = outer.record(|| {
            let inner = GradientTape::new();
            let values: Vec<Tensor> = weights.iter().map(|weight| weight.value()).collect();
            values.iter().try_for_each(|value| inner.watch(value))?;
            let first = inner.record(|| error(&values, &batch[0], &batch[1]))?;
            let sources: Vec<&Tensor> = values.iter().collect();
            let local_grads = inner.gradients(&[&first], None, &sources, Default::default())?;
            let moved = values.iter().zip(local_grads).map(|(value, local_grad)| {
                value.sub(&local_grad.expect("every weight is used").affine(0.05, 0.0)?)
            });
            let moved: Vec<Tensor> = moved.collect::<Result<_>>()?;
            error(&moved, &batch[2], &batch[3])
        })?;
        let gradients = outer.variable_gradients(&loss, &weights)?;
        optimizer.lock().expect("nobody panics").apply_gradients(gradients, &weights)?;
        Ok(vec![loss.stop_gradient()])
    });
    let pair = || {
        Ok::<_, plimsoll_tensor::Error>([
            Tensor::randn([n_examples(), 8])?,
            Tensor::randn([n_examples(), 1])?,
        ])
    };
    Ok(Network { step, state, batch: [pair()?, pair()?].concat() })
}

/// One attention from a sequence to another: what `queries` makes of `memory`.
fn attention(queries: &Tensor, memory: &Tensor, weights: &[Variable]) -> Result<Tensor> {
    let [q, k, v] = [(queries, 0), (memory, 1), (memory, 2)].map(|(x, at)| x.matmul(&weights[at]));
    let scores = q?.matmul(&k?.transpose(-1, -2)?)?.affine(0.2, 0.0)?.softmax(-1)?;
    scores.matmul(&v?)
}

/// A variable of small random numbers.
fn weight(shape: &[usize]) -> Result<Variable> {
    Ok(Variable::new(Tensor::randn(shape)?.affine(0.1, 0.0)?))
}

/// Variables with their optimizer.
struct Weights {
    variables: Vec<Variable>,
    optimizer: Mutex<Optimizer>,
}

impl Weights {
    fn new(shapes: &[&[usize]]) -> Result<Weights> {
        let variables: Vec<Variable> = shapes.iter().map(|shape| weight(shape)).collect::<Result<_>>()?;
        let mut optimizer = Adam::new(1e-3).build();
        optimizer.prepare(&variables)?;
        Ok(Weights { variables, optimizer: Mutex::new(optimizer) })
    }

    fn state(&self) -> Vec<Variable> {
        let optimizer = self.optimizer.lock().expect("nobody panics").variables();
        self.variables.iter().cloned().chain(optimizer).collect()
    }

    fn descend(&self, tape: &GradientTape, loss: &Tensor) -> Result<()> {
        let gradients = tape.variable_gradients(loss, &self.variables)?;
        self.optimizer.lock().expect("nobody panics").apply_gradients(gradients, &self.variables)
    }
}

/// An encoder and a decoder that looks back at what was encoded, with sequences of two lengths.
pub fn encoder_decoder() -> Result<Network> {
    const WIDTH: usize = 32;
    set_seed(7);
    let mut shapes: Vec<&[usize]> = vec![&[20, WIDTH], &[20, WIDTH]];
    shapes.extend(std::iter::repeat_n(&[WIDTH, WIDTH] as &[usize], 14));
    shapes.push(&[WIDTH, 20]);
    let weights = Weights::new(&shapes)?;
    let state = weights.state();
    let step: StepFn = Box::new(move |batch: Vec<Tensor>| {
        let w = &weights.variables;
        let (source, target) = (&batch[0], &batch[1]);
        let tape = GradientTape::new();
        let loss = tape.record(|| {
            let mut memory = w[0].embedding(source)?;
            for layer in 0..2 {
                let at = 2 + 4 * layer;
                memory = memory.add(&attention(&memory, &memory, &w[at..])?)?;
                memory = memory.add(&memory.matmul(&w[at + 3])?.gelu()?)?;
            }
            let mut x = w[1].embedding(target)?;
            x = x.add(&attention(&x, &x, &w[10..])?)?;
            x = x.add(&attention(&x, &memory, &w[13..])?)?;
            let logs = x.gelu()?.matmul(&w[16])?.log_softmax(-1)?;
            logs.mul(&target.one_hot(20, DType::F32)?)?.sum(-1)?.mean(..)?.neg()
        })?;
        weights.descend(&tape, &loss)?;
        Ok(vec![loss.stop_gradient()])
    });
    let words =
        |length: usize| Tensor::uniform([n_examples() / 16, length], 0.0, 20.0, DType::F32)?.cast(DType::I64);
    Ok(Network { step, state, batch: vec![words(24)?, words(16)?] })
}

/// A mixture of experts: each example is seen by the two that its gate prefers.
pub fn mixture_of_experts() -> Result<Network> {
    const N_EXPERTS: usize = 4;
    set_seed(8);
    let gate: &[usize] = &[24, N_EXPERTS];
    let weights = Weights::new(&[gate, &[N_EXPERTS, 24, 96], &[N_EXPERTS, 96, 24], &[24, 1]])?;
    let state = weights.state();
    let step: StepFn = Box::new(move |batch: Vec<Tensor>| {
        let w = &weights.variables;
        let tape = GradientTape::new();
        let loss = tape.record(|| {
            let (best, which) = batch[0].matmul(&w[0])?.top_k(2, -1)?;
            let shares = best.softmax(-1)?.unsqueeze(-1)?;
            // [examples, 2, experts] to how much of each expert an example gets.
            let mixed = which.one_hot(N_EXPERTS, DType::F32)?.mul(&shares)?.sum(1)?;
            let seen = batch[0].unsqueeze(0)?.matmul(&w[1])?.gelu()?.matmul(&w[2])?;
            let output = seen.mul(&mixed.transpose(0, 1)?.unsqueeze(-1)?)?.sum(0)?;
            output.add(&batch[0])?.matmul(&w[3])?.sub(&batch[1])?.square()?.mean(..)
        })?;
        weights.descend(&tape, &loss)?;
        Ok(vec![loss.stop_gradient()])
    });
    Ok(Network {
        step,
        state,
        batch: vec![Tensor::randn([n_examples(), 24])?, Tensor::randn([n_examples(), 1])?],
    })
}

/// A U-Net: what was seen on the way down comes in again on the way up.
pub fn unet() -> Result<Network> {
    set_seed(9);
    let conv = |filters: usize| Conv2D::new(filters, 3).padding(1).activation(Activation::Relu);
    let wider = |filters: usize| Conv2DTranspose::new(filters, 2).stride(2);
    let down = [
        Trained::new(conv(8).build([16, 16, 3])?)?,
        Trained::new(conv(16).build([8, 8, 8])?)?,
        Trained::new(conv(16).build([4, 4, 16])?)?,
    ];
    let up = [
        Trained::new(wider(16).build([4, 4, 16])?)?,
        Trained::new(conv(8).build([8, 8, 32])?)?,
        Trained::new(wider(8).build([8, 8, 8])?)?,
        Trained::new(conv(3).build([16, 16, 16])?)?,
    ];
    let state = down.iter().chain(&up).flat_map(Trained::state).collect();
    let step: StepFn = Box::new(move |batch: Vec<Tensor>| {
        let tape = GradientTape::new().persistent(true);
        let loss = tape.record(|| {
            let wide = down[0].call(&batch[0])?;
            let middle = down[1].call(&wide.max_pool2d(2)?)?;
            let deep = down[2].call(&middle.max_pool2d(2)?)?;
            let middle = up[1].call(&Tensor::concat(&[&middle, &up[0].call(&deep)?], -1)?)?;
            let wide = up[3].call(&Tensor::concat(&[&wide, &up[2].call(&middle)?], -1)?)?;
            wide.sub(&batch[0])?.square()?.mean(..)
        })?;
        down.iter().chain(&up).try_for_each(|part| part.descend(&tape, &loss))?;
        Ok(vec![loss.stop_gradient()])
    });
    Ok(Network { step, state, batch: vec![Tensor::randn([n_examples() / 16, 16, 16, 3])?] })
}
