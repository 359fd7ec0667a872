//! The offload store of a device: where offloaded values wait outside its pool until backward asks for them.
//!
//! For the CPU that is a nameless file ([`SpillFile`]). A pool over ghost pages keeps account of the room in it, so room that
//! has become free is used again, and the ghost of a device offloads and reloads the same values without a file. A GPU has
//! pinned memory of the host, and copies to and from it overlap with compute: whoever overwrites a value that is still being
//! offloaded, or reads one that is still being reloaded, waits for the copy on the device, and the host waits for nothing.
//!
//! An offloaded value holds its room until nobody wants it any more, however often it is reloaded: it is copied out once.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_cuda::{Copied, Pinned, PinnedBlock};
use plimsoll_memory::{
    Block, Bytes, GhostPages, Label, OutOfMemory, Owner, Pool, SPILL_ALIGNMENT, Site, SpillFile, Work,
};

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::device::rates::link_rate;
use crate::device::storage::Storage;

/// Smaller values are not worth offloading.
pub(crate) const MIN_OFFLOADED_BYTES: u64 = 64 << 10;

/// What a disk of today takes and gives in a microsecond, with the waiting.
const FILE_RATE: u64 = 1_000;

/// Where a device may offload values that backward will read, when its memory does not suffice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offload {
    /// To a nameless file in a folder, for the CPU.
    Folder(PathBuf),
    /// To pinned memory of the host, no more than so many bytes, for a GPU.
    Host(Bytes),
}

/// Room for values outside a device's pool; ghosts have room and nothing else.
pub(crate) enum OffloadStore {
    /// A file, with a pool that says where in it there is room.
    File { folder: PathBuf, room: Pool, file: Option<SpillFile> },
    /// Pinned memory, and the bytes that are copied in a microsecond, in either direction.
    Pinned { pinned: Pinned, limit: Bytes, rate: u64 },
}

/// A value that waits in an offload store.
pub(crate) struct Offloaded {
    offload_store: Arc<OffloadStore>,
    device: Device,
    place: Place,
    n_bytes: usize,
    dtype: DType,
    /// The line that made it.
    site: Site,
}

enum Place {
    File(Block),
    Pinned { block: PinnedBlock, copied: Option<Copied> },
}

impl OffloadStore {
    /// An offload store for values of a device.
    pub fn open(offload: &Offload, device: &Device) -> Result<OffloadStore> {
        match offload {
            Offload::Folder(folder) if device.is_host() => {
                // A ghost asks for the room and writes nothing.
                let opened = match device.is_ghost() {
                    true => SpillFile::room_in(folder).map(|room| (room, None)),
                    false => SpillFile::open(folder).map(|file| (file.room(), Some(file))),
                };
                let (n_bytes, file) = opened.map_err(|error| Error::io(folder, error))?;
                let room = Pool::new(GhostPages::new(n_bytes));
                room.set_limit(Some(Bytes::new(n_bytes)))?;
                Ok(OffloadStore::File { folder: folder.clone(), room, file })
            }
            &Offload::Host(limit) if !device.is_host() => {
                let pinned = match device.gpu() {
                    Some(gpu) => Pinned::new(gpu, Some(limit))?,
                    None => Pinned::ghost(Some(limit)),
                };
                let rate = device.profile().map_or(1, link_rate);
                Ok(OffloadStore::Pinned { pinned, limit, rate })
            }
            Offload::Folder(_) | Offload::Host(_) => Err(Error::argument(
                "offload",
                format!(
                    "{offload:?} is not for {device}; the CPU offloads values to a folder, a GPU to the host"
                ),
            )),
        }
    }

    /// The offload store of the ghost of a device.
    pub fn ghost(&self) -> OffloadStore {
        match self {
            OffloadStore::File { folder, room, .. } => {
                OffloadStore::File { folder: folder.clone(), room: room.ghost(), file: None }
            }
            &OffloadStore::Pinned { limit, rate, .. } => {
                OffloadStore::Pinned { pinned: Pinned::ghost(Some(limit)), limit, rate }
            }
        }
    }

    /// What a planner knows of it.
    pub fn known(&self) -> plimsoll_plan::OffloadStore {
        let (stats, bytes_per_us, overlaps) = match self {
            OffloadStore::File { room, .. } => (room.stats(), FILE_RATE, false),
            OffloadStore::Pinned { pinned, rate, .. } => (pinned.stats(), *rate, true),
        };
        let capacity = stats.limit.unwrap_or(u64::MAX).saturating_sub(stats.in_use);
        plimsoll_plan::OffloadStore { capacity, bytes_per_us, overlaps }
    }

    /// The bytes of values that wait here.
    pub fn in_use(&self) -> u64 {
        match self {
            OffloadStore::File { room, .. } => room.stats().in_use,
            OffloadStore::Pinned { pinned, .. } => pinned.stats().in_use,
        }
    }

    /// Copies a value here that was made at a site.
    ///
    /// # Errors
    /// There is no room, or what the operating system or the driver says.
    pub fn store(self: &Arc<OffloadStore>, storage: &Storage, site: Site) -> Result<Offloaded> {
        let n_bytes = storage.n_bytes();
        let label = Label::new(Owner::Saved, site);
        let place = match &**self {
            OffloadStore::File { folder, room, file } => {
                let rounded = n_bytes.next_multiple_of(SPILL_ALIGNMENT as usize);
                let block = room.acquire(rounded.max(MIN_OFFLOADED_BYTES as usize), label);
                let block = block.map_err(|full| no_room(folder, &full))?;
                if let Some(file) = file {
                    let written = file.write(block.offset(), storage.bytes());
                    written.map_err(|error| failed(folder, "written", error))?;
                }
                Place::File(block)
            }
            OffloadStore::Pinned { pinned, .. } => {
                let block = pinned.acquire(n_bytes, label)?;
                let copied = storage.download_to(&block)?;
                Place::Pinned { block, copied }
            }
        };
        storage.device().count_offloaded(n_bytes as u64);
        let (device, dtype) = (storage.device().clone(), storage.dtype());
        note_move("offload", site, storage);
        Ok(Offloaded { offload_store: self.clone(), device, place, n_bytes, dtype, site })
    }
}

/// Tells whoever records the device's pool that a value is offloaded or reloaded. It is told as work that takes no time, because
/// plans count what moves by itself.
fn note_move(name: &'static str, made_at: Site, storage: &Storage) {
    let (device, key) = (storage.device(), storage.key());
    if !device.pool().has_sink() {
        return;
    }
    let (scope, described) = made_at.layer();
    let site = Site::intern_in_layer(made_at.file(), made_at.line(), scope, name, described);
    let serial = key.and_then(|key| key.serial_on(device));
    let (block, none): (&[u64], &[u64]) = (serial.as_slice(), &[]);
    let (reads, writes) = if name == "offload" { (block, none) } else { (none, block) };
    device.pool().mark_work(&Work { site, nanoseconds: 0, repeats: true, reads, writes });
}

fn no_room(folder: &Path, full: &OutOfMemory) -> Error {
    let detail = format!("{} are offloaded already, and the disk had no more room", Bytes::new(full.in_use));
    failed(folder, "written", io::Error::new(io::ErrorKind::StorageFull, detail))
}

fn failed(folder: &Path, what: &str, error: io::Error) -> Error {
    let detail = format!("a value that was to be offloaded could not be {what}: {error}");
    Error::io(folder, io::Error::new(error.kind(), detail))
}

impl Offloaded {
    /// The value in a block of its own again, or still being copied there: then work that reads it must be made to wait for the
    /// copy. `op` is the op that made it.
    ///
    /// # Errors
    /// Memory that is full, what the operating system or the driver says.
    pub fn reload(&self, op: &'static str) -> Result<(Arc<Storage>, Option<Copied>)> {
        let mut storage = Storage::with_bytes(&self.device, self.n_bytes, self.dtype, op)?;
        let copied = self.fill(&mut storage)?;
        Ok((storage, copied))
    }

    /// Puts the value into a storage of its size that nobody else has seen yet, or begins to.
    ///
    /// # Errors
    /// What the operating system or the driver says.
    pub fn fill(&self, storage: &mut Arc<Storage>) -> Result<Option<Copied>> {
        note_move("reload", self.site, storage);
        match (&self.place, &*self.offload_store) {
            (Place::File(block), OffloadStore::File { folder, file: Some(file), .. }) => {
                let read = file.read(block.offset(), storage.bytes_mut());
                read.map_err(|error| failed(folder, "read back", error))?;
                Ok(None)
            }
            (Place::Pinned { block, .. }, _) => storage.upload_from(block),
            (Place::File(_), _) => Ok(None),
        }
    }
}

impl Drop for Offloaded {
    fn drop(&mut self) {
        if let (Place::Pinned { copied: Some(copied), .. }, Some(gpu)) = (&self.place, self.device.gpu()) {
            // Nobody knows any more that the value's memory is being read: later work comes after that. A failure shows
            // at the next call.
            let _ = gpu.wait_for(copied);
        }
    }
}
