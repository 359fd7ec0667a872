//! Recordings of a run, or of the dry run of a plan: `--profile FILE`, `--report FILE.html`, and what is left of a run that ran
//! out of memory.
//!
//! A run that fails for lack of memory leaves a profile and a page by itself. Where the run could be predicted they are made of
//! its dry run, which is the run to the byte, so that nothing has to be recorded beforehand; where it could not, `train`
//! records to a temporary file. `--oom-report off` switches that off, and so does the environment variable
//! `PLIMSOLL_OOM_REPORT`.

use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use plimsoll::Device;
use plimsoll::report::{Page, Profile, Profiler};
use serde_json::{Value, json};
use tempfile::TempPath;

use crate::failure::{Exit, Failure};
use crate::options::RunOptions;
use crate::recipe::Recipe;
use crate::terminal;

/// The environment variable that says where the report of a failure goes, or `off`.
const OOM_REPORT: &str = "PLIMSOLL_OOM_REPORT";

/// What a profile says of what it was recorded from.
pub struct About<'a> {
    /// What is trained.
    pub recipe: &'a Recipe,
    /// The examples of one optimizer step.
    pub batch: usize,
    /// The name of the device.
    pub device: &'a str,
    /// The limit on its memory.
    pub limit_bytes: Option<u64>,
    /// Whether nothing is computed.
    pub is_plan: bool,
    /// The number of this rank, and how many there are.
    pub rank: (usize, usize),
}

impl About<'_> {
    fn to_json(&self, options: &RunOptions, device: &Device) -> Value {
        json!({
            "offload_bytes_per_second": device.offload_rate(),
            "version": env!("CARGO_PKG_VERSION"),
            "recipe": self.recipe.name(),
            "batch": self.batch,
            "accumulate": options.accumulate,
            "device": self.device,
            "rank": self.rank.0,
            "ranks": self.rank.1,
            "limit_bytes": self.limit_bytes,
            "is_plan": self.is_plan,
        })
    }
}

/// The file of a rank of a run whose profile is to be in that file: the first rank has that one, and each other one beside it.
pub fn of_rank(path: &Path, rank: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    if rank > 0 {
        name.push(format!(".rank-{rank}"));
    }
    name.into()
}

/// A file with a profile, which may be gone when this is dropped.
#[derive(Debug)]
pub struct ProfileFile {
    path: PathBuf,
    temporary: Option<TempPath>,
}

impl ProfileFile {
    /// The file that was asked for, or a temporary one.
    ///
    /// # Errors
    /// No room for temporary files.
    pub fn at(asked: Option<&Path>) -> Result<ProfileFile, Failure> {
        if let Some(path) = asked {
            return Ok(ProfileFile { path: path.to_owned(), temporary: None });
        }
        let made = tempfile::Builder::new().prefix("plimsoll-").suffix(".profile").tempfile();
        let temporary = made.map_err(|error| failed("a temporary file", &error))?.into_temp_path();
        Ok(ProfileFile { path: temporary.to_path_buf(), temporary: Some(temporary) })
    }

    /// Begins to record a device there.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn record(
        self,
        device: &Device,
        options: &RunOptions,
        about: &About<'_>,
    ) -> Result<Recording, Failure> {
        let started = Profiler::start(device.pool(), &self.path, &about.to_json(options, device));
        // Whether and where there is a page when memory runs out is said by `--oom-report`.
        let profiler = started.map_err(|error| self.failed(&error))?.oom_page(None);
        Ok(Recording { profiler, file: self })
    }

    /// Writes a page about it, with the prediction if there is one.
    ///
    /// # Errors
    /// A page that cannot be written.
    pub fn write_page(&self, path: &Path, prediction: Option<&ProfileFile>) -> Result<(), Failure> {
        let page = || {
            let page = Page::of(&Profile::read(&self.path)?)?;
            match prediction {
                Some(plan) => page.predicted_by(&Profile::read(&plan.path)?),
                None => Ok(page),
            }
        };
        page()
            .and_then(|page| page.write(path))
            .map_err(|error| failed(&format!("--report {}", path.display()), &error))
    }

    fn failed(&self, error: &io::Error) -> Failure {
        failed(&format!("--profile {}", self.path.display()), error)
    }
}

/// Refuses a page that could not be written once the run is over.
///
/// # Errors
/// Why it could not.
pub fn check_report(path: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    Page::check_writable(path).map_err(|error| failed(&format!("--report {}", path.display()), &error))
}

fn failed(what: &str, error: &io::Error) -> Failure {
    Failure::file(format!("{what}: {error}"))
}

/// A run that is being recorded.
#[must_use = "recording ends when it is dropped"]
pub struct Recording {
    /// Whoever records.
    pub profiler: Profiler,
    file: ProfileFile,
}

impl Recording {
    /// Keeps so many of the last steps of a long run, if somebody has said how many.
    pub fn keep_steps(self, steps: Option<NonZeroU64>) -> Recording {
        let Recording { profiler, file } = self;
        let profiler = match steps {
            Some(steps) => profiler.keep_steps(steps.get()),
            None => profiler,
        };
        Recording { profiler, file }
    }

    /// The file that it is written to.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Ends it.
    ///
    /// # Errors
    /// A file that cannot be written to its end.
    pub fn finish(self) -> Result<ProfileFile, Failure> {
        self.profiler.finish().map_err(|error| self.file.failed(&error))?;
        Ok(self.file)
    }

    /// Ends it. What could not be written is a warning, because the run is what counts.
    pub fn finish_or_warn(self) -> ProfileFile {
        if let Err(error) = self.profiler.finish() {
            let failure = self.file.failed(&error);
            terminal::warn(&format!("warning: {failure}; the profile has what came before"));
        }
        self.file
    }

    /// Ends it because the run has failed; where memory was the reason, profile and page stay and the message names them.
    pub fn explain(self, failure: Failure, place: Option<&ReportPlace>) -> Failure {
        let Some(place) = place.filter(|_| failure.exit == Exit::Limit) else { return failure };
        self.profiler.add(&refused(&failure));
        place.keep(self.finish_or_warn(), failure)
    }
}

/// Where profile and page of a run that failed for lack of memory go.
#[derive(Debug)]
pub struct ReportPlace {
    folder: PathBuf,
    name: String,
    page: Option<PathBuf>,
}

impl ReportPlace {
    /// As option and environment say; nothing if they say `off`.
    pub fn of(asked: Option<&Path>, recipe: &Recipe, page: Option<&Path>) -> Option<ReportPlace> {
        let from_environment = std::env::var_os(OOM_REPORT).map(PathBuf::from);
        let folder = asked.map(Path::to_owned).or(from_environment).unwrap_or_else(|| PathBuf::from("."));
        let place = ReportPlace {
            folder,
            name: format!("plimsoll-{}-out-of-memory", recipe.name()),
            page: page.map(Path::to_owned),
        };
        (place.folder.as_os_str() != "off").then_some(place)
    }

    /// Keeps a profile and writes its page; the message says where, or why not.
    pub fn keep(&self, file: ProfileFile, failure: Failure) -> Failure {
        let page = self.page.clone().unwrap_or_else(|| self.folder.join(format!("{}.html", self.name)));
        let said = match self.try_keep(file, &page) {
            Ok(profile) => format!(
                "what was in memory: {} (in a browser), {} (for `explain`); --oom-report off writes neither",
                page.display(),
                profile.display()
            ),
            Err(error) => format!("what was in memory could not be written: {error}"),
        };
        Failure { message: format!("{failure}\n  {said}"), ..failure }
    }

    fn try_keep(&self, file: ProfileFile, page: &Path) -> Result<PathBuf, Failure> {
        file.write_page(page, None)?;
        if file.temporary.is_none() {
            return Ok(file.path);
        }
        let path = self.folder.join(format!("{}.profile", self.name));
        let copied = Profile::copy(&file.path, &path);
        copied.map_err(|error| failed(&path.display().to_string(), &error))?;
        Ok(path)
    }
}

/// What a profile says of a run that was refused.
pub fn refused(failure: &Failure) -> Value {
    json!({ "refused": first_line(failure) })
}

fn first_line(failure: &Failure) -> &str {
    failure.message.lines().next().unwrap_or_default()
}
