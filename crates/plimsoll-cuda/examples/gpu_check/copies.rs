//! Copies beside the work, through pinned memory: that none overtakes what it must follow, and how fast they are.

use std::time::Instant;

use plimsoll_cuda::{Copied, Epilogue, Matmul, MatmulOperands, Matrix, Pinned, PinnedBlock, Scalar};
use plimsoll_memory::{Block, Bytes, Label, Owner, Site};

use crate::{Bench, Outcome, ensure};

/// What a check of contents moves at a time: long enough that a copy is still going on when the next call is made.
const N_BYTES: usize = 48 << 20;

pub fn check(bench: &mut Bench) {
    bench.check("pinned memory: a limit, pieces, giving back", limited);
    bench.check("copies beside the work: a block overwritten behind its download", overwritten);
    bench.check("copies beside the work: a block freed and handed out behind its download", freed);
    bench.check("copies beside the work: down, up again, pinned memory used for another", round_trips);
    if !bench.quick {
        bench.check("copies beside the work: rates", rates);
        bench.check("copies beside the work: with products at the same time", beside_products);
    }
}

fn label() -> Label {
    Label::new(Owner::Saved, Site::intern(file!(), line!(), "", "gpu_check"))
}

fn pinned_block(pinned: &Pinned, n_bytes: usize) -> Result<PinnedBlock, Box<dyn std::error::Error>> {
    Ok(pinned.acquire(n_bytes, label())?)
}

fn fill(bench: &Bench, block: &Block, byte: u8) -> plimsoll_cuda::Result<()> {
    // SAFETY: the block has as many bytes.
    unsafe { bench.gpu.fill("gpu_check", block.as_ptr(), byte, block.bytes()) }
}

fn down(bench: &Bench, from: &Block, to: &PinnedBlock) -> plimsoll_cuda::Result<Copied> {
    // SAFETY: the block is the device's; the host waits before it reads.
    unsafe { bench.gpu.download_async(from, to) }
}

fn up(bench: &Bench, from: &PinnedBlock, to: &Block) -> plimsoll_cuda::Result<Copied> {
    // SAFETY: the block is the device's; whoever reads it waits for the copy.
    unsafe { bench.gpu.upload_async(from, to) }
}

/// Whether all bytes of pinned memory are `byte` when a copy to it is done.
fn arrived(
    bench: &Bench,
    copied: &Copied,
    block: &PinnedBlock,
    byte: u8,
) -> Result<(), Box<dyn std::error::Error>> {
    bench.gpu.wait_on_host(copied)?;
    // SAFETY: the copy wrote all bytes, and no other is under way.
    let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), block.bytes()) };
    let wrong = bytes.iter().position(|&found| found != byte);
    ensure(wrong.is_none(), format!("byte {wrong:?} is not the {byte} that was there when the copy began"))
}

fn limited(bench: &Bench) -> Outcome {
    let pinned = Pinned::new(&bench.gpu, Some(Bytes::mib(64)))?;
    let start = Instant::now();
    let both = [pinned_block(&pinned, 32 << 20)?, pinned_block(&pinned, 32 << 20)?];
    let time = start.elapsed().as_secs_f64() * 1e3;
    ensure(pinned.acquire(1, label()).is_err(), "the limit was passed")?;
    let stats = pinned.stats();
    ensure((stats.in_use, stats.committed) == (64 << 20, 64 << 20), format!("{stats:?}"))?;
    drop(both);
    ensure(pinned.stats().committed == 64 << 20, "an empty pool did not keep its pieces")?;
    ensure(pinned.trim() == 64 << 20, "`trim` did not give them back")?;
    Ok(format!("64 MiB pinned in {time:.1} ms"))
}

/// The block's next value is written right after its download was started.
fn overwritten(bench: &Bench) -> Outcome {
    let pinned = Pinned::new(&bench.gpu, None)?;
    let (block, host) = (bench.block(N_BYTES)?, pinned_block(&pinned, N_BYTES)?);
    let n_waits = bench.gpu.n_waits();
    fill(bench, &block, 1)?;
    for byte in 1..20 {
        let copied = down(bench, &block, &host)?;
        bench.gpu.wait_for(&copied)?;
        fill(bench, &block, byte + 1)?;
        if byte == 1 {
            ensure(bench.gpu.n_waits() == n_waits, "the host waited")?;
        }
        arrived(bench, &copied, &host, byte)?;
    }
    Ok("the old bytes, 19 times".to_owned())
}

/// The block is freed right after its download was started, and its memory is another block's, which is written at once.
fn freed(bench: &Bench) -> Outcome {
    let pinned = Pinned::new(&bench.gpu, None)?;
    let host = pinned_block(&pinned, N_BYTES)?;
    for byte in 1..20 {
        let block = bench.block(N_BYTES)?;
        fill(bench, &block, byte)?;
        let (copied, place) = (down(bench, &block, &host)?, block.as_ptr());
        drop(block);
        let next = bench.block(N_BYTES)?;
        ensure(next.as_ptr() == place, "the memory was not handed out again")?;
        fill(bench, &next, 0xEE)?;
        arrived(bench, &copied, &host, byte)?;
    }
    Ok("the old bytes, 19 times".to_owned())
}

/// Values go down and come up to other places, while the pinned memory that they leave is filled by the next.
fn round_trips(bench: &Bench) -> Outcome {
    let pinned = Pinned::new(&bench.gpu, Some(Bytes::mib(64)))?;
    let mut blocks = Vec::new();
    for byte in 1..12 {
        let block = bench.block(N_BYTES)?;
        fill(bench, &block, byte)?;
        let host = pinned_block(&pinned, N_BYTES)?;
        down(bench, &block, &host)?;
        drop(block);
        let back = bench.block(N_BYTES)?;
        let copied = up(bench, &host, &back)?;
        drop(host);
        blocks.push((back, copied, byte));
    }
    for (block, copied, byte) in &blocks {
        bench.gpu.wait_for(copied)?;
        let bytes = bench.downloaded(block)?;
        ensure(bytes.iter().all(|found| found == byte), format!("value {byte} came back otherwise"))?;
    }
    ensure(pinned.stats().peak_in_use == N_BYTES as u64, "the pinned memory was not used again")?;
    Ok(format!("{} values through {} of pinned memory", blocks.len(), Bytes::new(N_BYTES as u64)))
}

/// Blocks of the device and pinned ones for them, 1 GiB each.
fn gibibyte(bench: &Bench, pinned: &Pinned) -> Result<Vec<(Block, PinnedBlock)>, Box<dyn std::error::Error>> {
    (0..16).map(|_| Ok((bench.block(64 << 20)?, pinned_block(pinned, 64 << 20)?))).collect()
}

/// Seconds until everything that `start` started is done, the best of a few times.
fn seconds(
    bench: &Bench,
    start: impl Fn() -> plimsoll_cuda::Result<()>,
) -> Result<f64, Box<dyn std::error::Error>> {
    let mut best = f64::INFINITY;
    for _ in 0..4 {
        bench.gpu.synchronize()?;
        let began = Instant::now();
        start()?;
        bench.gpu.synchronize()?;
        best = best.min(began.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn rates(bench: &Bench) -> Outcome {
    let pinned = Pinned::new(&bench.gpu, None)?;
    let began = Instant::now();
    let pairs = gibibyte(bench, &pinned)?;
    let pinning = began.elapsed().as_secs_f64();
    let others = gibibyte(bench, &pinned)?;
    let all_down = || pairs.iter().try_for_each(|(block, host)| down(bench, block, host).map(drop));
    let all_up = || others.iter().try_for_each(|(block, host)| up(bench, host, block).map(drop));
    let rate = |seconds: f64| (1u64 << 30) as f64 / seconds / 1e9;
    let (downward, upward) = (rate(seconds(bench, all_down)?), rate(seconds(bench, all_up)?));
    let both = rate(seconds(bench, || all_down().and_then(|()| all_up()))?);
    let mut bytes = vec![1u8; 256 << 20];
    let block = bench.block(bytes.len())?;
    let n_bytes = bytes.len();
    let to = bytes.as_mut_ptr();
    // SAFETY: both have as many bytes.
    let waited = seconds(bench, || unsafe { bench.gpu.download(block.as_ptr(), to, n_bytes) })?;
    Ok(format!(
        "1 GiB pinned in {pinning:.2} s; down {downward:.1} GB/s, up {upward:.1} GB/s, both at a time {both:.1} GB/s each; \
         256 MiB down to ordinary memory that is there {:.1} GB/s",
        n_bytes as f64 / waited / 1e9
    ))
}

/// Products alone, copies alone, and both: together they should take as long as the longer.
fn beside_products(bench: &Bench) -> Outcome {
    const SIDE: usize = 8192;
    let pinned = Pinned::new(&bench.gpu, None)?;
    let pairs = gibibyte(bench, &pinned)?;
    let matrix = Matrix { transposed: false, row_stride: SIDE, batch_stride: 0 };
    let product = Matmul {
        m: SIDE,
        n: SIDE,
        k: SIDE,
        batch: 1,
        input: Scalar::BF16,
        output: Scalar::BF16,
        a: matrix,
        b: matrix,
        c: matrix,
        alpha: 1.0,
        beta: 0.0,
        tf32: false,
        epilogue: Epilogue::None,
    };
    let blocks: Vec<Block> =
        (0..4).map(|_| bench.uploaded(&vec![0; SIDE * SIDE * 2])).collect::<Result<_, _>>()?;
    let operands = MatmulOperands {
        a: blocks[0].as_ptr(),
        b: blocks[1].as_ptr(),
        c: blocks[2].as_ptr(),
        bias: std::ptr::null_mut(),
        workspace: blocks[3].as_ptr(),
        workspace_bytes: 32 << 20,
    };
    let multiply = || {
        // SAFETY: the blocks have the product's extents.
        (0..20).try_for_each(|_| unsafe { bench.gpu.matmul("gpu_check", &product, &operands) })
    };
    let all_down = || pairs.iter().try_for_each(|(block, host)| down(bench, block, host).map(drop));
    let alone = [seconds(bench, multiply)?, seconds(bench, all_down)?];
    let both = seconds(bench, || all_down().and_then(|()| multiply()))?;
    let [products, copies, together] = [alone[0], alone[1], both].map(|seconds| seconds * 1e3);
    Ok(format!("20 products {products:.1} ms, 1 GiB down {copies:.1} ms, both {together:.1} ms"))
}
