//! The depot of a device: where values wait outside its pool until backward asks for them.
//!
//! For the CPU that is a nameless file ([`SpillFile`]). A pool over ghost pages keeps account of the room in it, so room
//! that has become free is used again, and the ghost of a device makes the same journeys without a file. A value that
//! is away holds its room until nobody wants it any more, however often it is brought back: it is written once.

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_memory::{Block, Bytes, GhostPages, Label, Owner, Pool, SPILL_ALIGNMENT, Site, SpillFile};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::storage::Storage;

/// Smaller values are not worth a journey.
pub(crate) const LEAST_MOVED_BYTES: u64 = 64 << 10;

/// What a disk of today takes and gives in a microsecond, with the waiting.
const FILE_RATE: u64 = 1_000;

/// Where a device may move values that backward will read, when its memory does not suffice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offload {
    /// To a nameless file in a folder, for the CPU.
    Folder(PathBuf),
}

/// Room for values outside a device's pool.
pub(crate) struct Depot {
    folder: PathBuf,
    /// Where in the file there is room.
    room: Pool,
    /// Nothing for a ghost.
    file: Option<SpillFile>,
}

/// A value that waits in a depot.
pub(crate) struct Away {
    depot: Arc<Depot>,
    device: Device,
    block: Block,
    n_bytes: usize,
}

impl Depot {
    /// A depot for values of a device.
    pub fn open(offload: &Offload, device: &Device) -> Result<Depot> {
        let Offload::Folder(folder) = offload;
        if !device.is_host() {
            return Err(Error::argument(
                "offload",
                format!("values of {device} cannot be moved to a folder; that is for the CPU"),
            ));
        }
        let file = SpillFile::open(folder).map_err(|error| Error::io(folder, error))?;
        let room = Pool::new(GhostPages::new(file.room()));
        room.set_limit(Some(Bytes::new(file.room())))?;
        Ok(Depot { folder: folder.clone(), room, file: Some(file).filter(|_| !device.is_ghost()) })
    }

    /// The depot of the ghost of a device.
    pub fn ghost(&self) -> Depot {
        Depot { folder: self.folder.clone(), room: self.room.ghost(), file: None }
    }

    /// What a planner knows of it.
    pub fn known(&self) -> plimsoll_plan::Depot {
        let stats = self.room.stats();
        let room = stats.limit.unwrap_or(u64::MAX).saturating_sub(stats.in_use);
        plimsoll_plan::Depot { room, rate: FILE_RATE, is_beside: false }
    }

    /// Moves a copy of a value here that was made at a site.
    ///
    /// # Errors
    /// There is no room, or what the operating system says.
    pub fn store(self: &Arc<Depot>, storage: &Storage, site: Site) -> Result<Away> {
        let n_bytes = storage.n_bytes();
        let rounded = n_bytes.next_multiple_of(SPILL_ALIGNMENT as usize);
        let room = self.room.acquire(rounded.max(LEAST_MOVED_BYTES as usize), Label::new(Owner::Saved, site));
        let block = room.map_err(|full| {
            let detail =
                format!("{} are away already, and the disk had no more room", Bytes::new(full.in_use));
            self.failed("written", std::io::Error::new(std::io::ErrorKind::StorageFull, detail))
        })?;
        if let Some(file) = &self.file {
            file.write(block.offset(), storage.bytes()).map_err(|error| self.failed("written", error))?;
        }
        storage.device().count_offloaded(n_bytes as u64);
        Ok(Away { depot: self.clone(), device: storage.device().clone(), block, n_bytes })
    }

    fn failed(&self, what: &str, error: std::io::Error) -> Error {
        let detail = format!("a value that was to be moved out of memory could not be {what}: {error}");
        Error::io(&self.folder, std::io::Error::new(error.kind(), detail))
    }
}

impl Away {
    /// The value in a block of its own again; `op` is the op that made it.
    ///
    /// # Errors
    /// Memory that is full, what the operating system says.
    pub fn bring(&self, op: &'static str) -> Result<Arc<Storage>> {
        let mut storage = Storage::with_bytes(&self.device, self.n_bytes, op)?;
        if let Some(file) = &self.depot.file {
            file.read(self.block.offset(), storage.bytes_mut())
                .map_err(|error| self.depot.failed("read back", error))?;
        }
        Ok(storage)
    }
}
