//! Layers, losses, metrics, initializers and optimizers with sizes and numbers that nobody means well with. A layer is built
//! for examples of any shape and called with a batch of them, often under a tape.

use plimsoll_nn::initializer::Fans;
use plimsoll_nn::layers::{
    ActivationLayer, AveragePooling2D, BatchNormalization, Conv1D, Conv1DTranspose, Conv2D, Conv2DTranspose,
    Dense, DepthwiseConv2D, Dropout, Embedding, Flatten, GRU, GlobalAveragePooling2D, GroupNormalization,
    LSTM, LayerNormalization, MaxPooling2D, MultiHeadAttention, RMSNormalization, Reshape, Residual,
    Sequential, SimpleRNN,
};
use plimsoll_nn::losses::{
    BinaryCrossentropy, CategoricalCrossentropy, Huber, MeanAbsoluteError, MeanSquaredError,
    SparseCategoricalCrossentropy,
};
use plimsoll_nn::optimizers::{
    Accumulator, Adafactor, Adagrad, Adam, Adam8bit, AdamW, LossScale, RMSprop, SGD, Schedule,
};
use plimsoll_nn::{
    Initializer, Layer, Loss, Metric, Mode, Optimizer, OptimizerConfig as Description, Policy, metrics,
};
use plimsoll_tensor::{Activation, DType, GradientTape, Result, Tensor, Unconnected, Variable};

use super::draw::Hostile;
use super::methods::HostileCall;

/// All of them.
pub fn networks() -> Vec<HostileCall> {
    [of_places(), of_sequences(), others()].concat()
}

/// Layers of pictures and of sequences seen as such, by their sizes along each axis.
fn of_places() -> Vec<HostileCall> {
    vec![
        ("Conv1D", |h| {
            let layer = Conv1D::new(h.count(), [h.count()]).stride([h.count()]).dilation([h.count()]);
            let layer = layer.groups(groups(h)).activation(activation(h));
            called(if h.chance(40) { layer.same() } else { layer.padding([h.count()]) }, 2, h)
        }),
        ("Conv2D", |h| {
            let layer = Conv2D::new(h.count(), pair(h)).stride(pair(h)).dilation(pair(h)).groups(groups(h));
            called(if h.chance(40) { layer.same() } else { layer.padding(pair(h)) }, 3, h)
        }),
        ("Conv1DTranspose", |h| {
            let layer = Conv1DTranspose::new(h.count(), [h.count()]).stride([h.count()]).groups(groups(h));
            let layer = layer.dilation([h.count()]).output_padding([h.below(3)]);
            called(if h.chance(40) { layer.same() } else { layer.padding([h.count()]) }, 2, h)
        }),
        ("Conv2DTranspose", |h| {
            let layer = Conv2DTranspose::new(h.count(), pair(h)).stride(pair(h)).dilation(pair(h));
            let layer = layer.groups(groups(h)).output_padding([h.below(3), h.below(3)]);
            called(if h.chance(40) { layer.same() } else { layer.padding(pair(h)) }, 3, h)
        }),
        ("DepthwiseConv2D", |h| {
            let layer =
                DepthwiseConv2D::new(pair(h)).stride(pair(h)).dilation(pair(h)).depth_multiplier(h.count());
            called(if h.chance(40) { layer.same() } else { layer.padding(pair(h)) }, 3, h)
        }),
        ("MaxPooling2D", |h| {
            let layer = MaxPooling2D::new(pair(h)).padding(pair(h));
            called(if h.chance(50) { layer.stride(pair(h)) } else { layer }, 3, h)
        }),
        ("AveragePooling2D", |h| {
            let layer = AveragePooling2D::new(pair(h)).padding(pair(h));
            called(if h.chance(50) { layer.stride(pair(h)) } else { layer }, 3, h)
        }),
        ("GlobalAveragePooling2D", |h| called(GlobalAveragePooling2D::new(), 3, h)),
    ]
}

/// Layers that work along a sequence or along its features.
fn of_sequences() -> Vec<HostileCall> {
    vec![
        ("GRU", |h| {
            let layer = GRU::new(h.count()).recurrent_initializer(initializer(h));
            called(if h.chance(50) { layer.return_sequences() } else { layer }, 2, h)
        }),
        ("LSTM", |h| {
            let layer = LSTM::new(h.count()).bias_initializer(initializer(h));
            called(if h.chance(50) { layer.return_sequences() } else { layer }, 2, h)
        }),
        ("SimpleRNN", |h| {
            let layer = SimpleRNN::new(h.count()).activation(activation(h));
            called(if h.chance(50) { layer.return_sequences() } else { layer.no_bias() }, 2, h)
        }),
        ("MultiHeadAttention", |h| {
            let layer = MultiHeadAttention::new(h.count());
            called(if h.chance(50) { layer.causal() } else { layer }, 2, h)
        }),
        ("BatchNormalization", |h| {
            let layer = BatchNormalization::new().epsilon(h.number()).momentum(h.number());
            called(layer.activation(activation(h)), 3, h)
        }),
        ("LayerNormalization", |h| called(LayerNormalization::new().epsilon(h.number()), 2, h)),
        ("RMSNormalization", |h| called(RMSNormalization::new().epsilon(h.number()), 2, h)),
        ("GroupNormalization", |h| called(GroupNormalization::new(h.count()).epsilon(h.number()), 3, h)),
    ]
}

/// Other layers, and all that is no layer.
fn others() -> Vec<HostileCall> {
    vec![
        ("Dense", |h| {
            let layer = Dense::new(h.count()).activation(activation(h)).kernel_initializer(initializer(h));
            called(if h.chance(30) { layer.no_bias() } else { layer }, 1, h)
        }),
        ("Embedding", embedding),
        ("Dropout", |h| called(Dropout::new(h.number()), 2, h)),
        ("ActivationLayer", |h| called(ActivationLayer::new(activation(h)), 2, h)),
        ("Flatten", |h| called(Flatten::new(), 3, h)),
        ("Reshape", |h| called(Reshape::new(h.dims()), 2, h)),
        ("Residual", |h| called(Residual::new(Dense::new(h.count())), 1, h)),
        ("Sequential", |h| {
            let layer = Sequential::new().add(Dense::new(h.count())).add(Dropout::new(h.number()));
            called(layer.add(LayerNormalization::new()).add(Dense::new(h.count()).recompute()), 1, h)
        }),
        ("Initializer", |h| {
            let fans = Fans { inputs: h.count(), outputs: h.count() };
            Ok(vec![initializer(h).tensor(h.dims(), h.float(), fans)?])
        }),
        ("losses", losses),
        ("metrics", metrics_of),
        ("optimizers", optimized),
        ("Accumulator", accumulated),
    ]
}

fn pair(h: &mut Hostile) -> [usize; 2] {
    [h.count(), h.count()]
}

fn groups(h: &mut Hostile) -> usize {
    if h.chance(75) { 1 } else { h.count() }
}

fn activation(h: &mut Hostile) -> Activation {
    h.pick(&[Activation::None, Activation::Relu, Activation::Tanh, Activation::Gelu])
}

fn initializer(h: &mut Hostile) -> Initializer {
    let number = h.number();
    h.pick(&[
        Initializer::Zeros,
        Initializer::Constant(number),
        Initializer::Normal { std: number },
        Initializer::TruncatedNormal { std: number },
        Initializer::Uniform { limit: number },
        Initializer::GlorotUniform,
        Initializer::HeNormal,
        Initializer::FanInUniform,
        Initializer::Orthogonal,
        Initializer::UnitForget,
    ])
}

/// The shape of an example: mostly of the rank that the layer takes.
fn example(h: &mut Hostile, rank: usize) -> Vec<usize> {
    if h.chance(10) { h.dims() } else { (0..rank).map(|_| h.count()).collect() }
}

/// A layer, built and called, and the gradients of its variables.
fn called(layer: impl Layer, rank: usize, h: &mut Hostile) -> Result<Vec<Tensor>> {
    let (example, batch) = (example(h, rank), h.count());
    let policy = h.pick(&[Policy::Float32, Policy::Float32, Policy::MixedBfloat16, Policy::MixedFloat16]);
    let model = layer.with_policy(policy).build(example.clone())?;
    drop(model.summary(batch));
    let example = if h.chance(95) { example } else { h.dims() };
    let (dims, dtype) = ([&[batch], &example[..]].concat(), h.float());
    let x = h.tensor_of(&dims, dtype)?;
    forward(h, &model, &x)
}

fn forward(h: &mut Hostile, model: &plimsoll_nn::Model, x: &Tensor) -> Result<Vec<Tensor>> {
    let mode = if h.chance(50) { Mode::Train } else { Mode::Infer };
    if h.chance(40) {
        return Ok(vec![model.forward(x, mode)?]);
    }
    let tape = GradientTape::new();
    let y = tape.record(|| model.forward(x, mode))?;
    let variables = model.trainable_variables();
    let sources: Vec<&Tensor> = variables.iter().map(|variable| &**variable).collect();
    let gradients = tape.gradients(&[&y], None, &sources, Unconnected::Zeros)?;
    Ok(gradients.into_iter().flatten().chain([y]).collect())
}

fn embedding(h: &mut Hostile) -> Result<Vec<Tensor>> {
    let (n_ids, width, dims) = (h.count(), h.count(), h.dims());
    let model = Embedding::new(n_ids, width).embeddings_initializer(initializer(h)).build(dims.clone())?;
    let dims = [&[h.count()], &dims[..]].concat();
    let bound = n_ids.min(1 << 20) as i64 + i64::from(h.chance(20));
    let x = if h.chance(90) { h.indices(&dims, bound)? } else { h.tensor_of(&dims, DType::F32)? };
    forward(h, &model, &x)
}

/// Predictions and labels: alike, or classes of the last axis, or anything.
fn labelled(h: &mut Hostile, is_sparse: bool) -> Result<[Tensor; 2]> {
    let predictions = h.tensor()?;
    let dims = predictions.shape().to_vec();
    let labels = match h.below(10) {
        0 => h.tensor()?,
        _ if is_sparse => h.indices(&dims[..dims.len().saturating_sub(1)], 3)?,
        _ => h.tensor_of(&dims, predictions.dtype())?,
    };
    Ok([labels, predictions])
}

fn losses(h: &mut Hostile) -> Result<Vec<Tensor>> {
    let which = h.below(6);
    let loss: Box<dyn Loss> = match which {
        0 => Box::new(Huber::new(h.number())),
        1 => Box::new(MeanAbsoluteError),
        2 => Box::new(MeanSquaredError),
        3 => {
            let loss = BinaryCrossentropy::new().from_logits(h.chance(50)).label_smoothing(h.number());
            Box::new(loss.positive_weight(h.number()))
        }
        4 => {
            let loss = CategoricalCrossentropy::new().from_logits(h.chance(50));
            Box::new(loss.label_smoothing(h.number()))
        }
        _ => {
            let loss = SparseCategoricalCrossentropy::new().from_logits(h.chance(50));
            let loss = loss.label_smoothing(h.number());
            Box::new(if h.chance(50) { loss.ignore_class(h.signed() as i64) } else { loss })
        }
    };
    let [labels, predictions] = labelled(h, which == 5)?;
    if h.chance(20) {
        let weights = h.tensor()?;
        return Ok(vec![loss.weighted(&labels, &predictions, &weights)?]);
    }
    let tape = GradientTape::new();
    tape.watch(&predictions)?;
    let value = tape.record(|| loss.call(&labels, &predictions))?;
    let gradient = tape.gradients(&[&value], None, &[&predictions], Unconnected::Zeros)?;
    Ok(gradient.into_iter().flatten().chain([value]).collect())
}

fn metrics_of(h: &mut Hostile) -> Result<Vec<Tensor>> {
    let which = h.below(8);
    let mut metric: Box<dyn Metric> = match which {
        0 => Box::new(metrics::Accuracy::new()),
        1 => Box::new(metrics::BinaryAccuracy::new(h.number())),
        2 => Box::new(metrics::CategoricalAccuracy::new()),
        3 => Box::new(metrics::MeanAbsoluteError::new()),
        4 => Box::new(metrics::MeanSquaredError::new()),
        5 => Box::new(metrics::TopKCategoricalAccuracy::new(h.count())),
        6 => Box::new(metrics::SparseTopKCategoricalAccuracy::new(h.count())),
        _ => Box::new(metrics::SparseCategoricalAccuracy::new()),
    };
    for _ in 0..1 + h.below(2) {
        let [labels, predictions] = labelled(h, which >= 6)?;
        metric.update(&labels, &predictions)?;
    }
    if h.chance(20) {
        metric.reset();
    }
    Ok(vec![Tensor::from_slice(&[metric.result()], 1)?])
}

fn optimizer(h: &mut Hostile) -> Result<Optimizer> {
    let (rate, a, b) = (h.number(), h.number(), h.number());
    let optimizer = match h.below(7) {
        0 => SGD::new(rate).momentum(a).nesterov(h.chance(50)).weight_decay(b).build(),
        1 => Adam::new(rate).beta_1(a).beta_2(b).amsgrad(h.chance(50)).build(),
        2 => AdamW::new(rate).weight_decay(a).epsilon(b).build(),
        3 => Adagrad::new(rate).initial_accumulator_value(a).epsilon(b).build(),
        4 => RMSprop::new(rate).rho(a).momentum(b).centered(h.chance(50)).build(),
        5 => Adam8bit::new(rate).beta_1(a).epsilon(b).build(),
        _ => Adafactor::new(rate).beta_2_decay(a).clip_threshold(b).build(),
    };
    let optimizer = if h.chance(30) { optimizer.clip_value(h.number()) } else { optimizer };
    let optimizer = if h.chance(30) { optimizer.clip_norm(h.number()) } else { optimizer };
    let optimizer = match h.chance(30) {
        true => {
            let scale = LossScale::new().initial(h.number()).factor(h.number());
            optimizer.loss_scale(scale.growth_interval(h.count() as u32))
        }
        false => optimizer,
    };
    match h.chance(20) {
        true => Ok(optimizer.schedule(Schedule::cosine_decay(rate, a, h.count() as u64)?)),
        false => Ok(optimizer),
    }
}

fn optimized(h: &mut Hostile) -> Result<Vec<Tensor>> {
    let mut optimizer = optimizer(h)?;
    let (mut variables, mut gradients) = (Vec::new(), Vec::new());
    for _ in 0..h.below(4) {
        let (dims, dtype) = (h.dims(), if h.chance(80) { DType::F32 } else { h.float() });
        let variable = Variable::new(h.tensor_of(&dims, dtype)?);
        let variable = if h.chance(20) { variable.mixed(DType::BF16)? } else { variable };
        let other = if h.chance(92) { dims } else { h.dims() };
        gradients.push(h.tensor_of(&other, variable.dtype())?);
        variables.push(variable);
    }
    if h.chance(5) {
        variables.extend(variables.first().cloned());
        gradients.extend(gradients.first().cloned());
    }
    drop(optimizer.set_learning_rate(h.number()));
    for _ in 0..1 + h.below(2) {
        if h.chance(70) {
            optimizer.apply_gradients(gradients.clone(), &variables)?;
        } else {
            let loss = optimizer.scale_loss(&h.tensor_of(&[], DType::F32)?)?;
            let finite_loss = if h.chance(80) { optimizer.finite_loss(&loss)? } else { h.tensor()? };
            optimizer.apply_if_finite(&gradients, &variables, &finite_loss)?;
            optimizer.release()?;
        }
    }
    drop((optimizer.steps(), optimizer.overflowed()));
    let states = optimizer.variables();
    Ok(variables.iter().chain(&states).map(|variable| variable.value()).collect())
}

fn accumulated(h: &mut Hostile) -> Result<Vec<Tensor>> {
    let mut accumulator = Accumulator::new();
    let dims = h.dims();
    for _ in 0..h.below(4) {
        let dims = if h.chance(90) { dims.clone() } else { h.dims() };
        let dtype = h.float();
        accumulator.add(vec![h.tensor_of(&dims, dtype)?])?;
    }
    Ok(accumulator.take())
}
