//! What the tests of datasets share.
#![allow(dead_code, reason = "each test program uses some of it")]

use plimsoll_data::{Batch, Dataset};
use plimsoll_tensor::{DType, Device, Result, Tensor};

/// The numbers from 0 to `n`, as a dataset of single numbers.
pub fn numbers(n: usize) -> Dataset {
    let x = Tensor::from_vec((0..n as i64).collect()).unwrap();
    Dataset::from_tensor_slices([("x", x)]).unwrap()
}

/// The values of a tensor of any dtype, exactly as bits of f64 where it matters.
pub fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_f64_vec().unwrap()
}

/// Shape and values of every field of every batch of the next epoch.
pub fn drained(dataset: &Dataset) -> Vec<Vec<(Vec<usize>, Vec<f64>)>> {
    dataset.iter().map(|batch| contents(&batch.unwrap())).collect()
}

pub fn contents(batch: &Batch) -> Vec<(Vec<usize>, Vec<f64>)> {
    (0..batch.spec().fields().len()).map(|idx| (batch[idx].shape().to_vec(), values(&batch[idx]))).collect()
}

/// The integers of the first field, batch by batch.
pub fn integers(dataset: &Dataset) -> Vec<Vec<i64>> {
    let of_batch = |batch: Result<Batch>| batch.unwrap()[0].cast(DType::I64).unwrap().to_vec().unwrap();
    dataset.iter().map(of_batch).collect()
}

/// A device of the test's own, current until the end of the scope.
pub fn device() -> (Device, plimsoll_tensor::OpenScope) {
    let device = Device::separate_cpu();
    let scope = device.enter();
    (device, scope)
}

/// How many threads that make batches are left after they were waited for. The system's list may show a thread for a
/// moment after it was joined, so it is read until it shows none, or often enough to be believed.
pub fn n_data_threads_left() -> usize {
    (0..10_000).map(|_| n_data_threads()).find(|&n| n == 0).unwrap_or_else(n_data_threads)
}

/// How many threads this process has that make batches.
pub fn n_data_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        // A thread may end while the list is read.
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).filter(|name| name.starts_with("plimsoll-data")).count()
}
