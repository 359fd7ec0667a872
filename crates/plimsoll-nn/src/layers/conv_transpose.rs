//! `Conv1DTranspose` and `Conv2DTranspose`: every input is spread, weighted, over the outputs around its place.

use plimsoll_tensor::{
    Activation, Conv1dConfig, Conv2dConfig, ConvConfig, IntoExtents, IntoShape, Result, Shape, Tensor,
};

use super::conv::places_of;
use super::options::convolution_options;
use super::padding::Padding;
use super::{batch_of_one, example_of, product};
use crate::initializer::{Fans, Initializer};
use crate::layer::{BuiltLayer, Layer, variable};

/// A transposed convolution over `N` axes of places, channels last; see [`Conv1DTranspose`] and [`Conv2DTranspose`].
///
/// Variables: `kernel`, `[channels, kernel, filters / groups]` with an extent of the kernel for each axis of places, as that
/// of the convolution that it transposes, Glorot uniform, and `bias` `[filters]`, zeros, unless told otherwise. Kept for
/// backward: the input, and the output if there is an activation.
#[derive(Clone, Copy, Debug)]
pub struct ConvTranspose<const N: usize> {
    filters: usize,
    kernel: [usize; N],
    stride: [usize; N],
    dilation: [usize; N],
    padding: Padding<N>,
    output_padding: [usize; N],
    groups: usize,
    activation: Activation,
    bias: Option<Initializer>,
    initializer: Initializer,
}

/// A transposed convolution of sequences: `[batch, length, channels]` to `[batch, length, filters]`.
#[doc(alias = "ConvTranspose1d")]
pub type Conv1DTranspose = ConvTranspose<1>;

/// A transposed convolution of pictures: `[batch, height, width, channels]` to `[batch, height, width, filters]`. Pairs
/// are vertical, horizontal; one number stands for both.
#[doc(alias = "ConvTranspose2d")]
pub type Conv2DTranspose = ConvTranspose<2>;

impl<const N: usize> ConvTranspose<N> {
    /// A layer with so many outputs at each place, each input spread over so many places; no padding.
    pub fn new(filters: usize, kernel: impl IntoExtents<N>) -> ConvTranspose<N> {
        ConvTranspose {
            filters,
            kernel: kernel.into_extents(),
            stride: [1; N],
            dilation: [1; N],
            padding: Padding::Even([0; N]),
            output_padding: [0; N],
            groups: 1,
            activation: Activation::None,
            bias: Some(Initializer::Zeros),
            initializer: Initializer::GlorotUniform,
        }
    }

    convolution_options!(N);

    /// This layer with so many places left out at both ends of the output along each axis.
    pub fn padding(self, padding: impl IntoExtents<N>) -> ConvTranspose<N> {
        ConvTranspose { padding: Padding::Even(padding.into_extents()), ..self }
    }

    /// This layer with an output whose extents are the input's times the stride: Keras's `padding="same"`.
    pub fn same(self) -> ConvTranspose<N> {
        ConvTranspose { padding: Padding::Same, ..self }
    }

    /// This layer with so many more places at the end of the output along each axis, fewer than the stride. Not for
    /// [`ConvTranspose::same`], which knows how many it needs.
    pub fn output_padding(self, output_padding: impl IntoExtents<N>) -> ConvTranspose<N> {
        ConvTranspose { output_padding: output_padding.into_extents(), ..self }
    }

    /// This layer with channels in so many groups that do not mix.
    pub fn groups(self, groups: usize) -> ConvTranspose<N> {
        ConvTranspose { groups, ..self }
    }

    /// Makes the layer, given the op for so many axes.
    fn make_with(
        &self,
        op: fn(&Tensor, &Tensor, Option<&Tensor>, &ConvConfig<N>) -> Result<Tensor>,
        name: &'static str,
        input: &Shape,
    ) -> Result<BuiltLayer> {
        let (_, channels) = places_of::<N>(name, input)?;
        let config = ConvConfig::new()
            .stride(self.stride)
            .dilation(self.dilation)
            .output_padding(self.output_padding)
            .groups(self.groups)
            .activation(self.activation);
        let config = self.padding.of_transposed(config, [self.kernel, self.stride, self.dilation]);
        let per_group = self.filters / self.groups.max(1);
        let shape = [&[channels], &self.kernel[..], &[per_group]].concat().into_shape()?;
        let output = config.transposed_output_shape(&batch_of_one(input)?, &shape)?;
        let taps = product(self.kernel);
        let fans = Fans { inputs: product([taps, channels]), outputs: product([taps, per_group]) };
        let kernel = variable("kernel", shape, self.initializer, fans)?;
        let bias = self.bias.map(|bias| variable("bias", self.filters, bias, fans)).transpose()?;
        BuiltLayer::new(example_of(&output)?, move |x, _| op(x, &kernel, bias.as_deref(), &config))
    }
}

impl Layer for ConvTranspose<1> {
    fn name(&self) -> &str {
        "conv1d_transpose"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let op = |x: &Tensor, w: &Tensor, b: Option<&Tensor>, config: &Conv1dConfig| {
            x.conv_transpose1d(w, b, config)
        };
        self.make_with(op, "conv1d_transpose", input)
    }
}

impl Layer for ConvTranspose<2> {
    fn name(&self) -> &str {
        "conv2d_transpose"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let op = |x: &Tensor, w: &Tensor, b: Option<&Tensor>, config: &Conv2dConfig| {
            x.conv_transpose2d(w, b, config)
        };
        self.make_with(op, "conv2d_transpose", input)
    }
}
