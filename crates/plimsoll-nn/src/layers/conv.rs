//! `Conv1D` and `Conv2D`: every output is a weighted sum of the inputs around its place.

use plimsoll_tensor::{
    Activation, Conv1dConfig, Conv2dConfig, ConvConfig, Error, IntoExtents, IntoShape, Result, Shape, Tensor,
};

use super::options::convolution_options;
use super::padding::Padding;
use super::{batch_of_one, example_of, product};
use crate::initializer::{Fans, Initializer};
use crate::layer::{BuiltLayer, Layer, variable};

/// A convolution over `N` axes of places, channels last; see [`Conv1D`] and [`Conv2D`].
///
/// Variables: `kernel`, `[filters, kernel, channels / groups]` with an extent of the kernel for each axis of places, Glorot
/// uniform, and `bias` `[filters]`, zeros, unless told otherwise. Saved for backward: the input, and the output if there is
/// an activation.
#[derive(Clone, Copy, Debug)]
pub struct Conv<const N: usize> {
    filters: usize,
    kernel: [usize; N],
    stride: [usize; N],
    dilation: [usize; N],
    padding: Padding<N>,
    groups: usize,
    activation: Activation,
    bias: Option<Initializer>,
    initializer: Initializer,
}

/// A convolution of sequences: `[batch, length, channels]` to `[batch, length, filters]`.
#[doc(alias = "Conv1d")]
pub type Conv1D = Conv<1>;

/// A convolution of pictures: `[batch, height, width, channels]` to `[batch, height, width, filters]`. Pairs are
/// vertical, horizontal; one number stands for both.
#[doc(alias = "Conv2d")]
pub type Conv2D = Conv<2>;

impl<const N: usize> Conv<N> {
    /// A layer with so many outputs at each place, each of so many places of the input; no padding.
    pub fn new(filters: usize, kernel: impl IntoExtents<N>) -> Conv<N> {
        Conv {
            filters,
            kernel: kernel.into_extents(),
            stride: [1; N],
            dilation: [1; N],
            padding: Padding::Even([0; N]),
            groups: 1,
            activation: Activation::None,
            bias: Some(Initializer::Zeros),
            initializer: Initializer::GlorotUniform,
        }
    }

    convolution_options!(N);

    /// This layer with so many zeros before and after the input along each axis.
    pub fn padding(self, padding: impl IntoExtents<N>) -> Conv<N> {
        Conv { padding: Padding::Even(padding.into_extents()), ..self }
    }

    /// This layer with as many zeros as keep the extents, divided by the stride: Keras's `padding="same"`.
    pub fn same(self) -> Conv<N> {
        Conv { padding: Padding::Same, ..self }
    }

    /// This layer with channels in so many groups that do not mix.
    pub fn groups(self, groups: usize) -> Conv<N> {
        Conv { groups, ..self }
    }

    /// Makes the layer, given the op for so many axes.
    fn make_with(
        &self,
        op: fn(&Tensor, &Tensor, Option<&Tensor>, &ConvConfig<N>) -> Result<Tensor>,
        name: &'static str,
        input: &Shape,
    ) -> Result<BuiltLayer> {
        let (extents, channels) = places_of::<N>(name, input)?;
        let config = ConvConfig::new()
            .stride(self.stride)
            .dilation(self.dilation)
            .groups(self.groups)
            .activation(self.activation);
        let config = self.padding.of(config, extents, [self.kernel, self.stride, self.dilation]);
        let per_group = channels / self.groups.max(1);
        let shape = [&[self.filters], &self.kernel[..], &[per_group]].concat().into_shape()?;
        let output = config.output_shape(&batch_of_one(input)?, &shape)?;
        let taps = product(self.kernel);
        let fans = Fans { inputs: product([taps, per_group]), outputs: product([taps, self.filters]) };
        let kernel = variable("kernel", shape, self.initializer, fans)?;
        let bias = self.bias.map(|bias| variable("bias", self.filters, bias, fans)).transpose()?;
        BuiltLayer::new(example_of(&output)?, move |x, _| op(x, &kernel, bias.as_deref(), &config))
    }
}

/// The extents of the places of an example, and its channels.
///
/// # Errors
/// Examples with another number of dimensions.
pub(super) fn places_of<const N: usize>(name: &'static str, input: &Shape) -> Result<([usize; N], usize)> {
    let wrong = || {
        let takes = if N == 1 { "[length, channels]" } else { "[height, width, channels]" };
        Error::shape(name, format!("an example has the shape {input}; the layer takes {takes}"))
    };
    let (channels, places) = input.dims().split_last().ok_or_else(wrong)?;
    Ok((places.try_into().map_err(|_| wrong())?, *channels))
}

impl Layer for Conv<1> {
    fn name(&self) -> &str {
        "conv1d"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        self.make_with(|x, w, b, config: &Conv1dConfig| x.conv1d(w, b, config), "conv1d", input)
    }
}

impl Layer for Conv<2> {
    fn name(&self) -> &str {
        "conv2d"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        self.make_with(|x, w, b, config: &Conv2dConfig| x.conv2d(w, b, config), "conv2d", input)
    }
}
