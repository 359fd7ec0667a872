//! The parent of a sweep: it starts children, and goes on after a call that ended one.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::child::{CHILD, Child, HANG};
use crate::outcome::Outcome;

/// The calls of one child.
const CALLS_OF_A_CHILD: u64 = 2_000;

/// A sweep of calls.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// All calls, and what a child needs to know.
    pub calls: Child,
    /// Children side by side.
    pub n_children: usize,
}

/// How the calls of a sweep went.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The calls that were made.
    pub n_calls: u64,
    /// Those that were made on the device; the others on ghosts alone.
    pub n_real: u64,
    /// Those that gave a result; the others an error.
    pub n_results: u64,
    /// What must not be: signals, panics and hangs, each with the number of its call.
    pub failures: Vec<String>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { n_calls, n_real, n_results, failures } = self;
        writeln!(f, "{n_calls} calls, {n_real} of them on the device, the others on ghosts")?;
        writeln!(f, "{n_results} results, {} errors", n_calls - n_results)?;
        write!(f, "{} signals, panics and hangs", failures.len())
    }
}

impl Sweep {
    /// Runs the sweep with the present program as the child's: no call may fail. It is worth something if many calls come
    /// through to the device and many are refused, each more than a share of all.
    ///
    /// # Errors
    /// What failed; a sample that is worth nothing.
    pub fn sample(&self, share: u64) -> Outcome {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let tally = self.run(&program)?;
        if !tally.failures.is_empty() {
            return Err(tally.failures.join("\n").into());
        }
        let enough = tally.n_calls / share;
        match tally.n_real > enough && tally.n_results > enough && tally.n_calls - tally.n_results > enough {
            true => Ok(()),
            false => Err(tally.to_string().into()),
        }
    }

    /// Runs the sweep, with `program` as the child's.
    ///
    /// # Errors
    /// A child that cannot be started.
    pub fn run(&self, program: &Path) -> Outcome<Tally> {
        let (next, tally) = (AtomicU64::new(self.calls.from), Mutex::new(Tally::default()));
        let work = || -> Outcome {
            loop {
                let from = next.fetch_add(CALLS_OF_A_CHILD, Ordering::Relaxed);
                if from >= self.calls.to {
                    return Ok(());
                }
                let to = self.calls.to.min(from + CALLS_OF_A_CHILD);
                let made = make(program, Child { from, to, ..self.calls })?;
                let mut tally = tally.lock().map_err(|_| "a sweep's thread panicked")?;
                tally.n_calls += made.n_calls;
                tally.n_real += made.n_real;
                tally.n_results += made.n_results;
                tally.failures.extend(made.failures);
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.n_children.max(1)).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().map_err(|_| "a sweep's thread panicked")?)
        })?;
        tally.into_inner().map_err(|_| "a sweep's thread panicked".into())
    }
}

/// Makes calls in one child after the other: one that is ended by a call is followed by one that goes on after it.
fn make(program: &Path, mut calls: Child) -> Outcome<Tally> {
    let mut tally = Tally { n_calls: calls.to - calls.from, ..Tally::default() };
    while calls.from < calls.to {
        let mut child = Command::new(program)
            .env(CHILD, calls.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let lines = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        let (mut last, mut name, mut is_done) = (calls.from, String::new(), false);
        for line in lines.map_while(Result::ok) {
            match *line.split(' ').collect::<Vec<_>>() {
                ["call", number, called] => {
                    (last, name) = (number.parse().unwrap_or(last), called.to_owned())
                }
                ["done", n_real, n_results] => {
                    is_done = true;
                    tally.n_real += n_real.parse().unwrap_or(0);
                    tally.n_results += n_results.parse().unwrap_or(0);
                }
                _ => tally.failures.push(line),
            }
        }
        let status = child.wait()?;
        if is_done {
            return Ok(tally);
        }
        let again = Child { from: last, to: last + 1, ..calls };
        tally.failures.push(match status.code() {
            Some(HANG) => format!("{name} took too long; again: {CHILD}='{again}'"),
            _ => format!("{name} ended the child with {status}; again: {CHILD}='{again}'"),
        });
        calls.from = last + 1;
    }
    Ok(tally)
}
