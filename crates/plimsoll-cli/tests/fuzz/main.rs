//! Everything that reads what people give it is fed with damaged files: contents that were good and have been changed at
//! random. It answers or refuses; it does not panic, does not take long, and takes hardly more heap than the file has
//! bytes. What it takes of a pool is given back.
//!
//! The cases follow from a seed, so that a failure can be had again: it names parser, seed and number, and leaves the
//! file. A few thousand are tried with the other tests; `cargo xtask fuzz` tries ten million, with a bound on the time of
//! each.

mod mutate;
mod parsers;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use plimsoll::nn::checkpoint;
use plimsoll::{Bytes, Device};
use plimsoll_testkit::CountingAllocator;
use tempfile::TempDir;

use mutate::Mutator;
use parsers::{PARSERS, Parser};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// How many cases are tried, if not the few for every day, and from which seed.
const CASES: &str = "PLIMSOLL_FUZZ_CASES";
const SEED: &str = "PLIMSOLL_FUZZ_SEED";
const FEW_CASES: u64 = 12_000;
/// The heap that a parser may take beyond the size of its file.
const HEAP_BEYOND_FILE: usize = 8 << 20;
/// How the complaint about time ends.
const TOO_LONG: &str = "ms of the processor, twice";
/// What a case may take when time is looked at.
const LONGEST: Duration = Duration::from_secs(1);

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a whole number"))
}

/// The time that this process has computed: that of the clock says more about who else does.
fn processor_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("a process may ask about itself");
    let micros = |time: TimeVal| Duration::from_micros(time.num_microseconds() as u64);
    micros(usage.user_time()) + micros(usage.system_time())
}

/// What has been seen of a parser.
#[derive(Default)]
struct Seen {
    n_accepted: u64,
    n_refused: u64,
    most_heap: usize,
    longest: Duration,
}

struct Fuzzer {
    device: Device,
    path: PathBuf,
    seed: u64,
    is_timed: bool,
}

impl Fuzzer {
    /// One case; what is wrong with it, if something is.
    fn case(&self, parser: &Parser, contents: &[u8], seen: &mut Seen) -> Result<(), String> {
        let text = (!parser.reads_file).then(|| String::from_utf8_lossy(contents).into_owned());
        if parser.reads_file {
            fs::write(&self.path, contents).expect("the folder for temporary files can be written");
        }
        HEAP.forget_peak();
        let (before, started) = (HEAP.peak_bytes(), processor_time());
        let parse = || (parser.parse)(&self.path, text.as_deref().unwrap_or_default());
        let parsed = catch_unwind(AssertUnwindSafe(parse)).map_err(|_| "a panic".to_owned())?;
        let (heap, took) = (HEAP.peak_bytes() - before, processor_time() - started);
        seen.n_accepted += u64::from(parsed);
        seen.n_refused += u64::from(!parsed);
        seen.most_heap = seen.most_heap.max(heap);
        seen.longest = seen.longest.max(took);
        if heap > contents.len() + HEAP_BEYOND_FILE {
            return Err(format!("{heap} bytes of heap for {} of the file", contents.len()));
        }
        if self.is_timed && took > LONGEST {
            return Err(format!("{} {TOO_LONG}", took.as_millis()));
        }
        match self.device.stats().in_use {
            0 => Ok(()),
            left => Err(format!("{left} bytes of the pool are left")),
        }
    }

    fn run(&self, parser: &Parser, n_cases: u64) -> Seen {
        let mut seen = Seen::default();
        let corpus = (parser.corpus)(&self.path);
        for good in &corpus {
            self.case(parser, good, &mut seen).expect("what nobody has changed");
        }
        assert!(seen.n_accepted > 0, "{}: the corpus has something to be accepted", parser.name);
        let mut mutator = Mutator::new(self.seed, parser.name, corpus);
        for case in 0..n_cases {
            let contents = mutator.next();
            let mut tried = self.case(parser, &contents, &mut seen);
            if tried.as_ref().is_err_and(|wrong| wrong.ends_with(TOO_LONG)) {
                // What the first case of a kind sets up is no hang.
                tried = self.case(parser, &contents, &mut seen);
            }
            if let Err(wrong) = tried {
                let kept = std::env::temp_dir().join(format!("plimsoll-fuzz-{}", parser.name));
                fs::write(&kept, &contents).expect("the folder for temporary files can be written");
                panic!("{}, seed {}, case {case}: {wrong}; see {}", parser.name, self.seed, kept.display());
            }
        }
        seen
    }
}

/// A folder for the one file, in memory where there is one.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("the folder for temporary files can be written")
}

#[test]
#[allow(clippy::print_stdout, reason = "a long run is watched")]
fn damaged_files_do_no_harm() {
    let folder = folder();
    let device = Device::separate_cpu().limit(Bytes::mib(64)).expect("nothing is in use");
    let _on = device.enter();
    let asked = number(CASES);
    let n_each = asked.unwrap_or(FEW_CASES).div_ceil(PARSERS.len() as u64);
    let (path, seed) = (folder.path().join(checkpoint::FILE_NAME), number(SEED).unwrap_or(0));
    let fuzzer = Fuzzer { device: device.clone(), path, seed, is_timed: asked.is_some() };
    // A panic is caught and told once; its usual text would be told for each.
    std::panic::set_hook(Box::new(|_| {}));
    let told = PARSERS.iter().map(|parser| {
        let seen = catch_unwind(AssertUnwindSafe(|| fuzzer.run(parser, n_each)));
        let seen = seen.map_err(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())?;
        println!(
            "{:<12} {n_each:>9} cases, {:>9} accepted, {:>9} refused, at most {:>7} B of heap, {:>4} ms",
            parser.name,
            seen.n_accepted,
            seen.n_refused,
            seen.most_heap,
            seen.longest.as_millis()
        );
        Ok(())
    });
    let told: Result<Vec<()>, String> = told.collect();
    let _ = std::panic::take_hook();
    told.unwrap_or_else(|wrong| panic!("{wrong}"));
}
