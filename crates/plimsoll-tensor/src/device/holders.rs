//! Who keeps a storage alive: the parts of the framework, each by kind, and what is left are tensors of the user's.
//!
//! Every part of the framework that keeps memory beyond a call registers: a slot of a tape when it saves a value, and all others by
//! keeping a [`Held`] where they would keep the storage itself. So the framework's holders are told from the user's tensors by
//! counting, with one atomic addition when something takes hold and none when memory is read. Which variable or program it is
//! that holds is not noted here, only how many of each: a [survey](crate::device::survey) asks for the rest.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::device::storage::Storage;
use crate::device::survey::HolderKind;

/// A part of the framework that keeps memory alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A slot of a tape, or the log of a step in its place.
    Slot,
    /// A variable, whose value it is.
    Variable,
    /// A program, which uses it as a tensor from outside.
    Program,
    /// An update of a variable that waits for the end of its step.
    Update,
    /// The evictor, which will recompute a value from it.
    Evictor,
}

impl Holder {
    /// How many kinds there are.
    pub const COUNT: usize = 5;

    /// All of them, in the order of their numbers.
    pub const ALL: [Holder; Holder::COUNT] =
        [Holder::Slot, Holder::Variable, Holder::Program, Holder::Update, Holder::Evictor];

    /// Its kind, and what one is called of which nothing else is known.
    pub fn described(self) -> (HolderKind, &'static str) {
        match self {
            Holder::Slot => (HolderKind::Tape, "a tape"),
            Holder::Variable => (HolderKind::Variable, "a variable"),
            Holder::Program => (HolderKind::Program, "a program"),
            Holder::Update => (HolderKind::Update, "an update that waits for the end of its step"),
            Holder::Evictor => (HolderKind::Evictor, "the evictor"),
        }
    }
}

/// A storage that a part of the framework keeps alive, and is counted for it.
pub(crate) struct Held {
    storage: Arc<Storage>,
    by: Holder,
}

impl Held {
    pub fn new(storage: Arc<Storage>, by: Holder) -> Held {
        storage.hold(by);
        Held { storage, by }
    }
}

impl Clone for Held {
    fn clone(&self) -> Held {
        Held::new(self.storage.clone(), self.by)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.storage.release(self.by);
    }
}

impl Deref for Held {
    type Target = Arc<Storage>;
    fn deref(&self) -> &Arc<Storage> {
        &self.storage
    }
}

/// What keeps the memory of a tensor alive, as [`Tensor::holders`](crate::Tensor::holders) counts it.
///
/// The memory is free when all of them are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Tensors in your code that lie in it, views included; clones of one tensor count once.
    pub tensors: usize,
    /// Slots of tapes that save it for backward.
    pub slots: usize,
    /// Variables whose value it is.
    pub variables: usize,
    /// Programs of functions that use it as a tensor from outside.
    pub programs: usize,
    /// Updates of variables that wait for the end of a step.
    pub updates: usize,
    /// Values that the evictor will recompute from it.
    pub evictor: usize,
}

impl Holders {
    /// What keeps a storage alive, besides the one handle that the caller has taken to look at it.
    pub(crate) fn of(storage: &Arc<Storage>) -> Holders {
        let [slots, variables, programs, updates, evictor] = storage.n_held();
        let n_held = slots + variables + programs + updates + evictor;
        let tensors = Arc::strong_count(storage).saturating_sub(n_held + 1);
        Holders { tensors, slots, variables, programs, updates, evictor }
    }
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            (self.tensors, "tensor", "tensors"),
            (self.slots, "slot of a tape", "slots of tapes"),
            (self.variables, "variable", "variables"),
            (self.programs, "program", "programs"),
            (self.updates, "update that waits", "updates that wait"),
            (self.evictor, "value to recompute", "values to recompute"),
        ];
        let mut separator = "";
        for (n, one, several) in rows.into_iter().filter(|(n, ..)| *n > 0) {
            write!(f, "{separator}{n} {}", if n == 1 { one } else { several })?;
            separator = ", ";
        }
        Ok(())
    }
}
