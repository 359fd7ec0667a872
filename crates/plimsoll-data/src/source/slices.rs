//! Elements that are slices of tensors along their first axis. They are read where they lie; nothing is copied but
//! what goes into a batch.

use std::ops::Range;

use plimsoll_tensor::{Error, HostBytes, Nested, Owner, Result, Shape, Tensor, with_owner};

use crate::example::{Example, ExampleMut};
use crate::node::{Count, Item, Node, Plan, Work};
use crate::spec::{Field, Shapes, Spec};

/// Tensors whose slices become fields: a tensor, a tuple, a list of names and tensors, and these inside each other, such as
/// `((image, text), label)` or `([("image", image), ("text", text)], label)`. A field has the name that was given, or its
/// place; where that is not enough to tell two apart, with those around it.
pub trait IntoSlices {
    /// The tensors in their arrangement.
    fn into_slices(self) -> Nested<Tensor>;
}

impl IntoSlices for Nested<Tensor> {
    fn into_slices(self) -> Nested<Tensor> {
        self
    }
}

impl IntoSlices for Tensor {
    fn into_slices(self) -> Nested<Tensor> {
        Nested::One(self)
    }
}

impl IntoSlices for &Tensor {
    fn into_slices(self) -> Nested<Tensor> {
        Nested::One(self.clone())
    }
}

macro_rules! tuples {
    ($($name:ident),*) => {
        impl<$($name: IntoSlices),*> IntoSlices for ($($name,)*) {
            #[expect(non_snake_case, reason = "the parts are called as their types")]
            fn into_slices(self) -> Nested<Tensor> {
                let ($($name,)*) = self;
                Nested::Tuple(vec![$($name.into_slices()),*])
            }
        }
    };
}

tuples!(A, B);
tuples!(A, B, C);
tuples!(A, B, C, D);

impl<S: Into<String>, V: IntoSlices, const N: usize> IntoSlices for [(S, V); N] {
    fn into_slices(self) -> Nested<Tensor> {
        Nested::named(self.map(|(name, value)| (name, value.into_slices())))
    }
}

impl<S: Into<String>, V: IntoSlices> IntoSlices for Vec<(S, V)> {
    fn into_slices(self) -> Nested<Tensor> {
        Nested::named(self.into_iter().map(|(name, value)| (name, value.into_slices())))
    }
}

/// The name of each field: the last part of its path where that is enough, else the path.
fn field_names(tensors: &Nested<Tensor>) -> Vec<String> {
    let paths = tensors.paths();
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    let is_alone = |name: &str| paths.iter().filter(|path| last(path) == name).count() == 1;
    let is_place = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let name = |path: &String| match last(path) {
        name if path.is_empty() => format!("0{name}"),
        name if is_alone(&name) && !is_place(&name) => name,
        _ => path.clone(),
    };
    paths.iter().map(name).collect()
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
    pub fn new(tensors: Nested<Tensor>) -> Result<Slices> {
        let op = "from_tensor_slices";
        let mut position = 0..;
        let structure = match tensors.map(|_| position.next().unwrap_or(usize::MAX)) {
            // A single tensor with a name is a field of that name, and no more.
            Nested::Named(mut fields) if fields.len() == 1 => fields.swap_remove(0).1,
            several => several,
        };
        let slices: Vec<(String, Tensor)> =
            field_names(&tensors).into_iter().zip(tensors.into_leaves()).collect();
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
        let spec = Spec::new(fields)?.arranged(structure);
        Ok(Slices { spec, n, bytes, _tensors: slices.into_iter().map(claim).collect() })
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
