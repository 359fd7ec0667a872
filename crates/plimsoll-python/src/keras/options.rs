//! Options of descriptions: a dictionary that Python has filled, read by name.

use plimsoll::Activation;
use plimsoll::nn::Initializer;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The options of one description.
pub struct Options<'py>(pub Bound<'py, PyDict>);

/// A function of each element, or each row, that no kernel has built in.
pub type After = fn(&plimsoll::Tensor) -> plimsoll::Result<plimsoll::Tensor>;

impl<'py> Options<'py> {
    /// The option of that name.
    pub fn get<T: FromPyObjectOwned<'py>>(&self, name: &str) -> PyResult<T> {
        let value = self.0.get_item(name)?;
        let value = value.ok_or_else(|| PyKeyError::new_err(format!("there is no option {name}")))?;
        let read = value.extract::<T>().map_err(Into::<PyErr>::into);
        read.map_err(|error| PyValueError::new_err(format!("{name}={value}: {}", error.value(self.0.py()))))
    }

    /// The activation, as far as kernels have it built in, and what is left to be done after them.
    pub fn activation(&self) -> PyResult<(Activation, Option<After>)> {
        let name: Option<String> = self.get("activation")?;
        activation(name.as_deref().unwrap_or("linear"))
    }

    /// The activation, of a layer that has only those that are built in.
    pub fn built_in_activation(&self) -> PyResult<Activation> {
        match self.activation()? {
            (activation, None) => Ok(activation),
            _ => Err(PyValueError::new_err(
                "this layer has no such activation; put a layer Activation behind it",
            )),
        }
    }

    /// An initializer: its name, and its number where it has one.
    pub fn initializer(&self, name: &str) -> PyResult<Initializer> {
        let (name, number): (String, f64) = self.get(name)?;
        initializer(&name, number)
    }
}

/// The activation of that name of Keras's.
pub fn activation(name: &str) -> PyResult<(Activation, Option<After>)> {
    let built_in = match name {
        "linear" => Activation::None,
        "relu" => Activation::Relu,
        "sigmoid" => Activation::Sigmoid,
        "tanh" => Activation::Tanh,
        "gelu" => Activation::Gelu,
        "gelu_tanh" => Activation::GeluTanh,
        "silu" => Activation::Silu,
        _ => {
            let after: After = match name {
                "softmax" => |x| x.softmax(-1),
                "log_softmax" => |x| x.log_softmax(-1),
                "elu" => |x| x.elu(1.0),
                "selu" => |x| x.selu(),
                "softplus" => |x| x.softplus(),
                "relu6" => |x| x.relu6(),
                "leaky_relu" => |x| x.leaky_relu(0.2),
                "hard_sigmoid" => |x| x.hard_sigmoid(),
                "hard_silu" => |x| x.hard_swish(),
                "log_sigmoid" => |x| x.log_sigmoid(),
                "mish" => |x| x.mish(),
                "exponential" => |x| x.exp(),
                _ => return Err(PyValueError::new_err(format!("there is no activation {name:?}"))),
            };
            return Ok((Activation::None, Some(after)));
        }
    };
    Ok((built_in, None))
}

/// The initializer of that name of Keras's, with its number where it has one.
pub fn initializer(name: &str, number: f64) -> PyResult<Initializer> {
    Ok(match name {
        "zeros" => Initializer::Zeros,
        "ones" => Initializer::Ones,
        "constant" => Initializer::Constant(number),
        "random_normal" => Initializer::Normal { std: number },
        "truncated_normal" => Initializer::TruncatedNormal { std: number },
        "random_uniform" => Initializer::Uniform { limit: number },
        "glorot_uniform" => Initializer::GlorotUniform,
        "glorot_normal" => Initializer::GlorotNormal,
        "he_uniform" => Initializer::HeUniform,
        "he_normal" => Initializer::HeNormal,
        "lecun_normal" => Initializer::LecunNormal,
        "orthogonal" => Initializer::Orthogonal,
        "unit_forget" => Initializer::UnitForget,
        _ => return Err(PyValueError::new_err(format!("there is no initializer {name:?}"))),
    })
}
