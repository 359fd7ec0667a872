//! Models of pictures: a chain with batch norm, residual blocks, a U, dense connections.

use plimsoll_nn::layers::{
    BatchNormalization, Conv2D, Conv2DTranspose, Dense, Dropout, Flatten, GlobalAveragePooling2D,
    MaxPooling2D, Sequential,
};
use plimsoll_nn::{BuiltLayer, Layer, Model, Policy};
use plimsoll_tensor::{Activation, Result, Shape, Tensor};

use super::Task;

const PICTURE: &[usize] = &[16, 16, 3];

const PICTURES: Task = Task {
    model: cnn,
    inputs: (PICTURE, false),
    labels: &[],
    n_classes: 5,
    batch: 24,
    policy: Policy::Float32,
    n_parts: 1,
};

/// Convolutions with batch norm, then dense layers with dropout.
pub const CNN: Task = PICTURES;

/// Residual blocks in the manner of resnet18.
pub const RESNET: Task = Task { model: resnet, ..PICTURES };

/// Down and up again, with skips across; labels for each place.
pub const UNET: Task = Task { model: unet, labels: &[16, 16], ..PICTURES };

/// Layers that see the outputs of all before them.
pub const DENSENET: Task = Task { model: densenet, ..PICTURES };

/// A convolution with batch norm, and what follows that.
fn normed(filters: usize, size: usize, stride: usize, activation: Activation) -> Sequential {
    Sequential::new()
        .add(Conv2D::new(filters, size).stride(stride).padding(size / 2).no_bias())
        .add(BatchNormalization::new().activation(activation))
}

/// Convolutions one after the other, with batch norm.
fn chain(filters: usize, n_layers: usize) -> Sequential {
    (0..n_layers).fold(Sequential::new(), |layers, _| layers.add(normed(filters, 3, 1, Activation::Relu)))
}

fn cnn() -> Result<Model> {
    Sequential::new()
        .add(chain(8, 10))
        .add(MaxPooling2D::new(4))
        .add(Flatten::new())
        .add(Dense::new(32).activation(Activation::Relu))
        .add(Dropout::new(0.3))
        .add(Dense::new(5))
        .build(Shape::new(PICTURE)?)
}

fn resnet() -> Result<Model> {
    let mut model = Sequential::new().add(normed(8, 3, 1, Activation::Relu));
    for (stage, width) in [8, 16, 24].into_iter().enumerate() {
        for number in 0..4 {
            model = model.add(Block { width, stride: if stage > 0 && number == 0 { 2 } else { 1 } });
        }
    }
    model.add(GlobalAveragePooling2D::new()).add(Dense::new(5)).build(Shape::new(PICTURE)?)
}

/// `relu(convolutions(x) + x)`; where the shape changes, a 1×1 convolution takes the place of `x`.
struct Block {
    width: usize,
    stride: usize,
}

impl Layer for Block {
    fn name(&self) -> &str {
        "block"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let convolutions = Sequential::new()
            .add(normed(self.width, 3, self.stride, Activation::Relu))
            .add(normed(self.width, 3, 1, Activation::None));
        let main = convolutions.named("main").build(input)?;
        let shortcut = match main.output_shape() == input {
            true => None,
            false => {
                Some(normed(self.width, 1, self.stride, Activation::None).named("shortcut").build(input)?)
            }
        };
        BuiltLayer::new(*main.output_shape(), move |x, mode| {
            let beside =
                shortcut.as_ref().map_or_else(|| Ok(x.clone()), |shortcut| shortcut.forward(x, mode))?;
            main.forward(x, mode)?.into_add(beside)?.relu()
        })
    }
}

fn unet() -> Result<Model> {
    Sequential::new().add(Level { width: 8, n_below: 2 }).add(Conv2D::new(5, 1)).build(Shape::new(PICTURE)?)
}

/// One level of a U: what is below sees half the places, and its answer is put beside what came in.
struct Level {
    width: usize,
    n_below: usize,
}

impl Layer for Level {
    fn name(&self) -> &str {
        "level"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let inward = chain(self.width, 3).named("in").build(input)?;
        let across = *inward.output_shape();
        if self.n_below == 0 {
            return BuiltLayer::new(across, move |x, mode| inward.forward(x, mode));
        }
        let below = Sequential::new()
            .add(MaxPooling2D::new(2))
            .add(Level { width: 2 * self.width, n_below: self.n_below - 1 })
            .add(Conv2DTranspose::new(self.width, 2).stride(2));
        let below = below.named("below").build(across)?;
        let both = [across[0], across[1], 2 * self.width];
        let outward = chain(self.width, 3).named("out").build(both)?;
        BuiltLayer::new(*outward.output_shape(), move |x, mode| {
            let skip = inward.forward(x, mode)?;
            let deep = below.forward(&skip, mode)?;
            outward.forward(&Tensor::concat(&[&skip, &deep], -1)?, mode)
        })
    }
}

fn densenet() -> Result<Model> {
    Sequential::new()
        .add(Conv2D::new(8, 3).same())
        .add(Connected { growth: 4, n_layers: 6 })
        .add(normed(12, 1, 1, Activation::Relu))
        .add(MaxPooling2D::new(2))
        .add(Connected { growth: 4, n_layers: 6 })
        .add(GlobalAveragePooling2D::new())
        .add(Dense::new(5))
        .build(Shape::new(PICTURE)?)
}

/// Layers each of which sees the input and the outputs of all before it.
struct Connected {
    growth: usize,
    n_layers: usize,
}

impl Layer for Connected {
    fn name(&self) -> &str {
        "connected"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let [height, width, channels] = [input[0], input[1], input[2]];
        let layer = |number: usize| {
            let layers = Sequential::new()
                .add(BatchNormalization::new().activation(Activation::Relu))
                .add(Conv2D::new(self.growth, 3).same().no_bias());
            layers.named(&format!("layer_{number}")).build([height, width, channels + number * self.growth])
        };
        let layers: Vec<Model> = (0..self.n_layers).map(layer).collect::<Result<_>>()?;
        BuiltLayer::new([height, width, channels + self.n_layers * self.growth], move |x, mode| {
            let mut all = x.clone();
            for layer in &layers {
                let grown = layer.forward(&all, mode)?;
                all = Tensor::concat(&[&all, &grown], -1)?;
            }
            Ok(all)
        })
    }
}
