//! `Sequential`: layers one after the other.

use std::fmt;
use std::sync::Arc;

use plimsoll_tensor::{Nested, Result, Shape, Site, callers_place};

use crate::deferred::Deferred;
use crate::layer::{BuiltLayer, Layer, build};
use crate::model::Model;

/// Layers one after the other; each is built for what the one before gives.
///
/// ```
/// use plimsoll_nn::layers::{Dense, Sequential};
/// use plimsoll_nn::Layer;
/// use plimsoll_tensor::Activation;
///
/// let model = Sequential::new()
///     .add(Dense::new(1024).activation(Activation::Relu))
///     .add(Dense::new(10))
///     .build([784])?;
/// println!("{}", model.summary(32)?);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// Parts are named after their kind, `dense`, `dense_1`, …, unless they have a name. Without a tape, no more than one
/// layer's input and output are held at a time.
#[derive(Clone, Default)]
pub struct Sequential {
    layers: Vec<Added>,
}

/// A layer, and the place where it was added.
#[derive(Clone)]
struct Added {
    layer: Arc<dyn Layer + Send + Sync>,
    described: Site,
}

impl Sequential {
    /// No layers yet: the output is the input.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// With one layer more, at the end.
    #[expect(clippy::should_implement_trait, reason = "this is the word that users of Keras look for")]
    #[track_caller]
    pub fn add(mut self, layer: impl Layer + Sync + 'static) -> Sequential {
        self.layers.push(Added { layer: Arc::new(layer), described: callers_place() });
        self
    }
}

impl Layer for Sequential {
    fn name(&self) -> &str {
        "sequential"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        self.make_nested(&Nested::One(*input))
    }

    fn make_nested(&self, inputs: &Nested<Shape>) -> Result<BuiltLayer> {
        let mut parts: Vec<Model> = Vec::new();
        for added in &self.layers {
            let shapes = parts.last().map_or(inputs, Model::output_shapes);
            parts.push(build(&*added.layer, shapes, added.described)?);
        }
        let outputs = parts.last().map_or(inputs, Model::output_shapes).clone();
        let begins_with_norm = parts.first().is_some_and(Model::begins_with_norm);
        let forward = BuiltLayer::deferring(outputs, move |x, mode, consumer| {
            let readers = parts.iter().skip(1).map(Model::as_consumer).chain([consumer]);
            let mut flow: Option<Deferred> = None;
            for (part, consumer) in parts.iter().zip(readers) {
                // Each value is dropped as soon as the next one is there.
                flow = Some(part.forward_deferred(flow.as_ref().unwrap_or(x), mode, consumer)?);
            }
            flow.map_or_else(|| x.nested_values().map(Deferred::nested), Ok)
        })?;
        Ok(forward.begins_with_norm(begins_with_norm))
    }
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.layers.iter().map(|added| added.layer.name())).finish()
    }
}
