//! The device that the suites run on: `PLIMSOLL_TEST_DEVICE` names it, and it is the CPU if nothing does.

use std::sync::OnceLock;

use plimsoll_tensor::{Device, Result};

/// A device of the kind under test, with an idle pool of its own: `cpu`, `emulated` (a GPU that the host plays), or
/// `cuda:N`.
///
/// # Panics
/// The variable names another device, or one that is not there: a suite that ran elsewhere would prove nothing.
pub fn device_under_test() -> Device {
    let name = name();
    let device: Result<Device> = match name {
        "cpu" => Ok(Device::separate_cpu()),
        "emulated" => Device::emulated(),
        other => match other.strip_prefix("cuda:").map(str::parse) {
            Some(Ok(number)) => Device::separate_cuda(number),
            _ => panic!("PLIMSOLL_TEST_DEVICE is {other:?}; it can be cpu, emulated or cuda:N"),
        },
    };
    device.unwrap_or_else(|error| panic!("PLIMSOLL_TEST_DEVICE is {name:?}, which cannot be used: {error}"))
}

/// Whether the suites run on a GPU that the host plays, where whatever only repeats with other kernels is left out.
pub fn is_emulated() -> bool {
    name() == "emulated"
}

fn name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| std::env::var("PLIMSOLL_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned()))
}
