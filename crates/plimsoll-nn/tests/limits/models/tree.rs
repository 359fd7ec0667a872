//! A tree: leaves are joined two by two, by the same dense layer at every joint, up to one root.

use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::{BuiltLayer, Layer, Mode, Model, Policy};
use plimsoll_tensor::{Activation, Error, Result, Shape, Tensor};

use super::Task;

const LEAVES: usize = 16;
const WIDTH: usize = 24;

/// Sixteen leaves.
pub const TREE: Task = Task {
    model: tree,
    inputs: (&[LEAVES, WIDTH], false),
    labels: &[],
    n_classes: 7,
    batch: 256,
    policy: Policy::Float32,
    n_parts: 1,
};

fn tree() -> Result<Model> {
    Sequential::new().add(Tree).add(Dense::new(7)).build([LEAVES, WIDTH])
}

/// `[leaves, width]` to `[width]`.
struct Tree;

impl Layer for Tree {
    fn name(&self) -> &str {
        "tree"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let &[n_leaves, width] = input.dims() else {
            return Err(Error::shape("tree", format!("an example is {input}; it must be [leaves, width]")));
        };
        let leaf = Dense::new(width).activation(Activation::Tanh).named("leaf").build([width])?;
        let gate = Dense::new(width).activation(Activation::Sigmoid).named("gate").build([2 * width])?;
        let joint = Dense::new(width).activation(Activation::Tanh).named("joint").build([2 * width])?;
        BuiltLayer::new([width], move |x, mode| {
            Joints { leaf: &leaf, gate: &gate, joint: &joint, mode }.root(x, 0, n_leaves)
        })
    }
}

/// What joins the parts of a tree.
struct Joints<'a> {
    leaf: &'a Model,
    gate: &'a Model,
    joint: &'a Model,
    mode: Mode,
}

impl Joints<'_> {
    /// The root of `n` leaves from one on.
    fn root(&self, leaves: &Tensor, first: usize, n: usize) -> Result<Tensor> {
        if n == 1 {
            return self.leaf.forward(&leaves.select(1, first as isize)?, self.mode);
        }
        let (left, right) = (self.root(leaves, first, n / 2)?, self.root(leaves, first + n / 2, n - n / 2)?);
        let both = Tensor::concat(&[&left, &right], -1)?;
        let (gate, joint) = (self.gate.forward(&both, self.mode)?, self.joint.forward(&both, self.mode)?);
        gate.mul(&joint)?.add(&left)
    }
}
