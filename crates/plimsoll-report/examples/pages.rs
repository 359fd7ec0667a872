//! Pages for the browser's tests, with what they must show: `pages OUT [PROFILE …]`.
//!
//! Writes into the folder OUT a long page of a million events, one with hostile names, one with a leak, and one for each
//! profile; beside each `NAME.html` lies `NAME.json` with its peak and the rows of a thousand moments drawn at random.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_memory::{Block, GhostPages, Label, Name, Owner, Pool, STEP, Site, Work};
use plimsoll_report::{Change, Explanation, Moment, Page, Price, Profile, Profiler, Works};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let out = arguments.next().ok_or("pages OUT [PROFILE …]")?;
    fs::create_dir_all(&out)?;
    write(&out, "long", &recorded(&out, |pool| steps(pool, 650, 400, None))?)?;
    write(&out, "leak", &recorded(&out, |pool| steps(pool, 14, 20, Some(41)))?)?;
    write(&out, "hostile", &recorded(&out, hostile)?)?;
    write(&out, "bounded", &recorded(&out, |pool| steps(pool, 4000, 20, None))?)?;
    for path in arguments {
        let name =
            path.file_stem().and_then(|name| name.to_str()).ok_or("a profile without a name")?.to_owned();
        write(&out, &name, &Profile::read(&path)?)?;
    }
    Ok(())
}

fn recorded(
    out: &Path,
    f: impl FnOnce(&Pool) -> Result<(), Box<dyn Error>>,
) -> Result<Profile, Box<dyn Error>> {
    let path = out.join("recorded.profile");
    let pool = Pool::new(GhostPages::new(1 << 40));
    let about = json!({ "recipe": "<b>made</b> for tests", "device": "cpu", "limit_bytes": 1u64 << 31 });
    // So few that the last steps of the longest are bounded by it.
    let profiler = Profiler::start(&pool, &path, &about)?.keep_steps(1000);
    f(&pool)?;
    profiler.finish()?;
    Ok(Profile::read(&path)?)
}

/// Steps of various lengths; a line that leaks, if it is given.
fn steps(pool: &Pool, n_steps: u64, n_ops: u64, leak: Option<u32>) -> Result<(), Box<dyn Error>> {
    let mut random = Random(1);
    let mut leaked = Vec::new();
    let label = |owner, line: u64| {
        let layer = format!("encoder.block_{}.mlp", line % 12);
        Label::new(owner, Site::intern("src/model.rs", line as u32 % 200 + 1, &layer, "matmul"))
    };
    let _weights = pool.acquire(5 << 20, label(Owner::Parameters, 0))?;
    for step in 1..=n_steps {
        pool.mark(STEP, step);
        pool.mark("forward", 0);
        let length = 64 + random.below(900);
        let mut saved: Vec<Block> = Vec::new();
        for op in 0..n_ops {
            let bytes = (length * (1 + op % 7) * 192) as usize;
            let read: Vec<u64> = saved.last().map(Block::serial).into_iter().collect();
            let made = pool.acquire(bytes, label(Owner::Saved, op))?;
            let scratch = pool.acquire(bytes * 2, label(Owner::Workspace, op))?;
            work(pool, label(Owner::Saved, op).site, &read, &[made.serial()]);
            // Some are recomputed when they are read.
            if op % 5 == 2 {
                saved.pop();
            }
            drop(scratch);
            saved.push(made);
        }
        pool.mark("backward", 0);
        while let Some(block) = saved.pop() {
            work(pool, label(Owner::Gradients, n_ops).site, &[block.serial()], &[]);
        }
        if let Some(line) = leak {
            let site = Site::intern("src/main.rs", line, "", "mean");
            leaked.push(pool.acquire(4, Label::new(Owner::Temporary, site))?);
        }
    }
    Ok(())
}

/// An op that takes as long as its line says.
fn work(pool: &Pool, site: Site, reads: &[u64], writes: &[u64]) {
    let nanoseconds = 1000 * u64::from(site.line());
    pool.mark_work(&Work { site, nanoseconds, repeats: !site.line().is_multiple_of(50), reads, writes });
}

fn hostile(pool: &Pool) -> Result<(), Box<dyn Error>> {
    let long = "x.".repeat(50_000);
    let names = [
        "</script><script>document.title = 'pwned'</script>",
        "<img src=x onerror=\"document.title = 'pwned'\">",
        "\"' onmouseover='document.title = 1'",
        "a\u{202E}evil\u{2066}",
        "__proto__",
        "constructor.prototype",
        &*long,
    ];
    let mut held = Vec::new();
    for (nth, name) in names.into_iter().enumerate() {
        pool.mark(STEP, nth as u64 + 1);
        pool.mark(Name::intern(name), 0);
        let site = Site::intern(name, 1, name, name);
        let block = pool.acquire(4096 << nth, Label::new(Owner::ALL[nth], site))?;
        work(pool, site, &[], &[block.serial()]);
        pool.tell_held([(block.serial(), Name::intern(name), 1)]);
        held.push(block);
    }
    Ok(())
}

/// A page, and what it must show.
fn write(out: &Path, name: &str, profile: &Profile) -> Result<(), Box<dyn Error>> {
    Page::of(profile)?.write(&out.join(format!("{name}.html")))?;
    let (n_moments, mut random) = (profile.n_events(), Random(2));
    let mut chosen: Vec<u64> = (0..1000).map(|_| random.below(n_moments.max(1)) + 1).collect();
    chosen.sort_unstable();
    let (mut rows, mut prices, mut works) = (Vec::new(), Vec::new(), Works::default());
    profile.replay(|moment| {
        works.see(moment);
        if moment.change.is_some_and(Change::is_counted) && !moment.is_left_out {
            let at = moment.number;
            if chosen.binary_search(&at).is_ok() {
                let all: Vec<u64> = moment.rows().iter().map(|(_, bytes)| bytes).collect();
                rows.push(json!([at, all, moment.in_use]));
                if rows.len().is_multiple_of(20) {
                    prices.push(json!([at, prices_at(profile, moment, &works)]));
                }
            }
        }
        true
    })?;
    let explanation = Explanation::of(profile)?;
    let owners: serde_json::Map<_, _> =
        explanation.owners().iter().map(|(owner, bytes)| (owner.to_owned(), bytes.into())).collect();
    let expected = json!({
        "events": n_moments,
        "peak": explanation.peak.in_use,
        "owners": owners,
        "committed": explanation.peak_committed,
        "growth": explanation.growth.len(),
        "grown": explanation.growth.first().map(|growth| format!("{}:{}", growth.site.file, growth.site.line)),
        "steps": explanation.steps.iter().map(|step| step.n_steps).sum::<u64>(),
        "left_out": explanation.n_steps_left_out,
        "rows": rows,
        "prices": prices,
        "checked": explanation.n_checked,
    });
    Ok(fs::write(out.join(format!("{name}.json")), expected.to_string())?)
}

/// What it would take to have the blocks of a moment again: for each the name of its owner, the number of its site, its bytes, and
/// nanoseconds or nothing. Those that are being made are left out.
fn prices_at(profile: &Profile, moment: &Moment, works: &Works) -> Vec<Value> {
    let mut prices = Vec::new();
    for (&serial, block) in &moment.blocks {
        let is_priced = matches!(block.owner, Owner::Saved | Owner::Temporary | Owner::Gradients);
        if is_priced && works.made_by(serial).is_none() {
            continue;
        }
        let nanoseconds = match works.price(profile, moment, serial) {
            Price::Recompute { nanoseconds, .. } => Some(nanoseconds),
            Price::Never(_) => None,
        };
        prices.push(json!([block.owner.name(), block.site, block.bytes, block.offset, nanoseconds]));
    }
    prices
}

/// A plain generator of numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
