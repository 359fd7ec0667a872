//! What a rank has of the others: messages, and the few collectives that are made of them.

use std::fmt;

use plimsoll_tensor::Result;

use crate::agreements::Agreements;
use crate::bytes::{DeviceBytes, DeviceBytesMut};

/// The ranks that train together, as one of them sees them. It moves bytes between ranks, in order, and never adds anything up.
///
/// All ranks make the same calls of collectives in the same order. Calls wait: a message is received before anything else
/// happens on either side, or sent as far as the transport buffers it. When a rank fails, what the others wait for fails, too,
/// with an error that names the rank and the cause, as far as the transport knows them.
pub trait Communicator: fmt::Debug + Send + Sync {
    /// The number of this rank.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// What this rank knows of the plans of all ranks.
    fn agreements(&self) -> &Agreements;

    /// Sends bytes to another rank.
    ///
    /// # Errors
    /// A rank that is gone, or a transport that fails.
    fn send(&self, to: usize, bytes: &[u8]) -> Result<()>;

    /// Receives the next bytes of another rank, which must be as many as fit.
    ///
    /// # Errors
    /// A rank that is gone, one that sends something else, or a transport that fails.
    fn recv(&self, from: usize, bytes: &mut [u8]) -> Result<()>;

    /// Sends bytes of a device to another rank. Those of a GPU go through the host's memory, unless the transport knows a shorter way.
    ///
    /// # Errors
    /// Those of [`Communicator::send`].
    fn send_device(&self, to: usize, bytes: DeviceBytes<'_>) -> Result<()> {
        bytes.with_host(|bytes| self.send(to, bytes))
    }

    /// Receives the next bytes of another rank on a device.
    ///
    /// # Errors
    /// Those of [`Communicator::recv`].
    fn recv_device(&self, from: usize, mut bytes: DeviceBytesMut<'_>) -> Result<()> {
        bytes.with_host(|bytes| self.recv(from, bytes))
    }

    /// What the transport itself has taken of this rank's GPU, beside the pool.
    fn outside_bytes(&self) -> u64 {
        0
    }

    /// Tells the others that this rank cannot go on, as far as the transport can: what they wait for fails then.
    fn report_failure(&self, _cause: &str) {}

    /// Ends the run of all ranks at once, with that status where they are processes; whoever calls it has said why.
    fn abort(&self, status: i32);

    /// Whether this is the rank that logs and writes files.
    fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Gives all ranks the bytes of the first one.
    ///
    /// # Errors
    /// Those of the transport.
    fn broadcast(&self, bytes: &mut [u8]) -> Result<()> {
        self.broadcast_from(0, bytes)
    }

    /// Gives all ranks the bytes of one of them.
    ///
    /// # Errors
    /// Those of the transport.
    fn broadcast_from(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        self.broadcast_device(first, bytes.into())
    }

    /// Gives all ranks the bytes that one of them has on its device.
    ///
    /// # Errors
    /// Those of the transport.
    fn broadcast_device(&self, first: usize, mut bytes: DeviceBytesMut<'_>) -> Result<()> {
        let n_bytes = bytes.len();
        let size = self.size();
        let (place, rank) = ((self.rank() + size - first) % size, |place: usize| (place + first) % size);
        // In round k, the first 2^k ranks have the bytes and each passes them on to the rank 2^k further.
        let rounds = (0..usize::BITS).map(|round| 1usize << round).take_while(|&n| n < size);
        for n in rounds {
            match place {
                _ if place < n && place + n < size => self.send_device(rank(place + n), bytes.as_bytes())?,
                _ if place >= n && place < 2 * n => {
                    self.recv_device(rank(place - n), bytes.range(0..n_bytes))?
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What all ranks give, in the order of their numbers; short notes, not tensors.
    ///
    /// # Errors
    /// Those of the transport.
    fn all_gather(&self, note: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        for rank in 0..self.size() {
            // Through the first rank, which passes on what it is told.
            let mut length = (note.len() as u64).to_le_bytes();
            let own = rank == self.rank();
            if rank > 0 {
                self.tell_first(rank, &mut length)?;
            }
            self.broadcast(&mut length)?;
            let n_bytes = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
            let mut bytes = if own { note.to_vec() } else { vec![0; n_bytes] };
            if rank > 0 {
                self.tell_first(rank, &mut bytes)?;
            }
            self.broadcast(&mut bytes)?;
            all.push(bytes);
        }
        Ok(all)
    }

    /// Gives the first rank the bytes of another one.
    ///
    /// # Errors
    /// Those of the transport.
    #[doc(hidden)]
    fn tell_first(&self, rank: usize, bytes: &mut [u8]) -> Result<()> {
        match self.rank() {
            0 => self.recv(rank, bytes),
            own if own == rank => self.send(0, bytes),
            _ => Ok(()),
        }
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// Those of the transport.
    fn barrier(&self) -> Result<()> {
        self.all_gather(&[]).map(drop)
    }
}
