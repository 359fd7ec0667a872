//! Pages: what is committed is to the byte what the driver counts as used, and contents stay where they are.

use std::time::Instant;

use plimsoll_cuda::Pages;
use plimsoll_memory::{Region, Source};

use crate::{Bench, ensure};

const MIB: u64 = 1 << 20;
const GRANULE: u64 = 2 * MIB;
const STEP: Region = Region::Step;

pub fn check(bench: &mut Bench) {
    let sizes: &'static [u64] = if bench.quick { &[1] } else { &[1, 16, 16] };
    bench.check("pages: times", |bench| {
        let pages = bench.gpu.pages()?;
        let mut texts = Vec::new();
        for &gib in sizes {
            let bytes = gib << 30;
            let start = Instant::now();
            pages.commit(STEP, 0..bytes)?;
            let committed = start.elapsed();
            let start = Instant::now();
            pages.decommit(STEP, 0..bytes)?;
            let decommitted = start.elapsed();
            texts.push(format!("{gib} GiB committed in {committed:.1?}, given back in {decommitted:.1?}"));
            ensure(gib < 16 || decommitted.as_millis() <= 100, texts.join(", "))?;
        }
        Ok(texts.join(", "))
    });
    bench.check("pages: to the byte", |bench| {
        let pages = bench.gpu.pages()?;
        to_the_byte(bench, &pages)
    });
    bench.check("pages: contents stay when a part is given back", contents);
    bench.check("pages: dropping them frees everything", |bench| {
        let before = bench.gpu.memory()?.free;
        let pages = bench.gpu.pages()?;
        pages.commit(STEP, 0..100 * GRANULE)?;
        drop(pages);
        let after = bench.gpu.memory()?.free;
        ensure(before == after, format!("{before} bytes were free, now {after}"))?;
        Ok(format!("{after} bytes free"))
    });
    bench.check("pages: more than there is", |bench| {
        let pages = bench.gpu.pages()?;
        let before = bench.gpu.memory()?.free;
        let error = match pages.commit(STEP, 0..(before + (64 << 30)).next_multiple_of(GRANULE)) {
            Ok(()) => return Err("was given".into()),
            Err(error) => error.to_string(),
        };
        let after = bench.gpu.memory()?.free;
        ensure(before == after, format!("{before} bytes were free, now {after}"))?;
        pages.commit(STEP, 0..GRANULE)?;
        pages.decommit(STEP, 0..GRANULE)?;
        Ok(error)
    });
}

/// Commits and gives back ranges of all kinds, and compares with the driver after each.
fn to_the_byte(bench: &Bench, pages: &Pages) -> crate::Outcome {
    // The driver's own tables for these addresses are made the first time and stay.
    pages.commit(STEP, 0..2048 * MIB)?;
    pages.decommit(STEP, 0..2048 * MIB)?;
    let free = bench.gpu.memory()?.free;
    let mut committed = 0;
    // Granules to commit (true) or give back.
    let calls = [
        (true, 0..1),
        (true, 1..2),
        (true, 10..110),
        (false, 50..51),
        (false, 11..49),
        (false, 52..109),
        (true, 11..40),
        (false, 0..2),
        (false, 49..50),
        (false, 51..52),
        (false, 109..110),
        (false, 10..40),
    ];
    for (n_done, (commits, granules)) in calls.into_iter().enumerate() {
        let range = granules.start * GRANULE..granules.end * GRANULE;
        let bytes = range.end - range.start;
        match commits {
            true => pages.commit(STEP, range)?,
            false => pages.decommit(STEP, range)?,
        }
        committed = if commits { committed + bytes } else { committed - bytes };
        let used = free - bench.gpu.memory()?.free;
        ensure(used == committed, format!("call {n_done}: {committed} bytes committed, {used} used"))?;
    }
    ensure(committed == 0, "the calls of this check do not add up")?;
    Ok(format!("12 calls, {free} bytes free before and after"))
}

/// Fills 64 MiB, gives parts back, and reads the rest.
fn contents(bench: &Bench) -> crate::Outcome {
    let pages = bench.gpu.pages()?;
    let n_granules = 32u64;
    pages.commit(STEP, 0..n_granules * GRANULE)?;
    let at = |granule: u64| pages.base(STEP).wrapping_add((granule * GRANULE) as usize);
    for granule in 0..n_granules {
        // SAFETY: the granule is committed.
        unsafe { bench.gpu.fill("gpu_check", at(granule), granule as u8 + 1, GRANULE as usize) }?;
    }
    let given_back = [3..4, 7..20, 31..32];
    for granules in &given_back {
        pages.decommit(STEP, granules.start * GRANULE..granules.end * GRANULE)?;
    }
    let mut bytes = vec![0u8; GRANULE as usize];
    for granule in (0..n_granules).filter(|granule| !given_back.iter().any(|gone| gone.contains(granule))) {
        // SAFETY: the granule is committed, and there is room for it.
        unsafe { bench.gpu.download(at(granule), bytes.as_mut_ptr(), bytes.len()) }?;
        let same = bytes.iter().all(|&byte| byte == granule as u8 + 1);
        ensure(same, format!("granule {granule} has other contents"))?;
    }
    Ok("17 of 32 granules are as they were".to_owned())
}
