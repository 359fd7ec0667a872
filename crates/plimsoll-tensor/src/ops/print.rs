//! Printing, as numpy does it: brackets, aligned columns, and dots in the middle of what is too long.
//!
//! Only the elements that are shown are read, so printing a large tensor costs no memory. Floats have up to four
//! decimals, without trailing zeros, and are written with exponents where they are far from one or from each other.
//! `Display` gives the values, and the dtype unless it is float32; `Debug` puts `tensor(...)` around them.

use std::cmp::Reverse;
use std::fmt::{self, Write};

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::op::Meta;
use crate::eager::tensor::{Nodes, Tensor};

/// The greatest number of elements that are all shown.
const MAX_ELEMS: usize = 1000;
/// How many elements are shown at each end of an axis that is cut.
const EDGE: usize = 3;
/// The greatest number of characters in a line.
const MAX_LINE: usize = 75;
/// The greatest number of decimals of a float.
const MAX_DECIMALS: usize = 4;

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

/// Values that are shown of a tensor of that shape, in brackets.
fn page(shape: &Shape, cells: Vec<String>, indent: usize) -> String {
    let mut page = Page { shape, cells: cells.into_iter(), text: String::new(), indent };
    page.write(0);
    page.text
}

/// Whether the middle of an axis is left out.
fn is_cut(shape: &Shape, axis: usize) -> bool {
    shape.n_elems() > MAX_ELEMS && shape[axis] > 2 * EDGE
}

/// The values of a tensor that are shown, one after the other, as a tensor of float64. Whole numbers beyond 2^53 are rounded.
pub(crate) fn shown_values(tensor: &Tensor) -> Result<Tensor> {
    let shape = *tensor.shape();
    let mut cut: Vec<usize> = (0..shape.rank()).filter(|&axis| is_cut(&shape, axis)).collect();
    // The longest first, so that little is copied.
    cut.sort_by_key(|&axis| Reverse(shape[axis]));
    let mut shown = tensor.clone();
    for axis in cut {
        let end = |start: usize| shown.narrow(axis, start, EDGE);
        shown = Tensor::concat(&[&end(0)?, &end(shape[axis] - EDGE)?], axis)?;
    }
    let n_elems = shown.n_elems();
    shown.cast(DType::F64)?.reshape(n_elems)?.contiguous()
}

/// The text of a tensor of that shape and dtype of which these values are shown.
pub(crate) fn text_of(shape: &Shape, dtype: DType, values: &[f64]) -> String {
    if shape.n_elems() == 0 {
        return format!("[] of shape {shape}");
    }
    let text = |&value: &f64| match dtype {
        DType::Bool => (value != 0.0).to_string(),
        _ => format!("{value:.0}"),
    };
    let texts = if dtype.is_float() { float_texts(values) } else { values.iter().map(text).collect() };
    page(shape, in_columns(texts), 0)
}

/// Texts of one width.
fn in_columns(texts: Vec<String>) -> Vec<String> {
    let width = texts.iter().map(String::len).max().unwrap_or(0);
    texts.into_iter().map(|text| format!("{text:>width$}")).collect()
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

/// Floats in one notation, with their decimal points one below the other.
fn float_texts(values: &[f64]) -> Vec<String> {
    let magnitudes = values.iter().map(|x| x.abs()).filter(|x| x.is_finite() && *x != 0.0);
    let (least, greatest) =
        magnitudes.fold((f64::INFINITY, 0.0), |(least, greatest), x| (x.min(least), x.max(greatest)));
    let all_whole = values.iter().all(|x| x.fract() == 0.0 || !x.is_finite());
    let has_exponents = greatest >= 1e8 || least < 1e-4 || (!all_whole && greatest / least > 1e3);
    let written = |decimals: usize, x: f64| match has_exponents {
        true => with_exponent(x, decimals),
        false => format!("{x:.decimals$}"),
    };
    let needed = |&x: &f64| {
        let text = written(MAX_DECIMALS, x);
        let mantissa = text.split('e').next().unwrap_or_default();
        mantissa.trim_end_matches('0').split_once('.').map_or(0, |(_, decimals)| decimals.len())
    };
    let finite = || values.iter().filter(|x| x.is_finite());
    let decimals = finite().map(needed).max().unwrap_or(0);
    let text = |&x: &f64| match x {
        x if x.is_nan() => "nan".to_string(),
        x if x.is_infinite() => if x > 0.0 { "inf" } else { "-inf" }.to_string(),
        x if has_exponents => written(decimals, x),
        x => {
            let text = written(decimals, x);
            // A whole number shows by its point that it is a float; the zeros that others do not need become spaces.
            let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
            format!("{whole}.{:decimals$}", fraction.trim_end_matches('0'))
        }
    };
    values.iter().map(text).collect()
}

/// A number with at least one digit before the point and two in the exponent.
fn with_exponent(x: f64, decimals: usize) -> String {
    let text = format!("{x:.decimals$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let point = if mantissa.contains('.') { "" } else { "." };
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}{point}e{sign}{digits:0>2}")
}

/// Text on its way.
struct Page<'a> {
    shape: &'a Shape,
    /// The cells that are not yet written.
    cells: std::vec::IntoIter<String>,
    text: String,
    /// The number of characters before the first bracket of each line.
    indent: usize,
}

impl Page<'_> {
    /// Writes everything from `axis` on at the present index of the axes before it.
    fn write(&mut self, axis: usize) {
        let rank = self.shape.rank();
        if axis == rank {
            let cell = self.cells.next().unwrap_or_default();
            self.text.push_str(cell.trim());
            return;
        }
        self.text.push('[');
        let extent = self.shape[axis];
        let cut = is_cut(self.shape, axis);
        for idx in 0..if cut { 2 * EDGE } else { extent } {
            if cut && idx == EDGE {
                self.separate(axis, 3);
                self.text.push_str("...");
            }
            if axis + 1 < rank {
                if idx > 0 {
                    self.separate(axis, 0);
                }
                self.write(axis + 1);
            } else {
                let cell = self.cells.next().unwrap_or_default();
                if idx > 0 {
                    self.separate(axis, cell.len());
                }
                self.text.push_str(&cell);
            }
        }
        self.text.push(']');
    }

    /// Goes on to the next element of `axis`, which is `width` characters wide: by a space within a line, by a line
    /// between rows, by empty lines between matrices.
    fn separate(&mut self, axis: usize, width: usize) {
        let below = self.shape.rank() - axis - 1;
        let line = self.text.len() - self.text.rfind('\n').map_or(0, |at| at + 1);
        let indent = if self.text.contains('\n') { 0 } else { self.indent };
        match below {
            0 if indent + line + 1 + width < MAX_LINE => self.text.push(' '),
            _ => {
                let lines = "\n".repeat(below.max(1));
                let _ = write!(self.text, "{lines}{:1$}", "", self.indent + axis + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
