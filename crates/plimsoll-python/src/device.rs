//! Devices by name: `"/GPU:0"`, `"cpu"`.

use plimsoll::Device;
use pyo3::prelude::*;

use crate::edge::Scope;
use crate::errors;

/// The device of that name, or the current one.
pub fn device_of(py: Python<'_>, name: Option<&str>) -> PyResult<Device> {
    match name {
        None => Ok(Device::current()),
        Some(name) => py.detach(|| Device::named(name)).map_err(|error| errors::exception(py, &error)),
    }
}

/// Lets ops without inputs run there until the scope ends. A GPU that is not there is the CPU, which is said once.
#[pyfunction]
fn enter_device(py: Python<'_>, name: &str) -> PyResult<Scope> {
    let device = py.detach(|| Device::named_or_cpu(name)).map_err(|error| errors::exception(py, &error))?;
    crate::warnings::hand_over(py)?;
    Ok(Scope::new(device.enter()))
}

/// How many GPUs there are. None is opened.
#[pyfunction]
fn n_gpus(py: Python<'_>) -> usize {
    py.detach(|| (0..).take_while(|&number| plimsoll::hardware::profile_of(number).is_ok()).count())
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(enter_device, module)?)?;
    module.add_function(wrap_pyfunction!(n_gpus, module)?)
}
