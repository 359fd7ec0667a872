//! `Lambda`: a function without variables as a layer.

use std::fmt;
use std::sync::Arc;

use plimsoll_tensor::{Result, Shape, Tensor};

use crate::layer::{BuiltLayer, Layer};

/// A function of a batch that keeps the shape of an example, such as a softmax:
/// `Lambda::new(|x| x.softmax(-1)).named("softmax")`.
#[derive(Clone)]
pub struct Lambda {
    function: Arc<Function>,
}

type Function = dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync;

impl Lambda {
    /// A layer that is that function; [`Layer::named`] gives it a name.
    pub fn new(function: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Lambda {
        Lambda { function: Arc::new(function) }
    }
}

impl fmt::Debug for Lambda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lambda")
    }
}

impl Layer for Lambda {
    fn name(&self) -> &str {
        "lambda"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let function = self.function.clone();
        BuiltLayer::new(input, move |x, _| function(x))
    }
}
