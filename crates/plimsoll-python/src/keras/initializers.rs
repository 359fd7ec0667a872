//! Initial values by themselves, for weights that Python makes.

use plimsoll::nn::initializer::Fans;
use pyo3::prelude::*;

use super::options::initializer;
use crate::edge::call;
use crate::tensor::{Tensor, dtype_of};

/// A tensor that starts as an initializer says, with fans counted as Keras counts them: the last two axes are inputs and outputs,
/// those before them places.
#[pyfunction]
fn initial(py: Python<'_>, name: &str, number: f64, shape: Vec<usize>, dtype: &str) -> PyResult<Tensor> {
    let (initializer, dtype) = (initializer(name, number)?, dtype_of(dtype)?);
    let fans = match *shape {
        [] => Fans { inputs: 1, outputs: 1 },
        [n] => Fans { inputs: n, outputs: n },
        [ref places @ .., inputs, outputs] => {
            // A shape that cannot be counted is refused when the tensor is made.
            let n_places = places.iter().fold(1, |product: usize, &n| product.saturating_mul(n));
            Fans { inputs: n_places.saturating_mul(inputs), outputs: n_places.saturating_mul(outputs) }
        }
    };
    call(py, || initializer.tensor(shape, dtype, fans)).map(Tensor)
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(initial, module)?)
}
