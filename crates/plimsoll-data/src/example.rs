//! One element of a dataset as plain memory: what the functions given to `map` and `filter` see.
//!
//! An [`Example`] is read, an [`ExampleMut`] is written; both are views of memory that the pipeline owns, so a function
//! that only reads and writes them allocates nothing. They are not tensors: they are used on worker threads, and
//! tensor ops are issued by one thread.

use half::{bf16, f16};
use plimsoll_cpu::random::Draw;
use plimsoll_tensor::{Element, Error, Result, Shape, elements, elements_mut};
use smallvec::SmallVec;

use crate::spec::{Key, Shapes, Spec};

/// Which element of the source an example came from, and in which pass over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub pass: u64,
    pub idx: u64,
}

/// An element to be read.
#[derive(Debug)]
pub struct Example<'a> {
    spec: &'a Spec,
    parts: SmallVec<[(&'a [u8], Shape); 4]>,
    origin: Origin,
}

impl<'a> Example<'a> {
    /// An example over the bytes of each field; there may be more of them than the shape needs.
    pub(crate) fn new(
        spec: &'a Spec,
        parts: impl IntoIterator<Item = (&'a [u8], Shape)>,
        origin: Origin,
    ) -> Example<'a> {
        Example { spec, parts: parts.into_iter().collect(), origin }
    }

    /// The fields.
    pub fn spec(&self) -> &Spec {
        self.spec
    }

    /// The shape of a field.
    ///
    /// # Errors
    /// There is no such field.
    pub fn shape(&self, key: impl Key) -> Result<&Shape> {
        Ok(&self.parts[self.spec.find(key)?].1)
    }

    /// The values of a field in row-major order, as bytes.
    ///
    /// # Errors
    /// There is no such field.
    pub fn bytes(&self, key: impl Key) -> Result<&[u8]> {
        let idx = self.spec.find(key)?;
        let (bytes, shape) = &self.parts[idx];
        Ok(&bytes[..shape.n_elems() * self.spec.fields()[idx].dtype().size()])
    }

    /// The values of a field in row-major order.
    ///
    /// # Errors
    /// There is no such field, or its dtype is another.
    pub fn values<T: Element>(&self, key: impl Key) -> Result<&[T]> {
        check_dtype::<T>(self.spec, key)?;
        elements(self.bytes(key)?).ok_or_else(|| no_values(self.spec, key))
    }

    /// The value of a field that has just one.
    ///
    /// # Errors
    /// There is no such field, its dtype is another, or it has not just one value.
    pub fn value<T: Element>(&self, key: impl Key) -> Result<T> {
        match self.values::<T>(key)? {
            [value] => Ok(*value),
            values => {
                Err(Error::shape("value", format!("field {key:?} has {} values, not one", values.len())))
            }
        }
    }

    /// The number of the pass over the source: the epoch, unless `repeat` makes several passes in one.
    pub fn pass(&self) -> u64 {
        self.origin.pass
    }

    /// The position of the element in its source, before any shuffling.
    pub fn index(&self) -> u64 {
        self.origin.idx
    }

    /// Random bits for this element in this pass: the same for every number of workers and every order. `k` tells
    /// several draws of one element apart.
    pub fn random_bits(&self, seed: u64, k: u32) -> u64 {
        let draw = Draw { seed, number: self.origin.pass };
        let [low, high, ..] = draw.block(self.origin.idx << 16 | u64::from(k & 0xFFFF));
        u64::from(high) << 32 | u64::from(low)
    }

    /// A random number in [0, 1) for this element in this pass, as [`Example::random_bits`] gives bits.
    pub fn random_unit(&self, seed: u64, k: u32) -> f64 {
        (self.random_bits(seed, k) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn part(&self, idx: usize) -> (&'a [u8], Shape) {
        self.parts[idx]
    }
}

/// An element to be written: as long as its spec says, at most.
#[derive(Debug)]
pub struct ExampleMut<'a> {
    spec: &'a Spec,
    parts: SmallVec<[(&'a mut [u8], Shape); 4]>,
}

impl<'a> ExampleMut<'a> {
    /// An element over the bytes of each field, at least as many as the shape needs.
    pub(crate) fn new(
        spec: &'a Spec,
        parts: impl IntoIterator<Item = (&'a mut [u8], Shape)>,
    ) -> ExampleMut<'a> {
        ExampleMut { spec, parts: parts.into_iter().collect() }
    }

    /// An element over one run of bytes, each field at a multiple of eight.
    pub(crate) fn aligned(spec: &'a Spec, bytes: &'a mut [u8]) -> ExampleMut<'a> {
        let mut rest = bytes;
        let parts = spec.fields().iter().map(|field| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(field.n_bytes().next_multiple_of(8));
            rest = after;
            (&mut part[..field.n_bytes()], *field.shape())
        });
        ExampleMut { spec, parts: parts.collect() }
    }

    /// The fields.
    pub fn spec(&self) -> &Spec {
        self.spec
    }

    /// The shape of a field as it is set now; at first, the largest.
    ///
    /// # Errors
    /// There is no such field.
    pub fn shape(&self, key: impl Key) -> Result<&Shape> {
        Ok(&self.parts[self.spec.find(key)?].1)
    }

    /// Sets the first extent of a field that varies.
    ///
    /// # Errors
    /// There is no such field, it does not vary, or not that far.
    pub fn set_len(&mut self, key: impl Key, len: usize) -> Result<()> {
        let idx = self.spec.find(key)?;
        let field = &self.spec.fields()[idx];
        let shape = field.shape().with_dim(0, len).ok().filter(|shape| field.admits(shape));
        let Some(shape) = shape else {
            let may = if field.n_varying() > 0 { "up to" } else { "exactly" };
            return Err(Error::shape(
                "set_len",
                format!("field {:?} has {may} {}, and {len} entries were given", field.name(), field.shape()),
            ));
        };
        self.parts[idx].1 = shape;
        Ok(())
    }

    /// The values of a field, to be written in row-major order.
    ///
    /// # Errors
    /// There is no such field, or its dtype is another.
    pub fn values_mut<T: Element>(&mut self, key: impl Key) -> Result<&mut [T]> {
        check_dtype::<T>(self.spec, key)?;
        let idx = self.spec.find(key)?;
        let (bytes, shape) = &mut self.parts[idx];
        let n_bytes = shape.n_elems() * size_of::<T>();
        elements_mut(&mut bytes[..n_bytes]).ok_or_else(|| no_values(self.spec, key))
    }

    /// Writes all values of a field. If it varies, its length becomes that of `values`.
    ///
    /// # Errors
    /// There is no such field, its dtype is another, or it has another number of values.
    pub fn set<T: Element>(&mut self, key: impl Key, values: &[T]) -> Result<()> {
        let idx = self.spec.find(key)?;
        let field = &self.spec.fields()[idx];
        if field.n_varying() > 0 {
            let entry: usize = field.shape()[1..].iter().product();
            self.set_len(idx, values.len().checked_div(entry).unwrap_or(0))?;
        }
        let target = self.values_mut::<T>(idx)?;
        if target.len() != values.len() {
            let (name, n) = (field.name(), target.len());
            return Err(Error::shape(
                "set",
                format!("field {name:?} has {n} values, and {} were given", values.len()),
            ));
        }
        target.copy_from_slice(values);
        Ok(())
    }

    /// Copies a field of another element, which has the same dtype and number of values.
    ///
    /// # Errors
    /// There is no such field, or the two differ.
    pub fn copy(&mut self, key: impl Key, from: &Example<'_>, from_key: impl Key) -> Result<()> {
        let (idx, from_idx) = (self.spec.find(key)?, from.spec.find(from_key)?);
        let (field, from_field) = (&self.spec.fields()[idx], &from.spec.fields()[from_idx]);
        let shape = *from.shape(from_idx)?;
        if field.dtype() != from_field.dtype() || !field.admits(&shape) {
            return Err(Error::shape(
                "copy",
                format!(
                    "field {:?} is {} {}, and {:?} is {} {shape}",
                    field.name(),
                    field.dtype(),
                    field.shape(),
                    from_field.name(),
                    from_field.dtype()
                ),
            ));
        }
        self.write(idx, from.bytes(from_idx)?, shape);
        Ok(())
    }

    /// Writes the bytes of a field and sets its shape; the caller has seen to it that they fit.
    pub(crate) fn write(&mut self, idx: usize, bytes: &[u8], shape: Shape) {
        self.parts[idx].0[..bytes.len()].copy_from_slice(bytes);
        self.parts[idx].1 = shape;
    }

    pub(crate) fn part_mut(&mut self, idx: usize) -> (&mut [u8], &mut Shape) {
        let (bytes, shape) = &mut self.parts[idx];
        (bytes, shape)
    }

    pub(crate) fn shapes(&self) -> Shapes {
        self.parts.iter().map(|(_, shape)| *shape).collect()
    }

    /// Calls `f` with the fields from `first` on as an element of another spec.
    pub(crate) fn with_fields(
        &mut self,
        spec: &Spec,
        first: usize,
        f: impl FnOnce(&mut ExampleMut<'_>) -> Result<()>,
    ) -> Result<()> {
        let parts = &mut self.parts[first..first + spec.fields().len()];
        let mut to = ExampleMut::new(spec, parts.iter_mut().map(|(bytes, shape)| (&mut **bytes, *shape)));
        f(&mut to)?;
        let shapes = to.shapes();
        drop(to);
        parts.iter_mut().zip(shapes).for_each(|((_, old), shape)| *old = shape);
        Ok(())
    }

    /// Entry `k` of every field, as an element of the spec whose elements were stacked.
    pub(crate) fn row_mut<'b>(&'b mut self, spec: &'b Spec, k: usize) -> ExampleMut<'b> {
        let parts = self.parts.iter_mut().zip(spec.fields()).map(|((bytes, _), field)| {
            let n_bytes = field.n_bytes();
            (&mut bytes[k * n_bytes..(k + 1) * n_bytes], *field.shape())
        });
        ExampleMut::new(spec, parts)
    }

    /// The element, written, to be read.
    pub(crate) fn into_example(self, origin: Origin) -> Example<'a> {
        let spec = self.spec;
        Example::new(spec, self.parts.into_iter().map(|(bytes, shape)| (&*bytes, shape)), origin)
    }
}

fn check_dtype<T: Element>(spec: &Spec, key: impl Key) -> Result<()> {
    let field = &spec.fields()[spec.find(key)?];
    if field.dtype() != T::DTYPE {
        let detail = format!("field {:?} is {}, not {}", field.name(), field.dtype(), T::DTYPE);
        return Err(Error::dtype("dataset", detail));
    }
    Ok(())
}

fn no_values(spec: &Spec, key: impl Key) -> Error {
    let dtype = spec.find(key).map_or("known values", |idx| spec.fields()[idx].dtype().name());
    Error::argument("dataset", format!("the bytes of field {key:?} are no {dtype}"))
}

/// A value that can be written as an element: a number, an array or `Vec` of numbers, or a tuple of these, one per
/// field.
pub trait WriteExample {
    /// Writes itself to the fields from `first` on; returns how many those were.
    ///
    /// # Errors
    /// There is no such field, its dtype is another, or it has another number of values.
    fn write_fields(&self, to: &mut ExampleMut<'_>, first: usize) -> Result<usize>;
}

// Written out for each type, because a blanket implementation would leave no room for arrays and tuples.
macro_rules! write_numbers {
    ($($type:ty),*) => {$(
        impl WriteExample for $type {
            fn write_fields(&self, to: &mut ExampleMut<'_>, first: usize) -> Result<usize> {
                to.set(first, &[*self])?;
                Ok(1)
            }
        }

        impl WriteExample for Vec<$type> {
            fn write_fields(&self, to: &mut ExampleMut<'_>, first: usize) -> Result<usize> {
                to.set(first, self)?;
                Ok(1)
            }
        }

        impl<const N: usize> WriteExample for [$type; N] {
            fn write_fields(&self, to: &mut ExampleMut<'_>, first: usize) -> Result<usize> {
                to.set(first, self)?;
                Ok(1)
            }
        }
    )*};
}

write_numbers!(f64, f32, f16, bf16, i64, i32, u8, bool);

macro_rules! write_tuple {
    ($($name:ident $idx:tt),*) => {
        impl<$($name: WriteExample),*> WriteExample for ($($name,)*) {
            fn write_fields(&self, to: &mut ExampleMut<'_>, first: usize) -> Result<usize> {
                let mut n = 0;
                $(n += self.$idx.write_fields(to, first + n)?;)*
                Ok(n)
            }
        }
    };
}

write_tuple!(A 0, B 1);
write_tuple!(A 0, B 1, C 2);
write_tuple!(A 0, B 1, C 2, D 3);
