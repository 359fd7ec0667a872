//! Buffers that a forward pass changes, such as running statistics.
//!
//! A layer changes a buffer through [`update_buffer`]. Ordinarily that is an assignment. Where the leaves of a batch are computed by
//! several ranks, what each leaf makes of a buffer is collected instead, from the value that the step began with, and the step
//! assigns the mean over all leaves: so it does not depend on which rank computed which.

use std::cell::RefCell;

use plimsoll_tensor::{Result, Tensor, Variable};

/// Buffers, and the values that they are to have.
pub(crate) type Updates = Vec<(Variable, Tensor)>;

thread_local!(static COLLECTED: RefCell<Vec<Updates>> = const { RefCell::new(Vec::new()) });

/// Gives a buffer the value that `update` makes of the present one, as part of a forward pass.
///
/// # Errors
/// Those of `update`; another shape or dtype; memory that is full.
pub fn update_buffer(buffer: &Variable, update: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<()> {
    let is_collected = COLLECTED.with_borrow(|open| !open.is_empty());
    if !is_collected {
        return buffer.assign(&update(buffer)?);
    }
    let known = COLLECTED.with_borrow(|open| {
        let mut updates = open.last()?.iter();
        updates.find(|(known, _)| known == buffer).map(|(_, value)| value.clone())
    });
    let value = match &known {
        // A layer that is applied twice goes on from its first application.
        Some(value) => update(value)?,
        None => update(buffer)?,
    };
    COLLECTED.with_borrow_mut(|open| {
        let Some(updates) = open.last_mut() else { return };
        match updates.iter_mut().find(|(known, _)| known == buffer) {
            Some((_, before)) => *before = value,
            None => updates.push((buffer.clone(), value)),
        }
    });
    Ok(())
}

/// Runs `f`, and collects what it would make of buffers.
pub(crate) fn collected<R>(f: impl FnOnce() -> R) -> (R, Updates) {
    /// Ends the collection also if `f` panics.
    struct Open(usize);
    impl Drop for Open {
        fn drop(&mut self) {
            COLLECTED.with_borrow_mut(|open| open.truncate(self.0));
        }
    }
    let open = COLLECTED.with_borrow_mut(|open| {
        open.push(Vec::new());
        Open(open.len() - 1)
    });
    let result = f();
    let updates = COLLECTED.with_borrow_mut(|open| open.pop()).unwrap_or_default();
    drop(open);
    (result, updates)
}
