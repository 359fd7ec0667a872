//! cuDNN's descriptors: objects with attributes that are set one by one and then finished.

use std::ffi::{CStr, c_char, c_void};

use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptor_t as Raw, cudnnBackendDescriptorType_t as Kind, cudnnDataType_t, cudnnStatus_t,
};

use crate::error::{Error, Result};

/// A descriptor, destroyed on drop.
pub(super) struct Descriptor(pub Raw);

impl Descriptor {
    /// An empty descriptor, to be filled by setting attributes or by the library.
    pub fn new(kind: Kind) -> Result<Descriptor> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the library is there; the call writes one handle.
        let status = unsafe { sys::cudnnBackendCreateDescriptor(kind, &raw mut raw) };
        check(status, "cudnnBackendCreateDescriptor")?;
        Ok(Descriptor(raw))
    }

    /// With an attribute of one or more values.
    pub fn with<T: Value>(self, name: Name, values: &[T]) -> Result<Descriptor> {
        let n_values = values.len() as i64;
        // SAFETY: the descriptor is alive; the values are read during the call and are of the type that is named.
        let status =
            unsafe { sys::cudnnBackendSetAttribute(self.0, name, T::TYPE, n_values, values.as_ptr().cast()) };
        check(status, &format!("setting {name:?}"))?;
        Ok(self)
    }

    /// With an attribute that is a data type.
    pub fn with_data_type(self, name: Name, data_type: cudnnDataType_t) -> Result<Descriptor> {
        self.with_number(name, Type::CUDNN_TYPE_DATA_TYPE, data_type as u32)
    }

    /// With an attribute that is one of the library's enumerations.
    pub fn with_number(self, name: Name, kind: Type, number: u32) -> Result<Descriptor> {
        // SAFETY: the library's enumerations have the size of this number, which is read during the call.
        let status =
            unsafe { sys::cudnnBackendSetAttribute(self.0, name, kind, 1, (&raw const number).cast()) };
        check(status, &format!("setting {name:?}"))?;
        Ok(self)
    }

    /// Finished: from now on it can be used.
    pub fn finished(self) -> Result<Descriptor> {
        // SAFETY: the descriptor is alive.
        check(unsafe { sys::cudnnBackendFinalize(self.0) }, "cudnnBackendFinalize")?;
        Ok(self)
    }

    /// An attribute that is one number.
    pub fn number(&self, name: Name) -> Result<i64> {
        let mut number = 0i64;
        // SAFETY: there is room for one number.
        unsafe { self.get(name, Type::CUDNN_TYPE_INT64, 1, (&raw mut number).cast()) }?;
        Ok(number)
    }

    /// An attribute that is a list of the library's notes, as their numbers.
    pub fn notes(&self, name: Name, kind: Type) -> Result<Vec<u32>> {
        let mut notes = [0u32; 32];
        // SAFETY: there is room for as many notes, which have the size of these numbers.
        let n_notes = unsafe { self.get(name, kind, notes.len(), notes.as_mut_ptr().cast()) }?;
        Ok(notes[..n_notes.min(notes.len())].to_vec())
    }

    /// An attribute that is one descriptor of a kind.
    pub fn descriptor(&self, name: Name, kind: Kind) -> Result<Descriptor> {
        let made = Descriptor::new(kind)?;
        let mut raw = made.0;
        // SAFETY: the library fills in the descriptor that it is given.
        unsafe { self.get(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, (&raw mut raw).cast()) }?;
        Ok(made)
    }

    /// An attribute that is a list of descriptors of a kind.
    pub fn descriptors(&self, name: Name, kind: Kind) -> Result<Vec<Descriptor>> {
        let of = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
        // SAFETY: nothing is written where there is no room.
        let n_there = unsafe { self.get(name, of, 0, std::ptr::null_mut()) }?;
        let made = (0..n_there).map(|_| Descriptor::new(kind)).collect::<Result<Vec<_>>>()?;
        let mut raw: Vec<Raw> = made.iter().map(|descriptor| descriptor.0).collect();
        // SAFETY: the library fills in the descriptors that it is given.
        let n_filled = unsafe { self.get(name, of, raw.len(), raw.as_mut_ptr().cast()) }?;
        Ok(made.into_iter().take(n_filled).collect())
    }

    /// Asks for up to `n_most` values and returns how many there are.
    ///
    /// # Safety
    /// There must be room for as many values of the kind.
    unsafe fn get(&self, name: Name, kind: Type, n_most: usize, to: *mut c_void) -> Result<usize> {
        let mut n_there = 0i64;
        // SAFETY: the descriptor is alive; the caller vouches for the room.
        let status =
            unsafe { sys::cudnnBackendGetAttribute(self.0, name, kind, n_most as i64, &raw mut n_there, to) };
        check(status, &format!("asking for {name:?}"))?;
        Ok(usize::try_from(n_there).unwrap_or(0))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is alive and nobody else has it.
        let _ = unsafe { sys::cudnnBackendDestroyDescriptor(self.0) };
    }
}

/// A type of attributes' values.
pub(super) trait Value {
    /// What the library calls it.
    const TYPE: Type;
}

impl Value for i64 {
    const TYPE: Type = Type::CUDNN_TYPE_INT64;
}

impl Value for f32 {
    const TYPE: Type = Type::CUDNN_TYPE_FLOAT;
}

impl Value for f64 {
    const TYPE: Type = Type::CUDNN_TYPE_DOUBLE;
}

impl Value for *mut u8 {
    const TYPE: Type = Type::CUDNN_TYPE_VOID_PTR;
}

impl Value for sys::cudnnHandle_t {
    const TYPE: Type = Type::CUDNN_TYPE_HANDLE;
}

impl Value for Raw {
    const TYPE: Type = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
}

/// An error if a call failed, with the library's words for it.
pub(super) fn check(status: cudnnStatus_t, call: &str) -> Result<()> {
    if status == cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    let mut text = [0 as c_char; 512];
    // SAFETY: the library writes at most as many bytes as there is room for.
    unsafe { sys::cudnnGetLastErrorString(text.as_mut_ptr(), text.len()) };
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    // SAFETY: the last byte is zero.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
    Err(Error::new(format!("{call} failed with {status:?} ({})", text.trim())))
}
