//! Ranks on GPUs that exchange bytes by NCCL, one on each GPU.
//!
//! NCCL knows GPUs alone. Short notes, and the id by which ranks find each other, travel over another communicator, such as MPI or
//! that of ranks in one process; bytes of the host do, too. It is used to move bytes; sums are made as always, in one order.

use std::sync::Arc;

use plimsoll_cuda::{NcclCommunicator, NcclId, nccl_id};
use plimsoll_tensor::{Device, Error, Result};

use crate::agreements::Agreements;
use crate::bytes::{self, DeviceBytes, DeviceBytesMut};
use crate::communicator::Communicator;

/// A rank on a GPU.
#[derive(Debug)]
pub struct Nccl {
    notes: Arc<dyn Communicator>,
    communicator: NcclCommunicator,
}

impl Nccl {
    /// Joins the GPUs of all ranks of a communicator, over which notes go on to travel. All ranks call this at the same time, each with
    /// a GPU of its own; what it takes of the GPU's memory is taken now, outside the pool.
    ///
    /// # Errors
    /// A device that is no GPU; no NCCL on any of the ranks; what it says, for example of two ranks on one GPU.
    pub fn join(notes: Arc<dyn Communicator>, device: &Device) -> Result<Nccl> {
        let own_id = || -> Result<NcclId> {
            let Some(gpu) = device.gpu() else {
                let detail = format!("NCCL joins GPUs, and rank {} is on {device}", notes.rank());
                return Err(Error::device("nccl", detail));
            };
            gpu.memory()?;
            Ok(nccl_id()?)
        };
        // A rank that cannot join says so before the others wait for it.
        let own = own_id();
        let note = own.as_ref().map_or_else(|error| error.to_string().into_bytes(), |id| id.to_vec());
        let all = notes.all_gather(&[&[u8::from(own.is_ok())], &note[..]].concat())?;
        if let Some((rank, note)) = all.iter().enumerate().find(|(_, note)| note.first() != Some(&1)) {
            let cause = String::from_utf8_lossy(note.get(1..).unwrap_or_default()).into_owned();
            return Err(Error::device("nccl", format!("rank {rank} cannot join: {cause}")));
        }
        let id: NcclId =
            all[0][1..].try_into().map_err(|_| Error::device("nccl", "an id of another length"))?;
        let (rank, size) = (notes.rank(), notes.size());
        let Some(gpu) = device.gpu() else { unreachable!("this rank has said that it is on one") };
        let communicator = NcclCommunicator::join(gpu, &id, rank, size)?;
        Ok(Nccl { notes, communicator })
    }
}

impl Communicator for Nccl {
    fn rank(&self) -> usize {
        self.notes.rank()
    }

    fn size(&self) -> usize {
        self.notes.size()
    }

    fn agreements(&self) -> &Agreements {
        self.notes.agreements()
    }

    fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        self.notes.send(to, bytes)
    }

    fn recv(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        self.notes.recv(from, bytes)
    }

    fn send_device(&self, to: usize, bytes: DeviceBytes<'_>) -> Result<()> {
        let sent = bytes::nccl_send(&self.communicator, to, bytes);
        sent.unwrap_or_else(|| self.notes.send_device(to, bytes))
    }

    fn recv_device(&self, from: usize, mut bytes: DeviceBytesMut<'_>) -> Result<()> {
        match bytes::nccl_recv(&self.communicator, from, &mut bytes) {
            Some(received) => received,
            None => self.notes.recv_device(from, bytes),
        }
    }

    fn broadcast_device(&self, first: usize, mut bytes: DeviceBytesMut<'_>) -> Result<()> {
        match bytes::nccl_broadcast(&self.communicator, first, &mut bytes) {
            Some(given) => given,
            None => self.notes.broadcast_device(first, bytes),
        }
    }

    fn outside_bytes(&self) -> u64 {
        self.communicator.n_bytes()
    }

    fn report_failure(&self, cause: &str) {
        self.notes.report_failure(cause);
    }

    fn abort(&self, status: i32) {
        self.notes.abort(status);
    }
}
