//! Devices by name: `"/GPU:0"`, `"cpu"`.

use plimsoll::Device;
use pyo3::prelude::*;

use crate::edge::Scope;
use crate::errors;

/// The GPU of that number.
pub fn gpu(number: usize) -> plimsoll::Result<Device> {
    #[cfg(feature = "emulated")]
    if let Some(device) = emulated::instead_of(number) {
        return Ok(device);
    }
    Device::cuda(number)
}

/// The number of the GPU that a device is; none on the CPU.
pub fn gpu_number(device: &Device) -> Option<usize> {
    #[cfg(feature = "emulated")]
    if let Some(number) = emulated::number_of(device) {
        return Some(number);
    }
    Device::gpu_number(device.name()).ok().flatten()
}

/// The device of that name, or the current one.
pub fn device_of(py: Python<'_>, name: Option<&str>) -> PyResult<Device> {
    let named = |name| match Device::gpu_number(name)? {
        Some(number) => gpu(number),
        None => Device::named(name),
    };
    match name {
        None => Ok(Device::current()),
        Some(name) => py.detach(|| named(name)).map_err(|error| errors::exception(py, &error)),
    }
}

/// Lets ops without inputs run there until the scope ends. A GPU that is not there is the CPU, which is said once.
#[pyfunction]
fn enter_device(py: Python<'_>, name: &str) -> PyResult<Scope> {
    #[cfg(feature = "emulated")]
    if let Ok(Some(number)) = Device::gpu_number(name)
        && let Some(device) = emulated::instead_of(number)
    {
        return Ok(Scope::new(device.enter()));
    }
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
    #[cfg(feature = "emulated")]
    emulated::add_to(module)?;
    module.add_function(wrap_pyfunction!(enter_device, module)?)?;
    module.add_function(wrap_pyfunction!(n_gpus, module)?)
}

/// A GPU that the host plays, under a number: for tests on machines without one. Nothing of it is in a wheel.
#[cfg(feature = "emulated")]
mod emulated {
    use std::sync::OnceLock;

    use plimsoll::Device;
    use plimsoll::hardware::{WaitsFor, take_waits};
    use pyo3::prelude::*;

    use crate::errors;

    static EMULATED: OnceLock<(usize, Device)> = OnceLock::new();

    pub fn instead_of(number: usize) -> Option<Device> {
        EMULATED.get().filter(|(own, _)| *own == number).map(|(_, device)| device.clone())
    }

    pub fn number_of(device: &Device) -> Option<usize> {
        EMULATED.get().filter(|(_, own)| own == device).map(|&(number, _)| number)
    }

    /// From here on the GPU of that number is an emulated one.
    #[pyfunction]
    fn emulate_gpu(py: Python<'_>, number: usize) -> PyResult<()> {
        let device = py.detach(Device::emulated).map_err(|error| errors::exception(py, &error))?;
        // Whoever asks twice has the first one.
        let _ = EMULATED.set((number, device));
        Ok(())
    }

    /// Which streams have waited for which on this thread since the last time, by their handles; nothing where the host has waited for all.
    #[pyfunction]
    fn stream_waits() -> Vec<Option<(usize, usize)>> {
        let pair = |wait| match wait {
            WaitsFor::Stream { first, then } => Some((first, then)),
            WaitsFor::Everybody => None,
        };
        take_waits().into_iter().map(pair).collect()
    }

    pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // Not among the names that the stubs list.
        module.setattr("_emulate_gpu", wrap_pyfunction!(emulate_gpu, module)?)?;
        module.setattr("_stream_waits", wrap_pyfunction!(stream_waits, module)?)
    }
}
