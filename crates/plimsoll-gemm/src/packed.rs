//! A matrix B that is packed once and multiplied many times, such as the weights of a recurrent layer.
//!
//! An ordinary product packs both of its operands, which costs next to nothing when there are many rows. Where few rows
//! meet the same matrix again and again, packing it would take a good part of the time: here it is done beforehand.
//! Each product runs on the thread that calls it, so several may run side by side, each with memory of its own.

use std::marker::PhantomData;

use crate::element::{Element, Real};
use crate::operand::Strided;
use crate::output::{Output, Rows};
use crate::plan::Plan;
use crate::product::Product;
use crate::{Epilogue, MatMut, MatRef, Shape, check_workspace};

/// A matrix `[k, n]`, in panels.
pub struct PackedB<'a, T: Real> {
    k: usize,
    n: usize,
    /// The memory's beginning; its end may never have been written, because padding depends on the processor.
    panels: *const T,
    memory: PhantomData<&'a [T]>,
}

// SAFETY: the panels are only read, and are borrowed for as long as the matrix lives.
unsafe impl<T: Real> Sync for PackedB<'_, T> {}

impl<'a, T: Real> PackedB<'a, T> {
    /// Bytes that a packed matrix `[k, n]` takes, whatever the processor.
    pub fn bytes(k: usize, n: usize) -> usize {
        Plan::of_packed::<T>(&shape(0, n, k)).packed_len(k) * size_of::<T>()
    }

    /// Bytes of workspace for a product of `m` rows with a matrix of `k` rows.
    pub fn workspace(m: usize, k: usize) -> usize {
        Plan::of_packed::<T>(&shape(m, 0, k)).workspace()
    }

    /// Packs a matrix into `memory`, on all threads.
    ///
    /// # Safety
    /// Every element that the extents and strides lead to must be readable.
    ///
    /// # Panics
    /// If `memory` has fewer bytes than [`PackedB::bytes`] says, or does not begin at a multiple of 64.
    pub unsafe fn pack<E: Element<Real = T>>(b: MatRef<E>, k: usize, n: usize, memory: &'a mut [u8]) -> Self {
        let shape = shape(0, n, k);
        let plan = Plan::of_packed::<T>(&shape);
        check_workspace(&shape, plan.packed_len(k) * size_of::<T>(), memory);
        let kernels = T::kernels();
        let b = Strided::new(b.first, [b.col_stride, b.row_stride, b.batch_stride], kernels);
        // Nothing is read of A, and nothing is written to C.
        let output = Output::new::<T>(std::ptr::null_mut(), Rows::Even(0), 0);
        let product = Product { shape, plan, kernels, a: &b, b: &b, output };
        let panels = memory.as_mut_ptr().cast::<T>();
        // SAFETY: the memory has been checked, and the caller promises the matrix.
        unsafe { product.pack_all_of_b(panels) };
        Self { k, n, panels, memory: PhantomData }
    }

    /// Multiplies `m` rows by the packed matrix, on this thread.
    ///
    /// # Safety
    /// Every element that `m`, the matrix's extents and the strides lead to must be readable (A, bias) or readable and
    /// writable (C), and C must overlap nothing else.
    ///
    /// # Panics
    /// If `memory` has fewer bytes than [`PackedB::workspace`] says, or does not begin at a multiple of 64.
    pub unsafe fn multiply<E: Element<Real = T>>(
        &self,
        m: usize,
        a: MatRef<E>,
        c: MatMut<T>,
        epilogue: &Epilogue<'_, T>,
        memory: &mut [u8],
    ) {
        let shape = shape(m, self.n, self.k);
        let plan = Plan::of_packed::<T>(&shape);
        check_workspace(&shape, plan.workspace(), memory);
        let kernels = T::kernels();
        let a = Strided::new(a.first, [a.row_stride, a.col_stride, a.batch_stride], kernels);
        let output = Output {
            col_stride: c.col_stride,
            accumulate: epilogue.accumulate,
            bias: epilogue.bias.map_or(std::ptr::null(), |bias| bias.cast()),
            activation: epilogue.activation,
            ..Output::new(c.first, Rows::Even(c.row_stride), 0)
        };
        let product = Product { shape, plan, kernels, a: &a, b: &a, output };
        // SAFETY: the panels are those of this matrix, the workspace has been checked; the caller promises the rest.
        unsafe { product.run_packed(self.panels, memory.as_mut_ptr()) }
    }
}

fn shape(m: usize, n: usize, k: usize) -> Shape {
    Shape { batch: 1, m, n, k }
}
