//! Residual networks for images, channels last, with batch norm: depths 18 and 50.
//!
//! Strides are in the 3×3 convolution of a block, as everybody trains them today, not in the 1×1 before it.

use plimsoll::Activation;
use plimsoll::nn::layers::{
    BatchNormalization, Conv2D, Dense, GlobalAveragePooling2D, MaxPooling2D, Sequential,
};
use plimsoll::nn::losses::SparseCategoricalCrossentropy;
use plimsoll::nn::optimizers::SGD;
use plimsoll::nn::{BuiltLayer, Layer};
use plimsoll::{Result, Shape};

use crate::data::Feature;
use crate::recipe::Recipe;

/// Classes of ImageNet.
const CLASSES: usize = 1000;

/// How deep a network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Blocks of two 3×3 convolutions.
    Eighteen,
    /// Blocks of a narrowing, a 3×3 and a widening convolution.
    Fifty,
}

/// A network: `[batch, height, width, 3]` to `[batch, 1000]` logits.
#[derive(Clone, Copy, Debug)]
pub struct ResNet {
    depth: Depth,
}

impl ResNet {
    /// The network of that depth.
    pub fn new(depth: Depth) -> ResNet {
        ResNet { depth }
    }

    fn layers(self) -> Sequential {
        let n_blocks = match self.depth {
            Depth::Eighteen => [2, 2, 2, 2],
            Depth::Fifty => [3, 4, 6, 3],
        };
        let mut layers = normed(Sequential::new(), 64, 7, 2, Activation::Relu)
            .add(MaxPooling2D::new(3).stride(2).padding(1));
        for (stage, n) in n_blocks.into_iter().enumerate() {
            for number in 0..n {
                let stride = if stage > 0 && number == 0 { 2 } else { 1 };
                let block = Block { depth: self.depth, width: 64 << stage, stride };
                layers = layers.add(block.named(&format!("stage_{}_block_{}", stage + 1, number + 1)));
            }
        }
        layers.add(GlobalAveragePooling2D::new()).add(Dense::new(CLASSES))
    }
}

impl Layer for ResNet {
    fn name(&self) -> &str {
        "resnet"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        self.layers().make(input)
    }
}

/// A convolution without bias, whose shift comes from the batch norm after it, and what follows that.
fn normed(
    layers: Sequential,
    filters: usize,
    size: usize,
    stride: usize,
    activation: Activation,
) -> Sequential {
    let convolution = Conv2D::new(filters, size).stride(stride).padding(size / 2).no_bias();
    layers.add(convolution).add(BatchNormalization::new().activation(activation))
}

/// `relu(convolutions(x) + x)`; where the shape changes, a 1×1 convolution takes the place of `x`.
#[derive(Clone, Copy, Debug)]
struct Block {
    depth: Depth,
    width: usize,
    stride: usize,
}

impl Block {
    fn convolutions(self) -> (Sequential, usize) {
        let (relu, none) = (Activation::Relu, Activation::None);
        let (width, stride) = (self.width, self.stride);
        match self.depth {
            Depth::Eighteen => {
                let first = normed(Sequential::new(), width, 3, stride, relu);
                (normed(first, width, 3, 1, none), width)
            }
            Depth::Fifty => {
                let narrow = normed(Sequential::new(), width, 1, 1, relu);
                let middle = normed(narrow, width, 3, stride, relu);
                (normed(middle, 4 * width, 1, 1, none), 4 * width)
            }
        }
    }
}

impl Layer for Block {
    fn name(&self) -> &str {
        "block"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let (convolutions, filters) = self.convolutions();
        let main = convolutions.named("main").build(input)?;
        let shortcut = match main.output_shape() == input {
            true => None,
            false => {
                let shortcut = normed(Sequential::new(), filters, 1, self.stride, Activation::None);
                Some(shortcut.named("shortcut").build(input)?)
            }
        };
        BuiltLayer::new(*main.output_shape(), move |x, mode| {
            let beside = match &shortcut {
                Some(shortcut) => shortcut.forward(x, mode)?,
                None => x.clone(),
            };
            main.forward(x, mode)?.into_add(beside)?.relu()
        })
    }
}

/// A residual network on random images.
pub fn resnet(name: &str, depth: Depth) -> Recipe {
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    let images = Feature::floats([224, 224, 3]);
    Recipe::new(name, ResNet::new(depth), images, Feature::ids([], CLASSES), loss)
        .about("images of 224×224, 1000 classes, on random images")
        .optimizer(SGD::new(0.1).momentum(0.9).weight_decay(1e-4))
        .batch(32)
        .steps(20)
}

#[cfg(test)]
mod tests {
    use plimsoll::Device;

    use super::*;

    #[test]
    fn the_sizes_are_those_that_everybody_knows() -> Result<()> {
        let _on = Device::ghost_cpu().enter();
        for (depth, parameters) in [(Depth::Eighteen, 11_689_512), (Depth::Fifty, 25_557_032)] {
            let model = ResNet::new(depth).build([224, 224, 3])?;
            let trained: usize = model.trainable_variables().iter().map(|variable| variable.n_elems()).sum();
            assert_eq!(trained, parameters, "{depth:?}");
            assert_eq!(model.output_shape().dims(), [CLASSES]);
        }
        Ok(())
    }
}
