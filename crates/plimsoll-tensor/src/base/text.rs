//! Values as text, as numpy writes them: brackets, aligned columns, and dots in the middle of what is too long.
//!
//! Floats have up to four decimals, without trailing zeros, and are written with exponents where they are far from one or from
//! each other. Where the values come from is not known here.

use std::fmt::Write;

use crate::base::dtype::DType;
use crate::base::shape::Shape;

/// The greatest number of elements that are all shown.
const MAX_ELEMS: usize = 1000;
/// How many elements are shown at each end of an axis that is cut.
pub(crate) const EDGE: usize = 3;
/// The greatest number of characters in a line.
pub(crate) const MAX_LINE: usize = 75;
/// The greatest number of decimals of a float.
const MAX_DECIMALS: usize = 4;

/// Values that are shown of a tensor of that shape, in brackets.
pub(crate) fn page(shape: &Shape, cells: Vec<String>, indent: usize) -> String {
    let mut page = Page { shape, cells: cells.into_iter(), text: String::new(), indent };
    page.write(0);
    page.text
}

/// Whether the middle of an axis is left out.
pub(crate) fn is_cut(shape: &Shape, axis: usize) -> bool {
    shape.n_elems() > MAX_ELEMS && shape[axis] > 2 * EDGE
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
pub(crate) fn in_columns(texts: Vec<String>) -> Vec<String> {
    let width = texts.iter().map(String::len).max().unwrap_or(0);
    texts.into_iter().map(|text| format!("{text:>width$}")).collect()
}

/// Floats in one notation, with their decimal points one below the other.
pub(crate) fn float_texts(values: &[f64]) -> Vec<String> {
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
