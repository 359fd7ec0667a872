//! Copies beside the work on the emulated GPU, where they come as late as they may: whoever forgets to wait sees it.

#![cfg(feature = "emulated")]

use std::sync::Arc;

use plimsoll_cuda::{Copied, Gpu, Pinned, PinnedBlock};
use plimsoll_memory::{Block, Bytes, Label, Owner, Pool, Site};

const MIB: usize = 1 << 20;

/// More than a piece of pinned memory has, so that copies are cut.
const N_BYTES: usize = 40 * MIB;

fn label() -> Label {
    Label::new(Owner::Saved, Site::UNKNOWN)
}

struct Bench {
    gpu: Arc<Gpu>,
    pool: Pool,
    pinned: Pinned,
}

impl Bench {
    fn new(host_limit: Option<Bytes>) -> Bench {
        let gpu = Gpu::emulated().unwrap();
        let (pool, pinned) = (Pool::new(gpu.pages().unwrap()), Pinned::new(&gpu, host_limit).unwrap());
        Bench { gpu, pool, pinned }
    }

    /// A block whose bytes are all the same.
    fn block(&self, byte: u8) -> Block {
        let block = self.pool.acquire(N_BYTES, label()).unwrap();
        self.gpu.reuse(&block).unwrap();
        self.fill(&block, byte);
        block
    }

    fn fill(&self, block: &Block, byte: u8) {
        // SAFETY: the block has as many bytes.
        unsafe { self.gpu.fill("test", block.as_ptr(), byte, block.bytes()) }.unwrap();
    }

    fn on_host(&self) -> PinnedBlock {
        self.pinned.acquire(N_BYTES, label()).unwrap()
    }

    fn down(&self, from: &Block, to: &PinnedBlock) -> Copied {
        // SAFETY: the block is of the GPU's pool; tests look at the pinned bytes after waiting.
        unsafe { self.gpu.download_async(from, to) }.unwrap()
    }

    fn up(&self, from: &PinnedBlock, to: &Block) -> Copied {
        // SAFETY: as above.
        unsafe { self.gpu.upload_async(from, to) }.unwrap()
    }

    /// The byte that all of a block are, as work on the device would see them now.
    fn byte(&self, block: &Block) -> u8 {
        let mut bytes = vec![0; block.bytes()];
        // SAFETY: both have as many bytes.
        unsafe { self.gpu.download(block.as_ptr(), bytes.as_mut_ptr(), bytes.len()) }.unwrap();
        assert!(bytes.iter().all(|&byte| byte == bytes[0]), "the block is torn");
        bytes[0]
    }

    /// The byte that all of a pinned block are when a copy is done.
    fn arrived(&self, copied: &Copied, block: &PinnedBlock) -> u8 {
        self.gpu.wait_on_host(copied).unwrap();
        // SAFETY: the copy has written all bytes.
        let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), block.bytes()) };
        assert!(bytes.iter().all(|&byte| byte == bytes[0]), "the block is torn");
        bytes[0]
    }
}

#[test]
fn a_block_that_is_overwritten_behind_its_download_arrives_as_it_was() {
    let bench = Bench::new(None);
    let (block, host) = (bench.block(1), bench.on_host());
    for byte in 1..5 {
        let copied = bench.down(&block, &host);
        bench.gpu.wait_for(&copied).unwrap();
        bench.fill(&block, byte + 1);
        assert_eq!(bench.arrived(&copied, &host), byte);
    }
    // The emulated GPU shows it when nobody waits.
    let copied = bench.down(&block, &host);
    bench.fill(&block, 77);
    assert_eq!(bench.arrived(&copied, &host), 77);
}

#[test]
fn a_block_that_is_freed_and_handed_out_behind_its_download_arrives_as_it_was() {
    let bench = Bench::new(None);
    let host = bench.on_host();
    for byte in 1..5 {
        let block = bench.block(byte);
        let (copied, place) = (bench.down(&block, &host), block.as_ptr());
        drop(block);
        let next = bench.block(99);
        assert_eq!(next.as_ptr(), place, "the memory is handed out at once");
        assert_eq!(bench.arrived(&copied, &host), byte);
    }
}

#[test]
fn a_value_that_comes_up_is_there_for_whoever_waits_for_it() {
    let bench = Bench::new(None);
    let (block, host) = (bench.block(3), bench.on_host());
    bench.down(&block, &host);
    let back = bench.block(9);
    let copied = bench.up(&host, &back);
    assert_eq!(bench.byte(&back), 9, "work that does not wait sees what was there");
    bench.gpu.wait_for(&copied).unwrap();
    assert_eq!(bench.byte(&back), 3);
}

#[test]
fn values_pass_through_pinned_memory_that_has_room_for_one() {
    let bench = Bench::new(Some(Bytes::mib(64)));
    let n_waits = bench.gpu.n_waits();
    let mut values = Vec::new();
    for byte in 1..6 {
        let block = bench.block(byte);
        let host = bench.on_host();
        bench.down(&block, &host);
        drop(block);
        let back = bench.block(0);
        let copied = bench.up(&host, &back);
        values.push((back, copied, byte));
    }
    for (_, copied, _) in &values {
        bench.gpu.wait_for(copied).unwrap();
    }
    assert_eq!(bench.gpu.n_waits(), n_waits, "the host waits for none of it");
    for (block, _, byte) in &values {
        assert_eq!(bench.byte(block), *byte);
    }
    let stats = bench.pinned.stats();
    assert_eq!((stats.peak_in_use, stats.peak_committed, stats.in_use), (N_BYTES as u64, 64 << 20, 0));
}

#[test]
fn pages_go_back_only_when_copies_are_done_with_them() {
    let bench = Bench::new(None);
    let host = bench.on_host();
    let block = bench.block(5);
    let copied = bench.down(&block, &host);
    // The pool becomes empty and gives all pages back.
    drop(block);
    assert_eq!(bench.pool.stats().committed, 0);
    assert_eq!(bench.arrived(&copied, &host), 5);
    // The same for the host's.
    let block = bench.block(6);
    let copied = bench.up(&host, &block);
    drop(host);
    assert_eq!(bench.pinned.trim(), 64 << 20);
    bench.gpu.wait_for(&copied).unwrap();
    assert_eq!(bench.byte(&block), 5);
}

#[test]
fn pinned_memory_is_bounded_kept_and_counted_by_itself() {
    let bench = Bench::new(Some(Bytes::mib(96)));
    assert_eq!(bench.pinned.stats().committed, 0, "nothing is taken in advance");
    let block = bench.on_host();
    let error = bench.pinned.acquire(60 * MIB, label()).unwrap_err();
    assert!(error.to_string().contains("saved"), "{error}");
    assert_eq!(bench.pinned.snapshot().in_use(), N_BYTES as u64);
    drop(block);
    // A step that ends leaves the pool empty, and the next pins nothing anew.
    let before = bench.pinned.stats();
    drop(bench.on_host());
    assert_eq!(bench.pinned.stats().source, before.source);
    assert_eq!(bench.pool.stats().committed, 0, "it is no memory of the device");
    // A ghost tells the same.
    let ghost = Pinned::ghost(Some(Bytes::mib(96)));
    drop(ghost.acquire(N_BYTES, label()).unwrap());
    assert!(ghost.acquire(100 * MIB, label()).is_err());
    assert_eq!(ghost.stats().peak_committed, before.peak_committed);
    assert_eq!(ghost.stats().source.n_commits, before.source.n_commits);
}

#[test]
fn a_pinned_block_that_is_too_small_is_refused() {
    let bench = Bench::new(None);
    let (block, host) = (bench.block(1), bench.pinned.acquire(MIB, label()).unwrap());
    // SAFETY: nothing is copied.
    let error = unsafe { bench.gpu.download_async(&block, &host) }.unwrap_err();
    assert!(error.to_string().contains("41943040"), "{error}");
    // SAFETY: as above.
    assert!(unsafe { bench.gpu.upload_async(&host, &block) }.is_err());
}
