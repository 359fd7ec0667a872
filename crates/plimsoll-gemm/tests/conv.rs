//! Convolutions against a plain loop: strides, padding, dilation, groups, elements, layouts, threads.

mod support;

use half::{bf16, f16};
use plimsoll_cpu::threads;
use plimsoll_gemm::{
    Conv2d, ConvPass, Epilogue, Image, Isa, conv2d_backward_input, conv2d_backward_weights, conv2d_forward,
    with_isa,
};
use support::{Number, Random, Workspace};

/// Dense pictures and weights as f64, and what they are convolved to.
struct Case {
    conv: Conv2d,
    output: [usize; 2],
}

/// A convolution of `[batch, height, width, in] -> out` channels with the given kernel and attributes.
#[derive(Clone, Copy)]
struct Spec {
    picture: [usize; 4],
    out: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [[usize; 2]; 2],
    dilation: [usize; 2],
    groups: usize,
}

const PLAIN: Spec = Spec {
    picture: [2, 7, 6, 3],
    out: 5,
    kernel: [3, 3],
    stride: [1, 1],
    padding: [[0, 0], [0, 0]],
    dilation: [1, 1],
    groups: 1,
};

const SPECS: &[Spec] = &[
    PLAIN,
    Spec { padding: [[1, 1], [1, 1]], ..PLAIN },
    Spec { padding: [[2, 0], [0, 1]], stride: [2, 3], ..PLAIN },
    Spec {
        picture: [2, 9, 11, 4],
        stride: [2, 2],
        padding: [[1, 1], [1, 1]],
        dilation: [2, 1],
        groups: 2,
        out: 6,
        ..PLAIN
    },
    Spec {
        picture: [1, 13, 12, 2],
        kernel: [2, 4],
        stride: [3, 2],
        dilation: [3, 4],
        padding: [[3, 3], [6, 6]],
        ..PLAIN
    },
    Spec { picture: [1, 10, 10, 3], stride: [4, 4], dilation: [2, 2], padding: [[2, 2], [1, 0]], ..PLAIN },
    Spec { kernel: [1, 1], picture: [3, 5, 4, 17], out: 33, ..PLAIN },
    Spec { kernel: [1, 1], stride: [3, 3], ..PLAIN },
    Spec { kernel: [7, 6], ..PLAIN },
    Spec { picture: [2, 12, 12, 40], out: 35, padding: [[1, 1], [1, 1]], ..PLAIN },
    Spec { picture: [2, 6, 7, 150], out: 3, padding: [[1, 1], [1, 1]], ..PLAIN },
    Spec { picture: [1, 30, 30, 2], out: 70, padding: [[1, 1], [1, 1]], ..PLAIN },
    Spec { picture: [2, 8, 9, 6], out: 6, groups: 6, padding: [[1, 1], [1, 1]], ..PLAIN },
    Spec {
        picture: [1, 11, 9, 140],
        out: 140,
        groups: 140,
        padding: [[1, 2], [0, 1]],
        stride: [2, 2],
        ..PLAIN
    },
    Spec {
        picture: [1, 12, 12, 20],
        out: 20,
        groups: 20,
        kernel: [5, 5],
        dilation: [2, 1],
        padding: [[4, 4], [2, 2]],
        ..PLAIN
    },
    // One channel: vectors go along the outputs, which fill them or do not.
    Spec { picture: [2, 9, 9, 1], out: 32, padding: [[1, 1], [1, 1]], ..PLAIN },
    Spec { picture: [2, 9, 9, 1], out: 20, padding: [[1, 1], [1, 1]], dilation: [1, 2], ..PLAIN },
    // A line that is cut into several strips, and weights whose sums are formed in chunks.
    Spec { picture: [1, 1, 1500, 40], kernel: [1, 3], out: 4, stride: [1, 2], ..PLAIN },
    Spec { picture: [1, 3, 4, 64], out: 600, padding: [[1, 1], [1, 1]], ..PLAIN },
    Spec { picture: [1, 6, 6, 4], out: 12, groups: 4, padding: [[1, 1], [1, 1]], ..PLAIN },
];

impl Case {
    fn new(spec: &Spec) -> Self {
        let [batch, height, width, in_channels] = spec.picture;
        let conv = Conv2d {
            batch,
            input: [height, width],
            in_channels,
            out_channels: spec.out,
            kernel: spec.kernel,
            stride: spec.stride,
            padding: spec.padding,
            dilation: spec.dilation,
            groups: spec.groups,
        };
        Self { conv, output: conv.output().expect("the kernel fits") }
    }

    fn n_inputs(&self) -> usize {
        self.conv.batch * self.conv.input[0] * self.conv.input[1] * self.conv.in_channels
    }

    fn n_outputs(&self) -> usize {
        self.conv.batch * self.output[0] * self.output[1] * self.conv.out_channels
    }

    fn n_weights(&self) -> usize {
        self.conv.out_channels * self.conv.kernel[0] * self.conv.kernel[1] * self.group_inputs()
    }

    fn group_inputs(&self) -> usize {
        self.conv.in_channels / self.conv.groups
    }

    /// Calls `f(input, weight, output)` with the flat indices of every term of the convolution.
    fn terms(&self, mut f: impl FnMut(usize, usize, usize)) {
        let c = &self.conv;
        let (inputs, outputs) = (self.group_inputs(), c.out_channels / c.groups);
        for output in 0..self.n_outputs() {
            let (point, channel) = (output / c.out_channels, output % c.out_channels);
            let (line, x) = (point / self.output[1], point % self.output[1]);
            let (picture, y) = (line / self.output[0], line % self.output[0]);
            for tap_y in 0..c.kernel[0] {
                for tap_x in 0..c.kernel[1] {
                    let from_y = (y * c.stride[0] + tap_y * c.dilation[0]).wrapping_sub(c.padding[0][0]);
                    let from_x = (x * c.stride[1] + tap_x * c.dilation[1]).wrapping_sub(c.padding[1][0]);
                    if from_y >= c.input[0] || from_x >= c.input[1] {
                        continue;
                    }
                    let place = (picture * c.input[0] + from_y) * c.input[1] + from_x;
                    for input in 0..inputs {
                        let from = place * c.in_channels + channel / outputs * inputs + input;
                        let tap = (channel * c.kernel[0] + tap_y) * c.kernel[1] + tap_x;
                        f(from, tap * inputs + input, output);
                    }
                }
            }
        }
    }
}

/// A sum and the sum of its terms' sizes.
#[derive(Clone, Copy, Default)]
struct Sum {
    value: f64,
    size: f64,
}

impl Sum {
    fn add(&mut self, term: f64) {
        self.value += term;
        self.size += term.abs();
    }
}

fn random<E: Number>(random: &mut Random, len: usize) -> Vec<E> {
    (0..len).map(|_| E::from_f64(random.next())).collect()
}

fn assert_close<E: Number>(what: &str, conv: &Conv2d, got: &[E], expected: &[Sum]) {
    let sum_epsilon = if size_of::<E::Real>() == 8 { f64::EPSILON } else { f32::EPSILON as f64 };
    for (idx, (got, expected)) in got.iter().zip(expected).enumerate() {
        let tolerance = (expected.size + 1e-3) * sum_epsilon * 16.0 + expected.value.abs() * E::EPSILON;
        let error = (got.to_f64() - expected.value).abs();
        assert!(error <= tolerance, "{what} of {conv:?}: {idx} is {got:?}, expected {}", expected.value);
    }
}

/// The three results of a case, checked.
struct Results<E> {
    output: Vec<E>,
    grad_input: Vec<E>,
    grad_weights: Vec<E>,
}

/// Runs all three passes; `planar` gives the input, and the output's gradient where it may be, channels first.
fn check<E: Number>(spec: &Spec, isa: Isa, accumulate: bool, planar: bool) -> Results<E> {
    let case = Case::new(spec);
    let conv = &case.conv;
    let mut rng = Random(5);
    let (input, weights) = (random::<E>(&mut rng, case.n_inputs()), random::<E>(&mut rng, case.n_weights()));
    let grad = random::<E>(&mut rng, case.n_outputs());
    let bias = random::<E>(&mut rng, conv.out_channels);
    let bias_in = random::<E>(&mut rng, conv.in_channels);
    let mut results = Results {
        output: random::<E>(&mut rng, case.n_outputs()),
        grad_input: random::<E>(&mut rng, case.n_inputs()),
        grad_weights: random::<E>(&mut rng, case.n_weights()),
    };
    let start = |there: &E| {
        let value = if accumulate { there.to_f64() } else { 0.0 };
        Sum { value, size: value.abs() }
    };
    let mut output: Vec<Sum> = results.output.iter().map(start).collect();
    let mut grad_input: Vec<Sum> = results.grad_input.iter().map(start).collect();
    for (sums, bias) in [(&mut output, &bias), (&mut grad_input, &bias_in)] {
        sums.iter_mut().zip(bias.iter().cycle()).for_each(|(sum, bias)| sum.add(bias.to_f64()));
    }
    let mut grad_weights: Vec<Sum> = results.grad_weights.iter().map(start).collect();
    case.terms(|i, w, o| {
        output[o].add(input[i].to_f64() * weights[w].to_f64());
        grad_input[i].add(grad[o].to_f64() * weights[w].to_f64());
        grad_weights[w].add(grad[o].to_f64() * input[i].to_f64());
    });
    output.iter_mut().chain(&mut grad_input).for_each(|sum| sum.value = sum.value.max(0.0));

    let (mut planar_input, mut planar_grad) = (Vec::new(), Vec::new());
    let mut image = Image::packed(input.as_ptr(), conv.input, conv.in_channels);
    let mut grad_image = Image::packed(grad.as_ptr(), case.output, conv.out_channels);
    if planar {
        image = to_planar(&input, conv.input, conv.in_channels, &mut planar_input);
        grad_image = to_planar(&grad, case.output, conv.out_channels, &mut planar_grad);
    }
    let relu = |row: &mut [E::Real]| {
        row.iter_mut().for_each(|x| *x = E::real(E::real_to_f64(*x).max(0.0)));
    };
    let epilogue = Epilogue::<E> { bias: Some(bias.as_ptr()), activation: Some(&relu), accumulate };
    let epilogue_in = Epilogue { bias: Some(bias_in.as_ptr()), ..epilogue };
    let memory = |pass| Workspace::new(conv.workspace::<E>(pass));
    let mut memory = [ConvPass::Forward, ConvPass::BackwardInput, ConvPass::BackwardWeights].map(memory);
    // SAFETY: all pictures and weights are as large as the convolution says.
    with_isa(isa, || unsafe {
        let to = results.output.as_mut_ptr();
        conv2d_forward(conv, image, weights.as_ptr(), to, &epilogue, memory[0].slice());
        let to = results.grad_input.as_mut_ptr();
        conv2d_backward_input(conv, grad_image, weights.as_ptr(), to, &epilogue_in, memory[1].slice());
        let to = results.grad_weights.as_mut_ptr();
        conv2d_backward_weights(conv, image, grad.as_ptr(), to, accumulate, memory[2].slice());
    });
    memory.iter_mut().for_each(Workspace::assert_guards);
    assert_close("output", conv, &results.output, &output);
    assert_close("gradient of input", conv, &results.grad_input, &grad_input);
    assert_close("gradient of weights", conv, &results.grad_weights, &grad_weights);
    results
}

/// The same pictures with the channels first.
fn to_planar<E: Number>(
    from: &[E],
    [height, width]: [usize; 2],
    channels: usize,
    to: &mut Vec<E>,
) -> Image<E> {
    let plane = height * width;
    for picture in from.chunks(plane * channels) {
        for channel in 0..channels {
            to.extend((0..plane).map(|place| picture[place * channels + channel]));
        }
    }
    let strides = [plane * channels, width, 1, plane].map(|stride| stride as isize);
    Image { first: to.as_ptr(), strides }
}

#[test]
fn every_pass_equals_a_plain_loop() {
    for spec in SPECS {
        for accumulate in [false, true] {
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                check::<f32>(spec, isa, accumulate, false);
                check::<f64>(spec, isa, accumulate, false);
                check::<f16>(spec, isa, accumulate, false);
                check::<bf16>(spec, isa, accumulate, false);
            }
        }
    }
}

#[test]
fn channels_may_come_first() {
    for spec in SPECS {
        check::<f32>(spec, Isa::best(), false, true);
        check::<bf16>(spec, Isa::best(), false, true);
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let large = Spec { picture: [4, 20, 20, 24], out: 24, padding: [[1, 1], [1, 1]], ..PLAIN };
    for spec in
        [large, Spec { stride: [2, 2], ..large }, Spec { groups: 24, ..large }, Spec { groups: 2, ..large }]
    {
        let run = |n| threads::with_threads(n, || check::<f32>(&spec, Isa::best(), true, false));
        let bits = |results: &Results<f32>| {
            let all = results.output.iter().chain(&results.grad_input).chain(&results.grad_weights);
            all.map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let one = bits(&run(1));
        for n in [2, 7] {
            assert!(bits(&run(n)) == one, "{n} threads give other bits than one");
        }
    }
}

#[test]
fn a_kernel_larger_than_the_padded_input_has_no_output() {
    let spec = Spec { kernel: [9, 3], ..PLAIN };
    let [batch, height, width, in_channels] = spec.picture;
    let conv = Conv2d { batch, input: [height, width], in_channels, ..Case::new(&PLAIN).conv };
    assert_eq!(Conv2d { kernel: spec.kernel, ..conv }.output(), None);
    assert_eq!(Conv2d { kernel: spec.kernel, padding: [[1, 1], [0, 0]], ..conv }.output(), Some([1, 4]));
    assert_eq!(Conv2d { kernel: [0, 1], ..conv }.output(), None);
}
