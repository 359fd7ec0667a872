//! Convolutions and their gradients against loops on the host.

use std::time::Instant;

use plimsoll_cuda::{Convolution, ConvolutionOperands, Direction, Scalar};
use plimsoll_memory::Block;

use crate::numbers::{decode, distance, encode, numbers};
use crate::{Bench, Outcome, ensure};

/// Scratch memory for every convolution here.
const WORKSPACE_BYTES: usize = 128 << 20;

const DIRECTIONS: [Direction; 3] = [Direction::Forward, Direction::ToInput, Direction::ToFilter];

pub fn check(bench: &mut Bench) {
    for scalar in [Scalar::BF16, Scalar::F16, Scalar::F32] {
        for direction in DIRECTIONS {
            let name = format!("convolutions: {scalar:?} {direction:?}");
            bench.check(&name, |bench| all_kinds(bench, scalar, direction));
        }
    }
    bench.check("convolutions: F32 Forward with TF32", |bench| {
        run(bench, &Convolution { tf32: true, ..kinds(Scalar::F32, Direction::Forward)[0].1 })
    });
    if bench.quick {
        return;
    }
    bench.check("convolutions: plans of many shapes are bounded", many_shapes);
    // ResNet-50's first layer, a 3 x 3 of its second stage and a 1 x 1 of its last.
    let layers =
        [([224, 112], [4, 64], 7, 3, 2), ([56, 56], [64, 64], 3, 1, 1), ([7, 7], [2048, 512], 1, 0, 1)];
    for (extents, channels, filter, padding, stride) in layers {
        for direction in DIRECTIONS {
            let convolution = Convolution {
                direction,
                scalar: Scalar::BF16,
                n: 128,
                input: [extents[0]; 2],
                output: [extents[1]; 2],
                c_in: channels[0],
                c_out: channels[1],
                filter: [filter; 2],
                padding: [padding; 2],
                stride: [stride; 2],
                dilation: [1; 2],
                groups: 1,
                tf32: false,
                unordered: false,
            };
            let name = format!("convolutions: rate of {filter} x {filter}, {channels:?} BF16 {direction:?}");
            bench.check(&name, |bench| rate(bench, &convolution));
        }
    }
}

/// More shapes than the library's plans are kept for: the host's memory stops growing, and a plan that was dropped gives the same bits.
fn many_shapes(bench: &Bench) -> Outcome {
    const N_SHAPES: usize = 1000;
    /// What is allowed to come after the first thousand, whose plans would be some 300 MiB.
    const SLACK_BYTES: u64 = 64 << 20;
    let plain = kinds(Scalar::F32, Direction::Forward)[0].1;
    let shape = |number: usize| {
        let input = [9 + number % 50, 9 + number / 50];
        Convolution { n: 1, input, output: input, ..plain }
    };
    let values = |n: usize, seed| bench.uploaded(&encode(Scalar::F32, &numbers(n, seed)));
    let extents = extents(&shape(2 * N_SHAPES));
    let [input, filter, output] = [extents[0].max(70 * 70 * 16), extents[1], extents[2].max(70 * 70 * 24)];
    let blocks =
        [values(input, 1)?, values(filter, 2)?, bench.block(4 * output)?, bench.block(WORKSPACE_BYTES)?];
    let bits = |number: usize| -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        convolve(bench, &shape(number), &blocks)?;
        let [height, width] = shape(number).output;
        Ok(bench.downloaded(&blocks[2])?[..4 * height * width * 24].to_vec())
    };
    let first = bits(0)?;
    let mut resident = Vec::new();
    for number in 0..2 * N_SHAPES {
        convolve(bench, &shape(number), &blocks)?;
        if number % N_SHAPES == N_SHAPES - 1 {
            resident.push(resident_bytes()?);
        }
    }
    ensure(bits(0)? == first, "gives other bits once its plan is made anew")?;
    let grown = resident[1].saturating_sub(resident[0]);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let text = format!(
        "resident {:.0} MiB after {N_SHAPES} shapes, {:.1} more after twice as many",
        mib(resident[0]),
        mib(grown)
    );
    ensure(grown <= SLACK_BYTES, text.as_str())?;
    Ok(text)
}

/// What this process has in memory.
fn resident_bytes() -> Result<u64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no line VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// One of each kind, with its name.
fn kinds(scalar: Scalar, direction: Direction) -> [(&'static str, Convolution); 6] {
    let plain = Convolution {
        direction,
        scalar,
        n: 2,
        input: [9, 11],
        output: [9, 11],
        c_in: 16,
        c_out: 24,
        filter: [3, 3],
        padding: [1, 1],
        stride: [1, 1],
        dilation: [1, 1],
        groups: 1,
        tf32: false,
        unordered: false,
    };
    [
        ("plain", plain),
        ("stride 2", Convolution { stride: [2, 2], output: [5, 6], ..plain }),
        ("1 x 1", Convolution { filter: [1, 1], padding: [0, 0], ..plain }),
        ("3 channels", Convolution { c_in: 3, ..plain }),
        ("dilation 2", Convolution { dilation: [2, 2], padding: [2, 2], ..plain }),
        ("groups", Convolution { groups: 8, ..plain }),
    ]
}

fn all_kinds(bench: &Bench, scalar: Scalar, direction: Direction) -> Outcome {
    let (mut texts, mut failed) = (Vec::new(), false);
    for (name, convolution) in kinds(scalar, direction) {
        let outcome = run(bench, &convolution);
        failed |= outcome.is_err();
        texts.push(format!("{name} {}", outcome.unwrap_or_else(|error| error.to_string())));
    }
    ensure(!failed, texts.join(", "))?;
    Ok(texts.join(", "))
}

/// Elements of input, filter and output.
fn extents(convolution: &Convolution) -> [usize; 3] {
    let Convolution { n, input, output, c_in, c_out, filter, groups, .. } = *convolution;
    [
        n * input[0] * input[1] * c_in,
        c_out * filter[0] * filter[1] * c_in / groups,
        n * output[0] * output[1] * c_out,
    ]
}

/// Which of input, filter and output is computed.
fn result_of(direction: Direction) -> usize {
    match direction {
        Direction::ToInput => 0,
        Direction::ToFilter => 1,
        Direction::Forward => 2,
    }
}

/// Input, filter, output and scratch memory are the blocks.
fn convolve(bench: &Bench, convolution: &Convolution, blocks: &[Block; 4]) -> plimsoll_cuda::Result<()> {
    let operands = ConvolutionOperands {
        input: blocks[0].as_ptr(),
        filter: blocks[1].as_ptr(),
        output: blocks[2].as_ptr(),
        workspace: blocks[3].as_ptr(),
        workspace_bytes: WORKSPACE_BYTES,
    };
    // SAFETY: the blocks have the extents of the convolution.
    match unsafe { bench.gpu.convolve("gpu_check", convolution, &operands) }? {
        true => Ok(()),
        false => Err(plimsoll_cuda::Error::new("the library has no engine for it")),
    }
}

/// Computes a convolution on both sides, and on the device twice.
fn run(bench: &Bench, convolution: &Convolution) -> Outcome {
    let scalar = convolution.scalar;
    let mut host = [0, 1, 2].map(|which| numbers(extents(convolution)[which], which as u64 + 1));
    let upload = |which: usize| bench.uploaded(&encode(scalar, &host[which]));
    let blocks = [upload(0)?, upload(1)?, upload(2)?, bench.block(WORKSPACE_BYTES)?];
    let which = result_of(convolution.direction);
    convolve(bench, convolution, &blocks)?;
    let bytes = bench.downloaded(&blocks[which])?;
    convolve(bench, convolution, &blocks)?;
    ensure(bench.downloaded(&blocks[which])? == bytes, "gives other bits the second time")?;
    let n_terms = on_host(convolution, &mut host);
    let worst = distance(scalar, convolution.tf32, &decode(scalar, &bytes), &host[which], n_terms);
    ensure(worst <= 1.0, format!("is off by {worst:.2} of what is allowed"))?;
    Ok(format!("{worst:.2}"))
}

/// Computes the result in place, and returns how many terms its sums have at most.
fn on_host(convolution: &Convolution, host: &mut [Vec<f64>; 3]) -> usize {
    let Convolution { n, input, output, c_in, c_out, filter, padding, stride, dilation, groups, .. } =
        *convolution;
    let (in_group, out_group) = (c_in / groups, c_out / groups);
    let which = result_of(convolution.direction);
    let n_results = host[which].len();
    let n_products = n * output[0] * output[1] * c_out * filter[0] * filter[1] * in_group;
    host[which].fill(0.0);
    let along = |axis: usize, at: usize, tap: usize| {
        let place = (at * stride[axis] + tap * dilation[axis]).checked_sub(padding[axis])?;
        (place < input[axis]).then_some(place)
    };
    for idx in 0..n_products {
        let (rest, channel) = (idx / in_group, idx % in_group);
        let (rest, right) = (rest / filter[1], rest % filter[1]);
        let (rest, down) = (rest / filter[0], rest % filter[0]);
        let (rest, out_channel) = (rest / c_out, rest % c_out);
        let (rest, column) = (rest / output[1], rest % output[1]);
        let (image, row) = (rest / output[0], rest % output[0]);
        let (Some(y), Some(x)) = (along(0, row, down), along(1, column, right)) else { continue };
        let in_channel = out_channel / out_group * in_group + channel;
        let places = [
            ((image * input[0] + y) * input[1] + x) * c_in + in_channel,
            ((out_channel * filter[0] + down) * filter[1] + right) * in_group + channel,
            ((image * output[0] + row) * output[1] + column) * c_out + out_channel,
        ];
        let factors = [0, 1, 2].into_iter().filter(|&other| other != which);
        let product: f64 = factors.map(|other| host[other][places[other]]).product();
        host[which][places[which]] += product;
    }
    n_products.div_ceil(n_results)
}

fn rate(bench: &Bench, convolution: &Convolution) -> Outcome {
    const N_TIMES: usize = 50;
    let n_bytes = extents(convolution).map(|n| n * convolution.scalar.size());
    let block = |which: usize| bench.block(n_bytes[which]);
    let blocks = [block(0)?, block(1)?, block(2)?, bench.block(WORKSPACE_BYTES)?];
    for block in &blocks[..3] {
        // SAFETY: the block has as many bytes. The value is a small number in every type.
        unsafe { bench.gpu.fill("gpu_check", block.as_ptr(), 0x3c, block.bytes()) }?;
    }
    let start = Instant::now();
    convolve(bench, convolution, &blocks)?;
    bench.gpu.synchronize()?;
    let first = start.elapsed();
    let mut best = f64::INFINITY;
    for _ in 0..4 {
        let start = Instant::now();
        for _ in 0..N_TIMES {
            convolve(bench, convolution, &blocks)?;
        }
        bench.gpu.synchronize()?;
        best = best.min(start.elapsed().as_secs_f64() / N_TIMES as f64);
    }
    let Convolution { n, output, c_in, c_out, filter, .. } = *convolution;
    let flops = 2.0 * (n * output[0] * output[1] * c_out * filter[0] * filter[1] * c_in) as f64;
    Ok(format!("{:.1} us, {:.1} TFLOP/s, the first time {first:.1?}", best * 1e6, flops / best / 1e12))
}
