//! Samples of convolutions, with plain loops over f64 as their references.

use super::config::Convolution;
use super::{Conv1dConfig, Conv2dConfig, ConvConfig, ConvKind, weights_gradient};
use crate::base::error::Result;
use crate::base::shape::{IntoShape, Shape};
use crate::eager::tensor::Tensor;
use crate::ops::Activation;
use crate::ops::registry::{Array, Sample, floats};

/// A convolution to test.
#[derive(Clone, Copy)]
pub(super) struct Case<const N: usize> {
    name: &'static str,
    config: ConvConfig<N>,
    /// The configuration in PyTorch's words.
    torch: &'static str,
    input: &'static [usize],
    weights: &'static [usize],
}

/// What differs between one and two axes.
pub(super) trait Kind<const N: usize>: Sized + 'static {
    /// The convolutions to test; the first is a plain one.
    ///
    /// Either the batch or the outputs number one: a check that repeats samples with more of both would otherwise make
    /// enormous outputs.
    fn cases() -> Vec<Case<N>>;

    /// Transposed convolutions to test; the first is a plain one.
    fn transposed_cases() -> Vec<Case<N>>;

    /// The call as a user makes it.
    fn call(x: &[Tensor], kind: ConvKind, config: &ConvConfig<N>) -> Result<Tensor>;
}

/// Stands for `N` axes.
pub(super) struct Axes<const N: usize>;

impl Kind<1> for Axes<1> {
    fn cases() -> Vec<Case<1>> {
        let new = Conv1dConfig::new;
        vec![
            Case { name: "plain", config: new(), torch: "", input: &[1, 7, 3], weights: &[4, 3, 3] },
            Case {
                name: "stride and padding",
                config: new().stride(2).padding(2),
                torch: ", stride=2, padding=2",
                input: &[2, 8, 2],
                weights: &[1, 3, 2],
            },
            Case {
                name: "dilation and groups",
                config: new().dilation(3).groups(2),
                torch: ", dilation=3, groups=2",
                input: &[1, 9, 4],
                weights: &[6, 2, 2],
            },
        ]
    }

    fn transposed_cases() -> Vec<Case<1>> {
        let new = Conv1dConfig::new;
        vec![
            Case { name: "plain", config: new(), torch: "", input: &[1, 5, 3], weights: &[3, 3, 2] },
            Case {
                name: "stride and paddings",
                config: new().stride(3).padding(1).output_padding(2),
                torch: ", stride=3, padding=1, output_padding=2",
                input: &[2, 4, 1],
                weights: &[1, 4, 2],
            },
        ]
    }

    fn call(x: &[Tensor], kind: ConvKind, config: &Conv1dConfig) -> Result<Tensor> {
        match kind {
            ConvKind::Forward => x[0].conv1d(&x[1], x.get(2), config),
            ConvKind::Transposed => x[0].conv_transpose1d(&x[1], x.get(2), config),
        }
    }
}

impl Kind<2> for Axes<2> {
    fn cases() -> Vec<Case<2>> {
        let new = Conv2dConfig::new;
        vec![
            Case { name: "plain", config: new(), torch: "", input: &[1, 4, 5, 3], weights: &[4, 3, 2, 3] },
            Case {
                name: "stride and padding",
                config: new().stride([2, 3]).padding([1, 2]),
                torch: ", stride=(2, 3), padding=(1, 2)",
                input: &[2, 6, 6, 2],
                weights: &[1, 3, 3, 2],
            },
            Case {
                name: "dilation and groups",
                config: new().dilation([2, 1]).groups(2),
                torch: ", dilation=(2, 1), groups=2",
                input: &[1, 5, 4, 4],
                weights: &[6, 2, 3, 2],
            },
            Case {
                name: "depthwise",
                config: new().padding(1).groups(3),
                torch: ", padding=1, groups=3",
                input: &[1, 4, 3, 3],
                weights: &[3, 3, 3, 1],
            },
            Case { name: "points", config: new(), torch: "", input: &[1, 3, 2, 4], weights: &[5, 1, 1, 4] },
        ]
    }

    fn transposed_cases() -> Vec<Case<2>> {
        let new = Conv2dConfig::new;
        vec![
            Case { name: "plain", config: new(), torch: "", input: &[1, 3, 4, 3], weights: &[3, 3, 2, 4] },
            Case {
                name: "stride and paddings",
                config: new().stride([2, 3]).padding([1, 2]).output_padding([1, 2]),
                torch: ", stride=(2, 3), padding=(1, 2), output_padding=(1, 2)",
                input: &[2, 3, 3, 1],
                weights: &[1, 3, 4, 2],
            },
            Case {
                name: "dilation and groups",
                config: new().dilation([2, 1]).groups(2),
                torch: ", dilation=(2, 1), groups=2",
                input: &[1, 3, 2, 4],
                weights: &[4, 2, 3, 3],
            },
            Case {
                name: "depthwise",
                config: new().stride(2).groups(3),
                torch: ", stride=2, groups=3",
                input: &[1, 3, 2, 3],
                weights: &[3, 3, 3, 1],
            },
        ]
    }

    fn call(x: &[Tensor], kind: ConvKind, config: &Conv2dConfig) -> Result<Tensor> {
        match kind {
            ConvKind::Forward => x[0].conv2d(&x[1], x.get(2), config),
            ConvKind::Transposed => x[0].conv_transpose2d(&x[1], x.get(2), config),
        }
    }
}

/// A case with a bias, an activation and a stride.
fn fused<const N: usize>(case: &Case<N>) -> Case<N> {
    let config = case.config.stride(2).activation(Activation::Relu);
    Case { name: "bias and relu", config, torch: ", stride=2", ..*case }
}

/// The samples of a convolution.
pub(super) fn forward<const N: usize>() -> Vec<Sample>
where
    Axes<N>: Kind<N>,
{
    let cases = Axes::<N>::cases();
    let plain = &cases[0];
    let weights = || floats(plain.weights);
    let input = |place: usize, channels: usize| floats(&[&[2], &[place; N][..], &[channels]].concat());
    let mut samples = vec![
        sample(plain, ConvKind::Forward, false)
            .example(format!("x0.conv{N}d(&x1, None, &Conv{N}dConfig::new())"))
            .refuses(vec![floats(&plain.input[1..]), weights()], "the input is [batch, ")
            .refuses(vec![input(5, 2), weights()], "times the groups")
            .refuses(vec![input(2, 3), weights()], "does not fit an input of 2"),
        sample(&fused(plain), ConvKind::Forward, true)
            .refuses(vec![input(5, 3), weights(), floats(&[3])], "it must be [4]"),
    ];
    samples.extend(cases[1..].iter().map(|case| sample(case, ConvKind::Forward, false)));
    samples
}

/// The samples of a transposed convolution.
pub(super) fn transposed<const N: usize>() -> Vec<Sample>
where
    Axes<N>: Kind<N>,
{
    let cases = Axes::<N>::transposed_cases();
    let plain = &cases[0];
    let weights = || floats(plain.weights);
    let input = |place: usize, channels: usize| floats(&[&[2], &[place; N][..], &[channels]].concat());
    let mut samples = vec![
        sample(plain, ConvKind::Transposed, false)
            .example(format!("x0.conv_transpose{N}d(&x1, None, &Conv{N}dConfig::new())"))
            .refuses(vec![floats(&plain.input[1..]), weights()], "the weights are [channels, ")
            .refuses(vec![input(5, 2), weights()], "the first extent of the weights, 3")
            .refuses(vec![input(0, 3), weights()], "leave no output"),
        sample(&fused(plain), ConvKind::Transposed, true)
            .refuses(vec![input(5, 3), weights(), floats(&[7])], "it must be ["),
    ];
    samples.extend(cases[1..].iter().map(|case| sample(case, ConvKind::Transposed, false)));
    samples
}

fn sample<const N: usize>(case: &Case<N>, kind: ConvKind, has_bias: bool) -> Sample
where
    Axes<N>: Kind<N>,
{
    let Case { name, config, torch, input, weights } = *case;
    let mut inputs = vec![floats(input), floats(weights)];
    let n_outputs = if kind == ConvKind::Forward { weights[0] } else { weights[N + 1] };
    inputs.extend(has_bias.then(|| floats(&[n_outputs])));
    let bias = if has_bias { "x2" } else { "None" };
    let (function, reference) = match kind {
        ConvKind::Forward => ("F.conv", reference_forward as fn(&Convolution, &[Array]) -> Array),
        ConvKind::Transposed => {
            ("F.conv_transpose", reference_transposed as fn(&Convolution, &[Array]) -> Array)
        }
    };
    let [to, from] = if N == 1 { ["0, 2, 1", "0, 2, 1"] } else { ["0, 3, 1, 2", "0, 2, 3, 1"] };
    let called = format!("{function}{N}d(x0.permute({to}), x1.permute({to}), {bias}{torch})");
    let called = if config.activation == Activation::Relu { format!("F.relu({called})") } else { called };
    Sample::new(name, inputs, move |x| Axes::<N>::call(x, kind, &config))
        .reference(move |x| {
            let mut y = reference(&convolution(&config, kind, &x[0].shape, &x[1].shape), x);
            let n_channels = y.shape[N + 1];
            for (idx, y) in y.values.iter_mut().enumerate() {
                let bias = x.get(2).map_or(0.0, |bias| bias.values[idx % n_channels]);
                *y = config.activation.reference(*y + bias);
            }
            y
        })
        .torch(format!("{called}.permute({from})"))
}

fn reference_forward(of: &Convolution, x: &[Array]) -> Array {
    let mut y = zeros(&of.output());
    each_product(of, |out, weight, input| y.values[out] += x[0].values[input] * x[1].values[weight]);
    y
}

fn reference_transposed(of: &Convolution, x: &[Array]) -> Array {
    let mut y = zeros(&of.input());
    each_product(of, |out, weight, input| y.values[input] += x[0].values[out] * x[1].values[weight]);
    y
}

/// The samples of the gradient of a convolution's weights.
pub(super) fn backward_weights<const N: usize>() -> Vec<Sample>
where
    Axes<N>: Kind<N>,
{
    let sample = |case: &Case<N>| {
        let Case { name, config, input, weights, .. } = *case;
        let input = [&[2], &input[1..]].concat();
        let output = convolution(&config, ConvKind::Forward, &input, weights).output();
        Sample::new(name, vec![floats(&input), floats(&output)], move |x: &[Tensor]| {
            weights_gradient(config.forward(x[0].shape(), &weights.into_shape()?)?, &x[0], &x[1])
        })
        .reference(move |x| {
            let of = convolution(&config, ConvKind::Forward, &x[0].shape, weights);
            let mut dw = zeros(&of.weights());
            each_product(&of, |out, weight, input| {
                dw.values[weight] += x[0].values[input] * x[1].values[out]
            });
            dw
        })
    };
    Axes::<N>::cases().iter().map(sample).collect()
}

fn convolution<const N: usize>(
    config: &ConvConfig<N>,
    kind: ConvKind,
    input: &[usize],
    weights: &[usize],
) -> Convolution {
    let [input, weights] = [input, weights].map(|dims| Shape::within_bounds(dims.iter().copied()));
    let made = match kind {
        ConvKind::Forward => config.forward(&input, &weights),
        ConvKind::Transposed => config.transposed(&input, &weights),
    };
    made.expect("samples fit")
}

fn zeros(shape: &Shape) -> Array {
    Array::new(shape, vec![0.0; shape.n_elems()])
}

/// Calls `f` with the places of output, weight and input of every product of a convolution.
fn each_product(of: &Convolution, mut f: impl FnMut(usize, usize, usize)) {
    let of = &Convolution { n_axes: 2, ..*of };
    let (x, w, y, of) = (of.input(), of.weights(), of.output(), of.geometry);
    let [per_group, outputs_per_group] = [of.in_channels / of.groups, of.out_channels / of.groups];
    for out in 0..y.n_elems() {
        let [n, row, col, channel] = split(out, &y);
        let group = channel / outputs_per_group;
        for tap in 0..w[1] * w[2] * w[3] {
            let [_, down, right, input] = split(tap, &w);
            let place = |at: usize, tap: usize, axis: usize| {
                let padded = at * of.stride[axis] + tap * of.dilation[axis];
                padded.checked_sub(of.padding[axis][0]).filter(|&place| place < of.input[axis])
            };
            if let (Some(row), Some(col)) = (place(row, down, 0), place(col, right, 1)) {
                let from = ((n * x[1] + row) * x[2] + col) * x[3] + group * per_group + input;
                f(out, channel * w[1] * w[2] * w[3] + tap, from);
            }
        }
    }
}

/// The index of an element by its place in row-major order.
fn split(place: usize, shape: &Shape) -> [usize; 4] {
    let [b, c, d] = [shape[1], shape[2], shape[3]];
    [place / (b * c * d), place / (c * d) % b, place / d % c, place % d]
}
