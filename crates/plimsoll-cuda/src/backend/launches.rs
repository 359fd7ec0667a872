//! Work of the compute stream as a list: what is to be started, with everything that it is started with.
//!
//! A list is a value, so it can be issued now or later, compared with another one, and made into an executable. Parameters of
//! kernels are kept as bytes, one buffer for the whole list, which is used again from run to run.

use std::ffi::c_void;
use std::ops::Range;

use super::{Backend, Function, Grid};
use crate::convolution::{Convolution, ConvolutionOperands};
use crate::error::{Error, Result};
use crate::matmul::{Matmul, MatmulOperands};

/// Where a parameter begins in the buffer, and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    word: u32,
    n_bytes: u32,
}

/// One thing that is started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Launch {
    /// A kernel of ours, with a range of the list's slots.
    Kernel { function: Function, grid: Grid, first: u32, n: u32 },
    /// A copy within the device: from, to, bytes.
    Copy(*const u8, *mut u8, usize),
    /// Bytes that are set: address, byte, bytes.
    Fill(*mut u8, u8, usize),
    /// A matrix product.
    Matmul(Matmul, MatmulOperands),
    /// A convolution.
    Convolution(Convolution, ConvolutionOperands),
}

/// Launches in the order in which they were asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Launches {
    list: Vec<Launch>,
    slots: Vec<Slot>,
    words: Vec<u64>,
}

// SAFETY: the addresses are the device's; whoever issues the launches vouches for them.
unsafe impl Send for Launches {}

impl Launches {
    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn clear(&mut self) {
        self.list.clear();
        self.slots.clear();
        self.words.clear();
    }

    pub fn push(&mut self, launch: Launch) {
        self.list.push(launch);
    }

    /// Adds a kernel with copies of its parameters, each an address and its bytes.
    ///
    /// # Safety
    /// The addresses must be valid for so many bytes, none of which is padding.
    pub unsafe fn push_kernel(&mut self, function: Function, grid: Grid, params: &[(*mut c_void, usize)]) {
        let first = self.slots.len() as u32;
        for &(address, n_bytes) in params {
            let word = self.words.len();
            self.words.resize(word + n_bytes.div_ceil(size_of::<u64>()), 0);
            // SAFETY: the buffer was just made that long; the caller vouches for the source.
            unsafe {
                self.words[word..]
                    .as_mut_ptr()
                    .cast::<u8>()
                    .copy_from_nonoverlapping(address.cast(), n_bytes);
            }
            self.slots.push(Slot { word: word as u32, n_bytes: n_bytes as u32 });
        }
        self.list.push(Launch::Kernel { function, grid, first, n: params.len() as u32 });
    }

    /// A launch, with the addresses of its parameters if it is a kernel.
    pub fn get(&mut self, number: usize) -> (Launch, Vec<*mut c_void>) {
        let launch = self.list[number];
        let slots = match launch {
            Launch::Kernel { first, n, .. } => &self.slots[first as usize..(first + n) as usize],
            _ => &[],
        };
        let words = self.words.as_mut_ptr();
        (launch, slots.iter().map(|slot| words.wrapping_add(slot.word as usize).cast()).collect())
    }

    /// Starts one of them.
    ///
    /// # Safety
    /// Its addresses must be valid for what it does.
    pub unsafe fn dispatch(&mut self, number: usize, backend: &dyn Backend) -> Result<()> {
        let (launch, mut params) = self.get(number);
        // SAFETY: the caller promises it; a kernel's parameters are copies of those that it was recorded with.
        let known = unsafe {
            match launch {
                Launch::Kernel { function, grid, .. } => {
                    backend.launch(function, grid, &mut params).map(|()| true)
                }
                Launch::Copy(from, to, n_bytes) => backend.copy(from, to, n_bytes).map(|()| true),
                Launch::Fill(to, byte, n_bytes) => backend.fill(to, byte, n_bytes).map(|()| true),
                Launch::Matmul(matmul, operands) => backend.matmul(&matmul, &operands),
                Launch::Convolution(convolution, operands) => backend.convolve(&convolution, &operands),
            }
        }?;
        match known {
            true => Ok(()),
            false => {
                Err(Error::new(format!("a library that had a way to compute {launch:?} has none any more")))
            }
        }
    }

    /// Whether an executable of the other list can do what this one says once some kernels have other parameters.
    pub fn is_like(&self, other: &Launches) -> bool {
        self.slots == other.slots && self.list == other.list
    }

    /// The kernels whose parameters differ from those of a list that is like this one.
    pub fn differing(&self, other: &Launches) -> Vec<usize> {
        let differs = |&number: &usize| {
            let words = self.words_of(number);
            self.words[words.clone()] != other.words[words]
        };
        (0..self.len()).filter(differs).collect()
    }

    /// Takes the parameters over from a list that is like this one.
    pub fn take_params(&mut self, other: &Launches) {
        self.words.copy_from_slice(&other.words);
    }

    /// Takes the parameters of one kernel over from a list that is like this one.
    #[cfg(feature = "emulated")]
    pub fn take_params_of(&mut self, number: usize, other: &Launches) {
        let words = self.words_of(number);
        self.words[words.clone()].copy_from_slice(&other.words[words]);
    }

    /// Where the parameters of a launch lie in the buffer.
    fn words_of(&self, number: usize) -> Range<usize> {
        let Launch::Kernel { first, n, .. } = self.list[number] else { return 0..0 };
        let start =
            |slot: u32| self.slots.get(slot as usize).map_or(self.words.len(), |slot| slot.word as usize);
        start(first)..start(first + n)
    }

    /// A number that lists which are alike have in common, and others hardly ever.
    pub fn fingerprint(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        for launch in &self.list {
            match *launch {
                Launch::Kernel { function, grid, first, n } => {
                    (function.0, grid.blocks, grid.threads, grid.shared_bytes, first, n).hash(&mut hasher);
                }
                Launch::Copy(from, to, n_bytes) => (from, to, n_bytes).hash(&mut hasher),
                Launch::Fill(to, byte, n_bytes) => (to, byte, n_bytes).hash(&mut hasher),
                Launch::Matmul(matmul, MatmulOperands { a, b, c, bias, workspace, workspace_bytes }) => {
                    (matmul.m, matmul.n, matmul.k, a, b, c, bias, workspace, workspace_bytes)
                        .hash(&mut hasher);
                }
                Launch::Convolution(convolution, operands) => {
                    let ConvolutionOperands { input, filter, output, workspace, workspace_bytes } = operands;
                    (convolution, input, filter, output, workspace, workspace_bytes).hash(&mut hasher);
                }
            }
        }
        hasher.finish()
    }
}

/// Starts launches one by one.
pub(crate) fn dispatch_all(backend: &dyn Backend, launches: &mut Launches) -> Result<()> {
    // SAFETY: whoever launched them vouched for their addresses in stream order, which is the order of the list.
    (0..launches.len()).try_for_each(|number| unsafe { launches.dispatch(number, backend) })
}
