//! `MaxPooling2D`, `AveragePooling2D` and the global average poolings: the greatest or the mean of windows of a picture.

use plimsoll_tensor::{IntoExtents, IntoShape, Pool2d, Result, Shape};

use super::conv::places_of;
use super::{batch_of_one, example_of};
use crate::layer::{BuiltLayer, Layer};

/// The greatest of each window: `[batch, height, width, channels]` to the same with a place for each window. Kept for
/// backward: one byte for each output.
#[doc(alias("MaxPool2d", "max_pool2d", "MaxPool2D"))]
#[derive(Clone, Copy, Debug)]
pub struct MaxPooling2D(Pool2d);

/// The mean of each window: `[batch, height, width, channels]` to the same with a place for each window. Zeros of the
/// padding count. Nothing is saved for backward.
#[doc(alias("AvgPool2d", "avg_pool2d", "AvgPool2D"))]
#[derive(Clone, Copy, Debug)]
pub struct AveragePooling2D(Pool2d);

/// Declares what the two have in common.
macro_rules! windows {
    ($layer:ident, $name:literal, $op:ident) => {
        impl $layer {
            /// Windows of that height and width, side by side, without padding; one number stands for both.
            #[doc(alias("pool_size", "kernel_size"))]
            pub fn new(window: impl IntoExtents<2>) -> $layer {
                $layer(Pool2d::new(window))
            }

            /// This layer with so many places from one window to the next.
            #[doc(alias = "strides")]
            pub fn stride(self, stride: impl IntoExtents<2>) -> $layer {
                $layer(self.0.stride(stride))
            }

            /// This layer with so many places more at both ends along each axis, at most half a window.
            pub fn padding(self, padding: impl IntoExtents<2>) -> $layer {
                $layer(self.0.padding(padding))
            }
        }

        impl Layer for $layer {
            fn name(&self) -> &str {
                $name
            }

            fn is_pure(&self) -> bool {
                true
            }

            fn make(&self, input: &Shape) -> Result<BuiltLayer> {
                places_of::<2>($name, input)?;
                let pool = self.0;
                let output = pool.output_shape(&batch_of_one(input)?)?;
                BuiltLayer::new(example_of(&output)?, move |x, _| x.$op(pool))
            }
        }
    };
}

windows!(MaxPooling2D, "max_pool", max_pool2d);
windows!(AveragePooling2D, "average_pool", avg_pool2d);

/// The mean of each channel over all `N` axes of places; see [`GlobalAveragePooling1D`] and [`GlobalAveragePooling2D`]. Nothing is
/// saved for backward.
#[doc(alias("AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "GlobalAvgPool"))]
#[derive(Clone, Copy, Debug, Default)]
pub struct GlobalAveragePooling<const N: usize> {
    _private: (),
}

/// The mean of a sequence: `[batch, length, channels]` to `[batch, channels]`.
pub type GlobalAveragePooling1D = GlobalAveragePooling<1>;

/// The mean of a picture: `[batch, height, width, channels]` to `[batch, channels]`.
pub type GlobalAveragePooling2D = GlobalAveragePooling<2>;

impl<const N: usize> GlobalAveragePooling<N> {
    /// A layer of means.
    pub fn new() -> GlobalAveragePooling<N> {
        GlobalAveragePooling::default()
    }
}

impl<const N: usize> Layer for GlobalAveragePooling<N> {
    fn name(&self) -> &str {
        "global_average_pool"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let (_, channels) = places_of::<N>("global_average_pool", input)?;
        BuiltLayer::new([channels].into_shape()?, move |x, _| x.mean(1..=N))
    }
}
