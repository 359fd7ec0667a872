//! Values in and out: slices, vectors, single numbers, arrays of other crates.

use std::ops::{Deref, Range};
use std::sync::Arc;

use plimsoll_cuda::Posted;
use smallvec::SmallVec;

use crate::base::dtype::{DType, Element};
use crate::base::error::{Error, Result};
use crate::base::shape::IntoShape;
use crate::device::Device;
use crate::device::fault::{self, Log};
use crate::device::storage::Storage;
use crate::eager::context;
use crate::eager::op::Meta;
use crate::eager::tensor::{Nodes, Tensor};

impl Tensor {
    /// A tensor with these values, in row-major order, on the current device.
    ///
    /// # Errors
    /// A shape with another number of elements; memory that is full.
    #[doc(alias("tensor", "array", "as_tensor", "constant", "convert_to_tensor"))]
    #[track_caller]
    pub fn from_slice<T: Element>(values: &[T], shape: impl IntoShape) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let shape = shape.into_shape()?;
        if shape.n_elems() != values.len() {
            return Err(Error::shape(
                "from_slice",
                format!(
                    "{} values do not fill shape {shape}, which has {} elements",
                    values.len(),
                    shape.n_elems()
                ),
            ));
        }
        let mut storage = Storage::for_host_data(&shape, T::DTYPE, "from_slice")?;
        storage.fill_from(values)?;
        Ok(Tensor::over(storage, Meta::fresh(shape, T::DTYPE), Nodes::new()))
    }

    /// A description of a tensor that the current device would hold: shape and dtype, no values and no memory. It is to
    /// [`Function::plan`](crate::Function::plan) and [`Function::prepare`](crate::Function::prepare) what `jax.ShapeDtypeStruct` and
    /// `tf.TensorSpec` are there; ops take it as they take a ghost's tensors.
    ///
    /// ```
    /// use plimsoll_tensor::{DType, Function, Tensor};
    ///
    /// let scores = Function::new(|x: Tensor| x.matmul(&x.transpose(-1, -2)?)?.softmax(-1));
    /// let footprint = scores.plan(Tensor::spec([4096, 64], DType::F32)?)?;
    /// assert!(footprint.peak >= 2 * 4096 * 4096 * 4);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// A shape with too many elements.
    #[doc(alias("TensorSpec", "ShapeDtypeStruct", "meta"))]
    pub fn spec(shape: impl IntoShape, dtype: DType) -> Result<Tensor> {
        let shape = shape.into_shape()?;
        let storage = Storage::spec(&Device::current(), shape.n_elems() * dtype.size(), dtype);
        Ok(Tensor::over(storage, Meta::fresh(shape, dtype), Nodes::new()))
    }

    /// A vector with these values on the current device.
    ///
    /// # Errors
    /// Memory that is full.
    #[doc(alias("tensor", "array"))]
    #[track_caller]
    pub fn from_vec<T: Element>(values: Vec<T>) -> Result<Tensor> {
        Tensor::from_slice(&values, values.len())
    }

    /// A single number on the current device.
    ///
    /// # Errors
    /// Memory that is full.
    #[doc(alias = "scalar")]
    #[track_caller]
    pub fn from<T: Element>(value: T) -> Result<Tensor> {
        Tensor::from_slice(&[value], ())
    }

    /// The values in row-major order.
    ///
    /// # Errors
    /// Another element type than the tensor's; a ghost tensor, which has no values.
    #[doc(alias("tolist", "numpy"))]
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let _line = context::at_callers_line();
        self.check_readable::<T>("to_vec")?;
        let value = self.without_nodes();
        let (storage, meta) = context::replay(|| value.contiguous())?.storage_view();
        storage.copy_out(meta.layout.offset(), meta.n_elems())
    }

    /// The value of a tensor that has just one.
    ///
    /// # Errors
    /// More or fewer elements than one, another element type than the tensor's, a ghost.
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        if self.n_elems() != 1 {
            return Err(Error::shape(
                "item",
                format!("shape {} has {} elements, not one; use `to_vec`", self.shape(), self.n_elems()),
            ));
        }
        Ok(self.to_vec::<T>()?[0])
    }

    /// The values as f64, whatever the dtype.
    ///
    /// # Errors
    /// A ghost tensor, which has no values.
    #[track_caller]
    pub fn to_f64_vec(&self) -> Result<Vec<f64>> {
        let _line = context::at_callers_line();
        crate::ops::kernel::for_all!(self.dtype(), T => {
            Ok(self.to_vec::<T>()?.into_iter().map(Element::to_f64).collect())
        })
    }

    /// A few values that are to be read later: those of this moment, without waiting for what is computed after it. A
    /// ghost has none, and gives numbers that are none.
    ///
    /// # Errors
    /// Memory that is full.
    #[track_caller]
    pub fn to_f64_later(&self) -> Result<PendingValue> {
        let _line = context::at_callers_line();
        let (storage, meta) =
            context::replay(|| self.without_nodes().cast(DType::F64)?.contiguous())?.storage_view();
        if storage.device().is_ghost() {
            return Ok(PendingValue(Arrival::Here(vec![f64::NAN; meta.n_elems()])));
        }
        let first = meta.layout.offset();
        Ok(PendingValue(match storage.post(first * size_of::<f64>(), meta.n_bytes())? {
            Some(posted) => Arrival::Posted(posted, fault::for_later(storage.device())),
            None => Arrival::Here(storage.copy_out(first, meta.n_elems())?),
        }))
    }

    fn check_readable<T: Element>(&self, op: &'static str) -> Result<()> {
        if T::DTYPE != self.dtype() {
            return Err(Error::dtype(
                op,
                format!(
                    "the tensor is {}, not {}; convert with `cast` or ask for its own type",
                    self.dtype(),
                    T::DTYPE
                ),
            ));
        }
        if self.is_ghost() {
            return Err(Error::ghost(op));
        }
        Ok(())
    }
}

/// Values that are on their way to the host; see [`Tensor::to_f64_later`].
#[derive(Debug)]
pub struct PendingValue(Arrival);

#[derive(Debug)]
enum Arrival {
    Here(Vec<f64>),
    /// With what may have gone wrong before.
    Posted(Posted, SmallVec<[Arc<Log>; 1]>),
}

impl PendingValue {
    /// The values, waited for if they are not there yet.
    ///
    /// # Errors
    /// What went wrong on the device meanwhile; a value that a kernel has refused before these were asked for, if the same
    /// thread called the op and nobody was told yet.
    pub fn get(self) -> Result<Vec<f64>> {
        match self.0 {
            Arrival::Here(values) => Ok(values),
            Arrival::Posted(posted, logs) => {
                let bytes = posted.get()?;
                fault::look_into(&logs)?;
                let (values, _) = bytes.as_chunks::<{ size_of::<f64>() }>();
                Ok(values.iter().map(|&value| f64::from_ne_bytes(value)).collect())
            }
        }
    }
}

/// The bytes of a tensor on the host, readable from any thread. They cannot change while this lives.
pub struct HostBytes {
    storage: Arc<Storage>,
    range: Range<usize>,
}

impl Deref for HostBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.storage.bytes()[self.range.clone()]
    }
}

impl Tensor {
    /// The bytes of the elements in row-major order, without a copy.
    ///
    /// # Errors
    /// A view whose elements do not lie one after the other; a tensor on a GPU; a ghost tensor, which has no values.
    pub fn host_bytes(&self) -> Result<HostBytes> {
        if self.is_ghost() {
            return Err(Error::ghost("host_bytes"));
        }
        if !self.device().is_host() {
            return Err(Error::device(
                "host_bytes",
                format!("the tensor is on {}; copy it with `to_device(&Device::cpu())`", self.device()),
            ));
        }
        if !self.is_contiguous() {
            return Err(Error::argument(
                "host_bytes",
                format!(
                    "the elements of this view of shape {} do not lie one after the other; copy it with `contiguous`",
                    self.shape()
                ),
            ));
        }
        let (storage, meta) = self.storage_view();
        let start = if meta.n_elems() == 0 { 0 } else { meta.layout.offset() * meta.dtype.size() };
        Ok(HostBytes { storage, range: start..start + meta.n_bytes() })
    }
}

#[cfg(feature = "ndarray")]
impl Tensor {
    /// A tensor with an array's values on the current device.
    ///
    /// # Errors
    /// More dimensions than a tensor can have; memory that is full.
    #[track_caller]
    pub fn from_ndarray<T: Element, D: ndarray::Dimension>(
        array: &ndarray::ArrayRef<T, D>,
    ) -> Result<Tensor> {
        match array.as_slice() {
            Some(values) => Tensor::from_slice(values, array.shape()),
            None => Tensor::from_slice(&array.iter().copied().collect::<Vec<T>>(), array.shape()),
        }
    }

    /// The values as an array.
    ///
    /// # Errors
    /// Another element type than the tensor's, a ghost.
    #[track_caller]
    pub fn to_ndarray<T: Element>(&self) -> Result<ndarray::ArrayD<T>> {
        let values = self.to_vec::<T>()?;
        ndarray::ArrayD::from_shape_vec(self.shape().dims(), values)
            .map_err(|error| Error::shape("to_ndarray", error.to_string()))
    }
}
