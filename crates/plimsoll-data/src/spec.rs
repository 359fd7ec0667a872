//! What the elements of a dataset look like: fields with a name, a dtype and a shape.
//!
//! A spec is known before the first element is read. It bounds the bytes of an element, so the pipeline can take its
//! whole allowance when iteration begins, and a ghost can iterate without reading anything. Extents that are not known
//! exactly are therefore known by their maximum; what has no maximum has no place here.
//!
//! The pipeline knows fields, one after the other. How they belong together, such as two inputs and a label, is a
//! structure beside them that only whoever takes the batch looks at.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use plimsoll_tensor::{DType, Error, IntoShape, Nested, Result, Shape};
use smallvec::SmallVec;

/// One of the arrays that an element consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    name: String,
    dtype: DType,
    shape: Shape,
    n_varying: usize,
    n_bytes: usize,
}

impl Field {
    /// A field with that name, dtype and shape.
    ///
    /// # Errors
    /// A shape with too many dimensions or elements.
    pub fn new(name: impl Into<String>, dtype: DType, shape: impl IntoShape) -> Result<Field> {
        let shape = shape.into_shape()?;
        Ok(Field { name: name.into(), dtype, shape, n_varying: 0, n_bytes: shape.n_elems() * dtype.size() })
    }

    /// This field with a first extent that may differ from element to element, up to what the shape says.
    ///
    /// # Errors
    /// A single number, which has no extent.
    pub fn varying(mut self) -> Result<Field> {
        if self.shape.rank() == 0 {
            return Err(Error::shape(
                "field",
                format!("{:?} is a single number, which has no extent", self.name),
            ));
        }
        self.n_varying = 1;
        Ok(self)
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of the values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The extents, and the largest ones where they vary.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// How many of the first extents may be smaller than the shape says.
    pub fn n_varying(&self) -> usize {
        self.n_varying
    }

    /// The most bytes that the field can take: those of the shape, or fewer if not all extents are at their greatest in
    /// one and the same element.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// This field with `n` of itself one after the other; the first `n_varying` of the new extents may be smaller.
    pub(crate) fn stacked(&self, n: usize, n_varying: usize) -> Result<Field> {
        let dims: SmallVec<[usize; 8]> = [n].into_iter().chain(self.shape.iter().copied()).collect();
        let shape = Shape::new(&dims)?;
        Ok(Field { name: self.name.clone(), shape, n_varying, n_bytes: n * self.n_bytes, ..*self })
    }

    /// This field with no value that takes more than `n_bytes`.
    pub(crate) fn within(self, n_bytes: usize) -> Field {
        Field { n_bytes, ..self }
    }

    /// Whether a value of that shape is one of this field's.
    pub(crate) fn admits(&self, shape: &Shape) -> bool {
        shape.rank() == self.shape.rank()
            && shape
                .iter()
                .zip(self.shape.iter())
                .enumerate()
                .all(|(axis, (&dim, &most))| if axis < self.n_varying { dim <= most } else { dim == most })
    }
}

/// The fields of an element, in order, and how they belong together. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec(Arc<[Field]>, Arc<Nested<usize>>);

impl Spec {
    /// A spec of these fields: one by itself, several as a tuple.
    ///
    /// # Errors
    /// No field at all, or two of the same name.
    pub fn new(fields: impl IntoIterator<Item = Field>) -> Result<Spec> {
        let fields: Arc<[Field]> = fields.into_iter().collect();
        if fields.is_empty() {
            return Err(Error::argument("dataset", "an element has at least one field"));
        }
        let mut names = HashSet::with_capacity(fields.len());
        if let Some(twice) = fields.iter().find(|field| !names.insert(field.name.as_str())) {
            return Err(Error::argument("dataset", format!("two fields are called {:?}", twice.name)));
        }
        let structure = match fields.len() {
            1 => Nested::One(0),
            n => Nested::Tuple((0..n).map(Nested::One).collect()),
        };
        Ok(Spec(fields, Arc::new(structure)))
    }

    /// A spec of nested fields, such as `((image, text), label)`.
    ///
    /// # Errors
    /// No field at all, or two of the same name.
    pub fn nested(fields: Nested<Field>) -> Result<Spec> {
        let mut n = 0;
        let structure = fields.map(|_| {
            n += 1;
            n - 1
        });
        Ok(Spec(Spec::new(fields.into_leaves())?.0, Arc::new(structure)))
    }

    /// How the fields belong together: their positions, in the arrangement in which batches give their tensors.
    pub fn structure(&self) -> &Nested<usize> {
        &self.1
    }

    /// These fields in another arrangement of their positions.
    pub(crate) fn arranged(&self, structure: Nested<usize>) -> Spec {
        Spec(self.0.clone(), Arc::new(structure))
    }

    /// Other fields, of which each stands for the one of its position.
    pub(crate) fn with_fields(&self, fields: Vec<Field>) -> Result<Spec> {
        Ok(Spec(Spec::new(fields)?.0, self.1.clone()))
    }

    /// The fields.
    pub fn fields(&self) -> &[Field] {
        &self.0
    }

    /// The most bytes that an element can take.
    pub fn n_bytes(&self) -> usize {
        self.0.iter().map(Field::n_bytes).sum()
    }

    /// Which field a key means.
    ///
    /// # Errors
    /// There is no such field; the error lists those that are there.
    pub fn find(&self, key: impl Key) -> Result<usize> {
        key.find(self).ok_or_else(|| {
            let names: Vec<&str> = self.0.iter().map(Field::name).collect();
            Error::argument("dataset", format!("there is no field {key:?}; the fields are {names:?}"))
        })
    }

    /// The bytes of an element whose fields each begin at a multiple of eight.
    pub(crate) fn aligned_bytes(&self) -> usize {
        self.0.iter().map(|field| field.n_bytes().next_multiple_of(8)).sum()
    }

    pub(crate) fn shapes(&self) -> Shapes {
        self.0.iter().map(|field| field.shape).collect()
    }
}

impl From<Field> for Nested<Field> {
    fn from(field: Field) -> Nested<Field> {
        Nested::One(field)
    }
}

/// The shapes of an element's fields.
pub(crate) type Shapes = SmallVec<[Shape; 4]>;

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, field) in self.0.iter().enumerate() {
            let comma = if idx > 0 { ", " } else { "" };
            let most = if field.n_varying > 0 { "up to " } else { "" };
            write!(f, "{comma}{}: {} {most}{}", field.name, field.dtype, field.shape)?;
        }
        Ok(())
    }
}

/// What names a field: its position or its name.
pub trait Key: fmt::Debug + Copy {
    /// The field's position.
    fn find(&self, spec: &Spec) -> Option<usize>;
}

impl Key for usize {
    fn find(&self, spec: &Spec) -> Option<usize> {
        (*self < spec.0.len()).then_some(*self)
    }
}

impl Key for &str {
    fn find(&self, spec: &Spec) -> Option<usize> {
        spec.0.iter().position(|field| field.name == *self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_position_and_name_and_counted_in_bytes() {
        let x = Field::new("x", DType::F32, [3, 2]).unwrap();
        let y = Field::new("y", DType::U8, ()).unwrap();
        let spec = Spec::new([x.clone(), y]).unwrap();
        assert_eq!((spec.find(1).unwrap(), spec.find("x").unwrap(), spec.n_bytes()), (1, 0, 25));
        assert_eq!(spec.to_string(), "x: float32 [3, 2], y: uint8 []");
        let error = spec.find("label").unwrap_err().to_string();
        assert!(error.contains("\"label\"") && error.contains("[\"x\", \"y\"]"), "{error}");
        assert!(Spec::new([x.clone(), x.clone()]).is_err() && Spec::new([]).is_err());
        assert!(Field::new("n", DType::I64, ()).unwrap().varying().is_err());

        let ragged = x.varying().unwrap();
        assert!(
            ragged.admits(&Shape::new(&[1, 2]).unwrap()) && !ragged.admits(&Shape::new(&[1, 1]).unwrap())
        );
        assert!(!ragged.admits(&Shape::new(&[4, 2]).unwrap()) && !ragged.admits(&Shape::new(&[2]).unwrap()));
    }
}
