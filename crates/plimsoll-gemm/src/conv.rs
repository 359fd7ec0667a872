//! Two-dimensional convolution, channels last, as products whose operands are read from the image.
//!
//! Pictures are `[batch, height, width, channels]`, weights `[out, kernel height, kernel width, in / groups]`. No patch
//! matrix is ever stored: patches are multiplied where they lie, in strips of the image (`strip`), and a kernel of one
//! place is a plain product. The gradient with respect to the input is one convolution per phase of the stride, each
//! with only the taps that reach its points, so no zeros are multiplied that a stride put there. When every channel is
//! its own group the work is done by `depthwise` instead.

use std::ops::Range;

use crate::count::product;
use crate::depthwise::Depthwise;
use crate::element::{Access, Element, Real};
use crate::isa::HasKernels;
use crate::operand::{Operand, Strided};
use crate::output::{Output, Rows};
use crate::patches::Patches;
use crate::plan::Plan;
use crate::product::Product;
use crate::strip_conv::{StripConv, StripPlan};
use crate::strip_weights::{StripWeights, WeightsPlan};
use crate::{Epilogue, Shape, check_workspace};

/// The shape of a convolution. Pairs are vertical, horizontal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2d {
    /// Pictures.
    pub batch: usize,
    /// Height and width of the input.
    pub input: [usize; 2],
    /// Channels of the input; a multiple of `groups`.
    pub in_channels: usize,
    /// Channels of the output; a multiple of `groups`.
    pub out_channels: usize,
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Places from one output's patch to the next's; at least one.
    pub stride: [usize; 2],
    /// Zeros around the input: above and below, left and right.
    pub padding: [[usize; 2]; 2],
    /// Places from one tap of the kernel to the next; at least one.
    pub dilation: [usize; 2],
    /// Groups of channels that do not mix.
    pub groups: usize,
}

/// A picture in memory that is read: its first element, and elements from one picture, line, point and channel to
/// the next.
#[derive(Clone, Copy, Debug)]
pub struct Image<E> {
    /// The element of picture 0, line 0, point 0, channel 0.
    pub first: *const E,
    /// Strides; they may be zero or negative.
    pub strides: [isize; 4],
}

impl<E> Image<E> {
    /// Pictures of this size that lie in memory without gaps, channels last.
    pub fn packed(first: *const E, size: [usize; 2], channels: usize) -> Self {
        let [height, width] = size;
        let strides =
            [height * width * channels, width * channels, channels, 1].map(|stride| stride as isize);
        Self { first, strides }
    }
}

/// Which of the three products of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvPass {
    /// The output.
    Forward,
    /// The gradient with respect to the input.
    BackwardInput,
    /// The gradient with respect to the weights.
    BackwardWeights,
}

/// The points of the input with the same remainder by the stride along one axis, and the taps that reach them.
struct Phase {
    /// The first such point, and how many there are.
    first: usize,
    n_points: usize,
    /// The last tap of the kernel that reaches them, taps from there to the next lower one that does, and how many do.
    /// Taps are walked downwards, because outputs then come in ascending order.
    first_tap: isize,
    every: isize,
    n_taps: usize,
    /// The output that the first point takes from that tap, and outputs from one such tap to the next.
    start: isize,
    tap_step: isize,
}

impl Conv2d {
    /// Height and width of the output, or none if the kernel is larger than the padded input, or they cannot be counted.
    pub fn output(&self) -> Option<[usize; 2]> {
        let along = |axis: usize| {
            let [before, after] = self.padding[axis];
            let padded = self.input[axis].checked_add(before)?.checked_add(after)?;
            let reach = self.kernel[axis].checked_sub(1)?.checked_mul(self.dilation[axis])?.checked_add(1)?;
            Some(padded.checked_sub(reach)?.checked_div(self.stride[axis])? + 1)
        };
        Some([along(0)?, along(1)?])
    }

    /// How many convolutions the gradient with respect to the input is: one for each place between two outputs.
    pub fn n_phases(&self) -> usize {
        product([0, 1].map(|axis| self.stride[axis].min(self.input[axis])))
    }

    /// Bytes of workspace that a pass needs, whatever the threads and processor; the largest number if they are more than
    /// can be counted.
    pub fn workspace<E: Element>(&self, pass: ConvPass) -> usize {
        if self.is_depthwise() {
            return Depthwise::<E::Real>::workspace(self, pass);
        }
        if self.is_product() {
            let shape = match pass {
                ConvPass::Forward => self.forward_shape(),
                ConvPass::BackwardInput => self.transposed_shape(),
                ConvPass::BackwardWeights => self.weights_shape(),
            };
            return Plan::new::<E>(&shape).workspace().max(self.strip_workspace::<E>(pass));
        }
        self.strip_workspace::<E>(pass)
    }

    /// Bytes of workspace that a pass needs if it is not a product, or the image is not a matrix.
    fn strip_workspace<E: Element>(&self, pass: ConvPass) -> usize {
        let outputs = self.group_channels()[1];
        let input = || self.input_patches::<E>(Image { first: std::ptr::null(), strides: [0; 4] });
        match pass {
            ConvPass::Forward => StripPlan::new::<E>(&input(), self.batch, outputs, self.groups).workspace(),
            ConvPass::BackwardWeights => {
                WeightsPlan::new::<E>(&input(), self.batch, outputs, self.groups).workspace()
            }
            ConvPass::BackwardInput => {
                let bytes = |phase: [Phase; 2]| {
                    let patches =
                        self.phase_patches::<E>(&phase, Image { first: std::ptr::null(), strides: [0; 4] });
                    StripPlan::new::<E>(&patches, self.batch, self.group_channels()[0], self.groups)
                        .workspace()
                };
                self.phases().map(bytes).max().unwrap_or(0)
            }
        }
    }

    /// Whether the convolution is a product of matrices: each output reads the input at its own place alone.
    fn is_product(&self) -> bool {
        self.kernel == [1, 1] && self.stride == [1, 1] && self.padding == [[0; 2]; 2]
    }

    /// Whether every channel is a group of its own.
    fn is_depthwise(&self) -> bool {
        self.groups == self.in_channels && self.groups == self.out_channels && self.groups > 1
    }

    /// Channels of the input, and of the output, that a group has.
    fn group_channels(&self) -> [usize; 2] {
        let groups = self.groups.max(1);
        [self.in_channels / groups, self.out_channels / groups]
    }

    fn n_taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Height and width of the output; nothing fits when the kernel is too large.
    pub(crate) fn output_or_nothing(&self) -> [usize; 2] {
        self.output().unwrap_or([0, 0])
    }

    fn forward_shape(&self) -> Shape {
        let [height, width] = self.output_or_nothing();
        let [inputs, outputs] = self.group_channels();
        Shape { batch: self.groups, m: self.batch * height * width, n: outputs, k: self.n_taps() * inputs }
    }

    fn weights_shape(&self) -> Shape {
        let Shape { batch, m, n, k } = self.forward_shape();
        Shape { batch, m: n, n: k, k: m }
    }

    fn transposed_shape(&self) -> Shape {
        let Shape { batch, m, n, k } = self.forward_shape();
        Shape { batch, m, n: k, k: n }
    }

    fn phases(&self) -> impl Iterator<Item = [Phase; 2]> {
        let vertical = 0..self.stride[0].min(self.input[0]);
        vertical.flat_map(move |y| {
            (0..self.stride[1].min(self.input[1])).map(move |x| [self.phase(0, y), self.phase(1, x)])
        })
    }

    /// The phase of points `first`, `first + stride`, ... along an axis.
    ///
    /// Output `o` reads point `i` at tap `t` if `o * stride = i + padding - t * dilation`. For one phase the taps with
    /// an integral `o` are every `stride / gcd(stride, dilation)`-th.
    fn phase(&self, axis: usize, first: usize) -> Phase {
        let (stride, dilation) = (self.stride[axis] as isize, self.dilation[axis] as isize);
        let place = (first + self.padding[axis][0]) as isize;
        let (common, inverse) = gcd(dilation % stride, stride);
        let every = (stride / common) as usize;
        // The lowest tap t with t * dilation = place modulo the stride.
        let reached = (place % common == 0).then(|| {
            let product = (place / common) as i128 * inverse as i128;
            product.rem_euclid(every as i128) as usize
        });
        let lowest = reached.filter(|&tap| tap < self.kernel[axis]);
        let n_taps = lowest.map_or(0, |tap| (self.kernel[axis] - tap).div_ceil(every));
        let highest = lowest.map_or(0, |tap| tap + (n_taps - 1) * every) as isize;
        Phase {
            first,
            n_points: (self.input[axis] - first).div_ceil(self.stride[axis]),
            first_tap: highest,
            every: -(every as isize),
            n_taps,
            start: (place - highest * dilation).div_euclid(stride),
            // `every * dilation / stride`, which the product could not always be computed for.
            tap_step: dilation / common,
        }
    }

    /// The input's patches, one for each point of the output.
    fn input_patches<E: Element>(&self, input: Image<E>) -> Patches<E::Real> {
        Patches {
            first: input.first.cast(),
            strides: input.strides,
            size: self.input,
            channels: self.group_channels()[0],
            grid: self.output_or_nothing(),
            step: self.stride.map(|stride| stride as isize),
            taps: self.kernel,
            start: self.padding.map(|padding| -(padding[0] as isize)),
            tap_step: self.dilation.map(|dilation| dilation as isize),
            access: Access::of::<E>(),
            kernels: E::Real::kernels(),
        }
    }

    /// The output's patches, one for each point of a phase.
    fn phase_patches<E: Element>(&self, [y, x]: &[Phase; 2], grad_output: Image<E>) -> Patches<E::Real> {
        Patches {
            first: grad_output.first.cast(),
            strides: grad_output.strides,
            size: self.output_or_nothing(),
            channels: self.group_channels()[1],
            grid: [y.n_points, x.n_points],
            step: [1, 1],
            taps: [y.n_taps, x.n_taps],
            start: [y.start, x.start],
            tap_step: [y.tap_step, x.tap_step],
            access: Access::of::<E>(),
            kernels: E::Real::kernels(),
        }
    }
}

/// The greatest common divisor of `a` and `b`, and the factor of `a` that gives it modulo `b`.
fn gcd(a: isize, b: isize) -> (isize, isize) {
    let (mut rest, mut factor) = ((b, a), (0, 1));
    while rest.1 != 0 {
        let quotient = rest.0 / rest.1;
        rest = (rest.1, rest.0 - quotient * rest.1);
        factor = (factor.1, factor.0 - quotient * factor.1);
    }
    (rest.0, factor.0)
}

/// A convolution's weights as an operand whose lanes are the input's channels, for the taps of one phase.
struct WeightsByInput<'a, T: 'static> {
    conv: &'a Conv2d,
    phase: &'a [Phase; 2],
    weights: *const u8,
    access: Access<T>,
}

// SAFETY: the weights are only read, and whoever made this promised that they may be.
unsafe impl<T> Sync for WeightsByInput<'_, T> {}

impl<T: Real> Operand<T> for WeightsByInput<'_, T> {
    fn pack(&self, batch: usize, lanes: Range<usize>, depth: Range<usize>, width: usize, panel: &mut [T]) {
        let [inputs, outputs] = self.conv.group_channels();
        let [y, x] = self.phase;
        for (idx, group) in depth.zip(panel.chunks_exact_mut(width)) {
            let (tap, output) = (idx / outputs, batch * outputs + idx % outputs);
            let tap_y = y.first_tap + (tap / x.n_taps) as isize * y.every;
            let tap_x = x.first_tap + (tap % x.n_taps) as isize * x.every;
            let tap = tap_y as usize * self.conv.kernel[1] + tap_x as usize;
            let element = (output * self.conv.n_taps() + tap) * inputs + lanes.start;
            let (used, unused) = group.split_at_mut(lanes.len());
            // SAFETY: the weights have this output, tap and these inputs.
            unsafe { (self.access.read)(self.weights.add(element * self.access.size), 1, used) };
            unused.fill(T::default());
        }
    }
}

/// Runs a convolution that is a product of matrices.
///
/// # Safety
/// The operands must pack every lane and depth of the shape, and the output must be nobody else's.
unsafe fn run<E: Element>(
    shape: Shape,
    a: &dyn Operand<E::Real>,
    b: &dyn Operand<E::Real>,
    output: Output<'_, E::Real>,
    workspace: &mut [u8],
) {
    let plan = Plan::new::<E>(&shape);
    check_workspace(&shape, plan.workspace(), workspace);
    let product = Product { shape, plan, kernels: E::Real::kernels(), a, b, output };
    // SAFETY: the workspace has been checked; the caller promises the rest.
    unsafe { product.run(workspace.as_mut_ptr()) }
}

/// Convolves: `output[batch, y, x, out]` becomes the epilogue of the sum over taps and inputs. The output lies in memory
/// without gaps; a bias has one element for each of its channels.
///
/// # Safety
/// Input, weights, bias and output must have the elements that the shape and strides lead to; the output must overlap
/// nothing else.
///
/// # Panics
/// If `workspace` has fewer bytes than [`Conv2d::workspace`] says, or does not begin at a multiple of 64.
pub unsafe fn conv2d_forward<E: Element>(
    conv: &Conv2d,
    input: Image<E>,
    weights: *const E,
    output: *mut E,
    epilogue: &Epilogue<'_, E>,
    workspace: &mut [u8],
) {
    let kernels = E::Real::kernels();
    let [_, outputs] = conv.group_channels();
    let shape = conv.forward_shape();
    let output = Output {
        accumulate: epilogue.accumulate,
        bias: epilogue.bias.map_or(std::ptr::null(), |bias| bias.cast()),
        bias_batch_stride: outputs as isize,
        activation: epilogue.activation,
        ..Output::new(output, Rows::Even(conv.out_channels as isize), outputs)
    };
    let patches = conv.input_patches(input);
    if conv.is_depthwise() {
        let depthwise = Depthwise { conv, kernels, access: Access::of::<E>() };
        // SAFETY: the caller promises what is asked for.
        return unsafe { depthwise.forward(&patches, weights.cast(), &output, workspace) };
    }
    let weights = Strided::new(weights, [shape.k, 1, outputs * shape.k].map(|n| n as isize), kernels);
    // SAFETY: the caller promises what is asked for.
    unsafe {
        match patches.as_matrix().filter(|_| conv.is_product()) {
            Some(matrix) => run::<E>(shape, &matrix, &weights, output, workspace),
            None => StripConv { patches: &patches, weights: &weights, output }
                .run(StripPlan::new::<E>(&patches, conv.batch, outputs, conv.groups), workspace),
        }
    }
}

/// The gradient of a convolution with respect to its input, which lies in memory without gaps, through the epilogue. A
/// bias has one element for each of the input's channels.
///
/// # Safety
/// See [`conv2d_forward`].
///
/// # Panics
/// See [`conv2d_forward`].
pub unsafe fn conv2d_backward_input<E: Element>(
    conv: &Conv2d,
    grad_output: Image<E>,
    weights: *const E,
    grad_input: *mut E,
    epilogue: &Epilogue<'_, E>,
    workspace: &mut [u8],
) {
    let (kernels, access) = (E::Real::kernels(), Access::of::<E>());
    let [inputs, _] = conv.group_channels();
    for phase in conv.phases() {
        let [y, x] = &phase;
        let line = conv.input[1] * conv.in_channels;
        let first = y.first * line + x.first * conv.in_channels;
        let rows = match conv.stride {
            [1, 1] => Rows::Even(conv.in_channels as isize),
            [vertical, horizontal] => Rows::Grid {
                height: y.n_points,
                width: x.n_points,
                plane_stride: (conv.input[0] * line) as isize,
                line_stride: (vertical * line) as isize,
                point_stride: (horizontal * conv.in_channels) as isize,
            },
        };
        // SAFETY: the phase's first point lies within the gradient.
        let to = unsafe { grad_input.add(first) };
        let output = Output {
            accumulate: epilogue.accumulate,
            bias: epilogue.bias.map_or(std::ptr::null(), |bias| bias.cast()),
            bias_batch_stride: inputs as isize,
            activation: epilogue.activation,
            ..Output::new(to, rows, inputs)
        };
        let patches = conv.phase_patches(&phase, grad_output);
        if conv.is_depthwise() {
            let depthwise = Depthwise { conv, kernels, access };
            let taps = [[y.first_tap, y.every], [x.first_tap, x.every]];
            // SAFETY: the caller promises what is asked for.
            unsafe { depthwise.backward_input(&patches, taps, weights.cast(), &output, workspace) };
            continue;
        }
        let weights = WeightsByInput { conv, phase: &phase, weights: weights.cast(), access };
        // SAFETY: the caller promises what is asked for.
        unsafe {
            match patches.as_matrix().filter(|_| conv.is_product()) {
                Some(matrix) => run::<E>(conv.transposed_shape(), &matrix, &weights, output, workspace),
                None => StripConv { patches: &patches, weights: &weights, output }
                    .run(StripPlan::new::<E>(&patches, conv.batch, inputs, conv.groups), workspace),
            }
        }
    }
}

/// The gradient of a convolution with respect to its weights, which lie in memory without gaps; it is added to what is
/// there if `accumulate` is set. `grad_output` lies in memory without gaps.
///
/// # Safety
/// See [`conv2d_forward`].
///
/// # Panics
/// See [`conv2d_forward`].
pub unsafe fn conv2d_backward_weights<E: Element>(
    conv: &Conv2d,
    input: Image<E>,
    grad_output: *const E,
    grad_weights: *mut E,
    accumulate: bool,
    workspace: &mut [u8],
) {
    let (kernels, access) = (E::Real::kernels(), Access::of::<E>());
    let [_, outputs] = conv.group_channels();
    let shape = conv.weights_shape();
    let rows = Rows::Even(shape.n as isize);
    let output = Output { accumulate, ..Output::new(grad_weights, rows, shape.m * shape.n) };
    let patches = conv.input_patches(input);
    let by_point = Strided::new(grad_output, [1, conv.out_channels, outputs].map(|n| n as isize), kernels);
    if conv.is_depthwise() {
        let depthwise = Depthwise { conv, kernels, access };
        // SAFETY: the caller promises what is asked for.
        return unsafe { depthwise.backward_weights(&patches, &by_point, &output, workspace) };
    }
    // SAFETY: the caller promises what is asked for.
    unsafe {
        match patches.as_matrix().filter(|_| conv.is_product()) {
            Some(matrix) => run::<E>(shape, &by_point, &matrix.transposed(), output, workspace),
            None => StripWeights { patches: &patches, grad_output: grad_output.cast(), output }
                .run::<E>(WeightsPlan::new::<E>(&patches, conv.batch, outputs, conv.groups), workspace),
        }
    }
}
