//! How users call convolutions.

use super::config::Convolution;
use super::{Conv, Conv1dConfig, Conv2dConfig, ConvKind};
use crate::base::error::Result;
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::OpRef;
use crate::eager::tensor::Tensor;
use crate::ops::Activation;

/// A convolution or its transpose with all that may follow it.
fn convolve(
    of: Convolution,
    kind: ConvKind,
    activation: Activation,
    [x, weights]: [&Tensor; 2],
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let (fused, after) = activation.split();
    let op = OpRef::shipped(Conv { of, kind, activation: fused });
    let weights = weights.contiguous()?;
    let y = match bias {
        Some(bias) => call(op, &[x, &weights, &bias.contiguous()?])?,
        None => call(op, &[x, &weights])?,
    };
    after.apply(y)
}

impl Tensor {
    /// The convolution of this tensor `[batch, length, channels]` by weights `[out, kernel, channels / groups]`, plus a
    /// bias `[out]`, through the configuration's activation; the result is `[batch, length, out]`. As usual in deep
    /// learning, the kernel is not flipped.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes that differ or are not floats; memory that is full.
    #[doc = example!("conv1d")]
    #[doc(alias = "convolution")]
    #[track_caller]
    pub fn conv1d(&self, weights: &Tensor, bias: Option<&Tensor>, config: &Conv1dConfig) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let of = config.forward(self.shape(), weights.shape())?;
        convolve(of, ConvKind::Forward, config.activation, [self, weights], bias)
    }

    /// The convolution of this tensor `[batch, height, width, channels]` by weights `[out, kernel height, kernel width,
    /// channels / groups]`, plus a bias `[out]`, through the configuration's activation; the result is `[batch, height,
    /// width, out]`. As usual in deep learning, the kernel is not flipped.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes that differ or are not floats; memory that is full.
    #[doc = example!("conv2d")]
    #[doc(alias = "convolution")]
    #[track_caller]
    pub fn conv2d(&self, weights: &Tensor, bias: Option<&Tensor>, config: &Conv2dConfig) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let of = config.forward(self.shape(), weights.shape())?;
        convolve(of, ConvKind::Forward, config.activation, [self, weights], bias)
    }

    /// The transposed convolution of this tensor `[batch, length, channels]` by weights `[channels, kernel, out /
    /// groups]`, plus a bias `[out]`, through the configuration's activation; the result is `[batch, length, out]` with
    /// length `(length - 1) stride - padding + dilation (kernel - 1) + 1 + output padding`, the padding of both ends
    /// being taken away. The weights are laid out as those of the convolution that this transposes.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes that differ or are not floats; memory that is full.
    #[doc = example!("conv_transpose1d")]
    #[doc(alias("deconvolution", "Conv1DTranspose"))]
    #[track_caller]
    pub fn conv_transpose1d(
        &self,
        weights: &Tensor,
        bias: Option<&Tensor>,
        config: &Conv1dConfig,
    ) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let of = config.transposed(self.shape(), weights.shape())?;
        convolve(of, ConvKind::Transposed, config.activation, [self, weights], bias)
    }

    /// The transposed convolution of this tensor `[batch, height, width, channels]` by weights `[channels, kernel
    /// height, kernel width, out / groups]`, plus a bias `[out]`, through the configuration's activation; the result is
    /// `[batch, height, width, out]` with extents `(extent - 1) stride - padding + dilation (kernel - 1) + 1 + output
    /// padding`, the padding of both ends being taken away. The weights are laid out as those of the convolution that
    /// this transposes.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes that differ or are not floats; memory that is full.
    #[doc = example!("conv_transpose2d")]
    #[doc(alias("deconvolution", "Conv2DTranspose"))]
    #[track_caller]
    pub fn conv_transpose2d(
        &self,
        weights: &Tensor,
        bias: Option<&Tensor>,
        config: &Conv2dConfig,
    ) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let of = config.transposed(self.shape(), weights.shape())?;
        convolve(of, ConvKind::Transposed, config.activation, [self, weights], bias)
    }
}
