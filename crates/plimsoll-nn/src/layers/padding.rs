//! How a convolution pads its input.

use plimsoll_tensor::ConvConfig;

/// Zeros around an input with `N` axes of places.
#[derive(Clone, Copy, Debug)]
pub(super) enum Padding<const N: usize> {
    /// So many before and after along each axis.
    Even([usize; N]),
    /// As many as keep the extents, divided by the stride and rounded up; where their number is odd, the last one comes
    /// after, as in Keras.
    Same,
}

/// The places of one axis that a kernel reaches over, or the largest number: the convolution refuses what is too far.
fn reach(kernel: usize, dilation: usize) -> usize {
    kernel.saturating_sub(1).saturating_mul(dilation).saturating_add(1)
}

/// A number of zeros in two nearly equal parts.
fn halves(total: usize) -> [usize; 2] {
    [total / 2, total - total / 2]
}

impl<const N: usize> Padding<N> {
    /// A convolution's configuration with this padding of an input with those extents.
    pub fn of(
        self,
        config: ConvConfig<N>,
        extents: [usize; N],
        [kernel, stride, dilation]: [[usize; N]; 3],
    ) -> ConvConfig<N> {
        match self {
            Padding::Even(padding) => config.padding(padding),
            Padding::Same => config.uneven_padding(std::array::from_fn(|axis| {
                let stride = stride[axis].max(1);
                let covered = extents[axis].div_ceil(stride).saturating_sub(1).saturating_mul(stride);
                let needed = covered.saturating_add(reach(kernel[axis], dilation[axis]));
                halves(needed.saturating_sub(extents[axis]))
            })),
        }
    }

    /// A transposed convolution's configuration with this padding: `Same` makes the extents of the output those of the
    /// input times the stride.
    pub fn of_transposed(
        self,
        config: ConvConfig<N>,
        [kernel, stride, dilation]: [[usize; N]; 3],
    ) -> ConvConfig<N> {
        match self {
            Padding::Even(padding) => config.padding(padding),
            Padding::Same => {
                let reaches: [usize; N] = std::array::from_fn(|axis| reach(kernel[axis], dilation[axis]));
                let padding = std::array::from_fn(|axis| halves(reaches[axis].saturating_sub(stride[axis])));
                let missing: [usize; N] =
                    std::array::from_fn(|axis| stride[axis].saturating_sub(reaches[axis]));
                config.uneven_padding(padding).output_padding(missing)
            }
        }
    }
}
