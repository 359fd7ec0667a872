//! Convolution in which every channel is a group of its own.
//!
//! As products these would have one column each, so the sums are formed directly, many channels at a time. The
//! weights are transposed first, so that neighbouring channels' weights at a tap lie side by side. The gradient with
//! respect to the input is the same computation over the patches of one phase of the stride.

use std::ops::Range;

use crate::conv::{Conv2d, ConvPass};
use crate::count::{padded, product};
use crate::element::{Access, Real};
use crate::isa::Kernels;
use crate::matvec_kernel::Pairs;
use crate::operand::Strided;
use crate::output::Output;
use crate::patches::{Patches, Point};
use crate::plan::part;
use crate::tasks::{Shared, each};

/// Channels summed at a time.
const CHANNELS: usize = 128;

/// Taps added at a time.
const TAPS: usize = 16;

/// Points summed over at a time.
const POINTS: usize = 16;

/// Multiply-adds of a task, and those below which a second thread does not pay.
const TASK_WORK: usize = 1 << 16;

/// The most parts that the points are cut into when they are summed over, and the bytes of all parts' sums.
const MAX_PARTS: usize = 16;
const PARTS_BYTES: usize = 1 << 20;

/// A depthwise convolution.
pub(crate) struct Depthwise<'a, T: 'static> {
    pub conv: &'a Conv2d,
    pub kernels: &'static Kernels<T>,
    pub access: Access<T>,
}

/// The taps of patches, and which of the kernel's they are.
struct Taps {
    /// How many there are, vertical and horizontal.
    n: [usize; 2],
    /// The first tap of the kernel and taps from there to the next, vertical and horizontal.
    of_kernel: [[isize; 2]; 2],
    kernel_width: usize,
}

impl Taps {
    /// The tap of the kernel that a tap of the patches is.
    fn of_kernel(&self, [y, x]: [usize; 2]) -> usize {
        let [[first_y, every_y], [first_x, every_x]] = self.of_kernel;
        let [y, x] = [first_y + y as isize * every_y, first_x + x as isize * every_x];
        y as usize * self.kernel_width + x as usize
    }
}

impl<T: Real> Depthwise<'_, T> {
    /// Bytes of workspace of a pass.
    pub fn workspace(conv: &Conv2d, pass: ConvPass) -> usize {
        let weights = product([conv.kernel[0], conv.kernel[1], conv.in_channels]);
        let copies = if pass == ConvPass::BackwardWeights { n_parts(conv, size_of::<T>()) } else { 1 };
        padded(product([copies, weights, size_of::<T>()]), 64)
    }

    /// The output.
    ///
    /// # Safety
    /// See `conv2d_forward`.
    pub unsafe fn forward(
        &self,
        patches: &Patches<T>,
        weights: *const u8,
        output: &Output<'_, T>,
        workspace: &mut [u8],
    ) {
        // SAFETY: every tap of the patches is the kernel's own; the caller promises the rest.
        unsafe { self.gather(patches, [[0, 1], [0, 1]], weights, output, workspace) }
    }

    /// The gradient with respect to the points of the input that `patches` are laid around; `taps` says for each axis
    /// which tap of the kernel is the patches' first, and taps from there to the next.
    ///
    /// # Safety
    /// See `conv2d_forward`.
    pub unsafe fn backward_input(
        &self,
        patches: &Patches<T>,
        taps: [[isize; 2]; 2],
        weights: *const u8,
        output: &Output<'_, T>,
        workspace: &mut [u8],
    ) {
        // SAFETY: the caller promises what is asked for.
        unsafe { self.gather(patches, taps, weights, output, workspace) }
    }

    fn n_taps(&self) -> usize {
        self.conv.kernel[0] * self.conv.kernel[1]
    }

    /// Checks the workspace and returns it as numbers.
    fn numbers(&self, pass: ConvPass, workspace: &mut [u8]) -> *mut T {
        let bytes = Self::workspace(self.conv, pass);
        crate::check_workspace(self.conv, bytes, workspace);
        workspace.as_mut_ptr().cast()
    }

    /// Sums each patch times the weights of its taps, for every point.
    ///
    /// # Safety
    /// See `conv2d_forward`.
    unsafe fn gather(
        &self,
        patches: &Patches<T>,
        of_kernel: [[isize; 2]; 2],
        weights: *const u8,
        output: &Output<'_, T>,
        workspace: &mut [u8],
    ) {
        let channels = self.conv.in_channels;
        let by_tap = Shared(self.numbers(ConvPass::Forward, workspace));
        for tap in 0..self.n_taps() {
            // SAFETY: the workspace has room for all weights, and each channel has this tap.
            unsafe {
                let to = std::slice::from_raw_parts_mut(by_tap.get().add(tap * channels), channels);
                (self.access.read)(weights.add(tap * self.access.size), self.n_taps() as isize, to);
            }
        }
        let taps = Taps { n: patches.taps, of_kernel, kernel_width: self.conv.kernel[1] };
        let n_points = self.conv.batch * patches.grid[0] * patches.grid[1];
        let work = n_points * patches.taps[0] * patches.taps[1] * channels;
        let n_tasks = work.div_ceil(TASK_WORK).clamp(1, n_points.max(1));
        each(n_tasks == 1, n_tasks, |task| {
            let rows = part(0..n_points, n_tasks, task);
            for (row, point) in rows.clone().zip(patches.points(rows)) {
                for channel in (0..channels).step_by(CHANNELS) {
                    let mut sums = [T::default(); CHANNELS];
                    let sums = &mut sums[..CHANNELS.min(channels - channel)];
                    // SAFETY: tasks write different rows; all weights have been transposed.
                    unsafe {
                        match patches.in_place() {
                            true => self.add_patch(patches, &taps, point, channel, by_tap.get(), sums, None),
                            false => {
                                self.add_staged_patch(patches, &taps, point, channel, by_tap.get(), sums)
                            }
                        }
                        output.write_row(0, row, channel, sums);
                    }
                }
            }
        });
    }

    /// [`Self::add_patch`] for numbers that have to be read first. It is apart because its memory is cleared each time.
    ///
    /// # Safety
    /// See [`Self::add_patch`].
    unsafe fn add_staged_patch(
        &self,
        patches: &Patches<T>,
        taps: &Taps,
        point: Point,
        channel: usize,
        by_tap: *const T,
        sums: &mut [T],
    ) {
        let mut staged = [[T::default(); CHANNELS]; TAPS];
        // SAFETY: the caller promises what is asked for.
        unsafe { self.add_patch(patches, taps, point, channel, by_tap, sums, Some(&mut staged)) }
    }

    /// Adds to the sums of some channels the patch of one point times the weights.
    ///
    /// # Safety
    /// The point and channels must exist, and `by_tap` must hold a weight for each tap and channel.
    #[expect(clippy::too_many_arguments, reason = "one call per point; a struct would only rename them")]
    unsafe fn add_patch(
        &self,
        patches: &Patches<T>,
        taps: &Taps,
        point: Point,
        channel: usize,
        by_tap: *const T,
        sums: &mut [T],
        mut staged: Option<&mut [[T; CHANNELS]; TAPS]>,
    ) {
        let mut pairs = [[std::ptr::null(); 2]; TAPS];
        let mut n_pairs = 0;
        let (to, len) = (sums.as_mut_ptr(), sums.len());
        for tap in (0..taps.n[0]).flat_map(|y| (0..taps.n[1]).map(move |x| [y, x])) {
            let staged = staged.as_mut().map(|staged| &mut staged[n_pairs][..len]);
            // SAFETY: the caller promises the channels and weights.
            unsafe {
                let Some(numbers) = patches.channels_at(point, tap, channel, staged) else { continue };
                let weights = by_tap.add(taps.of_kernel(tap) * self.conv.in_channels + channel);
                pairs[n_pairs] = [numbers, weights];
            }
            n_pairs += 1;
            if n_pairs == TAPS {
                // SAFETY: every stretch has a number for each sum.
                unsafe { (self.kernels.add_products)(Pairs { pairs: &pairs, sums: to, len }) };
                n_pairs = 0;
            }
        }
        // SAFETY: as above.
        unsafe { (self.kernels.add_products)(Pairs { pairs: &pairs[..n_pairs], sums: to, len }) };
    }

    /// The gradient with respect to the weights: each part of the points is summed by itself, then the parts are added
    /// in order.
    ///
    /// # Safety
    /// See `conv2d_forward`.
    pub unsafe fn backward_weights(
        &self,
        patches: &Patches<T>,
        grad_output: &Strided<T>,
        output: &Output<'_, T>,
        workspace: &mut [u8],
    ) {
        let sums = Shared(self.numbers(ConvPass::BackwardWeights, workspace));
        let (n_taps, channels) = (self.n_taps(), self.conv.in_channels);
        let n_parts = n_parts(self.conv, size_of::<T>());
        let n_points = self.conv.batch * patches.grid[0] * patches.grid[1];
        each(n_parts == 1, n_parts, |idx| {
            // SAFETY: each part has its own sums.
            unsafe {
                let sums = sums.get().add(idx * n_taps * channels);
                std::slice::from_raw_parts_mut(sums, n_taps * channels).fill(T::default());
                let rows = part(0..n_points, n_parts, idx);
                for row in rows.clone().step_by(POINTS) {
                    let rows = row..rows.end.min(row + POINTS);
                    for channel in (0..channels).step_by(CHANNELS) {
                        let channels = channel..channels.min(channel + CHANNELS);
                        self.add_points(patches, grad_output, rows.clone(), channels, sums);
                    }
                }
            }
        });
        let n_tasks = if n_parts == 1 { 1 } else { channels.min(MAX_PARTS) };
        each(n_tasks == 1, n_tasks, |task| {
            for channel in part(0..channels, n_tasks, task) {
                for tap in 0..n_taps {
                    let mut total = T::default();
                    for idx in 0..n_parts {
                        // SAFETY: all parts are complete.
                        total += unsafe { *sums.get().add((idx * n_taps + tap) * channels + channel) };
                    }
                    // SAFETY: each channel's weights are written by one task.
                    unsafe { output.write_row(channel, 0, tap, &mut [total]) };
                }
            }
        });
    }

    /// Adds to the sums of some channels, at every tap, the patches of a few points times their gradients.
    ///
    /// # Safety
    /// The points and channels must exist, and `sums` must have a number for each tap and channel.
    unsafe fn add_points(
        &self,
        patches: &Patches<T>,
        grad_output: &Strided<T>,
        rows: Range<usize>,
        channels: Range<usize>,
        sums: *mut T,
    ) {
        let mut grads = [[T::default(); CHANNELS]; POINTS];
        for (row, grads) in rows.clone().zip(&mut grads) {
            // Products of the batch are groups, and here groups are channels.
            // SAFETY: the caller promises the point and channels.
            unsafe {
                let from = grad_output.at(channels.start, 0, row);
                (self.access.read)(from, 1, &mut grads[..channels.len()]);
            }
        }
        let mut staged = [[T::default(); CHANNELS]; POINTS];
        for tap in 0..self.n_taps() {
            let at = [tap / patches.taps[1], tap % patches.taps[1]];
            let mut pairs = [[std::ptr::null(); 2]; POINTS];
            let mut n_pairs = 0;
            for ((point, grads), staged) in patches.points(rows.clone()).zip(&grads).zip(&mut staged) {
                let staged = (!patches.in_place()).then_some(&mut staged[..channels.len()]);
                // SAFETY: the caller promises the channels.
                if let Some(numbers) = unsafe { patches.channels_at(point, at, channels.start, staged) } {
                    pairs[n_pairs] = [numbers, grads.as_ptr()];
                    n_pairs += 1;
                }
            }
            // SAFETY: every stretch has a number for each of the channels.
            unsafe {
                let sums = sums.add(tap * self.conv.in_channels + channels.start);
                (self.kernels.add_products)(Pairs { pairs: &pairs[..n_pairs], sums, len: channels.len() });
            }
        }
    }
}

/// Parts that the points are cut into when they are summed over.
fn n_parts(conv: &Conv2d, size: usize) -> usize {
    let [height, width] = conv.output_or_nothing();
    let weights = product([conv.kernel[0], conv.kernel[1], conv.in_channels]);
    let work = product([conv.batch, height, width, weights]);
    (work / TASK_WORK).min(PARTS_BYTES / product([weights, size]).max(1)).clamp(1, MAX_PARTS)
}
