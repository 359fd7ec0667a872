//! Matrix products against loops on the host.

use std::time::Instant;

use plimsoll_cuda::{Epilogue, Matmul, MatmulOperands, Matrix, Scalar};

use crate::numbers::{decode, distance, encode, numbers};
use crate::{Bench, Outcome, ensure};

/// Scratch memory for every product here.
const WORKSPACE_BYTES: usize = 32 << 20;

const EPILOGUES: [Epilogue; 3] = [Epilogue::None, Epilogue::Bias, Epilogue::BiasRelu];

/// Rows, inputs and outputs of the widest linear map of GPT-2's blocks.
const FC: [usize; 3] = [16_384, 768, 3072];

pub fn check(bench: &mut Bench) {
    let types = [
        (Scalar::F16, Scalar::F16),
        (Scalar::F16, Scalar::F32),
        (Scalar::BF16, Scalar::BF16),
        (Scalar::BF16, Scalar::F32),
        (Scalar::F32, Scalar::F32),
        (Scalar::F64, Scalar::F64),
    ];
    for (input, output) in types {
        bench.check(&format!("products: {input:?} to {output:?}"), |bench| layouts(bench, input, output));
        let known = if input == Scalar::F64 { &EPILOGUES[..1] } else { &EPILOGUES[..] };
        for &epilogue in known {
            let name = format!("products: {input:?} to {output:?}, {epilogue:?}");
            bench.check(&name, |bench| epilogues(bench, input, output, epilogue));
        }
    }
    bench.check("products: TF32", |bench| {
        let product = plain(Scalar::F32, Scalar::F32, [64, 96, 128]);
        run(bench, &Matmul { tf32: true, ..product }, 0)
    });
    bench.check("products: offsets of one element", |bench| {
        run(bench, &plain(Scalar::BF16, Scalar::BF16, [63, 65, 67]), 1)
    });
    for scalar in [Scalar::BF16, Scalar::F16] {
        bench.check(&format!("products: {scalar:?} with the sums of columns"), |bench| {
            column_sums(bench, scalar)
        });
    }
    bench.check("products: no terms", |bench| run(bench, &plain(Scalar::F32, Scalar::F32, [5, 6, 0]), 0));
    bench.check("products: 20 times the same bits, split along k", same_bits);
    if bench.quick {
        return;
    }
    for scalar in [Scalar::BF16, Scalar::F16, Scalar::F32] {
        bench.check(&format!("products: rate of 8192^3 {scalar:?}"), |bench| {
            rate(bench, scalar, [8192; 3], 20)
        });
    }
    let fc = [FC[0], FC[2], FC[1]];
    bench
        .check("products: rate of GPT-2's fully connected layer", |bench| rate(bench, Scalar::BF16, fc, 200));
    for epilogue in [Epilogue::None, Epilogue::ColumnSums] {
        bench.check(&format!("products: rate of its gradient of weights, {epilogue:?}"), |bench| {
            gradient_rate(bench, epilogue)
        });
    }
    bench.check("products: time of a small one", |bench| rate(bench, Scalar::BF16, [64, 64, 64], 5000));
}

fn row_major(row_stride: usize, rows: usize) -> Matrix {
    Matrix { transposed: false, row_stride, batch_stride: rows * row_stride }
}

fn plain(input: Scalar, output: Scalar, [m, n, k]: [usize; 3]) -> Matmul {
    Matmul {
        m,
        n,
        k,
        batch: 1,
        input,
        output,
        a: row_major(k, m),
        b: row_major(n, k),
        c: row_major(n, m),
        alpha: 1.0,
        beta: 0.0,
        tf32: false,
        epilogue: Epilogue::None,
    }
}

/// All transpositions, batches, repeated factors, rows at a distance, factors.
fn layouts(bench: &Bench, input: Scalar, output: Scalar) -> Outcome {
    let mut n_products = 0;
    for [m, n, k] in [[1, 1, 1], [1, 17, 33], [17, 1, 5], [16, 24, 32], [33, 65, 129], [64, 48, 200]] {
        for (a_transposed, b_transposed) in [(false, false), (true, false), (false, true), (true, true)] {
            let lies = |transposed: bool, rows: usize, columns: usize, gap: usize| {
                let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
                Matrix { transposed, ..row_major(columns + gap, rows) }
            };
            let product = Matmul {
                a: lies(a_transposed, m, k, 8),
                b: lies(b_transposed, k, n, 0),
                c: lies(false, m, n, 3),
                batch: 3,
                alpha: 0.5,
                beta: 1.0,
                ..plain(input, output, [m, n, k])
            };
            run(bench, &product, 0)?;
            let repeated = Matmul { b: Matrix { batch_stride: 0, ..product.b }, beta: 0.0, ..product };
            run(bench, &repeated, 0)?;
            n_products += 2;
        }
    }
    Ok(format!("{n_products} products are right"))
}

fn epilogues(bench: &Bench, input: Scalar, output: Scalar, epilogue: Epilogue) -> Outcome {
    let mut texts = Vec::new();
    for sizes in [[64, 96, 128], [8, 16, 8], [40, 72, 24]] {
        texts.push(run(bench, &Matmul { epilogue, ..plain(input, output, sizes) }, 0)?);
    }
    Ok(texts.join(", "))
}

/// Computes a product on both sides. All operands begin `offset` elements after a block does.
fn run(bench: &Bench, product: &Matmul, offset: usize) -> Outcome {
    let Matmul { m, n, k, batch, input, output, a, b, c, .. } = *product;
    let extent = |matrix: Matrix, rows: usize, columns: usize| {
        let rows = if matrix.transposed { columns } else { rows };
        matrix.batch_stride * (batch - 1) + matrix.row_stride * rows + offset
    };
    let host = [
        numbers(extent(a, m, k), 1),
        numbers(extent(b, k, n), 2),
        numbers(extent(c, m, n), 3),
        numbers(n, 4),
    ];
    let [a_host, b_host, c_host, bias_host] = &host;
    let blocks = [
        bench.uploaded(&encode(input, a_host))?,
        bench.uploaded(&encode(input, b_host))?,
        bench.uploaded(&encode(output, c_host))?,
        bench.uploaded(&encode(output, bias_host))?,
        bench.block(WORKSPACE_BYTES)?,
    ];
    let skip = |block: usize, scalar: Scalar| blocks[block].as_ptr().wrapping_add(offset * scalar.size());
    let operands = MatmulOperands {
        a: skip(0, input),
        b: skip(1, input),
        c: skip(2, output),
        bias: if product.epilogue == Epilogue::None { std::ptr::null_mut() } else { blocks[3].as_ptr() },
        workspace: blocks[4].as_ptr(),
        workspace_bytes: WORKSPACE_BYTES,
    };
    // SAFETY: the blocks have the extents that the product reads and writes.
    unsafe { bench.gpu.matmul("gpu_check", product, &operands) }?;
    let exact = on_host(product, &host, offset);
    let found = decode(output, &bench.downloaded(&blocks[2])?);
    let worst = distance(output, product.tf32, &found, &exact, k.max(1));
    ensure(worst <= 1.0, format!("{product:?}: off by {worst:.2} of what is allowed"))?;
    Ok(format!("{m} x {n} x {k} off by {worst:.2} of what is allowed"))
}

/// The gradient of the weights of a linear map: of rows and the gradients of their outputs.
fn gradient(scalar: Scalar, [rows, inputs, outputs]: [usize; 3], epilogue: Epilogue) -> Matmul {
    let a = Matrix { transposed: true, ..row_major(inputs, rows) };
    Matmul { a, epilogue, ..plain(scalar, scalar, [inputs, outputs, rows]) }
}

/// The sums of the columns of the second factor, beside the product that they come with; 20 times the same bits.
fn column_sums(bench: &Bench, scalar: Scalar) -> Outcome {
    let mut texts = Vec::new();
    for sizes in [[128, 64, 96], [40, 24, 72], [2048, 768, 2304]] {
        let product = gradient(scalar, sizes, Epilogue::ColumnSums);
        let [rows, _, outputs] = sizes;
        let factors = [numbers(rows * product.m, 7), numbers(rows * outputs, 8)];
        let blocks = [
            bench.uploaded(&encode(scalar, &factors[0]))?,
            bench.uploaded(&encode(scalar, &factors[1]))?,
            bench.block(product.m * outputs * scalar.size())?,
            bench.block(WORKSPACE_BYTES)?,
            bench.block(outputs * scalar.size())?,
        ];
        let mut first = None;
        for _ in 0..20 {
            if !with_sums(bench, &product, &blocks)? {
                return Ok(format!("the library does not know {sizes:?}"));
            }
            let bytes = [bench.downloaded(&blocks[2])?, bench.downloaded(&blocks[4])?];
            ensure(first.get_or_insert_with(|| bytes.clone()) == &bytes, "the bits differ")?;
        }
        let column = |column: usize| (0..rows).map(|row| factors[1][row * outputs + column]).sum::<f64>();
        let exact: Vec<f64> = (0..outputs).map(column).collect();
        let found = decode(scalar, &bench.downloaded(&blocks[4])?);
        let worst = distance(scalar, false, &found, &exact, rows);
        ensure(worst <= 1.0, format!("{product:?}: sums off by {worst:.2} of what is allowed"))?;
        texts.push(format!("{sizes:?} off by {worst:.2} of what is allowed"));
    }
    Ok(texts.join(", "))
}

/// Operands a, b, c, scratch memory and the sums are the blocks.
fn with_sums(
    bench: &Bench,
    product: &Matmul,
    blocks: &[plimsoll_memory::Block; 5],
) -> plimsoll_cuda::Result<bool> {
    let operands = MatmulOperands {
        a: blocks[0].as_ptr(),
        b: blocks[1].as_ptr(),
        c: blocks[2].as_ptr(),
        bias: blocks[4].as_ptr(),
        workspace: blocks[3].as_ptr(),
        workspace_bytes: WORKSPACE_BYTES,
    };
    // SAFETY: the blocks have the extents that the product reads and writes.
    unsafe { bench.gpu.try_matmul("gpu_check", product, &operands) }
}

/// How long the gradient of the weights of GPT-2's fully connected layer takes, with the sums of columns and without.
fn gradient_rate(bench: &Bench, epilogue: Epilogue) -> Outcome {
    let product = gradient(Scalar::BF16, FC, epilogue);
    let [rows, inputs, outputs] = FC;
    let size = Scalar::BF16.size();
    let sizes = [
        rows * inputs * size,
        rows * outputs * size,
        inputs * outputs * size,
        WORKSPACE_BYTES,
        outputs * size,
    ];
    let mut blocks = Vec::new();
    for bytes in sizes {
        blocks.push(bench.block(bytes)?);
    }
    let Ok(blocks) = <[plimsoll_memory::Block; 5]>::try_from(blocks) else { unreachable!("five blocks") };
    if !with_sums(bench, &product, &blocks)? {
        return Ok("the library does not know it".to_owned());
    }
    bench.gpu.synchronize()?;
    let start = Instant::now();
    for _ in 0..100 {
        with_sums(bench, &product, &blocks)?;
    }
    bench.gpu.synchronize()?;
    Ok(format!("{:.1} µs", start.elapsed().as_secs_f64() * 1e4))
}

/// The results, in a copy of what the result's memory held.
fn on_host(product: &Matmul, host: &[Vec<f64>; 4], offset: usize) -> Vec<f64> {
    let [a, b, c, bias] = host;
    let at = |matrix: Matrix, idx: usize, row: usize, column: usize| {
        let (row, column) = if matrix.transposed { (column, row) } else { (row, column) };
        offset + idx * matrix.batch_stride + row * matrix.row_stride + column
    };
    let mut result = c.clone();
    for idx in 0..product.batch {
        for row in 0..product.m {
            for column in 0..product.n {
                let term = |i| a[at(product.a, idx, row, i)] * b[at(product.b, idx, i, column)];
                let place = at(product.c, idx, row, column);
                let sum = product.alpha * (0..product.k).map(term).sum::<f64>() + product.beta * c[place];
                let biased = sum + bias[column];
                result[place] = match product.epilogue {
                    Epilogue::None | Epilogue::ColumnSums => sum,
                    Epilogue::Bias => biased,
                    Epilogue::BiasRelu => biased.max(0.0),
                };
            }
        }
    }
    result
}

fn same_bits(bench: &Bench) -> Outcome {
    let product = plain(Scalar::BF16, Scalar::F32, [96, 64, 65_536]);
    let blocks = [
        bench.uploaded(&encode(Scalar::BF16, &numbers(product.m * product.k, 5)))?,
        bench.uploaded(&encode(Scalar::BF16, &numbers(product.k * product.n, 6)))?,
        bench.block(product.m * product.n * 4)?,
        bench.block(WORKSPACE_BYTES)?,
    ];
    let mut first = None;
    for _ in 0..20 {
        multiply(bench, &product, &blocks)?;
        let bytes = bench.downloaded(&blocks[2])?;
        ensure(first.get_or_insert_with(|| bytes.clone()) == &bytes, "the bits differ")?;
    }
    Ok("so it is".to_owned())
}

/// Operands a, b, c and scratch memory are the blocks.
fn multiply(
    bench: &Bench,
    product: &Matmul,
    blocks: &[plimsoll_memory::Block; 4],
) -> plimsoll_cuda::Result<()> {
    let operands = MatmulOperands {
        a: blocks[0].as_ptr(),
        b: blocks[1].as_ptr(),
        c: blocks[2].as_ptr(),
        bias: std::ptr::null_mut(),
        workspace: blocks[3].as_ptr(),
        workspace_bytes: WORKSPACE_BYTES,
    };
    // SAFETY: the blocks have the extents of the product.
    unsafe { bench.gpu.matmul("gpu_check", product, &operands) }
}

fn rate(bench: &Bench, scalar: Scalar, sizes: [usize; 3], n_times: usize) -> Outcome {
    let [m, n, k] = sizes;
    let product = plain(scalar, scalar, sizes);
    let blocks = [
        bench.block(m * k * scalar.size())?,
        bench.block(k * n * scalar.size())?,
        bench.block(m * n * scalar.size())?,
        bench.block(WORKSPACE_BYTES)?,
    ];
    let kernel_bytes = [&blocks[0], &blocks[1]];
    for (seed, block) in kernel_bytes.into_iter().enumerate() {
        let some = encode(scalar, &numbers(1 << 16, seed as u64));
        for start in (0..block.bytes()).step_by(some.len()) {
            let part = &some[..some.len().min(block.bytes() - start)];
            // SAFETY: the part ends where the block does, or before.
            unsafe { bench.gpu.upload(part, block.as_ptr().wrapping_add(start)) }?;
        }
    }
    let mut best = f64::INFINITY;
    let mut issued = f64::INFINITY;
    for _ in 0..4 {
        bench.gpu.synchronize()?;
        let start = Instant::now();
        for _ in 0..n_times {
            multiply(bench, &product, &blocks)?;
        }
        issued = issued.min(start.elapsed().as_secs_f64() / n_times as f64);
        bench.gpu.synchronize()?;
        best = best.min(start.elapsed().as_secs_f64() / n_times as f64);
    }
    let flops = 2.0 * m as f64 * n as f64 * k as f64;
    Ok(format!("{:.1} us, {:.1} TFLOP/s, issued in {:.2} us", best * 1e6, flops / best / 1e12, issued * 1e6))
}
