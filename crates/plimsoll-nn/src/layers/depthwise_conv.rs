//! `DepthwiseConv2D`: a convolution in which channels do not mix.

use plimsoll_tensor::{Activation, Conv2dConfig, IntoExtents, IntoShape, Result, Shape};

use super::conv::places_of;
use super::options::convolution_options;
use super::padding::Padding;
use super::{batch_of_one, example_of, product};
use crate::initializer::{Fans, Initializer};
use crate::layer::{BuiltLayer, Layer, variable};

/// Each channel of a picture convolved by itself: `[batch, height, width, channels]` to `[batch, height, width, channels
/// multiplier]`, the outputs of a channel side by side.
///
/// Variables: `kernel` `[channels multiplier, kernel height, kernel width, 1]`, Glorot uniform, and `bias` `[channels
/// multiplier]`, zeros, unless told otherwise. Saved for backward: the input, and the output if there is an activation.
#[derive(Clone, Copy, Debug)]
pub struct DepthwiseConv2D {
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    padding: Padding<2>,
    multiplier: usize,
    activation: Activation,
    bias: Option<Initializer>,
    initializer: Initializer,
}

impl DepthwiseConv2D {
    /// A layer with a kernel of so many places, one output for each channel, and no padding.
    pub fn new(kernel: impl IntoExtents<2>) -> DepthwiseConv2D {
        DepthwiseConv2D {
            kernel: kernel.into_extents(),
            stride: [1; 2],
            dilation: [1; 2],
            padding: Padding::Even([0; 2]),
            multiplier: 1,
            activation: Activation::None,
            bias: Some(Initializer::Zeros),
            initializer: Initializer::GlorotUniform,
        }
    }

    convolution_options!(2);

    /// This layer with so many zeros above and below the input, and left and right of it.
    pub fn padding(self, padding: impl IntoExtents<2>) -> DepthwiseConv2D {
        DepthwiseConv2D { padding: Padding::Even(padding.into_extents()), ..self }
    }

    /// This layer with as many zeros as keep the extents, divided by the stride: Keras's `padding="same"`.
    pub fn same(self) -> DepthwiseConv2D {
        DepthwiseConv2D { padding: Padding::Same, ..self }
    }

    /// This layer with so many outputs for each channel.
    pub fn depth_multiplier(self, multiplier: usize) -> DepthwiseConv2D {
        DepthwiseConv2D { multiplier, ..self }
    }
}

impl Layer for DepthwiseConv2D {
    fn name(&self) -> &str {
        "depthwise_conv2d"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let (extents, channels) = places_of::<2>("depthwise_conv2d", input)?;
        let config = Conv2dConfig::new()
            .stride(self.stride)
            .dilation(self.dilation)
            .groups(channels)
            .activation(self.activation);
        let config = self.padding.of(config, extents, [self.kernel, self.stride, self.dilation]);
        let filters = product([channels, self.multiplier]);
        let shape = [filters, self.kernel[0], self.kernel[1], 1].into_shape()?;
        let output = config.output_shape(&batch_of_one(input)?, &shape)?;
        let taps = product(self.kernel);
        let fans = Fans { inputs: taps, outputs: product([taps, self.multiplier]) };
        let kernel = variable("kernel", shape, self.initializer, fans)?;
        let bias = self.bias.map(|bias| variable("bias", filters, bias, fans)).transpose()?;
        BuiltLayer::new(example_of(&output)?, move |x, _| x.conv2d(&kernel, bias.as_deref(), &config))
    }
}
