//! The same values in other layouts: how a tensor that a user has turned, cut or repeated lies in memory.

use std::fmt;

use plimsoll_tensor::op::{Meta, Op, Outputs, Run, view};
use plimsoll_tensor::ops::registry::Array;
use plimsoll_tensor::{DType, Error, Layout, OpRef, Result, Shape, Tensor, apply};

use crate::draw::{round, tensor};

/// A way for values to lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// Row-major, at the beginning of a block.
    Contiguous,
    /// The last dimension varies slowest.
    Transposed,
    /// The inside of a larger block; what is around it must not be read.
    Sliced,
    /// Every second element along every dimension; what is between must not be read.
    Stepped,
    /// One slice of the first dimension that has several, repeated by a stride of zero.
    Broadcast,
    /// Backwards along every dimension.
    Flipped,
}

impl Arrangement {
    /// All but the contiguous one.
    pub const OTHERS: [Arrangement; 5] = [
        Arrangement::Transposed,
        Arrangement::Sliced,
        Arrangement::Stepped,
        Arrangement::Broadcast,
        Arrangement::Flipped,
    ];

    /// Whether values of that shape can lie so and not be contiguous.
    pub fn fits(self, shape: &[usize]) -> bool {
        let n_long = shape.iter().filter(|&&dim| dim > 1).count();
        match self {
            Arrangement::Contiguous => true,
            Arrangement::Transposed => n_long > 1,
            // The inside of a vector lies as a vector does, but not at the beginning of its block.
            Arrangement::Sliced => !shape.is_empty(),
            Arrangement::Stepped | Arrangement::Broadcast | Arrangement::Flipped => n_long > 0,
        }
    }

    /// The values that can lie so: those of a broadcast repeat, the others are as they were.
    pub fn values(self, array: &Array) -> Array {
        match (self, array.shape.iter().position(|&dim| dim > 1)) {
            (Arrangement::Broadcast, Some(axis)) => Array::build(&array.shape, |index| {
                let mut first = index.to_vec();
                first[axis] = 0;
                array.at(&first)
            }),
            _ => array.clone(),
        }
    }

    /// A tensor on the current device whose values lie so. Broadcast ones must come from [`Arrangement::values`].
    ///
    /// # Errors
    /// Memory that is full.
    pub fn tensor(self, array: &Array, dtype: DType) -> Result<Tensor> {
        let shape = &array.shape;
        if !self.fits(shape) {
            return tensor(array, dtype);
        }
        match self {
            Arrangement::Contiguous => tensor(array, dtype),
            Arrangement::Transposed => {
                let axes: Vec<usize> = (0..shape.len()).rev().collect();
                let turned: Vec<usize> = axes.iter().map(|&axis| shape[axis]).collect();
                let base = Array::build(&turned, |index| {
                    array.at(&index.iter().rev().copied().collect::<Vec<usize>>())
                });
                look(&tensor(&base, dtype)?, |layout| {
                    let strides: Vec<isize> = axes.iter().map(|&axis| layout.strides()[axis]).collect();
                    Layout::new(Shape::new(shape)?, &strides, layout.offset())
                })
            }
            Arrangement::Sliced => inside(array, dtype, 1),
            Arrangement::Stepped => inside(array, dtype, 2),
            Arrangement::Broadcast => {
                let mut one = shape.clone();
                let axis = shape.iter().position(|&dim| dim > 1).unwrap_or(0);
                one[axis] = 1;
                let base = tensor(&Array::build(&one, |index| array.at(index)), dtype)?;
                let full = Shape::new(shape)?;
                look(&base, |layout| Ok(layout.broadcast_to(&full).unwrap_or(*layout)))
            }
            Arrangement::Flipped => {
                let base = Array::build(shape, |index| {
                    let back = index.iter().zip(shape).map(|(&idx, &dim)| dim - 1 - idx);
                    array.at(&back.collect::<Vec<usize>>())
                });
                look(&tensor(&base, dtype)?, |layout| stepped(layout, shape, -1, |dim| dim.saturating_sub(1)))
            }
        }
    }
}

impl fmt::Display for Arrangement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Arrangement::Contiguous => "contiguous",
            Arrangement::Transposed => "transposed",
            Arrangement::Sliced => "sliced",
            Arrangement::Stepped => "stepped",
            Arrangement::Broadcast => "broadcast",
            Arrangement::Flipped => "flipped",
        })
    }
}

/// The values as every `step`-th element of the inside of a larger block. What is around them is poison: not a number,
/// or an index that is out of range.
fn inside(array: &Array, dtype: DType, step: usize) -> Result<Tensor> {
    let shape = &array.shape;
    let poison = round(if dtype.is_float() { f64::NAN } else { -1.0 }, dtype);
    let wide: Vec<usize> = shape.iter().map(|&dim| step * dim + 2).collect();
    let base = Array::build(&wide, |index| {
        let taken =
            |(&idx, &dim): (&usize, &usize)| idx > 0 && (idx - 1) % step == 0 && (idx - 1) / step < dim;
        if !index.iter().zip(shape).all(taken) {
            return poison;
        }
        array.at(&index.iter().map(|&idx| (idx - 1) / step).collect::<Vec<usize>>())
    });
    look(&tensor(&base, dtype)?, |layout| stepped(layout, shape, step as isize, |_| 1))
}

/// Every `step`-th element along every dimension, from the one that `first` names for an extent on.
fn stepped(layout: &Layout, shape: &[usize], step: isize, first: impl Fn(usize) -> usize) -> Result<Layout> {
    let places = shape.iter().zip(layout.strides()).map(|(&dim, &stride)| first(dim) as isize * stride);
    let offset = layout.offset() as isize + places.sum::<isize>();
    let strides: Vec<isize> = layout.strides().iter().map(|stride| stride * step).collect();
    Layout::new(Shape::new(shape)?, &strides, offset as usize)
}

/// A view of a tensor, of any layout; an op of the kit's own, so that it needs none of those that it tests.
#[derive(Debug)]
struct Look(Layout);

impl Op for Look {
    fn name(&self) -> &'static str {
        "look"
    }

    fn infer(&self, _inputs: &[&Meta]) -> Result<Outputs> {
        view(self.0)
    }

    fn run(&self, _run: &mut Run<'_>) -> Result<()> {
        Err(Error::argument("look", "a view has nothing to run"))
    }
}

/// A view of a tensor.
fn look(base: &Tensor, layout: impl FnOnce(&Layout) -> Result<Layout>) -> Result<Tensor> {
    Ok(apply(OpRef::new(Look(layout(base.layout())?)), &[base])?.remove(0))
}

/// The tensor itself, through an op: inside a step, its record tells the tensor's number.
pub(crate) fn mark(tensor: &Tensor) -> Result<()> {
    look(tensor, |layout| Ok(*layout)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arrangement_shows_the_same_values() -> Result<()> {
        for shape in [vec![], vec![4], vec![2, 3], vec![2, 1, 3, 2]] {
            let n_elems: usize = shape.iter().product();
            let drawn = Array::new(&shape, (0..n_elems).map(|at| at as f64).collect());
            for arrangement in Arrangement::OTHERS {
                let array = arrangement.values(&drawn);
                let tensor = arrangement.tensor(&array, DType::F32)?;
                assert_eq!(tensor.to_f64_vec()?, array.values, "{arrangement} {shape:?}");
                let is_plain = tensor.is_contiguous() && tensor.layout().offset() == 0;
                assert_eq!(!is_plain, arrangement.fits(&shape), "{arrangement} {shape:?}");
            }
        }
        Ok(())
    }
}
