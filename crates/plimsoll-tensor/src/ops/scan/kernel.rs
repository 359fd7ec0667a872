//! The walk along the lanes.

use plimsoll_cpu::element::{CastTo, Element, Number};
use plimsoll_cpu::lanes::Lanes;
use plimsoll_cpu::simd;
use plimsoll_cpu::threads::SharedPtr;
use plimsoll_cuda::{Gpu, Template};

use crate::base::error::Result;
use crate::eager::op::Operand;
use crate::ops::cuda::lines::{Along, LineKernel, THREADS};
use crate::ops::cuda::{c_name, code, lines};

/// The most lanes that are scanned together: their states fit the nearest cache.
const WIDTH: usize = 64;

/// The elements that one task visits, or more. Fewer are not worth waking a thread for.
const TASK_LEN: usize = 16 * 1024;

/// How a state goes on from place to place. Values are given for each operand; the last is the output, whose are zero. At
/// the first place only the operand before the output is read.
pub(super) trait Recurrence<A, const N: usize>: Copy + Sync {
    /// The state at the first place.
    fn first(self, values: [A; N]) -> A;
    /// The state at a place, given the one before.
    fn next(self, state: A, values: [A; N]) -> A;
}

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the first place to the last.
    Forward,
    /// From the last place to the first.
    Backward {
        /// Whether the first operand is read at the place that was just left, and not where the scan is.
        shifted: bool,
    },
}

/// Scans all lanes along an axis. Operands are of type `T`, states of type `A`; the last operand is the output.
///
/// # Safety
/// The operands are of one shape, of type `T` and valid for their layouts; the last is nobody else's.
pub(super) unsafe fn scan<T, A, const N: usize>(
    operands: [&Operand; N],
    axis: usize,
    direction: Direction,
    recurrence: impl Recurrence<A, N>,
) where
    T: Element<Compute: CastTo<A>>,
    A: Number + CastTo<T::Compute>,
{
    let lanes = Lanes::along(axis, operands[0].shape(), operands.map(|x| x.meta.layout.strides()));
    if lanes.len == 0 {
        return;
    }
    let firsts = operands.map(|x| SharedPtr::new(x.ptr().cast::<T>()));
    let mut steps = lanes.steps;
    let mut start = [0; N];
    if let Direction::Backward { shifted } = direction {
        start = steps.map(|step| step * (lanes.len as isize - 1));
        steps = steps.map(|step| -step);
        if shifted {
            start[0] -= steps[0];
        }
    }
    let next = |at: [isize; N]| at.map(|at| at + 1);
    let per_task = match lanes.n_lanes > 1 && lanes.offsets(1) == next(lanes.offsets(0)) {
        // Lanes side by side share what is read from memory.
        true => TASK_LEN.div_ceil(lanes.len).next_multiple_of(WIDTH),
        false => TASK_LEN.div_ceil(lanes.len),
    };
    lanes.in_stretches(per_task, |stretch| {
        for begin in stretch.clone().step_by(WIDTH) {
            let end = stretch.end.min(begin + WIDTH);
            let offsets = lanes.offsets(begin);
            let moved = |lane: usize| (lane - begin) as isize;
            let beside = (begin..end).all(|lane| lanes.offsets(lane) == offsets.map(|at| at + moved(lane)));
            let at = |offsets: [isize; N]| -> [*mut T; N] {
                // One place beyond the lane where the scan is shifted, and not read there.
                std::array::from_fn(|k| firsts[k].get().wrapping_offset(offsets[k] + start[k]))
            };
            // SAFETY: lanes of the operands, by the caller's promise; each is in one stretch.
            unsafe {
                match beside {
                    true => scan_beside(at(offsets), steps, lanes.len, end - begin, recurrence),
                    false => (begin..end).for_each(|lane| {
                        scan_beside(at(lanes.offsets(lane)), steps, lanes.len, 1, recurrence);
                    }),
                }
            }
        }
    });
}

/// Scans lanes that lie side by side.
///
/// # Safety
/// The addresses are those of the first places of `n` lanes of `len` elements, where operands that are shifted are not
/// read at the first place; nobody else uses the last operand's.
#[inline(never)]
unsafe fn scan_beside<T, A, const N: usize>(
    mut at: [*mut T; N],
    steps: [isize; N],
    len: usize,
    n: usize,
    recurrence: impl Recurrence<A, N>,
) where
    T: Element<Compute: CastTo<A>>,
    A: Number + CastTo<T::Compute>,
{
    // SAFETY: the caller's promise.
    let read = |at: &[*mut T; N], k: usize, lane: usize| -> A { unsafe { *at[k].add(lane) }.widen().cast() };
    // SAFETY: as above.
    let write = |at: &[*mut T; N], lane: usize, state: A| unsafe {
        *at[N - 1].add(lane) = T::narrow(state.cast());
    };
    simd::vectorize(
        #[inline(always)]
        || {
            let mut states = [A::ZERO; WIDTH];
            for (lane, state) in states[..n].iter_mut().enumerate() {
                let values = std::array::from_fn(|k| if k + 2 == N { read(&at, k, lane) } else { A::ZERO });
                *state = recurrence.first(values);
                write(&at, lane, *state);
            }
            for _ in 1..len {
                for (at, step) in at.iter_mut().zip(steps) {
                    *at = at.wrapping_offset(step);
                }
                for (lane, state) in states[..n].iter_mut().enumerate() {
                    let value = |k: usize| if k + 1 < N { read(&at, k, lane) } else { A::ZERO };
                    *state = recurrence.next(*state, std::array::from_fn(value));
                    write(&at, lane, *state);
                }
            }
        },
    );
}

static TEMPLATE: Template = Template { name: "scan", text: include_str!("scan.cu") };

/// The shortest lanes for which a group of threads pays.
const GROUP_LEN: usize = 32;

/// Scans all lanes along an axis on a GPU: sums of `x`, or linear where there are factors, of which the first is not read.
pub(super) fn scan_cuda(
    op: &'static str,
    factors: Option<&Operand>,
    (x, y): (&Operand, &Operand),
    axis: usize,
    from_end: bool,
    gpu: &Gpu,
) -> Result<()> {
    let (dtype, a) = (x.dtype(), factors.unwrap_or(x));
    let mut along = lines::Lines::along(axis, x.shape(), &[x, y].map(Along::Lane));
    let in_groups = factors.is_none() && along.len >= GROUP_LEN && !along.are_beside();
    if !in_groups {
        along = lines::Lines::along(axis, x.shape(), &[a, x, y].map(Along::Lane));
    }
    along.v = 1;
    along.group = match in_groups {
        true if along.len > 1024 => THREADS,
        true => 32,
        false => 1,
    };
    let variant = (code(dtype) << 1) | u64::from(in_groups);
    let kernel = LineKernel { template: &TEMPLATE, op, variant, in_registers: false, made: None };
    let define = || {
        let (in_groups, is_linear) = (u8::from(in_groups), u8::from(factors.is_some()));
        format!("typedef {} T;\n#define IN_GROUPS {in_groups}\n#define IS_LINEAR {is_linear}", c_name(dtype))
    };
    let pointers = [a.ptr(), x.ptr(), y.ptr()];
    let pointers = if in_groups { &pointers[1..] } else { &pointers };
    // SAFETY: `execute` hands out operands that are valid for their layouts, the lanes are theirs, the output is fresh, and the
    // kernel was made for this dtype.
    unsafe { kernel.launch(gpu, &along, define, pointers, &[&u32::from(from_end)]) }
}
