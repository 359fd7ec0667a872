//! Every public function of a tensor that takes more than tensors, called with arguments that nobody means well with.
//!
//! What the registry's samples fix, such as axes, strides and paddings, varies here. The list must name every method that
//! has such arguments: a test compares it with the sources, so that a new method cannot be forgotten.

use plimsoll_tensor::{
    Activation, AttentionConfig, Conv1dConfig, Conv2dConfig, GruWeights, LstmState, Pool2d, RecurrentWeights,
    Result, Slice, Tensor,
};

use super::draw::Hostile;

/// A public function, called with what is drawn.
pub type HostileCall = (&'static str, fn(&mut Hostile) -> Result<Vec<Tensor>>);

/// Calls with one result each.
macro_rules! one {
    ($($name:literal => |$h:ident| $body:expr;)*) => {
        &[$(($name, |$h: &mut Hostile| Ok(vec![$body?]))),*]
    };
}

/// Calls with several results each.
macro_rules! many {
    ($($name:literal => |$h:ident| $body:expr;)*) => {
        &[$(($name, |$h: &mut Hostile| Ok(Vec::from($body)))),*]
    };
}

const ACTIVATIONS: [Activation; 4] = [Activation::None, Activation::Relu, Activation::Tanh, Activation::Gelu];

/// All of them.
pub fn methods() -> Vec<HostileCall> {
    [VIEWS, CREATED, ALONG_AXES, WITH_NUMBERS, WINDOWS, SEVERAL, NETWORKS, READ].concat()
}

static VIEWS: &[HostileCall] = one! {
    "reshape" => |h| h.tensor()?.reshape(h.dims());
    "reshape" => |h| h.tensor()?.reshape(h.list(Hostile::signed));
    "broadcast_to" => |h| h.tensor()?.broadcast_to(h.dims());
    "permute" => |h| h.tensor()?.permute(h.list(Hostile::signed));
    "transpose" => |h| h.tensor()?.transpose(h.signed(), h.signed());
    "diagonal" => |h| h.tensor()?.diagonal(h.signed(), h.signed());
    "squeeze" => |h| h.tensor()?.squeeze(h.signed());
    "unsqueeze" => |h| h.tensor()?.unsqueeze(h.signed());
    "narrow" => |h| h.tensor()?.narrow(h.signed(), h.count(), h.count());
    "select" => |h| h.tensor()?.select(h.signed(), h.signed());
    "get" => |h| h.tensor()?.get(h.signed());
    "slice" => |h| h.tensor()?.slice(&h.list(Hostile::slice)[..]);
    "flip" => |h| h.tensor()?.flip(h.signed());
    "roll" => |h| h.tensor()?.roll(h.signed(), h.signed());
    "tile" => |h| h.tensor()?.tile(&h.list(Hostile::count));
    "sum_to" => |h| { let x = h.tensor()?; x.sum_to(h.tensor()?.shape()) };
    "copied" => |h| h.tensor()?.slice((h.slice(),))?.copied();
    "contiguous" => |h| h.tensor()?.flip(h.signed())?.contiguous();
    "pad" => |h| h.tensor()?.pad(&h.list(|h| (h.count(), h.count())), h.number());
    "tril" => |h| h.tensor()?.tril(h.signed());
    "triu" => |h| h.tensor()?.triu(h.signed());
    "cast" => |h| h.tensor()?.cast(h.dtype());
};

static CREATED: &[HostileCall] = one! {
    "zeros" => |h| Tensor::zeros(h.dims());
    "ones" => |h| Tensor::ones(h.dims());
    "full" => |h| Tensor::full(h.dims(), h.number());
    "zeros_of" => |h| Tensor::zeros_of(h.dims(), h.dtype());
    "ones_of" => |h| Tensor::ones_of(h.dims(), h.dtype());
    "full_of" => |h| Tensor::full_of(h.dims(), h.number(), h.dtype());
    "full_like" => |h| h.tensor()?.full_like(h.number());
    "eye" => |h| Tensor::eye(h.count());
    "arange" => |h| Tensor::arange(h.count());
    "arange_of" => |h| Tensor::arange_of(h.number(), h.number(), h.number(), h.dtype());
    "linspace" => |h| Tensor::linspace(h.number(), h.number(), h.count());
    "randn" => |h| Tensor::randn(h.dims());
    "normal" => |h| Tensor::normal(h.dims(), h.number(), h.number(), h.dtype());
    "truncated_normal" => |h| Tensor::truncated_normal(h.dims(), h.number(), h.number(), h.dtype());
    "uniform" => |h| Tensor::uniform(h.dims(), h.number(), h.number(), h.dtype());
    "randint" => |h| Tensor::randint(h.dims(), h.signed() as i64, h.signed() as i64, h.dtype());
    "one_hot" => |h| { let dims = h.dims(); h.indices(&dims, 4)?.one_hot(h.count(), h.dtype()) };
    "from_slice" => |h| Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], h.dims());
    "from_bytes" => |h| Tensor::from_bytes(h.dims(), h.dtype(), |bytes| { bytes.fill(1); Ok(()) });
};

static ALONG_AXES: &[HostileCall] = one! {
    "sum" => |h| h.tensor()?.sum(h.signed());
    "sum_keepdims" => |h| h.tensor()?.sum_keepdims([h.signed(), h.signed()]);
    "mean" => |h| h.tensor()?.mean(h.signed());
    "sum" => |h| h.tensor()?.sum(h.signed()..);
    "sum" => |h| h.tensor()?.sum(h.signed()..=h.signed());
    "max" => |h| h.tensor()?.max(h.list(|h| h.count() as u64));
    "mean_keepdims" => |h| h.tensor()?.mean_keepdims(h.signed());
    "prod" => |h| h.tensor()?.prod(h.signed());
    "max" => |h| h.tensor()?.max(h.signed());
    "min" => |h| h.tensor()?.min(h.signed());
    "argmax" => |h| h.tensor()?.argmax(h.signed());
    "argmin" => |h| h.tensor()?.argmin(h.signed());
    "all" => |h| h.tensor()?.gt(0.0)?.all(h.signed());
    "any" => |h| h.tensor()?.gt(0.0)?.any(..);
    "var_corrected" => |h| h.tensor()?.var_corrected(h.signed(), h.number());
    "std_corrected_keepdims" => |h| h.tensor()?.std_corrected_keepdims(h.signed(), h.number());
    "norm" => |h| h.tensor()?.norm(h.signed());
    "logsumexp" => |h| h.tensor()?.logsumexp(h.signed());
    "softmax" => |h| h.tensor()?.softmax(h.signed());
    "log_softmax" => |h| h.tensor()?.log_softmax(h.signed());
    "cumsum" => |h| h.tensor()?.cumsum(h.signed());
    "cumprod" => |h| h.tensor()?.cumprod(h.signed());
    "linear_scan" => |h| { let x = h.tensor()?; let dims = x.shape().to_vec(); x.linear_scan(&h.tensor_of(&dims, x.dtype())?, h.signed()) };
    "argsort" => |h| h.tensor()?.argsort(h.signed(), h.chance(50));
    "index_select" => |h| { let ids = { let dims = h.dims(); h.indices(&dims, 3)? }; h.tensor()?.index_select(h.signed(), &ids) };
    "embedding" => |h| { let ids = { let dims = h.dims(); h.indices(&dims, 3)? }; h.tensor()?.embedding(&ids) };
    "gather" => |h| { let ids = { let dims = h.dims(); h.indices(&dims, 3)? }; h.tensor()?.gather(h.signed(), &ids) };
    "index_add" => |h| { let x = h.tensor()?; let ids = h.indices(&[2], 3)?; x.index_add(h.signed(), &ids, &h.tensor()?) };
    "into_index_add" => |h| { let x = h.tensor()?; let ids = h.indices(&[3], 3)?; x.into_index_add(0, &ids, &h.tensor()?) };
    "scatter_add" => |h| { let (x, source) = (h.tensor()?, h.tensor()?); let dims = source.shape().to_vec(); x.scatter_add(h.signed(), &h.indices(&dims, 3)?, &source) };
    "into_scatter_add" => |h| { let (x, source) = (h.tensor()?, h.tensor()?); let dims = source.shape().to_vec(); x.into_scatter_add(h.signed(), &h.indices(&dims, 3)?, &source) };
};

static WITH_NUMBERS: &[HostileCall] = one! {
    "affine" => |h| h.tensor()?.affine(h.number(), h.number());
    "into_affine" => |h| h.tensor()?.into_affine(h.number(), h.number());
    "clamp" => |h| h.tensor()?.clamp(h.number(), h.number());
    "dropout" => |h| h.tensor()?.dropout(h.number());
    "elu" => |h| h.tensor()?.elu(h.number());
    "leaky_relu" => |h| h.tensor()?.leaky_relu(h.number());
    "powf" => |h| h.tensor()?.powf(h.number());
    "lerp" => |h| { let x = h.tensor()?; x.lerp(&h.tensor()?, h.number()) };
    "masked_fill" => |h| { let x = h.tensor()?; x.masked_fill(&h.tensor()?.gt(0.0)?, h.number()) };
    "add" => |h| { let x = h.tensor()?; x.add(&h.tensor()?) };
    "pow" => |h| { let x = h.tensor()?; x.pow(&h.tensor()?) };
    "atan2" => |h| h.tensor()?.atan2(h.number());
    "floor_div" => |h| { let (dims, dtype) = (h.dims(), h.dtype()); h.tensor_of(&dims, dtype)?.floor_div(h.number()) };
    "rem" => |h| { let (dims, dtype) = (h.dims(), h.dtype()); h.tensor_of(&dims, dtype)?.rem(h.number()) };
    "maximum" => |h| { let x = h.tensor()?; x.maximum(&h.tensor()?) };
    "where_" => |h| { let (c, x) = (h.tensor()?.gt(0.0)?, h.tensor()?); c.where_(&x, &h.tensor()?) };
    "binary_cross_entropy" => |h| { let x = h.tensor()?; let dims = x.shape().to_vec(); x.binary_cross_entropy(&h.tensor_of(&dims, x.dtype())?, h.number()) };
    "binary_cross_entropy_of_probabilities" => |h| { let x = h.tensor()?; let dims = x.shape().to_vec(); x.binary_cross_entropy_of_probabilities(&h.tensor_of(&dims, x.dtype())?, h.number()) };
    "cross_entropy" => |h| { let x = h.tensor()?; let dims = x.shape().to_vec(); x.cross_entropy(&h.tensor_of(&dims, x.dtype())?) };
    "sparse_cross_entropy_ignoring" => |h| { let x = h.tensor()?; let rows = x.shape()[..x.rank().saturating_sub(1)].to_vec(); x.sparse_cross_entropy_ignoring(&h.indices(&rows, 3)?, h.signed() as i64) };
    "mean_sparse_cross_entropy_ignoring" => |h| { let x = h.tensor()?; let rows = x.shape()[..x.rank().saturating_sub(1)].to_vec(); x.mean_sparse_cross_entropy_ignoring(&h.indices(&rows, 3)?, h.signed() as i64) };
    "linear_cross_entropy" => |h| {
        let (rows, k, classes, dtype) = (h.count(), h.count(), h.count(), h.float());
        let x = h.tensor_of(&[rows, k], dtype)?;
        let w = h.tensor_of(&[k, classes], dtype)?;
        let ignored = h.maybe(|h| h.signed() as i64);
        x.linear_cross_entropy(&w, &h.indices(&[rows], 3)?, ignored)
    };
};

/// A configuration of a convolution or pooling along one axis.
fn geometry(h: &mut Hostile) -> [usize; 6] {
    [0; 6].map(|_| h.count())
}

fn conv1d(h: &mut Hostile) -> Conv1dConfig {
    let [stride, before, after, output, dilation, groups] = geometry(h);
    let config = Conv1dConfig::new().stride(stride).uneven_padding([[before, after]]).output_padding(output);
    config.dilation(dilation).groups(groups).activation(h.pick(&ACTIVATIONS))
}

fn conv2d(h: &mut Hostile) -> Conv2dConfig {
    let ([stride, before, after, output, dilation, groups], other) = (geometry(h), geometry(h));
    let (output, groups) = (if h.chance(70) { 0 } else { output }, if h.chance(70) { 1 } else { groups });
    let config = Conv2dConfig::new()
        .stride([stride, other[0]])
        .uneven_padding([[before, after], [other[1], other[2]]]);
    let config = config.output_padding(output).dilation([dilation, other[4]]).groups(groups);
    config.activation(h.pick(&ACTIVATIONS))
}

/// Pictures or sequences and weights that fit each other, if groups are one.
fn convolved(h: &mut Hostile, n_axes: usize) -> Result<[Tensor; 2]> {
    let (batch, channels, outputs, dtype) = (h.count(), h.count(), h.count(), h.float());
    let places: Vec<usize> = (0..n_axes).map(|_| h.count()).collect();
    let kernel: Vec<usize> =
        (0..n_axes).map(|_| if h.chance(70) { 1 + h.below(3) } else { h.count() }).collect();
    let (first, last) = if h.chance(50) { (outputs, channels) } else { (channels, outputs) };
    let x = h.tensor_of(&[&[batch], &places[..], &[channels]].concat(), dtype)?;
    Ok([x, h.tensor_of(&[&[first], &kernel[..], &[last]].concat(), dtype)?])
}

fn pool(h: &mut Hostile) -> Pool2d {
    let pool = Pool2d::new([h.count(), h.count()]);
    let pool = if h.chance(70) { pool.stride([h.count(), h.count()]) } else { pool };
    if h.chance(50) { pool.padding([h.count(), h.count()]) } else { pool }
}

fn pictures(h: &mut Hostile) -> Result<Tensor> {
    let (dims, dtype) = ([h.count(), h.count(), h.count(), h.count()], h.float());
    h.tensor_of(&dims, dtype)
}

static WINDOWS: &[HostileCall] = one! {
    "conv1d" => |h| { let [x, w] = convolved(h, 1)?; x.conv1d(&w, None, &conv1d(h)) };
    "conv2d" => |h| { let [x, w] = convolved(h, 2)?; x.conv2d(&w, None, &conv2d(h)) };
    "conv_transpose1d" => |h| { let [x, w] = convolved(h, 1)?; x.conv_transpose1d(&w, None, &conv1d(h)) };
    "conv_transpose2d" => |h| { let [x, w] = convolved(h, 2)?; x.conv_transpose2d(&w, None, &conv2d(h)) };
    "max_pool2d" => |h| { let x = pictures(h)?; x.max_pool2d(pool(h)) };
    "avg_pool2d" => |h| { let x = pictures(h)?; x.avg_pool2d(pool(h)) };
    "global_avg_pool2d" => |h| pictures(h)?.global_avg_pool2d();
};

/// Some tensors, often of one shape.
fn several(h: &mut Hostile) -> Result<Vec<Tensor>> {
    let (dims, dtype) = (h.dims(), h.float());
    let n = if h.chance(10) { 0 } else { 1 + h.below(3) };
    let one = |_| {
        let other = h.dims();
        let dims = if h.chance(85) { &dims } else { &other };
        h.tensor_of(dims, dtype)
    };
    (0..n).map(one).collect()
}

const EINSUMS: [&str; 10] = [
    "ij,jk->ik",
    "ii->i",
    "ij->",
    "bij,bjk->bik",
    "i,j->ij",
    "ij,ij->ij",
    "",
    "->",
    "iij,k->ijk",
    "ab,cd,ef->abcdef",
];

static SEVERAL: &[HostileCall] = many! {
    "concat" => |h| { let all = several(h)?; vec![Tensor::concat(&all.iter().collect::<Vec<_>>(), h.signed())?] };
    "stack" => |h| { let all = several(h)?; vec![Tensor::stack(&all.iter().collect::<Vec<_>>(), h.signed())?] };
    "einsum" => |h| { let all = several(h)?; vec![Tensor::einsum(h.pick(&EINSUMS), &all.iter().collect::<Vec<_>>())?] };
    "global_norm" => |h| { let all = several(h)?; <[Tensor; 2]>::from(Tensor::global_norm(&all.iter().collect::<Vec<_>>())?) };
    "split" => |h| h.tensor()?.split(h.signed(), &h.list(Hostile::count))?;
    "chunk" => |h| h.tensor()?.chunk(h.signed(), h.below(200))?;
    "sort" => |h| <[Tensor; 2]>::from(h.tensor()?.sort(h.signed(), h.chance(50))?);
    "top_k" => |h| <[Tensor; 2]>::from(h.tensor()?.top_k(h.count(), h.signed())?);
};

/// A sequence and the weights of a cell with so many gates that fit it.
fn cell(h: &mut Hostile, gates: usize) -> Result<[Tensor; 4]> {
    let (batch, steps, features, hidden, dtype) = (h.count(), h.count(), h.count(), h.count(), h.float());
    let width = gates.saturating_mul(hidden);
    let x = h.tensor_of(&[batch, steps, features], dtype)?;
    let kernel = h.tensor_of(&[features, width], dtype)?;
    let recurrent = h.tensor_of(&[hidden, width], dtype)?;
    Ok([x, kernel, recurrent, h.tensor_of(&[batch, hidden], dtype)?])
}

/// An input of any rank, and parameters for its last axis.
fn normed(h: &mut Hostile) -> Result<[Tensor; 3]> {
    let x = h.tensor()?;
    let width = x.shape().last().copied().unwrap_or(1);
    let (gamma, beta) = (h.tensor_of(&[width], x.dtype())?, h.tensor_of(&[width], x.dtype())?);
    Ok([x, gamma, beta])
}

static NETWORKS: &[HostileCall] = many! {
    "attention" => |h| {
        let (queries, keys, depth, width, dtype) = (h.count(), h.count(), h.count(), h.count(), h.float());
        let lead: Vec<usize> = h.list(Hostile::count);
        let part = |h: &mut Hostile, rows: usize, cols: usize| h.tensor_of(&[&lead[..], &[rows, cols]].concat(), dtype);
        let (q, k, v) = (part(h, queries, depth)?, part(h, keys, depth)?, part(h, keys, width)?);
        let mask = if h.chance(30) { Some(h.tensor_of(&[queries, keys], dtype)?.gt(0.0)?) } else { None };
        let config = AttentionConfig { causal: h.chance(50), scale: h.maybe(Hostile::number), mask: mask.as_ref() };
        vec![q.attention(&k, &v, &config)?]
    };
    "linear" => |h| {
        let (rows, k, cols, dtype) = (h.count(), h.count(), h.count(), h.float());
        let (x, w) = (h.tensor_of(&[rows, k], dtype)?, h.tensor_of(&[k, cols], dtype)?);
        let bias = if h.chance(50) { Some(h.tensor_of(&[cols], dtype)?) } else { None };
        vec![x.linear(&w, bias.as_ref(), h.pick(&ACTIVATIONS))?]
    };
    "matmul" => |h| {
        let (m, k, n, dtype) = (h.count(), h.count(), h.count(), h.float());
        let lead = [h.list(Hostile::count), h.list(Hostile::count)];
        let lhs = h.tensor_of(&[&lead[0][..], &[m, k]].concat(), dtype)?;
        vec![lhs.matmul(&h.tensor_of(&[&lead[1][..], &[k, n]].concat(), dtype)?)?]
    };
    "lstm" => |h| {
        let [x, kernel, recurrent, state] = cell(h, 4)?;
        let weights = RecurrentWeights { kernel: &kernel, recurrent: &recurrent, bias: None };
        let initial = LstmState { hidden: state.clone(), cell: state };
        let (sequence, last) = x.lstm(&weights, h.maybe(|_| &initial))?;
        [sequence, last.hidden, last.cell]
    };
    "lstm_state" => |h| {
        let [x, kernel, recurrent, _] = cell(h, 4)?;
        let weights = RecurrentWeights { kernel: &kernel, recurrent: &recurrent, bias: None };
        let last = x.lstm_state(&weights, None)?;
        [last.hidden, last.cell]
    };
    "gru" => |h| {
        let [x, kernel, recurrent, state] = cell(h, 3)?;
        let weights = GruWeights { kernel: &kernel, recurrent: &recurrent, biases: None };
        <[Tensor; 2]>::from(x.gru(&weights, h.maybe(|_| &state))?)
    };
    "gru_state" => |h| {
        let [x, kernel, recurrent, state] = cell(h, 3)?;
        let weights = GruWeights { kernel: &kernel, recurrent: &recurrent, biases: None };
        vec![x.gru_state(&weights, h.maybe(|_| &state))?]
    };
    "simple_rnn" => |h| {
        let [x, kernel, recurrent, state] = cell(h, 1)?;
        let weights = RecurrentWeights { kernel: &kernel, recurrent: &recurrent, bias: None };
        <[Tensor; 2]>::from(x.simple_rnn(&weights, h.pick(&ACTIVATIONS), h.maybe(|_| &state))?)
    };
    "simple_rnn_state" => |h| {
        let [x, kernel, recurrent, state] = cell(h, 1)?;
        let weights = RecurrentWeights { kernel: &kernel, recurrent: &recurrent, bias: None };
        vec![x.simple_rnn_state(&weights, h.pick(&ACTIVATIONS), h.maybe(|_| &state))?]
    };
    "layer_norm" => |h| { let [x, gamma, beta] = normed(h)?; vec![x.layer_norm(&gamma, &beta, h.number())?] };
    "rms_norm" => |h| { let [x, gamma, _] = normed(h)?; vec![x.rms_norm(&gamma, h.number())?] };
    "group_norm" => |h| { let [x, gamma, beta] = normed(h)?; vec![x.group_norm(&gamma, &beta, h.count(), h.number())?] };
    "batch_norm" => |h| { let [x, gamma, beta] = normed(h)?; <[Tensor; 3]>::from(x.batch_norm(&gamma, &beta, h.number())?) };
    "batch_norm_relu" => |h| { let [x, gamma, beta] = normed(h)?; <[Tensor; 3]>::from(x.batch_norm_relu(&gamma, &beta, h.number())?) };
    "batch_norm_add_relu" => |h| { let [x, gamma, beta] = normed(h)?; let added = h.tensor()?; <[Tensor; 3]>::from(x.batch_norm_add_relu(&gamma, &beta, added, h.number())?) };
    "batch_norm_inference" => |h| { let [x, gamma, beta] = normed(h)?; vec![x.batch_norm_inference(&gamma, &beta, &beta, &gamma, h.number())?] };
    "into_add_layer_norm" => |h| { let [x, gamma, beta] = normed(h)?; let y = x.copied()?; <[Tensor; 2]>::from(y.into_add_layer_norm(&x, h.number(), &gamma, &beta, h.number())?) };
    "into_add_rms_norm" => |h| { let [x, gamma, _] = normed(h)?; let y = x.copied()?; <[Tensor; 2]>::from(y.into_add_rms_norm(&x, h.number(), &gamma, h.number())?) };
};

/// Whether a tensor is small enough for its values to be listed.
fn listed(x: Tensor) -> Result<Tensor> {
    if x.n_elems() <= 1 << 16 { Ok(x) } else { x.slice(&vec![Slice::from(..2); x.rank()][..]) }
}

static READ: &[HostileCall] = many! {
    "to_vec" => |h| { let x = listed(h.tensor()?)?; if !x.device().is_ghost() { drop(x.to_vec::<f32>()); drop(x.to_vec::<bool>()); } vec![x] };
    "debug_print" => |h| { let x = h.tensor()?; x.debug_print("x")?; vec![x] };
    "spec" => |h| { let x = h.tensor()?; drop(Tensor::spec(h.dims(), h.dtype())?.add(&Tensor::spec(h.dims(), h.dtype())?)); vec![x] };
    "item" => |h| { let x = h.tensor()?; drop(x.item::<f32>()); vec![x] };
    "with_bytes" => |h| { let x = listed(h.tensor()?)?; drop(x.with_bytes(|bytes| bytes.len())); vec![x] };
    "host_bytes" => |h| { let x = h.tensor()?.slice((h.slice(),))?; drop(x.host_bytes().map(|bytes| bytes.len())); vec![x] };
    "to_f64_later" => |h| { let x = listed(h.tensor()?)?; drop(x.to_f64_later()?.get()); vec![x] };
};
