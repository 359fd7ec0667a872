//! GFLOP/s of products that training makes: `cargo bench -p plimsoll-gemm -- [part of a name] [threads]`.

#![allow(clippy::print_stdout)]

mod timing;

use plimsoll_cpu::threads;
use plimsoll_gemm::{Element, Epilogue, MatMut, MatRef, Shape, gemm, workspace};
use timing::{Aligned, fastest};

/// Name, shape, whether A and B are transposed views.
const PRODUCTS: &[(&str, [usize; 4], bool, bool)] = &[
    ("square 8", [1, 8, 8, 8], false, false),
    ("square 16", [1, 16, 16, 16], false, false),
    ("square 32", [1, 32, 32, 32], false, false),
    ("square 64", [1, 64, 64, 64], false, false),
    ("square 128", [1, 128, 128, 128], false, false),
    ("square 256", [1, 256, 256, 256], false, false),
    ("square 512", [1, 512, 512, 512], false, false),
    ("square 1024", [1, 1024, 1024, 1024], false, false),
    ("square 2048", [1, 2048, 2048, 2048], false, false),
    ("dense forward", [1, 32, 1024, 784], false, false),
    ("dense input gradient", [1, 32, 784, 1024], false, true),
    ("dense weight gradient", [1, 784, 1024, 32], true, false),
    ("head forward", [1, 512, 10, 1024], false, false),
    ("head input gradient", [1, 512, 1024, 10], false, true),
    ("head weight gradient", [1, 1024, 10, 512], true, false),
    ("wide weight gradient", [1, 1024, 784, 512], true, false),
    ("small weight gradient", [1, 64, 64, 16384], true, false),
    ("transformer up", [1, 1024, 1024, 256], false, false),
    ("transformer down", [1, 1024, 256, 1024], false, false),
    ("attention scores", [32, 128, 128, 64], false, true),
    ("attention values", [32, 128, 64, 128], false, false),
    ("row times matrix", [1, 1, 1024, 1024], false, false),
    ("row times transposed", [1, 1, 1024, 1024], false, true),
    ("matrix times column", [1, 1024, 1, 1024], false, false),
    ("transposed times column", [1, 1024, 1, 1024], true, false),
];

fn run<E: Element>(name: &str, [batch, m, n, k]: [usize; 4], a_transposed: bool, b_transposed: bool)
where
    E::Real: From<f32>,
{
    let number = |idx: usize| E::narrow(((idx * 7919 % 1000) as f32 / 500.0 - 1.0).into());
    let a = Aligned::new(batch * m * k, number);
    let b = Aligned::new(batch * k * n, number);
    let mut c = Aligned::new(batch * m * n, number);
    let view = |data: &[E], rows: usize, cols: usize, transposed: bool| {
        let (row_stride, col_stride) = if transposed { (1, rows) } else { (cols, 1) };
        MatRef {
            first: data.as_ptr(),
            row_stride: row_stride as isize,
            col_stride: col_stride as isize,
            batch_stride: (rows * cols) as isize,
        }
    };
    let (a, b) = (view(&a, m, k, a_transposed), view(&b, k, n, b_transposed));
    let c = MatMut {
        first: c.as_mut_ptr(),
        row_stride: n as isize,
        col_stride: 1,
        batch_stride: (m * n) as isize,
    };
    let shape = Shape { batch, m, n, k };
    let mut memory = Aligned::new(workspace::<E>(&shape), |_| 0u8);
    let memory = &mut *memory;
    let seconds = fastest(|| {
        // SAFETY: the matrices are as large as the shape says.
        unsafe { gemm(&shape, a, b, c, &Epilogue::NONE, memory) }
    });
    let gflops = 2.0 * (batch * m * n * k) as f64 / seconds / 1e9;
    let kib = memory.len() / 1024;
    println!(
        "{name:24} {:4} {batch:3} x {m:4} {n:4} {k:5} {:9.1} µs {gflops:8.1} GFLOP/s {kib:5} KiB",
        std::any::type_name::<E>().rsplit(':').next().unwrap_or(""),
        seconds * 1e6
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let wanted = arguments.first().map_or("", String::as_str);
    if let Some(n) = arguments.get(1).and_then(|n| n.parse().ok()) {
        threads::set_threads(n);
    }
    for &(name, shape, a_transposed, b_transposed) in PRODUCTS {
        if format!("f32 {name}").contains(wanted) {
            run::<f32>(name, shape, a_transposed, b_transposed);
        }
    }
    for (name, shape) in [("square 1024", [1, 1024, 1024, 1024]), ("dense forward", [1, 32, 1024, 784])] {
        if format!("f64 {name}").contains(wanted) {
            run::<f64>(name, shape, false, false);
        }
        if format!("f16 {name}").contains(wanted) {
            run::<half::f16>(name, shape, false, false);
        }
        if format!("bf16 {name}").contains(wanted) {
            run::<half::bf16>(name, shape, false, false);
        }
    }
}
