//! Convolutions, described without a library's words. Images are `[n, h, w, c]`, filters `[out, h, w, in / groups]`.

use crate::matmul::Scalar;

/// What is computed from what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The output, from input and filter.
    Forward,
    /// The input's gradient, from the output's and the filter.
    ToInput,
    /// The filter's gradient, from the output's and the input.
    ToFilter,
}

/// A two-dimensional convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// What is computed.
    pub direction: Direction,
    /// The type of all operands; sums are kept in f32, in f64 for f64.
    pub scalar: Scalar,
    /// Images.
    pub n: usize,
    /// Height and width of the input.
    pub input: [usize; 2],
    /// Height and width of the output.
    pub output: [usize; 2],
    /// Channels of the input.
    pub c_in: usize,
    /// Channels of the output.
    pub c_out: usize,
    /// Height and width of the filter.
    pub filter: [usize; 2],
    /// Rows and columns that are added before the input; those after follow from the output's extents.
    pub padding: [usize; 2],
    /// Steps.
    pub stride: [usize; 2],
    /// Distances between the filter's taps.
    pub dilation: [usize; 2],
    /// Groups of channels that do not mix.
    pub groups: usize,
    /// Whether f32 is multiplied as TF32.
    pub tf32: bool,
    /// Whether sums may be made in any order, with other bits each time.
    pub unordered: bool,
}

/// The addresses of a convolution's operands on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvolutionOperands {
    /// The input, or its gradient when that is computed.
    pub input: *mut u8,
    /// The filter, or its gradient when that is computed.
    pub filter: *mut u8,
    /// The output when that is computed, or its gradient.
    pub output: *mut u8,
    /// Scratch memory.
    pub workspace: *mut u8,
    /// Its length.
    pub workspace_bytes: usize,
}
