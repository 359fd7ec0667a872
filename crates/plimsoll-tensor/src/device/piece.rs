//! Pieces: a block that its holder carves itself, lends to tensors, and gets back.
//!
//! The input pipeline takes its whole allowance as one block and cuts it into batches. A [`Piece`] is the exclusive
//! right to a range of such a block: it can be split, joined, written from any thread, and lent to a tensor. When the
//! last holder of that tensor goes, the piece returns to whoever lent it. Pieces are made by splitting alone, so no two
//! of them overlap; that is what makes writing them from several threads sound. The block goes back to the pool with
//! its last piece.
//!
//! A piece of a ghost's block has a length and no bytes: its slices are empty. So are those of a piece on a GPU, whose memory
//! the host cannot reach: the input pipeline takes its block on the host that feeds the GPU.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_memory::{Block, Owner};

use crate::base::dtype::{DType, Element};
use crate::base::error::{Error, Result};
use crate::base::labels;
use crate::base::shape::Shape;
use crate::device::Device;
use crate::device::storage::Storage;
use crate::device::survey::{self, BlockKey, HolderKind, Keeper, Survey};

/// A block and the device that it is on.
struct Whole {
    block: Block,
    device: Device,
    /// What it was acquired for.
    name: &'static str,
    /// How many pieces of it tensors have.
    n_lent: AtomicUsize,
}

impl Whole {
    fn key(&self) -> BlockKey {
        BlockKey::new(&self.device, self.block.serial())
    }
}

impl Keeper for Whole {
    fn tell(self: Arc<Self>, survey: &mut Survey<'_>) {
        let n_lent = self.n_lent.load(Ordering::Relaxed);
        // Each piece has a handle, and this call has one.
        let has_others = Arc::strong_count(&self) > n_lent + 1;
        survey.carved(self.key(), has_others.then_some((HolderKind::Pipeline, self.name)), n_lent);
    }
}

/// The exclusive right to a range of bytes of a block.
pub struct Piece {
    whole: Arc<Whole>,
    start: usize,
    n_bytes: usize,
}

/// Called with a piece when the last holder of the tensor that it was lent to goes, on that holder's thread.
pub type Return = Arc<dyn Fn(Piece) + Send + Sync>;

impl Piece {
    /// A block of the device's pool, counted as data and labelled with the caller's line and `name`.
    ///
    /// # Errors
    /// Memory that is full.
    #[track_caller]
    pub fn acquire(device: &Device, n_bytes: usize, name: &'static str) -> Result<Piece> {
        let _line = labels::at_callers_line();
        let block = device.acquire(n_bytes, labels::label(Owner::Data, name))?;
        let whole = Arc::new(Whole { block, device: device.clone(), name, n_lent: AtomicUsize::new(0) });
        survey::list(device, Arc::downgrade(&whole) as _);
        Ok(Piece { whole, start: 0, n_bytes })
    }

    /// The length in bytes.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// The device whose memory it is.
    pub fn device(&self) -> &Device {
        &self.whole.device
    }

    /// Cuts the first `n_bytes` bytes off.
    ///
    /// # Panics
    /// The piece is shorter than that.
    pub fn take_front(&mut self, n_bytes: usize) -> Piece {
        assert!(n_bytes <= self.n_bytes, "{n_bytes} of {} bytes", self.n_bytes);
        let front = Piece { whole: self.whole.clone(), start: self.start, n_bytes };
        self.start += n_bytes;
        self.n_bytes -= n_bytes;
        front
    }

    /// One piece from two that lie side by side.
    ///
    /// # Panics
    /// `next` does not begin where this piece ends.
    pub fn join(self, next: Piece) -> Piece {
        let adjacent = Arc::ptr_eq(&self.whole, &next.whole) && self.start + self.n_bytes == next.start;
        assert!(adjacent, "only neighbours can be joined");
        Piece { n_bytes: self.n_bytes + next.n_bytes, ..self }
    }

    fn ptr(&self) -> *mut u8 {
        let base = self.whole.block.as_ptr();
        if base.is_null() { base } else { base.wrapping_add(self.start) }
    }

    /// Whether there are bytes that the host can reach.
    fn is_reachable(&self) -> bool {
        self.whole.device.is_host() && !self.ptr().is_null() && self.n_bytes > 0
    }

    /// The bytes; none on a ghost, and none on a GPU.
    pub fn bytes(&self) -> &[u8] {
        if !self.is_reachable() {
            return &[];
        }
        // SAFETY: the range lies in the block, which is in the host's memory (checked above) and whose pages came zeroed
        // from the source, and belongs to this piece alone; nobody writes it while the piece is borrowed.
        unsafe { std::slice::from_raw_parts(self.ptr(), self.n_bytes) }
    }

    /// The bytes, to be written; none on a ghost, and none on a GPU.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if !self.is_reachable() {
            return &mut [];
        }
        // SAFETY: as in `bytes`, and the piece is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(), self.n_bytes) }
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({}..{} on {})", self.start, self.start + self.n_bytes, self.whole.device)
    }
}

/// A piece in the hands of a tensor; it goes back when dropped.
pub(crate) struct Lent {
    /// There until it is dropped.
    piece: Option<Piece>,
    back: Option<Return>,
    /// The bytes that the tensor means, from the first on.
    n_bytes: usize,
}

impl Lent {
    /// The first `n_bytes` of a piece, which goes to `back` afterwards, if anybody wants it.
    pub fn new(piece: Piece, n_bytes: usize, back: Option<Return>) -> Lent {
        piece.whole.n_lent.fetch_add(1, Ordering::Relaxed);
        Lent { piece: Some(piece), back, n_bytes }
    }

    fn piece(&self) -> &Piece {
        match &self.piece {
            Some(piece) => piece,
            None => unreachable!("the piece goes when this is dropped"),
        }
    }

    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    pub fn ptr(&self) -> *mut u8 {
        self.piece().ptr()
    }

    pub fn device(&self) -> &Device {
        self.piece().device()
    }

    /// The block that the piece is of.
    pub fn key(&self) -> BlockKey {
        self.piece().whole.key()
    }

    /// A storage over the bytes, for elements of that shape.
    ///
    /// # Errors
    /// As for [`Piece::lend`].
    pub fn into_storage(self, shape: &Shape, dtype: DType) -> Result<Arc<Storage>> {
        let piece = self.piece();
        if piece.n_bytes < self.n_bytes || !piece.start.is_multiple_of(dtype.size()) {
            return Err(Error::argument(
                "piece",
                format!("{piece:?} has no room for {shape} of {dtype} at a multiple of its size"),
            ));
        }
        if dtype == DType::Bool && piece.device().gpu().is_some() {
            let detail =
                format!("truth values on {}; the host cannot look whether they are 0 and 1", piece.device());
            return Err(Error::device("piece", detail));
        }
        let is_value = |bytes: &[u8]| bytes.iter().all(|&byte| byte <= 1);
        if dtype == DType::Bool && !is_value(&piece.bytes()[..self.n_bytes.min(piece.bytes().len())]) {
            return Err(Error::argument("piece", "truth values are the bytes 0 and 1 and no others"));
        }
        Ok(Storage::lent(self, dtype))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(piece) = self.piece.take() else { return };
        piece.whole.n_lent.fetch_sub(1, Ordering::Relaxed);
        if let Some(back) = &self.back {
            back(piece);
        }
    }
}

/// Bytes as elements; nothing if they do not begin at a multiple of the element's size, are no whole number of
/// elements, or are no truth values where these are asked for.
pub fn elements<T: Element>(bytes: &[u8]) -> Option<&[T]> {
    let fits = bytes.as_ptr().cast::<T>().is_aligned() && bytes.len().is_multiple_of(size_of::<T>());
    if !fits || (T::DTYPE == DType::Bool && bytes.iter().any(|&byte| byte > 1)) {
        return None;
    }
    // SAFETY: alignment and length are checked; `Element` is sealed, and of its types only truth values, checked above,
    // have bytes that mean nothing.
    Some(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) })
}

/// Bytes as elements to be written, as [`elements`] does. Bytes that are no truth values become `false`.
pub fn elements_mut<T: Element>(bytes: &mut [u8]) -> Option<&mut [T]> {
    if T::DTYPE == DType::Bool {
        bytes.iter_mut().filter(|byte| **byte > 1).for_each(|byte| *byte = 0);
    }
    elements::<T>(bytes)?;
    // SAFETY: as in `elements`, which has checked it, and the bytes are borrowed exclusively.
    Some(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::base::shape::IntoShape;
    use crate::eager::variable::Variable;

    fn device_and_piece(n_bytes: usize) -> (Device, Piece) {
        let device = Device::separate_cpu();
        let piece = Piece::acquire(&device, n_bytes, "test").unwrap();
        (device, piece)
    }

    fn shape<const N: usize>(dims: [usize; N]) -> Shape {
        dims.into_shape().unwrap()
    }

    /// Where returned pieces go.
    fn basket() -> (Arc<Mutex<Vec<Piece>>>, Return) {
        let basket = Arc::new(Mutex::new(Vec::new()));
        let into = basket.clone();
        (basket, Arc::new(move |piece| into.lock().unwrap().push(piece)))
    }

    #[test]
    fn a_lent_piece_comes_back_with_the_last_holder_and_the_block_with_the_last_piece() {
        let (device, mut piece) = device_and_piece(16);
        elements_mut::<f32>(piece.bytes_mut()).unwrap().copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
        let first = piece.take_front(8);
        let (basket, back) = basket();
        let x = first.lend(shape([2]), DType::F32, back).unwrap();
        let view = x.reshape([1, 2]).unwrap();
        drop((x, piece));
        assert_eq!(view.to_vec::<f32>().unwrap(), [1.0, 2.0]);
        assert_eq!((view.owner(), basket.lock().unwrap().len()), (Owner::Data, 0));
        drop(view);
        let piece = basket.lock().unwrap().pop().unwrap();
        assert_eq!((piece.n_bytes(), device.stats().rows().get(Owner::Data)), (8, 16));
        drop(piece);
        assert_eq!(device.stats().in_use, 0);
    }

    #[test]
    fn lent_memory_is_never_overwritten_nor_taken_over() {
        let (device, mut piece) = device_and_piece(8);
        elements_mut::<f32>(piece.bytes_mut()).unwrap().copy_from_slice(&[-1.0, 2.0]);
        let (basket, back) = basket();
        let x = piece.lend(shape([2]), DType::F32, back).unwrap();
        let y = x.into_affine(2.0, 0.0).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [-2.0, 4.0]);
        let piece = basket.lock().unwrap().pop().unwrap();
        assert_eq!(elements::<f32>(piece.bytes()).unwrap(), [-1.0, 2.0]);

        let basket_too = basket.clone();
        let back: Return = Arc::new(move |piece| basket_too.lock().unwrap().push(piece));
        let variable = Variable::new(piece.lend(shape([2]), DType::F32, back).unwrap());
        assert_eq!(device.stats().rows().get(Owner::Parameters), 0);
        variable.assign(&y).unwrap();
        let piece = basket.lock().unwrap().pop().unwrap();
        assert_eq!(elements::<f32>(piece.bytes()).unwrap(), [-1.0, 2.0]);
        assert_eq!(device.stats().rows().get(Owner::Parameters), 8);
    }

    #[test]
    fn neighbours_join_and_what_does_not_fit_is_refused() {
        let (_, mut rest) = device_and_piece(12);
        let first = rest.take_front(5);
        let (basket, back) = basket();
        assert!(rest.lend(shape([1]), DType::F32, back).is_err(), "byte 5 is no place for a float");
        let piece = first.join(basket.lock().unwrap().pop().unwrap());
        assert_eq!(piece.n_bytes(), 12);
        assert!(piece.into_tensor(shape([4]), DType::F32).is_err(), "16 bytes in 12");
        let (_, mut piece) = device_and_piece(2);
        piece.bytes_mut().copy_from_slice(&[1, 2]);
        assert!(elements::<bool>(piece.bytes()).is_none());
        assert!(piece.into_tensor(shape([2]), DType::Bool).is_err());
        assert!(elements::<u8>(&[1, 2]).is_some() && elements::<f32>(&[0; 3]).is_none());
    }

    #[test]
    #[should_panic = "only neighbours can be joined"]
    fn strangers_do_not_join() {
        let (_, one) = device_and_piece(4);
        let (_, other) = device_and_piece(4);
        one.join(other);
    }

    #[cfg(feature = "emulated")]
    #[test]
    fn a_piece_of_a_gpu_shows_no_bytes() {
        let device = Device::emulated().unwrap();
        let mut piece = Piece::acquire(&device, 64, "test").unwrap();
        assert!(piece.bytes().is_empty() && piece.bytes_mut().is_empty());
        let truths = piece.take_front(8).into_tensor(shape([8]), DType::Bool);
        assert!(truths.unwrap_err().to_string().contains("the host cannot look"));
        assert_eq!(piece.into_tensor(shape([14]), DType::F32).unwrap().n_bytes(), 56);
    }

    #[test]
    fn a_ghost_lends_shapes() {
        let ghost = Device::ghost_cpu();
        let mut piece = Piece::acquire(&ghost, 1 << 20, "test").unwrap();
        assert!(piece.bytes().is_empty() && piece.bytes_mut().is_empty());
        let x = piece.into_tensor(shape([1 << 18]), DType::F32).unwrap();
        assert_eq!((x.n_bytes(), ghost.stats().rows().get(Owner::Data)), (1 << 20, 1 << 20));
    }
}
