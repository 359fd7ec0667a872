//! How a convolution is laid over its input, and the shapes that follow.
//!
//! A kernel knows two axes of places; a sequence is a picture of one line, and its tensors leave that axis out.
//!
//! Kernels compute with strides, paddings and dilations without looking at them again, so a [`Convolution`] exists only if
//! all of its shapes and the places that its taps reach can be counted; everything else is refused here, with the numbers.

use plimsoll_gemm as gemm;

use crate::base::error::{Error, Result};
use crate::base::shape::{IntoExtents, MAX_ELEMS, Shape};
use crate::ops::Activation;

/// Stride, padding, dilation, groups and activation of a convolution over `N` axes, outermost first; one number stands
/// for all of them.
///
/// ```
/// # use plimsoll_tensor::{Activation, Conv1dConfig, Conv2dConfig};
/// let halving = Conv2dConfig::new().stride(2).padding([1, 1]).activation(Activation::Relu);
/// let causal = Conv1dConfig::new().uneven_padding([[2, 0]]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvConfig<const N: usize> {
    stride: [usize; N],
    padding: [[usize; 2]; N],
    output_padding: [usize; N],
    dilation: [usize; N],
    groups: usize,
    pub(super) activation: Activation,
}

/// The configuration of a convolution of sequences.
pub type Conv1dConfig = ConvConfig<1>;

/// The configuration of a convolution of pictures: pairs are vertical, horizontal.
pub type Conv2dConfig = ConvConfig<2>;

impl<const N: usize> Default for ConvConfig<N> {
    fn default() -> ConvConfig<N> {
        ConvConfig::new()
    }
}

impl<const N: usize> ConvConfig<N> {
    /// Every place of the input in turn, no padding, one group, no activation.
    pub fn new() -> ConvConfig<N> {
        ConvConfig {
            stride: [1; N],
            padding: [[0; 2]; N],
            output_padding: [0; N],
            dilation: [1; N],
            groups: 1,
            activation: Activation::None,
        }
    }

    /// With so many places from one output's patch to the next's; a transposed convolution spreads its input's places
    /// so far apart.
    pub fn stride(self, stride: impl IntoExtents<N>) -> ConvConfig<N> {
        ConvConfig { stride: stride.into_extents(), ..self }
    }

    /// With so many zeros before and after the input along each axis; a transposed convolution leaves so many places of
    /// its output out.
    pub fn padding(self, padding: impl IntoExtents<N>) -> ConvConfig<N> {
        self.uneven_padding(padding.into_extents().map(|n| [n; 2]))
    }

    /// With so many zeros before the input and so many after it, along each axis.
    pub fn uneven_padding(self, padding: [[usize; 2]; N]) -> ConvConfig<N> {
        ConvConfig { padding, ..self }
    }

    /// With so many more places at the end of a transposed convolution's output, fewer than the stride: a stride makes
    /// inputs of several sizes give one output, and this says which of them is meant.
    pub fn output_padding(self, output_padding: impl IntoExtents<N>) -> ConvConfig<N> {
        ConvConfig { output_padding: output_padding.into_extents(), ..self }
    }

    /// With so many places from one tap of the kernel to the next.
    pub fn dilation(self, dilation: impl IntoExtents<N>) -> ConvConfig<N> {
        ConvConfig { dilation: dilation.into_extents(), ..self }
    }

    /// With channels in so many groups that do not mix; as many as channels make it depthwise.
    pub fn groups(self, groups: usize) -> ConvConfig<N> {
        ConvConfig { groups, ..self }
    }

    /// With an activation of the result.
    pub fn activation(self, activation: Activation) -> ConvConfig<N> {
        ConvConfig { activation, ..self }
    }

    /// The shape that a convolution of an input by weights of these shapes has.
    ///
    /// # Errors
    /// Shapes that do not fit each other or the configuration.
    pub fn output_shape(&self, input: &Shape, weights: &Shape) -> Result<Shape> {
        Ok(self.forward(input, weights)?.output())
    }

    /// The shape that a transposed convolution of an input by weights of these shapes has.
    ///
    /// # Errors
    /// Shapes that do not fit each other or the configuration.
    pub fn transposed_output_shape(&self, input: &Shape, weights: &Shape) -> Result<Shape> {
        Ok(self.transposed(input, weights)?.input())
    }

    /// The convolution of an input by weights.
    ///
    /// # Errors
    /// Shapes that do not fit each other or the configuration.
    pub(super) fn forward(&self, input: &Shape, weights: &Shape) -> Result<Convolution> {
        let op = if N == 1 { "conv1d" } else { "conv2d" };
        let (input_axes, weight_axes) = self.check(op, input, weights, ["out", "channels / groups"])?;
        let [batch, places @ .., channels] = input_axes;
        let [outputs, kernel @ .., inputs] = weight_axes;
        if self.output_padding != [0; N] {
            let detail =
                format!("output padding {:?}; only a transposed convolution has any", self.output_padding);
            return Err(Error::argument(op, detail));
        }
        if inputs.checked_mul(self.groups) != Some(channels) || outputs % self.groups != 0 {
            return Err(Error::shape(
                op,
                format!(
                    "shapes {input} and {weights} with {} groups; {channels} channels must be the weights' {inputs} \
                     times the groups, and {outputs} outputs a multiple of the groups",
                    self.groups
                ),
            ));
        }
        match self.convolution([batch, channels, outputs], places, kernel)? {
            Some(convolution) => Ok(convolution),
            None => Err(Error::shape(
                op,
                format!(
                    "a kernel of {}, dilated by {:?}, does not fit an input of {} padded by {:?}; pad more, or take a \
                     smaller kernel",
                    by(&kernel[2 - N..]),
                    self.dilation,
                    by(&places[2 - N..]),
                    self.padding
                ),
            )),
        }
    }

    /// The convolution whose transpose takes an input to an output by weights.
    ///
    /// # Errors
    /// Shapes that do not fit each other or the configuration.
    pub(super) fn transposed(&self, input: &Shape, weights: &Shape) -> Result<Convolution> {
        let op = if N == 1 { "conv_transpose1d" } else { "conv_transpose2d" };
        let (input_axes, weight_axes) = self.check(op, input, weights, ["channels", "out / groups"])?;
        let [batch, places @ .., channels] = input_axes;
        let [inputs, kernel @ .., outputs] = weight_axes;
        if inputs != channels || channels % self.groups != 0 {
            return Err(Error::shape(
                op,
                format!(
                    "shapes {input} and {weights} with {} groups; {channels} channels must be the first extent of the \
                     weights, {inputs}, and a multiple of the groups",
                    self.groups
                ),
            ));
        }
        if (0..N).any(|axis| self.output_padding[axis] >= self.stride[axis]) {
            let detail = format!(
                "output padding {:?} with stride {:?}; it must be less than the stride",
                self.output_padding, self.stride
            );
            return Err(Error::argument(op, detail));
        }
        let output = std::array::from_fn(|axis| {
            let Some(own) = (axis + N).checked_sub(2) else { return Some(1) };
            let reach = kernel[axis].checked_sub(1)?.checked_mul(self.dilation[own])?.checked_add(1)?;
            let spread = places[axis].checked_sub(1)?.checked_mul(self.stride[own])?.checked_add(reach)?;
            let spread = spread.checked_add(self.output_padding[own])?;
            spread.checked_sub(self.padding[own][0] + self.padding[own][1]).filter(|&extent| extent > 0)
        });
        let [Some(height), Some(width)] = output else {
            return Err(Error::shape(
                op,
                format!(
                    "an input of {} and a kernel of {} leave no output that can be counted with stride {:?}, dilation \
                     {:?} and padding {:?}; take smaller ones, or pad less",
                    by(&places[2 - N..]),
                    by(&kernel[2 - N..]),
                    self.stride,
                    self.dilation,
                    self.padding
                ),
            ));
        };
        let outputs = outputs.saturating_mul(self.groups);
        let convolution = self.convolution([batch, outputs, channels], [height, width], kernel)?;
        convolution.filter(|of| of.output() == *input).ok_or_else(|| {
            Error::shape(op, format!("no convolution of {self:?} gives shape {input} with weights {weights}"))
        })
    }

    /// The extents of input and weights with both axes of places.
    ///
    /// # Errors
    /// Other ranks, or a configuration with zeros.
    fn check(
        &self,
        op: &'static str,
        input: &Shape,
        weights: &Shape,
        [first, last]: [&str; 2],
    ) -> Result<([usize; 4], [usize; 4])> {
        if self.stride.contains(&0) || self.dilation.contains(&0) || self.groups == 0 {
            return Err(Error::argument(
                op,
                format!(
                    "stride {:?}, dilation {:?}, {} groups; each must be one or more",
                    self.stride, self.dilation, self.groups
                ),
            ));
        }
        let all = [&self.stride, &self.dilation, &self.output_padding].map(|each| each.as_slice());
        let all = all.into_iter().flatten().chain(self.padding.as_flattened()).chain([&self.groups]);
        if let Some(largest) = all.max().filter(|&&largest| largest > MAX_ELEMS) {
            return Err(Error::argument(
                op,
                format!(
                    "{largest} as a stride, padding, dilation or number of groups (stride {:?}, padding {:?}, \
                     dilation {:?}, {} groups); no tensor has more than {MAX_ELEMS} places",
                    self.stride, self.padding, self.dilation, self.groups
                ),
            ));
        }
        match (with_both_axes(input, N), with_both_axes(weights, N)) {
            (Some(input), Some(weights)) => Ok((input, weights)),
            _ => {
                let [places, kernel] = if N == 1 {
                    ["length", "kernel"]
                } else {
                    ["height, width", "kernel height, kernel width"]
                };
                Err(Error::shape(
                    op,
                    format!(
                        "shapes {input} and {weights}; the input is [batch, {places}, channels], the weights are \
                         [{first}, {kernel}, {last}]"
                    ),
                ))
            }
        }
    }

    /// The convolution of pictures of that size: so many of them, with channels in and out; none if it has no output.
    ///
    /// # Errors
    /// Shapes with more elements than can be counted.
    fn convolution(
        &self,
        [batch, in_channels, out_channels]: [usize; 3],
        input: [usize; 2],
        kernel: [usize; 2],
    ) -> Result<Option<Convolution>> {
        let own = |axis: usize| (axis + N).checked_sub(2);
        let geometry = gemm::Conv2d {
            batch,
            input,
            in_channels,
            out_channels,
            kernel,
            stride: std::array::from_fn(|axis| own(axis).map_or(1, |own| self.stride[own])),
            padding: std::array::from_fn(|axis| own(axis).map_or([0; 2], |own| self.padding[own])),
            dilation: std::array::from_fn(|axis| own(axis).map_or(1, |own| self.dilation[own])),
            groups: self.groups,
        };
        let Some([height, width]) = geometry.output() else { return Ok(None) };
        Shape::new(&[batch, input[0], input[1], in_channels])?;
        Shape::new(&[batch, height, width, out_channels])?;
        Shape::new(&[out_channels, kernel[0], kernel[1], in_channels / self.groups])?;
        Ok(Some(Convolution { geometry, n_axes: N }))
    }
}

/// The extents of a tensor with `n_axes` axes of places, an axis of one line added where there is but one.
fn with_both_axes(shape: &Shape, n_axes: usize) -> Option<[usize; 4]> {
    match (n_axes, shape.dims()) {
        (1, &[first, places, last]) => Some([first, 1, places, last]),
        (2, &[first, height, width, last]) => Some([first, height, width, last]),
        _ => None,
    }
}

/// Extents as people say them.
fn by(extents: &[usize]) -> String {
    extents.iter().map(usize::to_string).collect::<Vec<_>>().join(" by ")
}

/// A convolution of tensors: its geometry, and how many axes of places the tensors have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Convolution {
    pub geometry: gemm::Conv2d,
    pub n_axes: usize,
}

impl Convolution {
    /// The shape of the pictures or sequences that are convolved.
    pub fn input(&self) -> Shape {
        let of = &self.geometry;
        self.shape([of.batch, of.input[0], of.input[1], of.in_channels])
    }

    /// The shape of the weights.
    pub fn weights(&self) -> Shape {
        let of = &self.geometry;
        self.shape([of.out_channels, of.kernel[0], of.kernel[1], of.in_channels / of.groups])
    }

    /// The shape of what the convolution makes.
    pub fn output(&self) -> Shape {
        let [height, width] = self.geometry.output().unwrap_or([0, 0]);
        self.shape([self.geometry.batch, height, width, self.geometry.out_channels])
    }

    fn shape(&self, [first, height, width, last]: [usize; 4]) -> Shape {
        match self.n_axes {
            1 => Shape::within_bounds([first, width, last]),
            _ => Shape::within_bounds([first, height, width, last]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_cannot_be_is_refused() {
        let shapes = [&[1, 4, 2], &[2, 3, 2]].map(|dims| Shape::within_bounds(dims.iter().copied()));
        let text = |result: Result<Convolution>| result.expect_err("refused").to_string();
        let new = Conv1dConfig::new;
        let transposed = |config: Conv1dConfig| text(config.transposed(&shapes[0], &shapes[1]));
        assert!(transposed(new().stride(2).output_padding(2)).contains("must be less than the stride"));
        assert!(transposed(new().padding(3)).contains("and padding [[3, 3]]"));
        let forward = |config: Conv1dConfig| text(config.forward(&shapes[0], &shapes[1]));
        assert!(forward(new().output_padding(1)).contains("only a transposed convolution has any"));
        assert!(forward(new().stride(0)).contains("each must be one or more"));
        for huge in [1 << 60, usize::MAX / 2, usize::MAX] {
            let configs = [new().stride(huge), new().dilation(huge), new().groups(huge), new().padding(huge)];
            for config in configs.into_iter().chain([new().uneven_padding([[0, huge]])]) {
                assert!(forward(config).contains(&huge.to_string()), "{config:?}");
                assert!(transposed(config).contains(&huge.to_string()), "{config:?}");
            }
        }
        let far = new().dilation(1 << 47).padding(1 << 48);
        assert!(
            text(far.forward(&shapes[0], &Shape::within_bounds([2, 1 << 40, 2]))).contains("does not fit")
        );
        assert!(forward(new().padding(1 << 48)).contains("counted") && transposed(far).contains("counted"));
    }
}
