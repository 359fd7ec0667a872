//! `Profiler`: records what happens to a pool's memory for as long as it lives.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_memory::{Levels, Pool, STEP, TraceEvent, TraceSink};
use serde_json::{Value, json};

use crate::page::Page;
use crate::profile::Profile;
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
    /// The steps that were begun by [`Profiler::step`].
    n_steps: AtomicU64,
    path: PathBuf,
    /// Where a page goes if memory runs out.
    oom_page: Option<PathBuf>,
}

/// The environment variable that says `off` where no page shall be written when memory runs out.
const OOM_REPORT: &str = "PLIMSOLL_OOM_REPORT";

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
            let begun = Arc::new(Mutex::new(Recorder::begin(path, file, about, before, stats)?));
            recorder = Some(begun.clone());
            let note = move |event: &TraceEvent, levels: &Levels<'_>| lock(&begun).note(event, levels);
            Ok::<TraceSink, io::Error>(Box::new(note))
        })?;
        let Some(recorder) = recorder else { unreachable!("the sink was made") };
        let is_off = std::env::var_os(OOM_REPORT).is_some_and(|value| value == "off");
        let oom_page = (!is_off).then(|| path.with_extension("out-of-memory.html"));
        let (n_steps, path) = (AtomicU64::new(0), path.to_owned());
        Ok(Profiler { pool: pool.clone(), recorder, has_ended: false, n_steps, path, oom_page })
    }

    /// Another place for the page that is written at the end of a recording in which a block could not be had, or none. Without
    /// this it lies beside the profile, as `NAME.out-of-memory.html`, unless the environment variable
    /// `PLIMSOLL_OOM_REPORT` is `off`. A warning in the log names it.
    pub fn oom_page(self, path: Option<&Path>) -> Profiler {
        let mut profiler = self;
        profiler.oom_page = path.map(Path::to_owned);
        profiler
    }

    /// How many of the last steps the file of a long run has. Without this they are as many as fit into 4 MiB, and at least
    /// sixteen. The first steps, the step of the peak and the one in which memory could not be had are kept in any case, and of
    /// the others what they took in time and bytes, so the file does not grow without end.
    ///
    /// ```
    /// # use plimsoll_memory::{GhostPages, Label, Owner, Pool, Site};
    /// # use plimsoll_report::{Explanation, Profile, Profiler};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("run.profile");
    /// # let pool = Pool::new(GhostPages::new(1 << 40));
    /// let profiler = Profiler::start(&pool, &path, &serde_json::json!({}))?.keep_steps(100);
    /// for step in 0..20_000 {
    ///     profiler.step();
    ///     drop(pool.acquire(step, Label::new(Owner::Temporary, Site::intern("src/main.rs", 41, "", "mean")))?);
    /// }
    /// profiler.finish()?;
    /// let explanation = Explanation::of(&Profile::read(&path)?)?;
    /// assert!(std::fs::metadata(&path)?.len() < 250_000 && explanation.n_steps_left_out > 10_000);
    /// assert_eq!(explanation.steps.iter().map(|step| step.n_steps).sum::<u64>(), 20_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keep_steps(self, steps: u64) -> Profiler {
        lock(&self.recorder).keep_steps(steps);
        self
    }

    /// Adds to what is known of the run, such as what was predicted of it.
    pub fn add(&self, about: &Value) {
        lock(&self.recorder).add(about);
    }

    /// Begins the next step of a loop of your own, counted from one: what one does again is a few bytes, and a line whose blocks
    /// become more from step to step is named. A `Trainer` marks its steps itself.
    ///
    /// ```
    /// # use plimsoll_memory::{HostPages, Label, Owner, Pool, Site};
    /// # use plimsoll_report::{Explanation, Profile, Profiler};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("run.profile");
    /// # let pool = Pool::new(HostPages::new()?);
    /// let profiler = Profiler::start(&pool, &path, &serde_json::json!({}))?;
    /// let mut losses = Vec::new();
    /// for _ in 0..12 {
    ///     profiler.step();
    ///     losses.push(pool.acquire(4, Label::new(Owner::Temporary, Site::intern("src/main.rs", 41, "", "mean")))?);
    /// }
    /// profiler.finish()?;
    /// let explanation = Explanation::of(&Profile::read(&path)?)?;
    /// assert_eq!(explanation.growth[0].to_string(), "1 block a step (512 B) of temporary from mean (src/main.rs:41)");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn step(&self) {
        self.pool.mark(STEP, self.n_steps.fetch_add(1, Ordering::Relaxed) + 1);
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// A file that could not be written to its end. A warning in the log has told of it already, and what came before is there.
    pub fn finish(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.has_ended, true) {
            return Ok(());
        }
        self.pool.set_trace_sink(None);
        let stats = self.pool.stats();
        let mut recorder = lock(&self.recorder);
        let ended = recorder.end(&json!({ "in_use": stats.in_use, "committed": stats.committed }));
        match &self.oom_page {
            Some(page) if recorder.is_short() => {
                let written = Profile::read(&self.path).and_then(|profile| Page::of(&profile)?.write(page));
                match written {
                    Ok(()) => log::warn!("memory ran out; what was in it: {}", page.display()),
                    Err(error) => {
                        log::warn!("memory ran out, and {} could not be written: {error}", page.display())
                    }
                }
            }
            _ => {}
        }
        ended
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        // A warning has told of a file that could not be written.
        let _told = self.end();
    }
}

fn lock(recorder: &Mutex<Recorder>) -> MutexGuard<'_, Recorder> {
    recorder.lock().unwrap_or_else(PoisonError::into_inner)
}
