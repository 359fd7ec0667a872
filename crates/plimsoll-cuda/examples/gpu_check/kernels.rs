//! Copies and kernels.

use std::time::Instant;

use plimsoll_cuda::{Fault, Grid, Param, Scalar, Template};

use crate::numbers::{decode, distance, encode, numbers};
use crate::{Bench, Outcome, ensure};

static SCALE: Template = Template {
    name: "scale",
    text: "
KERNEL ENTRY(const T* x, T* y, float factor, u64 n) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = narrow<T>(factor * m::exp(widen(x[i])));
}
",
};

static EMPTY: Template = Template { name: "empty", text: "KERNEL ENTRY(u64 n) { }\n" };

static REVERSE: Template = Template {
    name: "reverse",
    text: "
KERNEL ENTRY(u8* x, u32 n) {
    DYNAMIC_SHARED(u8, held);
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) held[i] = x[i];
    __syncthreads();
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) x[i] = held[n - 1 - i];
}
",
};

static REFUSE: Template = Template {
    name: "refuse",
    text: "KERNEL ENTRY(Note* cell, u64 call) {
        u32 i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i % 7 == 3) fault(cell, call, i, -(i64)i << 40);
    }\n",
};

static STRAY: Template = Template { name: "stray", text: "KERNEL ENTRY(u8* x) { x[0] = 1; }\n" };

pub fn check(bench: &mut Bench) {
    bench.check("copies of odd sizes", copies);
    bench.check("many small uploads", small_uploads);
    bench.check("kernel", scale);
    bench.check("kernel with 200 KiB of shared memory", reverse);
    bench.check("launches", launches);
    bench.check("a fault is told", refused);
}

/// Writes where nothing is. After this the process cannot use the GPU any more, so it is the last check.
pub fn stray(bench: &Bench) -> Outcome {
    let kernel = bench.gpu.kernel(&STRAY, "stray", 0, String::new)?;
    let nowhere = std::ptr::null_mut::<u8>();
    // SAFETY: the device notices, and writes nothing.
    unsafe { bench.gpu.launch(&kernel, Grid::of(1, 1), &[&nowhere as &dyn Param]) }?;
    let Err(first) = bench.gpu.synchronize() else { return Err("was not noticed".into()) };
    let Err(later) = bench.gpu.synchronize() else { return Err("was forgotten".into()) };
    ensure(first.to_string().contains("`stray`"), format!("does not name its op: {first}"))?;
    ensure(later.to_string().contains("any more"), format!("is not told again: {later}"))?;
    Ok(first.to_string())
}

fn copies(bench: &Bench) -> Outcome {
    for n_bytes in [1, 3, 255, 256, 65_535, 65_537, 1 << 20, (1 << 20) + 1, (20 << 20) + 7] {
        let bytes: Vec<u8> = (0..n_bytes).map(|i| (i * 7 + i / 251) as u8).collect();
        let block = bench.uploaded(&bytes)?;
        let copied = bench.block(n_bytes)?;
        // SAFETY: both blocks have as many bytes.
        unsafe { bench.gpu.copy("gpu_check", block.as_ptr(), copied.as_ptr(), n_bytes) }?;
        ensure(bench.downloaded(&copied)? == bytes, format!("{n_bytes} bytes came back otherwise"))?;
        // SAFETY: the block has as many bytes.
        unsafe { bench.gpu.fill("gpu_check", copied.as_ptr(), 9, n_bytes) }?;
        let filled = bench.downloaded(&copied)?;
        ensure(filled.iter().all(|&byte| byte == 9), format!("{n_bytes} bytes were filled otherwise"))?;
    }
    let bytes = vec![1u8; 256 << 20];
    let start = Instant::now();
    let block = bench.uploaded(&bytes)?;
    bench.gpu.synchronize()?;
    let up = start.elapsed();
    let start = Instant::now();
    bench.downloaded(&block)?;
    let down = start.elapsed();
    let rate = |time: std::time::Duration| bytes.len() as f64 / time.as_secs_f64() / 1e9;
    Ok(format!("256 MiB up at {:.1} GB/s, down at {:.1} GB/s", rate(up), rate(down)))
}

fn small_uploads(bench: &Bench) -> Outcome {
    const N: usize = 20_000;
    let block = bench.block(4 * N)?;
    bench.gpu.synchronize()?;
    let start = Instant::now();
    for i in 0..N {
        // SAFETY: the block has room for all of them.
        unsafe { bench.gpu.upload(&(i as u32).to_le_bytes(), block.as_ptr().wrapping_add(4 * i)) }?;
    }
    let issued = start.elapsed();
    let expected: Vec<u8> = (0..N as u32).flat_map(u32::to_le_bytes).collect();
    ensure(bench.downloaded(&block)? == expected, "they came back otherwise")?;
    Ok(format!("{:.2} us each", issued.as_secs_f64() * 1e6 / N as f64))
}

fn scale(bench: &Bench) -> Outcome {
    let x = numbers(1003, 1);
    for (scalar, name) in [(Scalar::F16, "f16"), (Scalar::BF16, "bf16"), (Scalar::F32, "float")] {
        let input = bench.uploaded(&encode(scalar, &x))?;
        let output = bench.block(input.bytes())?;
        let kernel = bench.gpu.kernel(&SCALE, "scale", scalar as u64, || format!("typedef {name} T;"))?;
        let (from, to, factor, n) = (input.as_ptr(), output.as_ptr(), 1.5f32, x.len() as u64);
        let params: [&dyn Param; 4] = [&from, &to, &factor, &n];
        // SAFETY: the parameters are the kernel's, and the blocks have as many elements.
        unsafe { bench.gpu.launch(&kernel, Grid::covering(x.len(), 256), &params) }?;
        let found = decode(scalar, &bench.downloaded(&output)?);
        let exact: Vec<f64> = x.iter().map(|x| 1.5 * x.exp()).collect();
        let worst = distance(scalar, false, &found, &exact, 4);
        ensure(worst <= 1.0, format!("{name}: off by {worst:.2} of what is allowed"))?;
    }
    Ok("f16, bf16 and f32 are right".to_owned())
}

fn reverse(bench: &Bench) -> Outcome {
    let bytes: Vec<u8> = (0..200 << 10).map(|i: u32| (i * 31 + i / 255) as u8).collect();
    let block = bench.uploaded(&bytes)?;
    let kernel = bench.gpu.kernel(&REVERSE, "reverse", 0, String::new)?;
    let (x, n) = (block.as_ptr(), bytes.len() as u32);
    // SAFETY: the parameters are the kernel's, and the block has as many bytes.
    unsafe { bench.gpu.launch(&kernel, Grid::of(1, 256).shared(bytes.len()), &[&x as &dyn Param, &n]) }?;
    let expected: Vec<u8> = bytes.iter().rev().copied().collect();
    ensure(bench.downloaded(&block)? == expected, "the bytes are not reversed")?;
    Ok("right".to_owned())
}

fn launches(bench: &Bench) -> Outcome {
    const N: u32 = 10_000;
    let kernel = bench.gpu.kernel(&EMPTY, "empty", 0, String::new)?;
    let n = 0u64;
    let mut best = [f64::INFINITY; 2];
    for _ in 0..5 {
        bench.gpu.synchronize()?;
        let start = Instant::now();
        for _ in 0..N {
            // SAFETY: the kernel touches no memory.
            unsafe { bench.gpu.launch(&kernel, Grid::of(1, 32), &[&n as &dyn Param]) }?;
        }
        let issued = start.elapsed();
        bench.gpu.synchronize()?;
        for (best, time) in best.iter_mut().zip([issued, start.elapsed()]) {
            *best = best.min(time.as_secs_f64() * 1e6 / f64::from(N));
        }
    }
    Ok(format!("{:.2} us to issue one, {:.2} us until it is done", best[0], best[1]))
}

fn refused(bench: &Bench) -> Outcome {
    let kernel = bench.gpu.kernel(&REFUSE, "refuse", 0, String::new)?;
    let expected = Some(Fault { call: 1, position: 3, value: -3 << 40 });
    for _ in 0..50 {
        let cell = bench.gpu.fault_cell()?;
        // The second call finds what the first has noted.
        for call in [1u64, 2] {
            // SAFETY: the parameters are the kernel's.
            unsafe {
                bench.gpu.launch(&kernel, Grid::of(200, 256), &[&cell.address() as &dyn Param, &call])
            }?;
        }
        // A cell that nobody looked into is cleared before it is used again.
        drop(cell);
        let cell = bench.gpu.fault_cell()?;
        // SAFETY: the parameters are the kernel's.
        unsafe { bench.gpu.launch(&kernel, Grid::of(200, 256), &[&cell.address() as &dyn Param, &1u64]) }?;
        bench.gpu.synchronize()?;
        let told = cell.take();
        ensure(told == expected, format!("{told:?}"))?;
        let cell = bench.gpu.fault_cell()?;
        bench.gpu.synchronize()?;
        ensure(cell.take().is_none(), "a cell was not cleared".to_owned())?;
    }
    Ok("50 times the first".to_owned())
}
