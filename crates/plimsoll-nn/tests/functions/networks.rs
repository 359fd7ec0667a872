//! Training steps that no `Trainer` makes: two optimizers, gradients of gradients, shared and frozen networks.

use std::sync::Mutex;

use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::losses::{BinaryCrossentropy, Loss};
use plimsoll_nn::optimizers::{Adam, Method, Optimizer};
use plimsoll_nn::{Layer, Mode, Model};
use plimsoll_tensor::{Activation, DType, GradientTape, Result, Tensor, Variable, set_seed};

/// The examples of a batch.
const BATCH: usize = 512;

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
        let (real, ones, zeros) = (&batch[0], Tensor::ones([BATCH, 1])?, Tensor::zeros([BATCH, 1])?);
        let noise = Tensor::randn([BATCH, 16])?;
        let tape = GradientTape::new();
        let judged = tape.record(|| {
            let fake = generator.call(&noise)?.stop_gradient();
            let real = loss.call(&ones, &discriminator.call(real)?)?;
            real.add(&loss.call(&zeros, &discriminator.call(&fake)?)?)
        })?;
        discriminator.descend(&tape, &judged)?;
        let tape = GradientTape::new();
        let fooled = tape.record(|| loss.call(&ones, &discriminator.call(&generator.call(&noise)?)?))?;
        generator.descend(&tape, &fooled)?;
        Ok(vec![judged.stop_gradient(), fooled.stop_gradient()])
    });
    Ok(Network { step, state, batch: vec![Tensor::randn([BATCH, 32])?] })
}

/// A critic whose gradient with respect to its input is part of its loss.
pub fn wgan_gp() -> Result<Network> {
    set_seed(2);
    let critic = Trained::new(dense(&[64, 64, 64, 1], Activation::None).build([32])?)?;
    let state = critic.state();
    let step: StepFn = Box::new(move |batch: Vec<Tensor>| {
        let (real, fake) = (&batch[0], &batch[1]);
        let share = Tensor::uniform([BATCH, 1], 0.0, 1.0, DType::F32)?;
        let between = real.mul(&share)?.add(&fake.mul(&share.affine(-1.0, 1.0)?)?)?;
        let tape = GradientTape::new();
        let loss = tape.record(|| {
            let inner = GradientTape::new();
            inner.watch(&between)?;
            let score = inner.record(|| critic.call(&between)?.sum(..))?;
            let [slope] = inner.gradient(&score, [&between])?;
            let norm = slope.square()?.sum(-1)?.affine(1.0, 1e-12)?.sqrt()?;
            let penalty = norm.affine(1.0, -1.0)?.square()?.mean(..)?;
            let distance = critic.call(fake)?.mean(..)?.sub(&critic.call(real)?.mean(..)?)?;
            distance.add(&penalty.affine(10.0, 0.0)?)
        })?;
        critic.descend(&tape, &loss)?;
        Ok(vec![loss.stop_gradient()])
    });
    let batch = vec![Tensor::randn([BATCH, 32])?, Tensor::randn([BATCH, 32])?];
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
            let drawn = mean.add(&deviation.mul(&Tensor::randn([BATCH, 8])?)?)?;
            let rebuilt = decoder.call(&drawn)?.sub(&batch[0])?.square()?.sum(-1)?.mean(..)?;
            let spread = mean.square()?.add(&log_variance.exp()?)?.sub(&log_variance)?.affine(0.5, -0.5)?;
            rebuilt.add(&spread.sum(-1)?.mean(..)?)
        })?;
        encoder.descend(&tape, &loss)?;
        decoder.descend(&tape, &loss)?;
        Ok(vec![loss.stop_gradient()])
    });
    Ok(Network { step, state, batch: vec![Tensor::randn([BATCH, 48])?] })
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
    let same = Tensor::uniform([BATCH], 0.0, 2.0, DType::F32)?.cast(DType::I32)?.cast(DType::F32)?;
    let batch = vec![Tensor::randn([BATCH, 24])?, Tensor::randn([BATCH, 24])?, same];
    Ok(Network { step, state, batch })
}

/// A student that learns from a frozen teacher, and from a tensor that the function captures.
pub fn distillation() -> Result<Network> {
    set_seed(5);
    let teacher = dense(&[128, 128, 10], Activation::None).frozen().build([24])?;
    let student = Trained::new(dense(&[64, 64, 64, 10], Activation::None).build([24])?)?;
    let (state, weights) = (student.state(), Tensor::uniform([BATCH, 1], 0.5, 1.5, DType::F32)?);
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
    Ok(Network { step, state, batch: vec![Tensor::randn([BATCH, 24])?] })
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
            let slopes = inner.gradients(&[&first], None, &sources, Default::default())?;
            let moved = values
                .iter()
                .zip(slopes)
                .map(|(value, slope)| value.sub(&slope.expect("every weight is used").affine(0.05, 0.0)?));
            let moved: Vec<Tensor> = moved.collect::<Result<_>>()?;
            error(&moved, &batch[2], &batch[3])
        })?;
        let gradients = outer.variable_gradients(&loss, &weights)?;
        optimizer.lock().expect("nobody panics").apply_gradients(gradients, &weights)?;
        Ok(vec![loss.stop_gradient()])
    });
    let pair = || Ok::<_, plimsoll_tensor::Error>([Tensor::randn([BATCH, 8])?, Tensor::randn([BATCH, 1])?]);
    Ok(Network { step, state, batch: [pair()?, pair()?].concat() })
}
