//! How long an op takes, by a model that knows nothing but its cost, the kind of its numbers and the device.
//!
//! It serves to predict and to compare, on machines that do not have the device as well: nothing is measured, and the
//! same question always has the same answer. A kernel is either busy computing or busy moving bytes, whichever takes
//! longer, and each takes a moment to start. What it does not know, such as caches and kernels that are too small to fill
//! a GPU, makes it too fast for small models.

use plimsoll_cuda::Profile;

use crate::base::dtype::DType;
use crate::device::Device;

/// The part of a GPU's greatest rates, as data sheets state them, that large products and copies reach.
const COMPUTING_SHARE: f64 = 0.6;
const MOVING_SHARE: f64 = 0.8;

/// What a CPU does in a nanosecond: operations on float32 in large products, bytes read and written; and the nanoseconds that
/// an op takes to start. These are two desktop cores with vectors of 256 bits. What a limit makes a run recompute depends
/// on them, so they are the same on every machine and for every number of threads.
const CPU_OPERATIONS: f64 = 150.0;
const CPU_BYTES: f64 = 16.0;
const CPU_START: f64 = 1_000.0;

/// What running an op takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// Bytes that an op exchanges with other ranks.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// As many as the busiest rank sends and receives, one after the other.
    pub n_bytes: u64,
    /// How many ranks there are.
    pub n_ranks: usize,
}

impl Device {
    /// How long a transfer between ranks takes that are on devices like this one, in nanoseconds, by the rates of its profile; nothing
    /// is known of a CPU's network.
    pub(crate) fn time_of_transfer(&self, transfer: Transfer) -> u64 {
        let rate = self.profile().map(|profile| profile.bytes_per_second_between(transfer.n_ranks));
        rate.map_or(0, |rate| (transfer.n_bytes as f64 / (rate as f64 * MOVING_SHARE) * 1e9) as u64)
    }

    /// How long work of a cost takes here, in nanoseconds, where a GPU computes with some part of the rate of large products:
    /// see the module.
    pub(crate) fn time_of(&self, cost: Cost, dtype: Option<DType>, share: f64) -> u64 {
        let (operations, bytes, start) = match self.profile() {
            Some(profile) => gpu_rates(profile, dtype, share),
            None => cpu_rates(dtype),
        };
        ((cost.flops as f64 / operations).max(cost.bytes as f64 / bytes) + start) as u64
    }
}

/// The bytes that move between a GPU and pinned memory in a microsecond, in either direction.
pub(crate) fn link_rate(profile: &Profile) -> u64 {
    (profile.rates.link_bytes_per_second as f64 * MOVING_SHARE / 1e6) as u64
}

/// Operations and bytes per nanosecond, and the nanoseconds of a launch.
fn gpu_rates(profile: &Profile, dtype: Option<DType>, share: f64) -> (f64, f64, f64) {
    let rates = &profile.rates;
    let operations = match dtype {
        Some(DType::F64) => rates.float64,
        Some(DType::F16) => rates.float16,
        Some(DType::BF16) => rates.bfloat16,
        _ => rates.float32,
    };
    let per_nanosecond = |rate: u64, share: f64| rate as f64 * share / 1e9;
    let bytes = per_nanosecond(rates.memory_bytes_per_second, MOVING_SHARE);
    (per_nanosecond(operations, COMPUTING_SHARE * share), bytes, rates.launch_nanoseconds as f64)
}

/// The same for a CPU. 16-bit numbers are computed as float32.
fn cpu_rates(dtype: Option<DType>) -> (f64, f64, f64) {
    let width = if dtype == Some(DType::F64) { 2.0 } else { 1.0 };
    (CPU_OPERATIONS / width, CPU_BYTES, CPU_START)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_op_takes_as_long_as_the_slower_of_computing_and_moving() {
        let device = Device::ghost_cuda(Profile::h200());
        let ms = |flops: u64, bytes: u64, dtype| {
            device.time_of(Cost { flops, bytes }, Some(dtype), 1.0) / 1_000_000
        };
        // 10^12 operations at 0.6 of 989.4 and of 67 TFLOP/s; 4.8 GB at 0.8 of 4.8 TB/s.
        assert_eq!(ms(1_000_000_000_000, 1000, DType::BF16), 1);
        assert_eq!(ms(1_000_000_000_000, 1000, DType::F32), 24);
        assert_eq!(ms(1000, 4_800_000_000, DType::F32), 1);
        assert_eq!(device.time_of(Cost::default(), None, 1.0), 3000);
    }

    #[test]
    fn a_transfer_takes_as_long_as_the_link_between_ranks_says() {
        let device = Device::ghost_cuda(Profile::h200());
        let ms = |n_ranks| device.time_of_transfer(Transfer { n_bytes: 36_000_000_000, n_ranks }) / 1_000_000;
        // At 0.8 of 450 GB/s, and of 50 GB/s.
        assert_eq!([8, 16].map(ms), [100, 900]);
        assert_eq!(Device::ghost_cpu().time_of_transfer(Transfer { n_bytes: 1 << 30, n_ranks: 8 }), 0);
    }

    #[test]
    fn a_weaker_gpu_takes_longer() {
        let work = Cost { flops: 1 << 40, bytes: 1 << 20 };
        let time = |short| {
            let profile = Profile::named(short).expect("it is shipped");
            Device::ghost_cuda(profile).time_of(work, Some(DType::F16), 1.0)
        };
        let times = ["h200", "a100-80", "rtx4090", "t4"].map(time);
        assert!(times.is_sorted(), "{times:?}");
        assert!(Device::ghost_cpu().time_of(work, Some(DType::F64), 1.0) > times[3]);
    }
}
