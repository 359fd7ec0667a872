//! `Batch`: what the loop gets: tensors in the pipeline's memory, which go back there when they are dropped.

use std::ops::Index;
use std::sync::{Arc, Mutex};

use plimsoll_tensor::{Device, Error, Nested, Owner, Piece, Result, Return, Tensor, with_owner};

use super::allowance::Slot;
use super::makers::{Made, Shared};
use crate::node::lock;
use crate::spec::{Key, Spec};

/// One element of a dataset, usually a batch, as tensors: one for each field.
#[derive(Clone)]
pub struct Batch {
    tensors: Vec<Tensor>,
    spec: Spec,
    epoch: u64,
    number: u64,
}

impl Batch {
    /// Lends a slot to tensors; it comes back when the last of them is dropped.
    pub(super) fn lend(
        shared: &Arc<Shared>,
        made: Made,
        spec: &Spec,
        epoch: u64,
        number: u64,
    ) -> Result<Batch> {
        let Made { slot, shapes } = made;
        let returning = Arc::new(Returning {
            shared: shared.clone(),
            pieces: Mutex::new(slot.pieces.iter().map(|_| None).collect()),
            is_extra: slot.is_extra,
        });
        let mut tensors = Ok(Vec::with_capacity(shapes.len()));
        for (idx, (piece, shape)) in slot.pieces.into_iter().zip(shapes).enumerate() {
            let returning = returning.clone();
            tensors = match tensors {
                Ok(mut tensors) => {
                    let back: Return = Arc::new(move |piece| returning.put(idx, piece));
                    piece.lend(shape, spec.fields()[idx].dtype(), back).map(|tensor| {
                        tensors.push(tensor);
                        tensors
                    })
                }
                Err(error) => {
                    returning.put(idx, piece);
                    Err(error)
                }
            };
        }
        Ok(Batch { tensors: tensors?, spec: spec.clone(), epoch, number })
    }

    /// The same batch on another device; itself if it is there.
    pub(super) fn delivered_to(mut self, device: &Device) -> Result<Batch> {
        for tensor in &mut self.tensors {
            *tensor = with_owner(Owner::Data, || tensor.to_device(device))?;
        }
        Ok(self)
    }

    /// The tensors, one for each field: `let [x, y] = batch.tensors()?`.
    ///
    /// # Errors
    /// There are more or fewer fields.
    pub fn tensors<const N: usize>(&self) -> Result<[Tensor; N]> {
        <[Tensor; N]>::try_from(self.tensors.clone()).map_err(|tensors| {
            let n = tensors.len();
            Error::argument("batch", format!("{N} tensors were asked for, and there are {n}: {}", self.spec))
        })
    }

    /// The tensors in the arrangement that the dataset's fields have, such as `((image, text), label)`.
    pub fn nested(&self) -> Nested<Tensor> {
        self.spec.structure().map(|&position| self.tensors[position].clone())
    }

    /// The tensor of a field.
    ///
    /// # Errors
    /// There is no such field.
    pub fn get(&self, key: impl Key) -> Result<&Tensor> {
        Ok(&self.tensors[self.spec.find(key)?])
    }

    /// The fields.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The epoch that it belongs to.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Its number in the epoch.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl<K: Key> Index<K> for Batch {
    type Output = Tensor;

    /// # Panics
    /// There is no such field; [`Batch::get`] returns an error instead.
    fn index(&self, key: K) -> &Tensor {
        match self.get(key) {
            Ok(tensor) => tensor,
            Err(error) => panic!("{error}"),
        }
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({} of epoch {}: {})", self.number, self.epoch, self.spec)
    }
}

/// Collects the pieces of a slot as their tensors are dropped.
struct Returning {
    shared: Arc<Shared>,
    pieces: Mutex<Vec<Option<Piece>>>,
    is_extra: bool,
}

impl Returning {
    fn put(&self, idx: usize, piece: Piece) {
        let mut pieces = lock(&self.pieces);
        pieces[idx] = Some(piece);
        if pieces.iter().all(Option::is_some) {
            let pieces = std::mem::take(&mut *pieces).into_iter().flatten().collect();
            self.shared.take_back(Slot { pieces, is_extra: self.is_extra });
        }
    }
}
