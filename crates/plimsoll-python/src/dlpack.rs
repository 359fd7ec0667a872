//! DLPack on the CPU: tensors lent to other libraries, and memory of theirs as tensors, without a copy.
//!
//! What goes out is read-only, because tensors never change: a versioned capsule says so, and whoever knows only capsules without a
//! version gets a copy, which nobody else looks at. What comes in keeps its owner's object until no tensor looks at it any
//! more; its bytes are in a row of their own (`foreign`), and its owner promises not to write them meanwhile.

use std::ffi::{CStr, c_void};

use plimsoll::{DType, Device, Error, HostBytes, Layout, Shape, Tensor as Array};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::edge::outside_graphs;
use crate::exits;
use crate::tensor::{Tensor, Value};

const CPU: i32 = 1;
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;
const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: [i32; 2],
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// A tensor that is lent: both forms of it, and what they point to.
struct Exported {
    plain: Managed,
    versioned: ManagedVersioned,
    shape: Vec<i64>,
    strides: Vec<i64>,
    bytes: HostBytes,
}

impl Exported {
    /// What is lent, in memory that stays until it is deleted.
    fn new(bytes: HostBytes, shape: &Shape, dtype: DType, flags: u64) -> *mut Exported {
        let shape: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis].max(1);
        }
        let (code, bits) = code_of(dtype);
        let none = || DlTensor {
            data: std::ptr::null_mut(),
            device: [CPU, 0],
            ndim: shape.len() as i32,
            code,
            bits,
            lanes: 1,
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        let context = std::ptr::null_mut();
        let plain = Managed { tensor: none(), context, deleter: Some(delete_plain) };
        let deleter = Some(delete_versioned as unsafe extern "C" fn(*mut ManagedVersioned));
        let versioned = ManagedVersioned { version: [1, 0], context, deleter, flags, tensor: none() };
        let mut exported = Box::new(Exported { plain, versioned, shape, strides, bytes });
        let (data, shape) = (exported.bytes.as_ptr().cast_mut().cast(), exported.shape.as_mut_ptr());
        let strides = exported.strides.as_mut_ptr();
        let exported = Box::into_raw(exported);
        // SAFETY: it was a box a moment ago, and nobody else knows it yet.
        let lent = unsafe { &mut *exported };
        for tensor in [&mut lent.plain.tensor, &mut lent.versioned.tensor] {
            (tensor.data, tensor.shape, tensor.strides) = (data, shape, strides);
        }
        (lent.plain.context, lent.versioned.context) = (exported.cast(), exported.cast());
        exported
    }
}

/// # Safety
/// It is the plain form of something exported, and called once.
unsafe extern "C" fn delete_plain(managed: *mut Managed) {
    // SAFETY: the context is the box that `Exported::new` made, which is deleted once.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Exported>()) });
}

/// # Safety
/// It is the versioned form of something exported, and called once.
unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as for the plain form.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Exported>()) });
}

/// Deletes what a capsule holds, unless somebody has taken it and renamed the capsule.
///
/// # Safety
/// Python calls it with a capsule that `lend` made.
unsafe extern "C" fn end_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule of that name holds what `lend` put there.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            delete_plain(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

fn code_of(dtype: DType) -> (u8, u8) {
    let code = match dtype {
        DType::I32 | DType::I64 => 0,
        DType::U8 => 1,
        DType::BF16 => 4,
        DType::Bool => 6,
        _ => 2,
    };
    (code, 8 * dtype.size() as u8)
}

/// A capsule over a tensor on the CPU: versioned and read-only, or a copy without a version.
#[pyfunction]
fn to_capsule(py: Python<'_>, x: Value, is_versioned: bool, is_copy: bool) -> PyResult<Py<PyAny>> {
    let is_copied = is_copy || !is_versioned;
    let (bytes, shape, dtype) = outside_graphs(py, || {
        let x = x.stop_gradient();
        let tensor = if is_copied { x.copied()? } else { x.contiguous()? };
        Ok((tensor.host_bytes()?, *tensor.shape(), tensor.dtype()))
    })?;
    let exported = Exported::new(bytes, &shape, dtype, if is_copied { IS_COPIED } else { READ_ONLY });
    // SAFETY: the pointer stays valid until its deleter is called, by `end_capsule` or by whoever takes it.
    let capsule = unsafe {
        let (pointer, name): (*mut c_void, &CStr) = match is_versioned {
            true => ((&raw mut (*exported).versioned).cast(), VERSIONED),
            false => ((&raw mut (*exported).plain).cast(), PLAIN),
        };
        Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, name.as_ptr(), Some(end_capsule)))?
    };
    Ok(capsule.unbind())
}

/// Something of another library's that a capsule held; its deleter is called when it is dropped.
enum Taken {
    Plain(*mut Managed),
    Versioned(*mut ManagedVersioned),
}

// SAFETY: DLPack lets the deleter be called on any thread, and the rest is only read.
unsafe impl Send for Taken {}
// SAFETY: as above.
unsafe impl Sync for Taken {}

impl Taken {
    /// Takes what a capsule holds, and renames it so that nobody else does.
    fn from(capsule: &Bound<'_, PyAny>) -> PyResult<Taken> {
        let object = capsule.as_ptr();
        // SAFETY: the capsule is alive; a capsule of that name holds that form, and is renamed as DLPack asks.
        unsafe {
            if ffi::PyCapsule_IsValid(object, VERSIONED.as_ptr()) == 1 {
                let taken = ffi::PyCapsule_GetPointer(object, VERSIONED.as_ptr()).cast::<ManagedVersioned>();
                if (*taken).version[0] != 1 {
                    let detail = format!("DLPack of version {:?}, of which 1.x is known", (*taken).version);
                    return Err(PyBufferError::new_err(detail));
                }
                ffi::PyCapsule_SetName(object, c"used_dltensor_versioned".as_ptr());
                return Ok(Taken::Versioned(taken));
            }
            if ffi::PyCapsule_IsValid(object, PLAIN.as_ptr()) == 1 {
                let taken = ffi::PyCapsule_GetPointer(object, PLAIN.as_ptr()).cast::<Managed>();
                ffi::PyCapsule_SetName(object, c"used_dltensor".as_ptr());
                return Ok(Taken::Plain(taken));
            }
        }
        Err(PyTypeError::new_err("a DLPack capsule that nobody has taken yet was expected"))
    }

    fn tensor(&self) -> &DlTensor {
        // SAFETY: it is ours until it is dropped.
        unsafe {
            match *self {
                Taken::Plain(taken) => &(*taken).tensor,
                Taken::Versioned(taken) => &(*taken).tensor,
            }
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let delete = || {
            // SAFETY: called once, as its owner asked.
            unsafe {
                match *self {
                    Taken::Plain(taken) => (*taken).deleter.into_iter().for_each(|delete| delete(taken)),
                    Taken::Versioned(taken) => (*taken).deleter.into_iter().for_each(|delete| delete(taken)),
                }
            }
        };
        // Deleters of Python libraries want the GIL; when the interpreter has ended there is nothing left to give back.
        exits::try_attached(|_| delete());
    }
}

/// The dtype, shape and strides of a tensor of somebody else's.
fn described(tensor: &DlTensor) -> plimsoll::Result<(DType, Layout)> {
    let refused = |detail: String| Err(Error::argument("from_dlpack", detail));
    if tensor.device[0] != CPU {
        return refused(format!("device {:?}; only memory of the CPU can be taken", tensor.device));
    }
    let of_code = |dtype: &DType| code_of(*dtype) == (tensor.code, tensor.bits) && tensor.lanes == 1;
    let Some(dtype) = DType::ALL.into_iter().find(of_code) else {
        return refused(format!("there is no dtype of code {} and {} bits", tensor.code, tensor.bits));
    };
    let n = usize::try_from(tensor.ndim).unwrap_or(0);
    // SAFETY: a tensor of n dimensions has so many extents, and so many strides where it has strides.
    let list = |pointer: *const i64| unsafe { (0..n).map(|axis| *pointer.add(axis)).collect::<Vec<i64>>() };
    let shape: Vec<usize> = if n == 0 {
        Vec::new()
    } else {
        list(tensor.shape).into_iter().map(|extent| extent as usize).collect()
    };
    let shape = Shape::new(&shape)?;
    if n == 0 || tensor.strides.is_null() {
        return Ok((dtype, Layout::contiguous(shape)));
    }
    let strides: Vec<isize> = list(tensor.strides).into_iter().map(|stride| stride as isize).collect();
    if strides.iter().any(|&stride| stride < 0) {
        return refused(format!("strides {strides:?} run backwards; make a copy"));
    }
    Ok((dtype, Layout::new(shape, &strides, 0)?))
}

/// A tensor over what a capsule holds. Its owner must not write it while the tensor is there.
#[pyfunction]
fn from_capsule(py: Python<'_>, capsule: Bound<'_, PyAny>) -> PyResult<Tensor> {
    let taken = Taken::from(&capsule)?;
    outside_graphs(py, move || {
        let (dtype, layout) = described(taken.tensor())?;
        if layout.n_elems() == 0 {
            return Array::full_of(*layout.shape(), 0.0, dtype);
        }
        let last = |(&extent, &stride): (&usize, &isize)| (extent - 1).checked_mul(stride.unsigned_abs());
        let mut reach = layout.shape().iter().zip(layout.strides()).map(last);
        let n_elems = reach.try_fold(1_usize, |sum, one| sum.checked_add(one?));
        let n_bytes = n_elems.and_then(|n| n.checked_mul(dtype.size()));
        let n_bytes =
            n_bytes.ok_or_else(|| Error::argument("from_dlpack", "strides beyond all addresses"))?;
        let ptr = taken.tensor().data.cast::<u8>().wrapping_add(taken.tensor().byte_offset as usize);
        if dtype == DType::Bool {
            // Truth values are looked at: a byte that is none would be undefined.
            if !layout.is_contiguous() {
                return Err(Error::argument("from_dlpack", "a strided view of truth values; make a copy"));
            }
            // SAFETY: its owner says that so many bytes lie there.
            let bytes = unsafe { std::slice::from_raw_parts(ptr, n_bytes) };
            return Array::from_bytes(*layout.shape(), dtype, |to| {
                to.copy_from_slice(bytes);
                Ok(())
            });
        }
        // SAFETY: the owner of the capsule says that these bytes are there until the deleter is called, and keeps them as they are.
        unsafe { Array::from_foreign(&Device::cpu(), (ptr, n_bytes), layout, dtype, taken) }
    })
    .map(Tensor)
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(to_capsule, module)?)?;
    module.add_function(wrap_pyfunction!(from_capsule, module)?)
}
