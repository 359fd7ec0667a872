//! How a convolution is laid over its input, and the shapes that follow.

use plimsoll_gemm as gemm;

use crate::error::{Error, Result};
use crate::ops::Activation;
use crate::shape::{IntoPair, Shape};

/// Stride, padding, dilation, groups and activation of a convolution. Pairs are vertical, horizontal; one number
/// stands for both.
///
/// ```
/// # use plimsoll_tensor::{Activation, Conv2dConfig};
/// let halving = Conv2dConfig::new().stride(2).padding([1, 1]).activation(Activation::Relu);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dConfig {
    stride: [usize; 2],
    padding: [[usize; 2]; 2],
    dilation: [usize; 2],
    groups: usize,
    pub(super) activation: Activation,
}

impl Default for Conv2dConfig {
    fn default() -> Conv2dConfig {
        Conv2dConfig::new()
    }
}

impl Conv2dConfig {
    /// Every place of the input in turn, no padding, one group, no activation.
    pub fn new() -> Conv2dConfig {
        Conv2dConfig {
            stride: [1; 2],
            padding: [[0; 2]; 2],
            dilation: [1; 2],
            groups: 1,
            activation: Activation::None,
        }
    }

    /// With so many places from one output's patch to the next's.
    pub fn stride(self, stride: impl IntoPair) -> Conv2dConfig {
        Conv2dConfig { stride: stride.into_pair(), ..self }
    }

    /// With so many zeros above and below the input, and left and right of it.
    pub fn padding(self, padding: impl IntoPair) -> Conv2dConfig {
        let [vertical, horizontal] = padding.into_pair();
        self.uneven_padding([[vertical; 2], [horizontal; 2]])
    }

    /// With so many zeros above, below, left and right of the input.
    pub fn uneven_padding(self, padding: [[usize; 2]; 2]) -> Conv2dConfig {
        Conv2dConfig { padding, ..self }
    }

    /// With so many places from one tap of the kernel to the next.
    pub fn dilation(self, dilation: impl IntoPair) -> Conv2dConfig {
        Conv2dConfig { dilation: dilation.into_pair(), ..self }
    }

    /// With channels in so many groups that do not mix; as many as channels make it depthwise.
    pub fn groups(self, groups: usize) -> Conv2dConfig {
        Conv2dConfig { groups, ..self }
    }

    /// With an activation of the result.
    pub fn activation(self, activation: Activation) -> Conv2dConfig {
        Conv2dConfig { activation, ..self }
    }

    /// The convolution of an input by weights.
    ///
    /// # Errors
    /// Shapes that do not fit each other or the configuration.
    pub(super) fn geometry(&self, input: &Shape, weights: &Shape) -> Result<gemm::Conv2d> {
        let wrong = |detail: String| Err(Error::shape("conv2d", detail));
        let (&[batch, height, width, channels], &[outputs, kernel_height, kernel_width, inputs]) =
            (input.dims(), weights.dims())
        else {
            return wrong(format!(
                "shapes {input} and {weights}; the input is [batch, height, width, channels], the weights are \
                 [out, kernel height, kernel width, channels / groups]"
            ));
        };
        if self.stride.contains(&0) || self.dilation.contains(&0) || self.groups == 0 {
            return Err(Error::argument(
                "conv2d",
                format!(
                    "stride {:?}, dilation {:?}, {} groups; each must be one or more",
                    self.stride, self.dilation, self.groups
                ),
            ));
        }
        if inputs * self.groups != channels || outputs % self.groups != 0 {
            return wrong(format!(
                "shapes {input} and {weights} with {} groups; {channels} channels must be the weights' {inputs} times \
                 the groups, and {outputs} outputs a multiple of the groups",
                self.groups
            ));
        }
        let geometry = gemm::Conv2d {
            batch,
            input: [height, width],
            in_channels: channels,
            out_channels: outputs,
            kernel: [kernel_height, kernel_width],
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
            groups: self.groups,
        };
        match geometry.output() {
            Some(_) => Ok(geometry),
            None => wrong(format!(
                "a kernel of {kernel_height} by {kernel_width}, dilated by {:?}, does not fit an input of {height} by \
                 {width} padded by {:?}; pad more, or take a smaller kernel",
                self.dilation, self.padding
            )),
        }
    }
}

/// The shape of the input.
pub(super) fn input_shape(of: &gemm::Conv2d) -> Shape {
    Shape::from_checked([of.batch, of.input[0], of.input[1], of.in_channels])
}

/// The shape of the weights.
pub(super) fn weights_shape(of: &gemm::Conv2d) -> Shape {
    Shape::from_checked([of.out_channels, of.kernel[0], of.kernel[1], of.in_channels / of.groups])
}

/// The shape of the output.
pub(super) fn output_shape(of: &gemm::Conv2d) -> Shape {
    let [height, width] = of.output().unwrap_or([0, 0]);
    Shape::from_checked([of.batch, height, width, of.out_channels])
}
