//! Kernels: templates in CUDA C, made into loaded functions when they are first launched.

use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::{Mutex, PoisonError};

use crate::backend::{Backend, Function};
use crate::error::Result;

/// What every kernel's source begins with.
pub(crate) const PRELUDE: &str = include_str!("prelude.cuh");

/// The text of a kernel, usually beside the op that it belongs to. Its one entry is called `ENTRY`; what differs from one
/// use to the other (types, expressions) is defined by the caller.
pub struct Template {
    /// A short name, part of the entry's.
    pub name: &'static str,
    /// CUDA C without includes; see `prelude.cuh` for what there is.
    pub text: &'static str,
}

/// A kernel that is ready to be launched.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    pub(crate) function: Function,
    /// The op that it was made for.
    pub(crate) op: &'static str,
}

/// A value that can be a kernel's parameter.
///
/// # Safety
/// The type must have the same size and layout as the kernel's parameter, and no padding: its bytes are kept and compared.
pub unsafe trait Param {
    /// The address of the value.
    fn address(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Its bytes.
    fn n_bytes(&self) -> usize {
        size_of_val(self)
    }
}

macro_rules! params {
    ($($type:ty),*) => {$(
        // SAFETY: a number or an address, of the same size on both sides.
        unsafe impl Param for $type {}
    )*};
}

params!(*mut u8, u8, u32, i32, u64, i64, f32, f64, usize, isize);

/// Which kernel is meant: template, op and variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    template: usize,
    op: &'static str,
    variant: u64,
}

impl Key {
    pub fn new(template: &'static Template, op: &'static str, variant: u64) -> Key {
        Key { template: std::ptr::from_ref(template) as usize, op, variant }
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let op = self.op.as_ptr() as usize as u64;
        state.write_u64(
            (self.template as u64).rotate_left(32) ^ op ^ self.variant.wrapping_mul(0x9E37_79B9_7F4A_7C15),
        );
    }
}

/// A hash that is already one; the key mixes its parts.
#[derive(Default)]
pub(crate) struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }
}

/// The kernels that a GPU has loaded.
#[derive(Default)]
pub(crate) struct Kernels {
    loaded: Mutex<HashMap<Key, Function, BuildHasherDefault<Mixed>>>,
}

impl Kernels {
    /// Those that are loaded: where the template is, the op and the variant.
    pub fn loaded(&self) -> Vec<(usize, &'static str, u64)> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.keys().map(|key| (key.template, key.op, key.variant)).collect()
    }

    /// The kernel of a template for an op and a variant; `define` states what the template leaves open, and is called
    /// when the kernel is new alone.
    pub fn get(
        &self,
        backend: &dyn Backend,
        template: &'static Template,
        op: &'static str,
        variant: u64,
        define: &dyn Fn() -> String,
    ) -> Result<Kernel> {
        let key = Key::new(template, op, variant);
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&function) = loaded.get(&key) {
            return Ok(Kernel { function, op });
        }
        let function = template.build(backend, op, variant, &define())?;
        loaded.insert(key, function);
        Ok(Kernel { function, op })
    }
}

impl Template {
    /// Compiles and loads it for an op and a variant.
    pub(crate) fn build(
        &self,
        backend: &dyn Backend,
        op: &str,
        variant: u64,
        definitions: &str,
    ) -> Result<Function> {
        let entry = match op == self.name {
            true => format!("{op}_{variant:x}"),
            false => format!("{op}_{}_{variant:x}", self.name),
        };
        let source = format!("{PRELUDE}\n#define ENTRY {entry}\n{definitions}\n{}", self.text);
        backend.build(&entry, &source)
    }
}
