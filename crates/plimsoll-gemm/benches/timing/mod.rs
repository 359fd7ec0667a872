//! Timing: the fastest of many repeats, because whatever slows a repeat down is not the kernel; and memory that begins
//! at a multiple of 64 bytes, as the memory pool gives it.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// Numbers that begin at a multiple of 64 bytes.
pub struct Aligned<E> {
    data: Vec<E>,
    first: usize,
    len: usize,
}

impl<E: Copy> Aligned<E> {
    /// The numbers `number(0)`, `number(1)`, ...
    pub fn new(len: usize, number: impl Fn(usize) -> E) -> Self {
        let mut data = vec![number(0); len + 64 / size_of::<E>()];
        let first = data.as_ptr().align_offset(64);
        data[first..first + len].iter_mut().enumerate().for_each(|(idx, to)| *to = number(idx));
        Self { data, first, len }
    }
}

impl<E> Deref for Aligned<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        &self.data[self.first..self.first + self.len]
    }
}

impl<E> DerefMut for Aligned<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        &mut self.data[self.first..self.first + self.len]
    }
}

/// Seconds of the fastest repeat.
pub fn fastest(mut kernel: impl FnMut()) -> f64 {
    kernel();
    let begin = Instant::now();
    kernel();
    let once = begin.elapsed().max(Duration::from_nanos(100));
    // Short kernels are timed many at a time, so that reading the clock does not count.
    let n = (Duration::from_micros(200).as_nanos() / once.as_nanos()).max(1) as u32;
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(400) {
        let start = Instant::now();
        for _ in 0..n {
            kernel();
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(n));
    }
    best
}
