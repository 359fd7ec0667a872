//! Samples of convolutions, with plain loops over f64 as their references.

use plimsoll_gemm as gemm;

use super::config::{input_shape, output_shape, weights_shape};
use super::{Conv2dConfig, input_gradient, weights_gradient};
use crate::error::Result;
use crate::ops::Activation;
use crate::ops::registry::{Array, Sample, floats};
use crate::shape::{IntoShape, Shape};
use crate::tensor::Tensor;

/// A convolution to test.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    config: Conv2dConfig,
    /// The configuration in PyTorch's words.
    torch: &'static str,
    input: [usize; 4],
    weights: [usize; 4],
}

/// Either the batch or the outputs number one: a check that repeats samples with more of both would otherwise make
/// enormous outputs.
fn cases() -> [Case; 5] {
    let new = Conv2dConfig::new;
    [
        Case { name: "plain", config: new(), torch: "", input: [1, 4, 5, 3], weights: [4, 3, 2, 3] },
        Case {
            name: "stride and padding",
            config: new().stride([2, 3]).padding([1, 2]),
            torch: ", stride=(2, 3), padding=(1, 2)",
            input: [2, 6, 6, 2],
            weights: [1, 3, 3, 2],
        },
        Case {
            name: "dilation and groups",
            config: new().dilation([2, 1]).groups(2),
            torch: ", dilation=(2, 1), groups=2",
            input: [1, 5, 4, 4],
            weights: [6, 2, 3, 2],
        },
        Case {
            name: "depthwise",
            config: new().padding([1, 1]).groups(3),
            torch: ", padding=1, groups=3",
            input: [1, 4, 3, 3],
            weights: [3, 3, 3, 1],
        },
        Case { name: "points", config: new(), torch: "", input: [1, 3, 2, 4], weights: [5, 1, 1, 4] },
    ]
}

pub(super) fn forward() -> Vec<Sample> {
    let mut samples: Vec<Sample> = cases().iter().map(|case| sample(case, false)).collect();
    let plain = samples.remove(0);
    let fused = Conv2dConfig::new().stride([2, 1]).activation(Activation::Relu);
    let fused = Case { name: "bias and relu", config: fused, torch: ", stride=(2, 1)", ..cases()[0] };
    samples.extend([
        plain
            .refuses(
                vec![floats(&[4, 5, 3]), floats(&[4, 3, 2, 3])],
                "the input is [batch, height, width, channels]",
            )
            .refuses(vec![floats(&[2, 4, 5, 2]), floats(&[4, 3, 2, 3])], "times the groups")
            .refuses(vec![floats(&[2, 2, 5, 3]), floats(&[4, 3, 2, 3])], "does not fit an input of 2 by 5"),
        sample(&fused, true)
            .refuses(vec![floats(&[2, 4, 5, 3]), floats(&[4, 3, 2, 3]), floats(&[3])], "it must be [4]"),
    ]);
    samples
}

fn sample(case: &Case, has_bias: bool) -> Sample {
    let Case { name, config, torch, input, weights } = *case;
    let mut inputs = vec![floats(&input), floats(&weights)];
    inputs.extend(has_bias.then(|| floats(&weights[..1])));
    let bias = if has_bias { "x2" } else { "None" };
    let nchw = format!("F.conv2d(x0.permute(0, 3, 1, 2), x1.permute(0, 3, 1, 2), {bias}{torch})");
    let nchw = if config.activation == Activation::Relu { format!("F.relu({nchw})") } else { nchw };
    Sample::new(name, inputs, move |x| x[0].conv2d(&x[1], x.get(2), &config))
        .reference(move |x| {
            let geometry = geometry(&config, &x[0].shape, &x[1].shape);
            let mut y = zeros(&output_shape(&geometry));
            each_product(&geometry, |out, weight, input| {
                y.values[out] += x[0].values[input] * x[1].values[weight]
            });
            let n_channels = geometry.out_channels;
            for (idx, y) in y.values.iter_mut().enumerate() {
                let bias = x.get(2).map_or(0.0, |bias| bias.values[idx % n_channels]);
                *y = config.activation.reference(*y + bias);
            }
            y
        })
        .torch(format!("{nchw}.permute(0, 2, 3, 1)"))
}

pub(super) fn backward_input() -> Vec<Sample> {
    let sample = |case: &Case| {
        let Case { name, config, input: [_, height, width, channels], weights, .. } = *case;
        let input = [2, height, width, channels];
        let output = output_shape(&geometry(&config, &input, &weights));
        let of = move |gradient: usize, weights: &Shape| {
            config.geometry(&[gradient, input[1], input[2], input[3]].into_shape()?, weights)
        };
        Sample::new(name, vec![floats(&output), floats(&weights)], move |x| {
            input_gradient(of(x[0].shape()[0], x[1].shape())?, &x[0], &x[1])
        })
        .reference(move |x| {
            let geometry = geometry(&config, &[x[0].shape[0], input[1], input[2], input[3]], &x[1].shape);
            let mut dx = zeros(&input_shape(&geometry));
            each_product(&geometry, |out, weight, input| {
                dx.values[input] += x[0].values[out] * x[1].values[weight]
            });
            dx
        })
    };
    cases().iter().map(sample).collect()
}

pub(super) fn backward_weights() -> Vec<Sample> {
    let sample = |case: &Case| {
        let Case { name, config, input: [_, height, width, channels], weights, .. } = *case;
        let input = [2, height, width, channels];
        let output = output_shape(&geometry(&config, &input, &weights));
        let of =
            move |input: &Shape| -> Result<gemm::Conv2d> { config.geometry(input, &weights.into_shape()?) };
        Sample::new(name, vec![floats(&input), floats(&output)], move |x: &[Tensor]| {
            weights_gradient(of(x[0].shape())?, &x[0], &x[1])
        })
        .reference(move |x| {
            let geometry = geometry(&config, &x[0].shape, &weights);
            let mut dw = zeros(&weights_shape(&geometry));
            each_product(&geometry, |out, weight, input| {
                dw.values[weight] += x[0].values[input] * x[1].values[out]
            });
            dw
        })
    };
    cases().iter().map(sample).collect()
}

fn geometry(config: &Conv2dConfig, input: &[usize], weights: &[usize]) -> gemm::Conv2d {
    let shape = |dims: &[usize]| Shape::from_checked(dims.iter().copied());
    config.geometry(&shape(input), &shape(weights)).expect("samples fit")
}

fn zeros(shape: &Shape) -> Array {
    Array::new(shape, vec![0.0; shape.n_elems()])
}

/// Calls `f` with the places of output, weight and input of every product of a convolution.
fn each_product(of: &gemm::Conv2d, mut f: impl FnMut(usize, usize, usize)) {
    let (x, w, y) = (input_shape(of), weights_shape(of), output_shape(of));
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
