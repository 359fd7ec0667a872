//! Saving and loading: weights, whole runs, and weights that PyTorch has saved.
//!
//! A checkpoint is one safetensors file with everything that a run needs to go on bit for bit: the weights in full
//! precision, what the optimizer keeps (its step, loss scale and averages are variables like any other), the random
//! generator, and how far the run had come in its data. It replaces the one before in one act, when all of it
//! is on the disk; so whenever the process dies, one that is whole is there.
//!
//! Ranks that have shards of a run save a file each, and an index ([`INDEX_NAME`]); either form is resumed by any number of ranks.
//!
//! Loading is all or nothing: the file is read through once for its checksum, every name, shape and dtype is compared,
//! and all memory is taken, before the first variable is written. Then values are read straight into the variables'
//! memory, so that a run which fits under a limit can also be resumed under it.

mod file;
mod header;
mod name_map;
mod pattern;
mod sharded;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use plimsoll_tensor::{Error, Generator, Result, Tensor, Variable, at_callers_line};
use serde::{Deserialize, Serialize};

use crate::model::Model;
use crate::policy::Policy;
use file::TensorFile;
pub use name_map::{Change, NameMap};
pub use sharded::INDEX_NAME;
pub(crate) use sharded::{Saved, Source, is_sharded, remove_before, save as save_shards};

/// The file that a folder of checkpoints holds.
pub const FILE_NAME: &str = "checkpoint.safetensors";
/// The form of the note in our files; a reader refuses a later one.
const VERSION: u64 = 1;
/// What the names of a model's variables begin with in a checkpoint, so that no optimizer's can be equal.
pub(crate) const WEIGHTS: &str = "model.";

/// How far a run has come: all that must be known besides the variables to go on as if nothing had happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Optimizer steps taken, those that were skipped for an overflow included.
    pub step: u64,
    /// Epochs that are complete.
    pub epoch: u64,
    /// Batches of the present epoch that are done.
    pub batch: u64,
    /// The sum of the losses of the present epoch's steps.
    pub loss_sum: f64,
    /// The number of steps in that sum.
    pub n_losses: u64,
    /// The seed of the random generator.
    pub seed: u64,
    /// The number of the generator's next draw.
    pub next_draw: u64,
    /// The name of the precision policy that the model was built under.
    pub policy: String,
    /// What callbacks keep, by their names.
    pub callbacks: BTreeMap<String, String>,
    /// The examples of a whole batch, if that is known.
    #[serde(default)]
    pub batch_size: Option<u64>,
    /// What else the numbers of the run follow from, by name.
    #[serde(default)]
    pub settings: Settings,
    /// What the rates of the optimizer's schedules are multiplied by: see `Optimizer::set_learning_rate`.
    #[serde(default = "unchanged")]
    pub rate_factor: f64,
}

/// The factor of schedules that nobody has changed.
fn unchanged() -> f64 {
    1.0
}

/// What the numbers of a run follow from, by name: the size of its batches, the seed of its data.
pub type Settings = BTreeMap<String, String>;

impl RunState {
    /// A run of that model that has not begun, with the thread's generator as it is now.
    pub fn start(policy: Policy) -> RunState {
        let generator = Generator::current();
        RunState {
            step: 0,
            epoch: 0,
            batch: 0,
            loss_sum: 0.0,
            n_losses: 0,
            seed: generator.seed(),
            next_draw: generator.next_draw(),
            policy: policy.name().to_owned(),
            callbacks: BTreeMap::new(),
            batch_size: None,
            settings: Settings::new(),
            rate_factor: unchanged(),
        }
    }

    /// The random generator as it was.
    pub fn generator(&self) -> Generator {
        Generator::at(self.seed, self.next_draw)
    }

    /// This state with the random generator of now.
    pub fn with_generator(mut self, generator: Generator) -> RunState {
        (self.seed, self.next_draw) = (generator.seed(), generator.next_draw());
        self
    }
}

/// Saves a run in a folder, which is made if it is not there, in place of the checkpoint that it holds.
///
/// # Errors
/// A folder that cannot be written; two variables of one name; a ghost. The checkpoint before stays.
#[track_caller]
pub fn save(folder: impl AsRef<Path>, model: &Model, optimizer: &[Variable], state: &RunState) -> Result<()> {
    let _line = at_callers_line();
    save_all(folder.as_ref(), model, &by_own_names(optimizer), state)
}

/// As [`save`], with all that is saved besides the model by name.
pub(crate) fn save_all(
    folder: &Path,
    model: &Model,
    others: &[(String, Variable)],
    state: &RunState,
) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| Error::io(folder, error))?;
    let path = folder.join(FILE_NAME);
    let named = named_variables(&path, model, others)?;
    let state = serde_json::to_value(state).map_err(|error| Error::format(&path, error.to_string()))?;
    file::write(&path, values(&named), note("checkpoint", Some(state)))
}

/// Refuses a folder in which a run cannot be saved, before the work is done and not after. It is made if it is not there.
///
/// # Errors
/// A folder that cannot be written; a checkpoint there that is a symbolic link, or no regular file.
pub fn check_writable(folder: impl AsRef<Path>) -> Result<()> {
    let folder = folder.as_ref();
    std::fs::create_dir_all(folder).map_err(|error| Error::io(folder, error))?;
    let path = folder.join(FILE_NAME);
    plimsoll_file::check_writable(&path).map_err(|error| Error::io(&path, error))
}

/// Loads a run that was saved in a folder: gives model and optimizer their values and says how far the run had come.
/// The generator is left to the caller.
///
/// # Errors
/// No checkpoint; one that is damaged, or of another model, optimizer or policy: all differences are listed. Nothing
/// is changed then.
#[track_caller]
pub fn load(folder: impl AsRef<Path>, model: &Model, optimizer: &[Variable]) -> Result<RunState> {
    let _line = at_callers_line();
    load_alike(folder.as_ref(), model, &by_own_names(optimizer), &Settings::new())
}

/// As [`load`]; settings that both runs have must be the same.
pub(crate) fn load_alike(
    folder: &Path,
    model: &Model,
    others: &[(String, Variable)],
    settings: &Settings,
) -> Result<RunState> {
    let path = folder.join(FILE_NAME);
    let file = TensorFile::open(&path)?;
    let state = verified_state(&file)?;
    if state.policy != model.policy().name() {
        return Err(Error::format(
            &path,
            format!(
                "it was saved under the policy {}, and the model was built under {}",
                state.policy,
                model.policy()
            ),
        ));
    }
    check_settings(&path, &state.settings, settings)?;
    let named = named_variables(&path, model, others)?;
    check_same(&file, &named)?;
    let places: Vec<(&Variable, u64)> =
        named.iter().map(|(name, variable)| (variable, file.place(&file.entries()[name]))).collect();
    Variable::read_file(file.file(), &path, &places)?;
    Ok(state)
}

/// Those of some variables for which an optimizer had something to keep when a run was saved in a folder.
pub(crate) fn with_optimizer_state(folder: &Path, variables: &[Variable]) -> Result<Vec<Variable>> {
    let source = Source::open(folder)?;
    let kept: BTreeSet<&str> = source
        .names()
        .filter_map(|name| name.strip_prefix("optimizer.")?.split_once('.').map(|(_, variable)| variable))
        .collect();
    let has_state = |variable: &&Variable| kept.contains(&*variable.name());
    Ok(variables.iter().filter(has_state).cloned().collect())
}

/// Refuses a run that was set otherwise: it could not go on bit for bit.
fn check_settings(path: &Path, there: &Settings, here: &Settings) -> Result<()> {
    let differences: Vec<String> = here
        .iter()
        .filter_map(|(name, here)| Some((name, there.get(name).filter(|there| *there != here)?, here)))
        .map(|(name, there, here)| format!("{name} {there}, and this one has {here}"))
        .collect();
    match differences.is_empty() {
        true => Ok(()),
        false => Err(Error::format(
            path,
            format!(
                "it is of a run with {}; a run that is resumed goes on bit for bit, so it must be started alike",
                differences.join("; ")
            ),
        )),
    }
}

/// Whether a folder holds a checkpoint that is whole, and if so, how far its run had come.
///
/// # Errors
/// As [`load`], as far as they can be seen without a model.
pub fn peek(folder: impl AsRef<Path>) -> Result<RunState> {
    if is_sharded(folder.as_ref())? {
        return Source::open(folder.as_ref()).map(Source::into_state);
    }
    verified_state(&TensorFile::open(&folder.as_ref().join(FILE_NAME))?)
}

fn verified_state(file: &TensorFile) -> Result<RunState> {
    let wrong = |detail: String| Error::format(file.path(), detail);
    let Some(mut note) = file.verified_note()? else {
        return Err(wrong(
            "it holds tensors, but it is no checkpoint: nothing says how far a run had come".into(),
        ));
    };
    if note["version"].as_u64() != Some(VERSION) {
        return Err(wrong(format!("it is of version {}, and this program reads {VERSION}", note["version"])));
    }
    if note["kind"] != "checkpoint" {
        return Err(wrong(format!("it holds {}, and no checkpoint", note["kind"])));
    }
    serde_json::from_value(note["state"].take())
        .map_err(|error| wrong(format!("it does not say how far the run had come: {error}")))
}

impl Model {
    /// Saves the weights, in full precision, under their names.
    ///
    /// # Errors
    /// A path that cannot be written; two variables of one name; a ghost. A file that was there stays.
    #[track_caller]
    pub fn save_weights(&self, path: impl AsRef<Path>) -> Result<()> {
        let _line = at_callers_line();
        let named = unique(path.as_ref(), self.named_variables().into_iter())?;
        file::write(path.as_ref(), values(&named), note("weights", None))
    }

    /// Loads weights that [`Model::save_weights`] has saved; those of others through a [`NameMap`].
    ///
    /// # Errors
    /// A file that is not there, is damaged, or holds other names or shapes: all differences are listed. Nothing is
    /// changed then.
    #[track_caller]
    pub fn load_weights(&self, path: impl AsRef<Path>) -> Result<()> {
        let _line = at_callers_line();
        NameMap::new().load(self, path)
    }
}

/// The tensors of a safetensors file by name, on the current device.
///
/// # Errors
/// A file that is not there or is damaged; a dtype that tensors do not have; memory that is full.
#[track_caller]
pub fn read_tensors(path: impl AsRef<Path>) -> Result<BTreeMap<String, Tensor>> {
    let _line = at_callers_line();
    let file = TensorFile::open(path.as_ref())?;
    file.verified_note()?;
    file.entries().keys().map(|name| Ok((name.clone(), file.read(name)?))).collect()
}

/// Writes named tensors to a safetensors file, which appears whole or not at all.
///
/// # Errors
/// A path that cannot be written; a ghost, which has no values.
#[track_caller]
pub fn write_tensors(path: impl AsRef<Path>, tensors: BTreeMap<String, Tensor>) -> Result<()> {
    let _line = at_callers_line();
    file::write(path.as_ref(), tensors, note("tensors", None))
}

/// What a file says about itself, besides its tensors.
fn note(kind: &str, state: Option<serde_json::Value>) -> serde_json::Map<String, serde_json::Value> {
    let mut note = serde_json::Map::new();
    note.insert("kind".to_owned(), kind.into());
    note.insert("version".to_owned(), VERSION.into());
    note.extend(state.map(|state| ("state".to_owned(), state)));
    note
}

/// Variables under the names that they have in a checkpoint.
fn named_variables(path: &Path, model: &Model, others: &[(String, Variable)]) -> Result<Named> {
    let weights =
        model.named_variables().into_iter().map(|(name, variable)| (format!("{WEIGHTS}{name}"), variable));
    unique(path, weights.chain(others.iter().cloned()))
}

/// Variables with the names that they have.
fn by_own_names(variables: &[Variable]) -> Vec<(String, Variable)> {
    variables.iter().map(|variable| (variable.name(), variable.clone())).collect()
}

/// Variables by the names that they have in a file.
type Named = BTreeMap<String, Variable>;

fn unique(path: &Path, named: impl Iterator<Item = (String, Variable)>) -> Result<Named> {
    let mut by_name = Named::new();
    for (name, variable) in named {
        match by_name.get(&name) {
            Some(same) if *same == variable => {}
            Some(_) => {
                return Err(Error::argument(
                    "checkpoint",
                    format!(
                        "two variables are named {name:?}, and {} can hold one; name their layers with `named`",
                        path.display()
                    ),
                ));
            }
            None => _ = by_name.insert(name, variable),
        }
    }
    Ok(by_name)
}

/// The values to be saved: those in full precision.
fn values(named: &Named) -> impl Iterator<Item = (String, Tensor)> {
    named.iter().map(|(name, variable)| (name.clone(), full(variable).value()))
}

/// The variable itself, or its master.
fn full(variable: &Variable) -> &Variable {
    variable.master().unwrap_or(variable)
}

/// Refuses a file whose tensors are not those of the variables, and lists the differences.
fn check_same(file: &TensorFile, named: &Named) -> Result<()> {
    let mut differences = Differences::default();
    let ours: BTreeSet<&String> = named.keys().collect();
    let theirs: BTreeSet<&String> = file.entries().keys().collect();
    ours.difference(&theirs).for_each(|name| differences.missing.push((*name).clone()));
    theirs.difference(&ours).for_each(|name| differences.unused.push((*name).clone()));
    for (name, variable) in named {
        let Some(entry) = file.entries().get(name) else { continue };
        let variable = full(variable);
        if entry.shape != *variable.shape() || entry.dtype.as_ref().ok() != Some(&variable.dtype()) {
            let dtype = entry.dtype.as_ref().map_or_else(ToString::to_string, ToString::to_string);
            differences.other.push(format!(
                "{name:?} is {dtype} {} there and {} {} here",
                entry.shape,
                variable.dtype(),
                variable.shape()
            ));
        }
    }
    differences.check(file.path())
}

/// What is different between a file and a model.
#[derive(Default)]
struct Differences {
    /// Variables that nothing in the file is for.
    missing: Vec<String>,
    /// Tensors of the file that no variable takes.
    unused: Vec<String>,
    /// Whatever else is different, in words.
    other: Vec<String>,
}

impl Differences {
    /// How many of a kind are listed.
    const LISTED: usize = 8;

    fn check(self, path: &Path) -> Result<()> {
        let list = |what: &str, names: &[String]| {
            let more = names.len().saturating_sub(Differences::LISTED);
            let listed = names.iter().take(Differences::LISTED).cloned().collect::<Vec<_>>().join(", ");
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            (!names.is_empty()).then(|| format!("{what}{listed}{more}"))
        };
        let parts = [
            list("it lacks ", &self.missing),
            list("nothing here takes its ", &self.unused),
            list("", &self.other),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => Ok(()),
            false => Err(Error::format(path, format!("it does not fit: {}", parts.join("; ")))),
        }
    }
}
