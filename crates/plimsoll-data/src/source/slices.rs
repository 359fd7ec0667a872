//! Elements that are slices of tensors along their first axis. They are read where they lie; nothing is copied but
//! what goes into a batch.

use std::ops::Range;

use plimsoll_tensor::{Error, HostBytes, Owner, Result, Shape, Tensor, with_owner};

use crate::example::{Example, ExampleMut};
use crate::node::{Count, Item, Node, Plan, Work};
use crate::spec::{Field, Shapes, Spec};

/// Tensors and the names of the fields that their slices become: a tensor, a tuple of tensors (named by position), or
/// a list of names and tensors.
pub trait IntoSlices {
    /// The names and tensors.
    fn into_slices(self) -> Vec<(String, Tensor)>;
}

impl IntoSlices for Tensor {
    fn into_slices(self) -> Vec<(String, Tensor)> {
        vec![("0".to_owned(), self)]
    }
}

impl IntoSlices for &Tensor {
    fn into_slices(self) -> Vec<(String, Tensor)> {
        self.clone().into_slices()
    }
}

impl IntoSlices for (Tensor, Tensor) {
    fn into_slices(self) -> Vec<(String, Tensor)> {
        vec![("0".to_owned(), self.0), ("1".to_owned(), self.1)]
    }
}

impl IntoSlices for (Tensor, Tensor, Tensor) {
    fn into_slices(self) -> Vec<(String, Tensor)> {
        vec![("0".to_owned(), self.0), ("1".to_owned(), self.1), ("2".to_owned(), self.2)]
    }
}

impl<S: Into<String>, const N: usize> IntoSlices for [(S, Tensor); N] {
    fn into_slices(self) -> Vec<(String, Tensor)> {
        self.into_iter().map(|(name, tensor)| (name.into(), tensor)).collect()
    }
}

impl<S: Into<String>> IntoSlices for Vec<(S, Tensor)> {
    fn into_slices(self) -> Vec<(String, Tensor)> {
        self.into_iter().map(|(name, tensor)| (name.into(), tensor)).collect()
    }
}

/// The slices of tensors.
pub(crate) struct Slices {
    spec: Spec,
    n: u64,
    /// The values of each tensor; none on a ghost.
    bytes: Vec<Option<HostBytes>>,
    /// Held so that a ghost's blocks live as long as those of the device that it stands for.
    _tensors: Vec<Tensor>,
}

impl Slices {
    pub fn new(slices: Vec<(String, Tensor)>) -> Result<Slices> {
        let op = "from_tensor_slices";
        let mut n = None;
        let mut fields = Vec::new();
        for (name, tensor) in &slices {
            let Some((&len, dims)) = tensor.shape().split_first() else {
                return Err(Error::shape(
                    op,
                    format!("field {name:?} is a single number, which has no slices"),
                ));
            };
            match n {
                Some((first, n)) if n != len => {
                    return Err(Error::shape(
                        op,
                        format!(
                            "field {first:?} has {n} slices and {name:?} has {len}; their first extents must agree"
                        ),
                    ));
                }
                _ => n = Some((name, len)),
            }
            fields.push(Field::new(name, tensor.dtype(), Shape::new(dims)?)?);
        }
        let n = n.map_or(0, |(_, n)| n as u64);
        // Batches are made on the host, whichever device wants them.
        let on_host = |(name, tensor): &(String, Tensor)| {
            let host = tensor.device().host();
            Ok((name.clone(), with_owner(Owner::Data, || tensor.to_device(&host))?))
        };
        let slices: Vec<(String, Tensor)> = slices.iter().map(on_host).collect::<Result<_>>()?;
        let read = |(name, tensor): &(String, Tensor)| match tensor.is_ghost() {
            true => Ok(None),
            false => match tensor.host_bytes() {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) => Err(Error::within(format!("{op}: field {name:?}"), error)),
            },
        };
        let bytes = slices.iter().map(read).collect::<Result<_>>()?;
        let claim = |(_, tensor): (String, Tensor)| match tensor.owner() {
            Owner::Temporary => tensor.owned_by(Owner::Data),
            _ => tensor,
        };
        Ok(Slices { spec: Spec::new(fields)?, n, bytes, _tensors: slices.into_iter().map(claim).collect() })
    }
}

/// Slice `idx` of a tensor's bytes.
fn slice(bytes: &Option<HostBytes>, idx: usize, n_bytes: usize) -> &[u8] {
    match bytes {
        Some(bytes) => &bytes[idx * n_bytes..(idx + 1) * n_bytes],
        None => unreachable!("`reserve` refuses ghosts where values are read"),
    }
}

impl Node for Slices {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn count(&self) -> Count {
        Count::Exactly(self.n)
    }

    fn makes_elements(&self) -> bool {
        true
    }

    fn is_indexed(&self) -> bool {
        true
    }

    fn at(&self, pass: u64, idx: u64) -> Item {
        Item::At { pass, idx }
    }

    fn outline(&self, _item: &Item) -> Shapes {
        self.spec.shapes()
    }

    fn has_views(&self) -> bool {
        true
    }

    fn view<'a>(&'a self, item: &'a Item) -> Example<'a> {
        let (_, idx) = item.position();
        let parts = self.bytes.iter().zip(self.spec.fields());
        let part = |(bytes, field): (&'a Option<HostBytes>, &'a Field)| {
            (slice(bytes, idx as usize, field.n_bytes()), *field.shape())
        };
        Example::new(&self.spec, parts.map(part), item.origin())
    }

    fn write(
        &self,
        item: &Item,
        _rows: Range<usize>,
        to: &mut ExampleMut<'_>,
        _work: &mut Work<'_>,
    ) -> Result<()> {
        let (_, idx) = item.position();
        for (field, bytes) in self.bytes.iter().enumerate() {
            let (row, _) = to.part_mut(field);
            row.copy_from_slice(slice(bytes, idx as usize, row.len()));
        }
        Ok(())
    }

    fn scratch(&self) -> usize {
        0
    }

    fn reserve(&self, _n_items: usize, plan: &mut Plan<'_>) -> Result<()> {
        let is_ghost = self.bytes.iter().any(Option::is_none);
        if is_ghost && !plan.device.is_ghost() {
            return Err(Error::device(
                "dataset",
                format!(
                    "its tensors are ghosts, which have no values; iterate it on a ghost, not on {}",
                    plan.device
                ),
            ));
        }
        Ok(())
    }
}
