//! GFLOP/s of the three passes of convolutions: `cargo bench -p plimsoll-gemm --bench conv -- [part of a name] [threads]`.

#![allow(clippy::print_stdout)]

mod timing;

use plimsoll_cpu::threads;
use plimsoll_gemm::{
    Conv2d, ConvPass, Epilogue, Image, conv2d_backward_input, conv2d_backward_weights, conv2d_forward,
};
use timing::{Aligned, fastest};

/// Name, pictures, size, channels in and out, kernel, stride, groups.
const CONVOLUTIONS: &[(&str, [usize; 7])] = &[
    ("grey 3x3", [64, 28, 1, 32, 3, 1, 1]),
    ("digits 3x3", [64, 28, 32, 64, 3, 1, 1]),
    ("photo 7x7 stride 2", [4, 224, 3, 64, 7, 2, 1]),
    ("half 3x3 stride 2", [8, 28, 128, 128, 3, 2, 1]),
    ("colours 3x3", [32, 32, 3, 32, 3, 1, 1]),
    ("colours 7x7 stride 2", [4, 112, 3, 64, 7, 2, 1]),
    ("narrow 3x3", [32, 32, 32, 32, 3, 1, 1]),
    ("middle 3x3", [8, 56, 64, 64, 3, 1, 1]),
    ("wide 3x3", [32, 14, 256, 256, 3, 1, 1]),
    ("halving 3x3", [32, 16, 64, 128, 3, 2, 1]),
    ("pointwise", [32, 16, 128, 256, 1, 1, 1]),
    ("grouped 3x3", [16, 28, 128, 128, 3, 1, 4]),
    ("depthwise 3x3", [16, 32, 128, 128, 3, 1, 128]),
    ("depthwise halving", [16, 32, 128, 128, 3, 2, 128]),
];

fn run(name: &str, [batch, side, inputs, outputs, kernel, stride, groups]: [usize; 7]) {
    let pad = kernel / 2;
    let conv = Conv2d {
        batch,
        input: [side; 2],
        in_channels: inputs,
        out_channels: outputs,
        kernel: [kernel; 2],
        stride: [stride; 2],
        padding: [[pad; 2]; 2],
        dilation: [1; 2],
        groups,
    };
    let output = conv.output().expect("the kernel fits");
    let number = |idx: usize| (idx * 7919 % 1000) as f32 / 500.0 - 1.0;
    let mut image = Aligned::new(batch * side * side * inputs, number);
    let mut weights = Aligned::new(outputs * kernel * kernel * inputs / groups, number);
    let mut result = Aligned::new(batch * output[0] * output[1] * outputs, number);
    let gflop = 2.0 * (result.len() * weights.len() / outputs) as f64 / 1e9;
    let mut line = format!("{name:22} {batch:3} x {side:3}² {inputs:3} -> {outputs:3}");
    for pass in [ConvPass::Forward, ConvPass::BackwardInput, ConvPass::BackwardWeights] {
        let mut memory = Aligned::new(conv.workspace::<f32>(pass), |_| 0u8);
        let memory = &mut *memory;
        let seconds = fastest(|| {
            let from = Image::packed(image.as_ptr(), conv.input, inputs);
            let grad = Image::packed(result.as_ptr(), output, outputs);
            // SAFETY: pictures and weights are as large as the convolution says.
            unsafe {
                match pass {
                    ConvPass::Forward => {
                        let to = result.as_mut_ptr();
                        conv2d_forward(&conv, from, weights.as_ptr(), to, &Epilogue::NONE, memory);
                    }
                    ConvPass::BackwardInput => {
                        let to = image.as_mut_ptr();
                        conv2d_backward_input(&conv, grad, weights.as_ptr(), to, &Epilogue::NONE, memory);
                    }
                    ConvPass::BackwardWeights => {
                        let to = weights.as_mut_ptr();
                        conv2d_backward_weights(&conv, from, result.as_ptr(), to, false, memory);
                    }
                }
            }
        });
        let kib = memory.len() / 1024;
        line += &format!("  {:8.0} µs {:6.1} GFLOP/s {kib:5} KiB", seconds * 1e6, gflop / seconds);
    }
    println!("{line}");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let wanted = arguments.first().map_or("", String::as_str);
    if let Some(n) = arguments.get(1).and_then(|n| n.parse().ok()) {
        threads::set_threads(n);
    }
    println!("forward, gradient of the input, gradient of the weights");
    for &(name, shape) in CONVOLUTIONS.iter().filter(|(name, _)| name.contains(wanted)) {
        run(name, shape);
    }
}
