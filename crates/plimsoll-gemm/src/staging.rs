//! Numbers that are brought together on the stack before a kernel reads them.

use std::mem::MaybeUninit;

use crate::element::Real;

/// Rows of numbers on the stack, of which only those asked for are cleared; clearing all of them would often take
/// longer than what is done with the few that are used.
pub(crate) struct Staging<T, const ROWS: usize, const LEN: usize>([[MaybeUninit<T>; LEN]; ROWS]);

impl<T: Real, const ROWS: usize, const LEN: usize> Staging<T, ROWS, LEN> {
    /// Rows that hold nothing yet.
    pub fn new() -> Self {
        Self([[MaybeUninit::uninit(); LEN]; ROWS])
    }

    /// The first `n_rows` rows, each cut to `len` zeros.
    pub fn rows(&mut self, n_rows: usize, len: usize) -> impl Iterator<Item = &mut [T]> {
        self.0[..n_rows].iter_mut().map(move |row| {
            let row = &mut row[..len];
            row.fill(MaybeUninit::new(T::default()));
            // SAFETY: every number of the row has just been written.
            unsafe { std::slice::from_raw_parts_mut(row.as_mut_ptr().cast(), len) }
        })
    }
}
