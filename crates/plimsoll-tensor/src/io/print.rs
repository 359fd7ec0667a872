//! Printing tensors, as numpy prints arrays.
//!
//! Only the elements that are shown are read, so printing a large tensor costs no memory. `text` lays them out. `Display` gives the values, and the dtype unless it is float32; `Debug` puts `tensor(...)` around them.

use std::fmt;

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::base::text::{EDGE, float_texts, in_columns, is_cut, page};
use crate::eager::context;
use crate::eager::op::Meta;
use crate::eager::tensor::{Nodes, Tensor};

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&picture(self, 0))?;
        match self.dtype() {
            DType::F32 => Ok(()),
            dtype => write!(f, " dtype={dtype}"),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const START: &str = "tensor(";
        write!(f, "{START}{}", picture(self, START.len()))?;
        match self.dtype() {
            DType::F32 => f.write_str(")"),
            dtype => write!(f, ", dtype={dtype})"),
        }
    }
}

/// The values as text; `indent` is the number of characters that stand before it.
fn picture(tensor: &Tensor, indent: usize) -> String {
    if tensor.is_ghost() {
        return format!("ghost of shape {}", tensor.shape());
    }
    if tensor.n_elems() == 0 {
        return format!("[] of shape {}", tensor.shape());
    }
    match cells(tensor) {
        Ok(cells) => page(tensor.shape(), cells, indent),
        Err(error) => format!("shape {}, whose values could not be read: {error}", tensor.shape()),
    }
}

/// The text of each element that is shown, in row-major order, all of one width.
fn cells(tensor: &Tensor) -> Result<Vec<String>> {
    let mut views = Vec::new();
    shown(tensor.shape(), *tensor.layout(), 0, &mut views);
    let (storage, _) = tensor.storage_view();
    let read = |layout: &Layout| {
        let meta = Meta { layout: *layout, dtype: tensor.dtype() };
        context::replay(|| Tensor::over(storage.clone(), meta, Nodes::new()).copied())
    };
    let mut values = Vec::new();
    let mut texts = Vec::new();
    for view in &views {
        let view = read(view)?;
        match tensor.dtype() {
            DType::I64 => texts.extend(view.to_vec::<i64>()?.iter().map(i64::to_string)),
            DType::I32 => texts.extend(view.to_vec::<i32>()?.iter().map(i32::to_string)),
            DType::U8 => texts.extend(view.to_vec::<u8>()?.iter().map(u8::to_string)),
            DType::Bool => texts.extend(view.to_vec::<bool>()?.iter().map(bool::to_string)),
            _ => values.extend(view.to_f64_vec()?),
        }
    }
    if tensor.dtype().is_float() {
        texts = float_texts(&values);
    }
    Ok(in_columns(texts))
}

/// The parts of a view that are shown, from `axis` on: all of it, or the ends of the axes that are cut.
fn shown(shape: &Shape, view: Layout, axis: usize, views: &mut Vec<Layout>) {
    if (axis..shape.rank()).all(|axis| !is_cut(shape, axis)) {
        views.push(view);
        return;
    }
    let extent = shape[axis];
    let starts = if is_cut(shape, axis) { [0..EDGE, extent - EDGE..extent] } else { [0..extent, 0..0] };
    for idx in starts.into_iter().flatten() {
        shown(shape, view.narrowed(axis, idx, 1, 1), axis + 1, views);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::text::MAX_LINE;
    use crate::device::Device;

    fn floats(values: &[f32], shape: impl crate::base::shape::IntoShape) -> Tensor {
        Tensor::from_slice(values, shape).unwrap()
    }

    #[test]
    fn columns_are_aligned_and_zeros_trimmed() {
        let x = floats(&[1.0, 2.25, -3.5, 40.0], [2, 2]);
        assert_eq!(x.to_string(), "[[ 1.    2.25]\n [-3.5  40.  ]]");
        assert_eq!(format!("{x:?}"), "tensor([[ 1.    2.25]\n        [-3.5  40.  ]])");
        assert_eq!(floats(&[0.1, 1.0 / 3.0], 2).to_string(), "[0.1    0.3333]");
        assert_eq!(floats(&[2.0], ()).to_string(), "2.");
    }

    #[test]
    fn matrices_are_parted_by_an_empty_line() {
        let x = Tensor::arange(8).unwrap().reshape([2, 2, 2]).unwrap();
        assert_eq!(x.to_string(), "[[[0. 1.]\n  [2. 3.]]\n\n [[4. 5.]\n  [6. 7.]]]");
        assert_eq!(
            x.permute([2, 0, 1]).unwrap().to_string(),
            "[[[0. 2.]\n  [4. 6.]]\n\n [[1. 3.]\n  [5. 7.]]]"
        );
    }

    #[test]
    fn far_numbers_have_exponents() {
        assert_eq!(floats(&[1e-5, 2.0], 2).to_string(), "[1.e-05 2.e+00]");
        assert_eq!(floats(&[1.25e10, -3.0], 2).to_string(), "[ 1.25e+10 -3.00e+00]");
        assert_eq!(floats(&[0.0, 1e-3], 2).to_string(), "[0.    0.001]");
    }

    #[test]
    fn what_is_no_number_is_named() {
        let x = floats(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.5], 4);
        assert_eq!(x.to_string(), "[ nan  inf -inf  1.5]");
    }

    #[test]
    fn other_dtypes_are_named() {
        let x = Tensor::from_vec(vec![i64::MAX, -1]).unwrap();
        assert_eq!(x.to_string(), "[9223372036854775807                  -1] dtype=int64");
        let x = Tensor::from_vec(vec![true, false]).unwrap();
        assert_eq!(format!("{x:?}"), "tensor([ true false], dtype=bool)");
        let x = Tensor::from_slice(&[half::f16::from_f32(0.5)], ()).unwrap();
        assert_eq!(x.to_string(), "0.5 dtype=float16");
    }

    #[test]
    fn the_middle_of_long_axes_is_left_out() {
        assert_eq!(Tensor::arange(1001).unwrap().to_string(), "[   0.    1.    2. ...  998.  999. 1000.]");
        let x = Tensor::arange(2002).unwrap().reshape([1001, 2]).unwrap();
        assert_eq!(
            x.to_string(),
            "[[   0.    1.]\n [   2.    3.]\n [   4.    5.]\n ...\n [1996. 1997.]\n [1998. 1999.]\n [2000. 2001.]]"
        );
        assert!(!Tensor::arange(1000).unwrap().to_string().contains("..."));
    }

    #[test]
    fn long_rows_are_broken() {
        let text = Tensor::arange(100).unwrap().to_string();
        assert!(text.lines().count() > 1);
        assert!(text.lines().all(|line| line.len() <= MAX_LINE), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with(' ') && !line.starts_with("   ")));
    }

    #[test]
    fn ghosts_and_empty_tensors_have_shapes() {
        assert_eq!(Tensor::zeros([0, 3]).unwrap().to_string(), "[] of shape [0, 3]");
        let _here = Device::ghost_cpu().enter();
        let x = Tensor::zeros([2, 3]).unwrap();
        assert_eq!(format!("{x:?}"), "tensor(ghost of shape [2, 3])");
    }
}
