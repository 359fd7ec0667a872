//! `Lambda`: a function without variables as a layer.

use std::fmt;
use std::sync::Arc;

use plimsoll_tensor::{Result, Shape, Tensor};

use crate::layer::{BuiltLayer, Layer};

/// A function of a batch that keeps the shape of an example, such as a softmax:
/// `Lambda::new("softmax", |x| x.softmax(-1))`.
#[derive(Clone)]
pub struct Lambda {
    name: &'static str,
    function: Arc<Function>,
}

type Function = dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync;

impl Lambda {
    /// A layer of that name.
    pub fn new(
        name: &'static str,
        function: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Lambda {
        Lambda { name, function: Arc::new(function) }
    }
}

impl fmt::Debug for Lambda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lambda({})", self.name)
    }
}

impl Layer for Lambda {
    fn name(&self) -> &str {
        self.name
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let function = self.function.clone();
        BuiltLayer::new(input, move |x, _| function(x))
    }
}
