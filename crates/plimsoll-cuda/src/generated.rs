//! Kernels whose text is made for one program, such as fused ones: they are unloaded when the last that uses them goes.
//!
//! Kernels of shipped ops stay for as long as their GPU, since there are only so many of them. How many ways there are to fuse ops
//! nobody can say, so these belong to whoever had them made. Equal ones are shared.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use crate::backend::{Backend, Function};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::kernel::{Kernel, Key, Template};

/// All that are in use, by the number that stands for their text.
static LIVE: LazyLock<Mutex<HashMap<u64, Weak<Generated>>>> = LazyLock::new(Mutex::default);

/// The kernels of one text: one for each GPU and variant of it that was launched. The last handle unloads them.
pub struct Generated {
    text: u64,
    loaded: Mutex<Vec<Loaded>>,
}

struct Loaded {
    backend: Weak<dyn Backend>,
    key: Key,
    function: Function,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Generated {
    /// The kernels of the text that a number stands for.
    pub fn of(text: u64) -> Arc<Generated> {
        let mut live = lock(&LIVE);
        if let Some(known) = live.get(&text).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(Generated { text, loaded: Mutex::default() });
        live.insert(text, Arc::downgrade(&new));
        new
    }
}

impl fmt::Debug for Generated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Generated({:x})", self.text)
    }
}

impl Drop for Generated {
    fn drop(&mut self) {
        let mut live = lock(&LIVE);
        // Somebody may have begun anew since the last handle went.
        if live.get(&self.text).is_some_and(|known| known.strong_count() == 0) {
            live.remove(&self.text);
        }
        drop(live);
        for loaded in lock(&self.loaded).drain(..) {
            if let Some(backend) = loaded.backend.upgrade() {
                backend.unload(loaded.function);
            }
        }
    }
}

impl Gpu {
    /// The kernel of a template for an op and a variant, with a text of somebody's own in it; compiled when it is new. See
    /// [`Gpu::kernel`].
    ///
    /// # Errors
    /// A compiler that is missing, a text that it refuses.
    pub fn generated_kernel(
        &self,
        generated: &Generated,
        template: &'static Template,
        op: &'static str,
        variant: u64,
        define: impl Fn() -> String,
    ) -> Result<Kernel> {
        let (key, backend) = (Key::new(template, op, variant), Arc::downgrade(&self.backend));
        let mut loaded = lock(&generated.loaded);
        let known = loaded.iter().find(|loaded| loaded.key == key && loaded.backend.ptr_eq(&backend));
        if let Some(known) = known {
            return Ok(Kernel { function: known.function, op });
        }
        let function = template.build(&*self.backend, op, variant, &define())?;
        loaded.push(Loaded { backend, key, function });
        Ok(Kernel { function, op })
    }

    /// How many kernels this GPU has that were made for programs.
    pub fn n_generated_kernels(&self) -> usize {
        let backend = Arc::downgrade(&self.backend);
        let all: Vec<Arc<Generated>> = lock(&LIVE).values().filter_map(Weak::upgrade).collect();
        let on_this = |generated: &Arc<Generated>| {
            lock(&generated.loaded).iter().filter(|loaded| loaded.backend.ptr_eq(&backend)).count()
        };
        all.iter().map(on_this).sum()
    }
}
