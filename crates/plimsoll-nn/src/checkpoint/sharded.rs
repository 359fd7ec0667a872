//! Checkpoints in shards: a file for each rank, and an index that says where the pieces of each tensor are.
//!
//! Each rank writes the pieces that it has, under names that no checkpoint before has used; when all files are on the disk, the first
//! rank writes the index in place of the one before, in one act, and only then are the files before removed. So whenever a rank
//! dies, the folder holds a checkpoint that is whole. A run is resumed by any number of ranks, and at any stage: each rank reads the
//! elements that are its own from whichever files have them.
//!
//! Pieces are rows of elements of their tensors, counted in row-major order; the index has the shape, and where each piece begins.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use plimsoll_dist::{Communicator, Shards};
use plimsoll_tensor::{DType, Error, Result, Shape, Tensor, Variable, write_whole};
use serde::{Deserialize, Serialize};

use super::file::{self, TensorFile};
use super::{Differences, FILE_NAME, RunState, Settings, VERSION, check_settings, note, verified_state};
use crate::policy::Policy;

/// The file that a folder of checkpoints in shards holds besides the shards.
pub const INDEX_NAME: &str = "checkpoint.safetensors.index.json";
/// The most bytes of an index.
const MOST_BYTES: usize = 100_000_000;

/// A tensor of a checkpoint, and what this rank has of it.
pub(crate) struct Saved {
    /// Its name in the checkpoint.
    pub name: String,
    /// What this rank has: all of it, or its piece.
    pub variable: Variable,
    /// The shape of all of it.
    pub shape: Shape,
    /// Its number among what is cut into shards; nothing if every rank has all of it.
    pub number: Option<usize>,
}

/// What is where.
#[derive(Serialize, Deserialize)]
struct Index {
    version: u64,
    /// How many checkpoints were saved here before.
    generation: u64,
    files: Vec<String>,
    state: RunState,
    tensors: BTreeMap<String, Indexed>,
}

/// A tensor of an index.
#[derive(Serialize, Deserialize)]
struct Indexed {
    dtype: String,
    shape: Vec<usize>,
    /// Its pieces in the order of their elements: the number of the file, the first element, and how many these are.
    pieces: Vec<(usize, usize, usize)>,
}

/// Saves a run of several ranks in a folder, in place of the checkpoint that it holds; all ranks call this.
///
/// # Errors
/// A folder that cannot be written; a rank that fails. The checkpoint before stays.
pub(crate) fn save(
    folder: &Path,
    communicator: &dyn Communicator,
    shards: &Shards,
    saved: &[Saved],
    state: &RunState,
) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| Error::io(folder, error))?;
    let before = if communicator.is_first() { read_index(folder)? } else { None };
    let mut generation = before.as_ref().map_or(0, |index| index.generation + 1).to_le_bytes();
    communicator.broadcast(&mut generation)?;
    let generation = u64::from_le_bytes(generation);
    let n_ranks = communicator.size();
    let name =
        |rank: usize| format!("checkpoint-{generation:06}-{:05}-of-{n_ranks:05}.safetensors", rank + 1);
    let own = saved.iter().filter(|saved| saved.number.is_some() || communicator.is_first());
    let row = |saved: &Saved| Ok((saved.name.clone(), saved.variable.value().flatten()?));
    let tensors = own.map(row).collect::<Result<Vec<(String, Tensor)>>>()?;
    file::write(&folder.join(name(communicator.rank())), tensors, note("shard", None))?;
    communicator.barrier()?;
    if communicator.is_first() {
        let index = Index {
            version: VERSION,
            generation,
            files: (0..n_ranks).map(name).collect(),
            state: state.clone(),
            tensors: saved.iter().map(|saved| (saved.name.clone(), indexed(saved, shards))).collect(),
        };
        let path = folder.join(INDEX_NAME);
        let text = serde_json::to_vec(&index).map_err(|error| Error::format(&path, error.to_string()))?;
        write_whole(&path, |file| std::io::Write::write_all(file, &text))?;
        remove(folder, before.iter().flat_map(|before| &before.files));
        remove(folder, [FILE_NAME.to_owned()].iter());
    }
    communicator.barrier()
}

fn indexed(saved: &Saved, shards: &Shards) -> Indexed {
    let pieces = match saved.number {
        None => vec![(0, 0, saved.shape.n_elems())],
        Some(number) => shards.pieces(number).map(|(rank, piece)| (rank, piece.start, piece.len())).collect(),
    };
    Indexed { dtype: saved.variable.dtype().name().to_owned(), shape: saved.shape.dims().to_vec(), pieces }
}

/// Removes what a later checkpoint has replaced. What cannot be removed is only in the way.
fn remove<'a>(folder: &Path, files: impl Iterator<Item = &'a String>) {
    files.for_each(|file| _ = std::fs::remove_file(folder.join(file)));
}

/// Removes a checkpoint in shards that one in a single file has replaced.
pub(crate) fn remove_before(folder: &Path) {
    if let Ok(Some(index)) = read_index(folder) {
        remove(folder, [INDEX_NAME.to_owned()].iter());
        remove(folder, index.files.iter());
    }
}

fn read_index(folder: &Path) -> Result<Option<Index>> {
    let path = folder.join(INDEX_NAME);
    if !path.exists() {
        return Ok(None);
    }
    let text = plimsoll_file::read_small(&path, MOST_BYTES).map_err(|error| Error::io(&path, error))?;
    let index: Index = serde_json::from_slice(&text)
        .map_err(|error| Error::format(&path, format!("the index is damaged: {error}")))?;
    let is_name = |file: &String| Path::new(file).components().count() == 1 && !file.starts_with('.');
    if index.version != VERSION || !index.files.iter().all(is_name) {
        return Err(Error::format(&path, "it is of another version, or names files of other folders"));
    }
    Ok(Some(index))
}

/// A checkpoint that is read, whatever files it is in.
pub(crate) struct Source {
    path: PathBuf,
    files: Vec<TensorFile>,
    state: RunState,
    tensors: BTreeMap<String, Indexed>,
}

/// Whether the checkpoint of a folder is in shards.
pub(crate) fn is_sharded(folder: &Path) -> Result<bool> {
    match (read_index(folder)?, folder.join(FILE_NAME).exists()) {
        (None, _) => Ok(false),
        (Some(_), false) => Ok(true),
        // Somebody died between writing the one and removing the other: the later one counts.
        (Some(index), true) => {
            let whole = TensorFile::open(&folder.join(FILE_NAME)).and_then(|file| verified_state(&file));
            Ok(whole.map_or(true, |state| state.step <= index.state.step))
        }
    }
}

impl Source {
    /// Opens the checkpoint of a folder: all of its files are there, and their checksums are right.
    pub fn open(folder: &Path) -> Result<Source> {
        let Some(index) = read_index(folder)?.filter(|_| is_sharded(folder).unwrap_or(true)) else {
            return Source::open_whole(folder);
        };
        let path = folder.join(INDEX_NAME);
        let mut files = Vec::new();
        for name in &index.files {
            let file = TensorFile::open(&folder.join(name))?;
            file.verified_note()?;
            files.push(file);
        }
        let source = Source { path, files, state: index.state, tensors: index.tensors };
        for (name, tensor) in &source.tensors {
            source.check(name, tensor)?;
        }
        Ok(source)
    }

    /// The same for a checkpoint in one file.
    fn open_whole(folder: &Path) -> Result<Source> {
        let path = folder.join(FILE_NAME);
        let file = TensorFile::open(&path)?;
        let state = verified_state(&file)?;
        let indexed = |entry: &super::header::Entry| Indexed {
            dtype: entry.dtype.as_ref().map_or_else(ToString::to_string, |dtype| dtype.name().to_owned()),
            shape: entry.shape.dims().to_vec(),
            pieces: vec![(0, 0, entry.shape.n_elems())],
        };
        // One after the other: collected at once, they would first lie in one allocation.
        let mut tensors = BTreeMap::new();
        for (name, entry) in file.entries() {
            tensors.insert(name.clone(), indexed(entry));
        }
        Ok(Source { path, files: vec![file], state, tensors })
    }

    /// Refuses a tensor whose pieces are not in the files, or do not make it whole.
    fn check(&self, name: &str, tensor: &Indexed) -> Result<()> {
        let mut end = 0;
        for &(file, start, n) in &tensor.pieces {
            let entry = self.files.get(file).and_then(|file| file.entries().get(name));
            let is_there = entry.is_some_and(|entry| {
                let dtype = entry.dtype.as_ref().map(|dtype| dtype.name()).unwrap_or_default();
                entry.shape.n_elems() == n && dtype == tensor.dtype
            });
            if !is_there || start != end {
                let detail =
                    format!("the index is damaged: element {start} of {name:?} is not where it says");
                return Err(Error::format(&self.path, detail));
            }
            end += n;
        }
        let n_elems = Shape::new(&tensor.shape)?.n_elems();
        match end == n_elems {
            true => Ok(()),
            false => {
                let detail =
                    format!("the index is damaged: it has {end} elements of {name:?}, not {n_elems}");
                Err(Error::format(&self.path, detail))
            }
        }
    }

    /// How far the run had come.
    pub fn into_state(self) -> RunState {
        self.state
    }

    /// The names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Gives variables their values, or this rank's pieces of them, and says how far the run had come. Names, shapes and dtypes are
    /// compared before the first variable is written.
    ///
    /// # Errors
    /// A checkpoint of another model, policy or run; a file that cannot be read; memory that is full.
    pub fn load(
        mut self,
        (shards, rank): (Option<&Shards>, usize),
        saved: &[Saved],
        policy: Policy,
        settings: &Settings,
    ) -> Result<RunState> {
        if self.state.policy != policy.name() {
            let detail = format!(
                "it was saved under the policy {}, and the model was built under {policy}",
                self.state.policy
            );
            return Err(Error::format(&self.path, detail));
        }
        check_settings(&self.path, &self.state.settings, settings)?;
        self.check_same(saved)?;
        for Saved { name, variable, shape, number } in saved {
            let range = match (shards, number) {
                (Some(shards), Some(number)) => shards.piece(*number, rank),
                _ => 0..shape.n_elems(),
            };
            let dtype = variable.dtype();
            let _there = variable.device().enter();
            let read = |bytes: &mut [u8]| self.read(name, dtype, &range, bytes);
            variable.assign(&Tensor::from_bytes(*variable.shape(), dtype, read)?)?;
        }
        Ok(std::mem::replace(&mut self.state, RunState::start(policy)))
    }

    /// Reads some elements of a tensor.
    fn read(&self, name: &str, dtype: DType, elements: &Range<usize>, bytes: &mut [u8]) -> Result<()> {
        let size = dtype.size();
        for &(file, start, n) in &self.tensors[name].pieces {
            let (first, end) = (start.max(elements.start), (start + n).min(elements.end));
            if first < end {
                let bytes = &mut bytes[(first - elements.start) * size..(end - elements.start) * size];
                self.files[file].read_at(name, ((first - start) * size) as u64, bytes)?;
            }
        }
        Ok(())
    }

    /// Refuses tensors that are not those of the run, and lists the differences.
    fn check_same(&self, saved: &[Saved]) -> Result<()> {
        let mut differences = Differences::default();
        let ours: BTreeSet<&str> = saved.iter().map(|saved| saved.name.as_str()).collect();
        let theirs: BTreeSet<&str> = self.names().collect();
        ours.difference(&theirs).for_each(|name| differences.missing.push((*name).to_owned()));
        theirs.difference(&ours).for_each(|name| differences.unused.push((*name).to_owned()));
        for Saved { name, variable, shape, .. } in saved {
            let Some(there) = self.tensors.get(name) else { continue };
            if there.shape != shape.dims() || there.dtype != variable.dtype().name() {
                differences.other.push(format!(
                    "{name:?} is {} {:?} there and {} {shape} here",
                    there.dtype,
                    there.shape,
                    variable.dtype()
                ));
            }
        }
        differences.check(&self.path)
    }
}
