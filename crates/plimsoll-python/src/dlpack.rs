//! DLPack: tensors lent to other libraries, and memory of theirs as tensors, without a copy, on the CPU and on GPUs.
//!
//! What goes out is read-only, because tensors never change: a versioned capsule says so, and whoever knows only capsules without a
//! version gets a copy, which nobody else looks at. What comes in keeps its owner's object until no tensor looks at it any
//! more; its bytes are in a row of their own (`foreign`), and its owner promises not to write them meanwhile.
//!
//! On a GPU both libraries work on streams of their own. The one that takes names its stream, and the one that gives makes that wait for its
//! work; what is given back is not used for something else before the other's work is done (`Export`, and the end of foreign memory).

use std::ffi::{CStr, c_void};

use plimsoll::{DType, Device, Error, Export, Layout, Reader, Shape, Tensor as Array};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::device::{gpu, gpu_number};
use crate::edge::outside_graphs;
use crate::exits;
use crate::tensor::{Tensor, Value};

const CPU: i32 = 1;
const CUDA: i32 = 2;
/// Memory of the CPU that is pinned for a GPU.
const PINNED: i32 = 3;
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
    export: Export,
}

impl Exported {
    /// What is lent, in memory that stays until it is deleted.
    fn new(export: Export, shape: &Shape, dtype: DType, flags: u64) -> *mut Exported {
        let shape: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis].max(1);
        }
        let ((code, bits), device) = (code_of(dtype), device_number(export.device()));
        let none = || DlTensor {
            data: std::ptr::null_mut(),
            device,
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
        let mut exported = Box::new(Exported { plain, versioned, shape, strides, export });
        let (data, shape) = (exported.export.as_ptr().cast_mut().cast(), exported.shape.as_mut_ptr());
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

/// A device as DLPack knows it: its kind and its number.
fn device_number(device: &Device) -> [i32; 2] {
    match device.is_host() {
        true => [CPU, 0],
        false => [CUDA, gpu_number(device).unwrap_or(0) as i32],
    }
}

/// The device of a tensor as DLPack knows it.
#[pyfunction]
fn dlpack_device(x: Value) -> (i32, i32) {
    let [kind, number] = device_number(&x.device());
    (kind, number)
}

/// The stream on which ops run on that GPU, as other libraries know it.
#[pyfunction]
fn compute_stream(py: Python<'_>, number: usize) -> PyResult<Option<usize>> {
    outside_graphs(py, || Ok(gpu(number)?.compute_stream()))
}

/// Who reads, by the number that DLPack has for his stream.
fn reader(stream: Option<i64>) -> PyResult<Reader> {
    match stream {
        None | Some(1) => Ok(Reader::DefaultStream),
        Some(-1) => Ok(Reader::Unordered),
        Some(handle) if handle > 1 => Ok(Reader::Stream(handle as usize)),
        Some(other) => Err(PyValueError::new_err(format!(
            "there is no CUDA stream {other} in DLPack: 1 is the default stream, 2 that of each thread, a greater number is the \
             address of a stream, and -1 asks for no order"
        ))),
    }
}

/// A capsule over a tensor: versioned and read-only, or a copy. `copy` says whether it has to be a copy or must not be one, and
/// `to_cpu` that it is to lie there.
#[pyfunction]
fn to_capsule(
    py: Python<'_>,
    x: Value,
    is_versioned: bool,
    copy: Option<bool>,
    stream: Option<i64>,
    to_cpu: bool,
) -> PyResult<Py<PyAny>> {
    let moves = to_cpu && !x.device().is_host();
    let must_copy = if moves {
        Some("it is on another device")
    } else if !x.is_contiguous() {
        Some("the elements of this view do not lie one after the other")
    } else if !is_versioned {
        Some("it is read-only, which a capsule without a version cannot say")
    } else {
        None
    };
    if let (Some(why), Some(false)) = (must_copy, copy) {
        return Err(PyBufferError::new_err(format!(
            "memory of a tensor cannot be lent without a copy: {why}"
        )));
    }
    let is_copied = must_copy.is_some() || copy == Some(true);
    let reader = reader(stream.filter(|_| !moves && !x.device().is_host()))?;
    let (export, shape, dtype) = outside_graphs(py, || {
        let x = x.stop_gradient();
        let tensor = match (moves, is_copied) {
            (true, _) => x.to_device(&Device::cpu())?,
            (false, true) => x.copied()?,
            (false, false) => x,
        };
        // SAFETY: whoever asks for the capsule names a stream of his that is there, as DLPack wants it.
        Ok((unsafe { tensor.export(reader) }?, *tensor.shape(), tensor.dtype()))
    })?;
    let exported = Exported::new(export, &shape, dtype, if is_copied { IS_COPIED } else { READ_ONLY });
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

/// The device on which memory of somebody else's lies.
fn device_of_kind([kind, number]: [i32; 2]) -> plimsoll::Result<Device> {
    match (kind, usize::try_from(number)) {
        (CPU | PINNED, _) => Ok(Device::cpu()),
        (CUDA, Ok(number)) => gpu(number),
        _ => {
            let detail = format!(
                "device {kind}:{number} of DLPack; memory of the CPU and of CUDA's GPUs can be taken"
            );
            Err(Error::argument("from_dlpack", detail))
        }
    }
}

/// Elements of somebody else's: where they lie, and which bytes they span.
struct Elements {
    start: *const u8,
    n_bytes: usize,
    layout: Layout,
    dtype: DType,
}

// SAFETY: an address, which is only read through what keeps the bytes.
unsafe impl Send for Elements {}

impl Elements {
    fn of(tensor: &DlTensor) -> plimsoll::Result<Elements> {
        let refused = |detail: String| Err(Error::argument("from_dlpack", detail));
        let of_code = |dtype: &DType| code_of(*dtype) == (tensor.code, tensor.bits) && tensor.lanes == 1;
        let Some(dtype) = DType::ALL.into_iter().find(of_code) else {
            return refused(format!("there is no dtype of code {} and {} bits", tensor.code, tensor.bits));
        };
        let n = usize::try_from(tensor.ndim).unwrap_or(0);
        // SAFETY: a tensor of n dimensions has so many extents, and so many strides where it has strides.
        let list =
            |pointer: *const i64| unsafe { (0..n).map(|axis| *pointer.add(axis)).collect::<Vec<i64>>() };
        let dims = if n == 0 { Vec::new() } else { list(tensor.shape) };
        let dims: Vec<usize> = dims.into_iter().map(|extent| extent as usize).collect();
        let shape = Shape::new(&dims)?;
        let first = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize).cast_const();
        let has_strides = n > 0 && !tensor.strides.is_null() && shape.n_elems() > 0;
        let strides = if has_strides { list(tensor.strides) } else { Vec::new() };
        let (mut before, mut after) = (0_i128, shape.n_elems().saturating_sub(1) as i128);
        if has_strides {
            let reach = |(&extent, &stride): (&usize, &i64)| (extent as i128 - 1) * i128::from(stride);
            let reaches: Vec<i128> = dims.iter().zip(&strides).map(reach).collect();
            before = reaches.iter().map(|&reach| (-reach).max(0)).sum();
            after = reaches.iter().map(|&reach| reach.max(0)).sum();
        }
        let n_elems = if shape.n_elems() == 0 { 0 } else { before + after + 1 };
        let n_bytes = isize::try_from(n_elems * dtype.size() as i128)
            .map_err(|_| Error::argument("from_dlpack", "strides beyond all addresses"))?;
        // Strides may run backwards: the span begins where the last of them ends.
        let start = first.wrapping_sub(before as usize * dtype.size());
        let layout = match has_strides {
            true => {
                let strides: Vec<isize> = strides.into_iter().map(|stride| stride as isize).collect();
                Layout::new(shape, &strides, before as usize)?
            }
            false => Layout::contiguous(shape),
        };
        Ok(Elements { start, n_bytes: n_bytes as usize, layout, dtype })
    }
}

/// A tensor over what a capsule holds. Its owner must not write it while the tensor is there. Unless its owner has done so, the ops of a
/// GPU are made to wait for the driver's default stream.
#[pyfunction]
fn from_capsule(py: Python<'_>, capsule: Bound<'_, PyAny>, is_ordered: bool) -> PyResult<Tensor> {
    let taken = Taken::from(&capsule)?;
    outside_graphs(py, move || {
        let device = device_of_kind(taken.tensor().device)?;
        let Elements { start, n_bytes, layout, dtype } = Elements::of(taken.tensor())?;
        if n_bytes == 0 {
            let _there = device.enter();
            return Array::full_of(*layout.shape(), 0.0, dtype);
        }
        if !is_ordered {
            device.follow_default_stream()?;
        }
        // Truth values are looked at: a byte that is none would be undefined.
        let seen_as = if dtype == DType::Bool { DType::U8 } else { dtype };
        // SAFETY: the owner of the capsule says that these bytes are there until the deleter is called, and keeps them as they are.
        let tensor = unsafe { Array::from_foreign(&device, (start, n_bytes), layout, seen_as, taken) }?;
        if dtype == DType::Bool { tensor.ne(0) } else { Ok(tensor) }
    })
    .map(Tensor)
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(dlpack_device, module)?)?;
    module.add_function(wrap_pyfunction!(compute_stream, module)?)?;
    module.add_function(wrap_pyfunction!(to_capsule, module)?)?;
    module.add_function(wrap_pyfunction!(from_capsule, module)?)
}
