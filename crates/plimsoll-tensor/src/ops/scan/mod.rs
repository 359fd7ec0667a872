//! Scans: results that go along an axis, each made from the one before it. `cumsum` adds up, `linear_scan` multiplies and
//! adds, and `cumprod` is a linear scan.
//!
//! The gradient of a scan is a scan the other way, without a division, so products are differentiated where factors are
//! zero, to any order. A line is one sum made in order by one thread, in f64 for floats; lines that lie side by side are
//! scanned together.

mod cumsum;
mod kernel;
mod linear;

use crate::ops::registry::OpInfo;

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo { name: "cumsum", doc: "The sums of all elements up to each place.", samples: cumsum::samples },
    &OpInfo {
        name: "linear_scan",
        doc: "s[i] = a[i] s[i - 1] + b[i] along an axis.",
        samples: linear::samples,
    },
    &OpInfo {
        name: "linear_scan_backward",
        doc: "The same from the end, with the factor of the place after.",
        samples: linear::adjoint_samples,
    },
];

/// Functions made of ops.
pub const COMPOSED: &[&OpInfo] = &[&OpInfo {
    name: "cumprod",
    doc: "The products of all elements up to each place.",
    samples: linear::cumprod_samples,
}];
