//! `Profiler`: records what happens to a pool's memory for as long as it lives.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_memory::{Pool, TraceEvent, TraceSink};
use serde_json::{Value, json};

use crate::recorder::Recorder;

/// Records a pool's memory to a file until it is dropped or [finished](Profiler::finish).
///
/// ```
/// use plimsoll_memory::{HostPages, Label, Owner, Pool, Site};
/// use plimsoll_report::{Explanation, Profile, Profiler};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("run.profile");
/// let pool = Pool::new(HostPages::new()?);
/// let profiler = Profiler::start(&pool, &path, &serde_json::json!({ "device": "cpu" }))?;
/// let label = Label::new(Owner::Saved, Site::intern("src/main.rs", 12, "encoder", "matmul"));
/// drop(pool.acquire(4000, label)?);
/// profiler.finish()?;
/// let explanation = Explanation::of(&Profile::read(&path)?)?;
/// assert_eq!(explanation.peak.in_use, 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "recording ends when it is dropped"]
pub struct Profiler {
    pool: Pool,
    recorder: Arc<Mutex<Recorder>>,
    has_ended: bool,
}

impl Profiler {
    /// Begins to record a pool to a new file, with what is known of the run as a JSON object. A pool has one recording at a
    /// time: an earlier one ends.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn start(pool: &Pool, path: &Path, about: &Value) -> io::Result<Profiler> {
        let file = plimsoll_file::create(path)?;
        let mut recorder = None;
        pool.set_trace_sink_from(|before, stats| {
            let begun = Arc::new(Mutex::new(Recorder::begin(file, about, before, stats)?));
            recorder = Some(begun.clone());
            let note = move |event: &TraceEvent, committed: u64| lock(&begun).note(event, committed);
            Ok::<TraceSink, io::Error>(Box::new(note))
        })?;
        let Some(recorder) = recorder else { unreachable!("the sink was made") };
        Ok(Profiler { pool: pool.clone(), recorder, has_ended: false })
    }

    /// Adds to what is known of the run, such as what was predicted of it.
    pub fn add(&self, about: &Value) {
        lock(&self.recorder).add(about);
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// A file that cannot be written to its end.
    pub fn finish(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.has_ended, true) {
            return Ok(());
        }
        self.pool.set_trace_sink(None);
        let stats = self.pool.stats();
        lock(&self.recorder).end(&json!({ "in_use": stats.in_use, "committed": stats.committed }))
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            log::warn!("the profile could not be written to its end: {error}");
        }
    }
}

fn lock(recorder: &Mutex<Recorder>) -> MutexGuard<'_, Recorder> {
    recorder.lock().unwrap_or_else(PoisonError::into_inner)
}
