//! Nothing of tensor size lives outside the pool: every example runs under an allocator that counts. After set-up no
//! single heap allocation exceeds 64 KiB and the live heap grows by less than 1 MiB; seen from outside, the process
//! grows by no more than the pool has committed, and 8 MiB.
//!
//! One test in a process of its own, because heap and resident set belong to the process.
#![allow(clippy::duplicate_mod, reason = "each example brings the table that it prints with")]

#[allow(dead_code, reason = "an example's `main` prints what is measured")]
#[path = "../../../examples/post_000_1_implicit_watching.rs"]
mod post_000_1;
#[allow(dead_code, reason = "an example's `main` prints what is measured")]
#[path = "../../../examples/post_000_2_explicit_watching.rs"]
mod post_000_2;
#[allow(dead_code, reason = "an example's `main` prints what is measured")]
#[path = "../../../examples/post_000_3_selective_watching.rs"]
mod post_000_3;
#[allow(dead_code, reason = "an example's `main` prints what is measured")]
#[path = "../../../examples/post_001_3_persistent_tape.rs"]
mod post_001_3;

use plimsoll::prelude::*;
use plimsoll_testkit::{CountingAllocator, ProcessMemory};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// Threads, interned labels and tables that are made once and kept.
fn set_up() -> Result<()> {
    let x = Tensor::randn([600, 600])?;
    x.matmul(&x)?.add(&x)?.sum(..)?;
    post_001_3::measure()?;
    Ok(())
}

#[test]
fn every_example_keeps_its_bytes_in_the_pool() -> Result<()> {
    let before = ProcessMemory::now().expect("Linux tells");
    set_up()?;
    let live = HEAP.live_bytes();
    HEAP.forget_largest();

    let committed = [
        post_000_1::measure(|_, _, _| Ok(()))?.peak_committed,
        post_000_2::measure()?[1].peak_committed,
        post_000_3::measure(GradientTape::new())?.peak_committed,
    ];
    post_001_3::measure()?;

    let largest = HEAP.largest_allocation();
    assert!(largest <= 64 << 10, "a single allocation of {largest} B");
    let growth = HEAP.live_bytes().saturating_sub(live);
    assert!(growth < 1 << 20, "the live heap has grown by {growth} B");

    // Each example has a pool of its own and gives everything back, so the largest counts.
    let most = committed.into_iter().max().unwrap_or(0);
    let after = ProcessMemory::now().expect("Linux tells");
    let resident = after.peak_resident - before.peak_resident;
    assert!(resident <= most + (8 << 20), "{resident} B more resident, {most} B committed");
    Ok(())
}
