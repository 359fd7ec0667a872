//! NCCL: a communicator of one rank, each call checked against the bytes that were sent, its own memory as the driver counts it; and what
//! the library says of two ranks on one GPU.

use std::sync::Arc;
use std::thread;

use plimsoll_cuda::{Gpu, NcclCommunicator, NcclId, libraries, nccl_id};

use crate::{Bench, Outcome, ensure};

const N_BYTES: usize = 3 << 20;

/// Whether the library is there; its absence is told with the libraries.
fn version() -> Option<String> {
    libraries().into_iter().find(|library| library.name == "NCCL")?.version
}

pub fn check(bench: &mut Bench) {
    let Some(version) = version() else { return };
    bench.check("nccl: a communicator of one rank, and its memory", |bench| {
        let joined = || NcclCommunicator::join(&bench.gpu, &nccl_id()?, 0, 1);
        let before = bench.gpu.memory()?.free;
        let communicator = joined()?;
        let (n_bytes, row) = (communicator.n_bytes(), bench.gpu.communicator_bytes());
        let taken = before - bench.gpu.memory()?.free;
        ensure(n_bytes == taken && row == taken, format!("{n_bytes} and {row} told, {taken} taken"))?;
        drop(communicator);
        let kept = before.saturating_sub(bench.gpu.memory()?.free);
        ensure(bench.gpu.communicator_bytes() == 0, "the row stays when the communicator has gone")?;
        let again = joined()?.n_bytes();
        Ok(format!("{version}: {n_bytes} bytes, {kept} of them stay; {again} for another one"))
    });
    bench.check("nccl: broadcast, all-gather, send and receive", |bench| {
        let communicator = NcclCommunicator::join(&bench.gpu, &nccl_id()?, 0, 1)?;
        let bytes: Vec<u8> = (0..N_BYTES).map(|at| (at * 7 + at / 251) as u8).collect();
        let from = bench.uploaded(&bytes)?;
        for name in ["broadcast", "all-gather", "send and receive"] {
            let to = bench.uploaded(&vec![0; N_BYTES])?;
            // SAFETY: both blocks have as many bytes, and there is one rank.
            unsafe {
                match name {
                    "broadcast" => communicator.broadcast(from.as_ptr(), to.as_ptr(), N_BYTES, 0),
                    "all-gather" => communicator.all_gather(from.as_ptr(), to.as_ptr(), N_BYTES),
                    _ => communicator.exchange((from.as_ptr(), 0), (to.as_ptr(), 0), N_BYTES),
                }
            }?;
            ensure(bench.downloaded(&to)? == bytes, format!("{name} gives other bytes"))?;
        }
        let outside = communicator.n_bytes();
        ensure(bench.gpu.communicator_bytes() == outside, "calls do not change the row")?;
        Ok(format!("3 calls of {N_BYTES} bytes"))
    });
    if !bench.quick {
        bench.check("nccl: two ranks on one GPU", |_| two_ranks());
    }
}

/// Two ranks on one GPU, each with a stream of its own: the same bytes, or the library's refusal.
fn two_ranks() -> Outcome {
    fn rank(id: NcclId, rank: usize) -> plimsoll_cuda::Result<bool> {
        let gpu: Arc<Gpu> = Gpu::open(0)?;
        let communicator = NcclCommunicator::join(&gpu, &id, rank, 2)?;
        let pool = plimsoll_memory::Pool::new(gpu.pages()?);
        let site = plimsoll_memory::Site::intern(file!(), line!(), "", "gpu_check");
        let label = plimsoll_memory::Label::new(plimsoll_memory::Owner::Temporary, site);
        let refused = |error: plimsoll_memory::OutOfMemory| plimsoll_cuda::Error::new(error.to_string());
        let block = pool.acquire(N_BYTES, label).map_err(refused)?;
        let mut bytes = vec![rank as u8 + 1; N_BYTES];
        // SAFETY: the block and the vector have as many bytes.
        unsafe {
            gpu.upload(&bytes, block.as_ptr())?;
            communicator.broadcast(block.as_ptr(), block.as_ptr(), N_BYTES, 0)?;
            gpu.download(block.as_ptr(), bytes.as_mut_ptr(), N_BYTES)?;
        }
        Ok(bytes.iter().all(|&byte| byte == 1))
    }
    let id = nccl_id()?;
    let outcomes = thread::scope(|scope| {
        let threads = [0, 1].map(|number| scope.spawn(move || rank(id, number)));
        threads.map(|thread| thread.join().unwrap_or_else(|_| Err(plimsoll_cuda::Error::new("a panic"))))
    });
    match outcomes {
        [Ok(true), Ok(true)] => Ok("both have the bytes of the first".to_owned()),
        [Ok(_), Ok(_)] => Err("the second has other bytes than the first".into()),
        // It is the library's to allow, since 2.30, where NCCL_MULTI_RANK_GPU_ENABLE=1.
        [Err(error), _] | [_, Err(error)] => Ok(format!("refused by the library: {error}")),
    }
}
