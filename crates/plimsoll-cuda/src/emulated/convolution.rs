//! Convolutions by plain loops.

use super::number::{Sum, load, store, to_tf32};
use crate::convolution::{Convolution, ConvolutionOperands, Direction};
use crate::matmul::Scalar;

/// Computes a convolution or one of its gradients as `Convolution` describes it.
///
/// # Safety
/// The addresses are valid for what the convolution reads and writes.
pub unsafe fn run(convolution: &Convolution, operands: &ConvolutionOperands) {
    // SAFETY: the caller promises it.
    unsafe {
        match convolution.scalar {
            Scalar::F64 => sum_up::<f64>(convolution, operands),
            Scalar::F16 | Scalar::BF16 | Scalar::F32 => sum_up::<f32>(convolution, operands),
        }
    }
}

/// Adds up all products. Each is of an element of the input, one of the filter and one of the output, two of which are
/// given; the direction says which.
///
/// # Safety
/// As for `run`.
unsafe fn sum_up<S: Sum>(convolution: &Convolution, operands: &ConvolutionOperands) {
    let Convolution { direction, scalar, n, input, output, c_in, c_out, filter, groups, .. } = *convolution;
    let counts = [
        n * input[0] * input[1] * c_in,
        c_out * filter[0] * filter[1] * (c_in / groups),
        n * output[0] * output[1] * c_out,
    ];
    let read = |from: *const u8, count: usize| -> Vec<S> {
        let round =
            |value| S::round(if convolution.tf32 && scalar == Scalar::F32 { to_tf32(value) } else { value });
        // SAFETY: the operand has so many elements.
        (0..count).map(|idx| round(unsafe { load(scalar, from, idx) })).collect()
    };
    let (result, addresses) = match direction {
        Direction::ToInput => (0, [operands.filter, operands.output]),
        Direction::ToFilter => (1, [operands.input, operands.output]),
        Direction::Forward => (2, [operands.input, operands.filter]),
    };
    let given = [if result == 0 { 1 } else { 0 }, if result == 2 { 1 } else { 2 }];
    let [lhs, rhs] = [0, 1].map(|operand| read(addresses[operand], counts[given[operand]]));
    let mut sums = vec![S::default(); counts[result]];
    for_each_product(convolution, |place| {
        let sum = &mut sums[place[result]];
        *sum = *sum + lhs[place[given[0]]] * rhs[place[given[1]]];
    });
    let to = [operands.input, operands.filter, operands.output][result];
    for (idx, &sum) in sums.iter().enumerate() {
        // SAFETY: the result has so many elements.
        unsafe { store(scalar, to, idx, sum.into()) };
    }
}

/// Calls `visit` with the indices into input, filter and output of every product of the convolution.
fn for_each_product(convolution: &Convolution, mut visit: impl FnMut([usize; 3])) {
    let Convolution { n, input, output, c_in, c_out, filter, groups, .. } = *convolution;
    let (group_in, group_out) = (c_in / groups, c_out / groups);
    // The row or column of the input that a tap meets, if it is not in the padding.
    let met = |axis: usize, out: usize, tap: usize| {
        let at = (out * convolution.stride[axis] + tap * convolution.dilation[axis])
            .checked_sub(convolution.padding[axis])?;
        (at < input[axis]).then_some(at)
    };
    for (image, out_y, out_x) in places(n, output) {
        for (channel, tap_y, tap_x) in places(c_out, filter) {
            let (Some(y), Some(x)) = (met(0, out_y, tap_y), met(1, out_x, tap_x)) else { continue };
            let first_in = ((image * input[0] + y) * input[1] + x) * c_in + channel / group_out * group_in;
            let first_filter = ((channel * filter[0] + tap_y) * filter[1] + tap_x) * group_in;
            let out = ((image * output[0] + out_y) * output[1] + out_x) * c_out + channel;
            (0..group_in).for_each(|idx| visit([first_in + idx, first_filter + idx, out]));
        }
    }
}

/// All places of some planes.
fn places(n_planes: usize, [height, width]: [usize; 2]) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..n_planes * height * width).map(move |idx| (idx / (height * width), idx / width % height, idx % width))
}
