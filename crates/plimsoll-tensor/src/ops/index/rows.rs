//! `index_add`: rows of a source added to the rows that ids name; the gradient of `index_select` and `embedding`.
//!
//! Ids repeat, often thousands of times (a frequent word), so they are first sorted by the row that they name: each row
//! is then one sum, made by one thread in the order of the ids, and in f32 for the 16-bit floats.

use plimsoll_cpu::element::{Element, Number};
use plimsoll_cpu::simd;
use plimsoll_cpu::threads::{self, SharedPtr};
use plimsoll_cuda::{Gpu, Profile};

use super::cuda::{Addition, Keys, Sort, Sums};
use super::scatter_add::check_addends;
use super::select::{read_as, selected, three};
use super::{Index, check_dtype, check_range, cuda, for_indices, readable_as, refusal};
use crate::base::axes::Integer;
use crate::base::error::{Error, Result};
use crate::base::shape::{MAX_RANK, Shape};
use crate::eager::context;
use crate::eager::execute::{Arg, Order, call_with};
use crate::eager::op::{Meta, Op, OpRef, Operand, Outputs, Run, SavedRef, SavedRefs, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::copy::{copy, copy_cuda};
use crate::ops::kernel::{for_numbers, units_per_task};
use crate::ops::registry::{Array, Sample, Values, floats, input};

/// The elements of a row that are summed at a time.
const TILE: usize = 256;

/// `y = x`, then `y[.., ids[i], ..] += source[.., i, ..]` in the order of i, which may have any number of axes. The gradient
/// of x is that of y, the source's is selected from it.
#[derive(Debug)]
struct IndexAdd {
    axis: usize,
}

impl IndexAdd {
    fn add_cuda(&self, run: &Run<'_>, gpu: &Gpu, order: Order) -> Result<()> {
        let ([x, ids, source], y) = (run.inputs, &run.outputs[0]) else {
            unreachable!("a tensor, ids and a source")
        };
        if x.ptr() != y.ptr() {
            copy_cuda("index_add", gpu, x, y)?;
        }
        if source.n_elems() == 0 {
            return Ok(());
        }
        let (n, n_rows) = (ids.n_elems(), y.shape()[self.axis]);
        let line = read_as(ids, Shape::within_bounds([n]));
        let (extents, index_strides) = cuda::axes(&line);
        let keys = Keys {
            n: n as u64,
            extents,
            index_strides,
            key_strides: [0; MAX_RANK],
            step: 1,
            extent: n_rows as i64,
            beyond: n_rows as u64,
        };
        let faults = run.may_refuse("index_add", refusal(ids.shape(), self.axis, n_rows))?;
        let line = ids.meta.with_layout(line);
        let ids = ids.viewed(&line);
        let (sums, v) = self.sums(source, y, extents, order);
        let (op, indices, keys, sums) = ("index_add", &ids, &keys, &sums);
        let addition = Addition { op, faults, indices, keys, source, y, sums, v };
        // SAFETY: `execute` hands out operands that are valid for their layouts, whose strides these are; the keys are made from
        // all ids, those beyond the rows are left out, groups are aligned, and the workspace is the sort's.
        unsafe {
            match order {
                Order::Fixed => addition.in_order(gpu, Sort::new(n, n_rows), run.workspace),
                Order::Any => addition.in_any_order(gpu),
            }
        }
    }

    /// How the rows lie that are added, for places of these extents, and how many of their neighbours are one group.
    fn sums(&self, source: &Operand, y: &Operand, extents: [u32; MAX_RANK], order: Order) -> (Sums, usize) {
        let n_id_axes = source.shape().rank() + 1 - y.shape().rank();
        let places = read_as(source, three(source.shape(), self.axis, n_id_axes));
        let sums = three(y.shape(), self.axis, 1);
        let (&[outer, step, inner], &[n_before, n_rows, row_len]) = (places.strides(), sums.dims()) else {
            unreachable!("three axes")
        };
        // Neighbours in a row are added together where they lie together; atomic additions take one at a time.
        let v = match inner {
            1 if order == Order::Fixed => {
                cuda::group_len(y.dtype().size(), row_len, &[outer, step], &[source.ptr(), y.ptr()])
            }
            _ => 1,
        };
        let mut strides = [0; MAX_RANK];
        strides[0] = step as i64;
        let sums = Sums {
            n: places.shape()[1] as u64,
            width: (n_before * row_len / v) as u64,
            row_len: (row_len / v) as u64,
            n_rows: n_rows as u64,
            outer: outer as i64,
            inner: (inner * v as isize) as i64,
            extents,
            strides,
        };
        (sums, v)
    }
}

impl Op for IndexAdd {
    fn name(&self) -> &'static str {
        "index_add"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [x, ids, source] = inputs else { unreachable!("a tensor, ids and a source") };
        check_dtype("index_add", ids)?;
        check_addends("index_add", x, source)?;
        let wanted = selected(x.shape(), self.axis, ids.shape())?;
        if *source.shape() != wanted {
            return Err(Error::shape(
                "index_add",
                format!(
                    "a source of shape {} for ids of shape {} and a tensor of shape {}; it must have shape {wanted}",
                    source.shape(),
                    ids.shape(),
                    x.shape()
                ),
            ));
        }
        one(*x.shape(), x.dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [x, ids, source] = run.inputs else { unreachable!("a tensor, ids and a source") };
        let y = &run.outputs[0];
        let n_rows = x.shape()[self.axis];
        // SAFETY: this is the only slice of the call's scratch memory, which is aligned for any element and as long as
        // `workspace` says.
        let places = unsafe {
            let (start, len) = (run.workspace.cast::<usize>(), n_rows + ids.n_elems());
            let scratch: &mut [usize] =
                if len == 0 { &mut [] } else { std::slice::from_raw_parts_mut(start, len) };
            for_indices!(ids.dtype(), I => {
                check_range::<I>("index_add", ids, self.axis, n_rows)?;
                Places::sort::<I>(ids, n_rows, scratch)
            })
        };
        if x.ptr() != y.ptr() {
            copy(x, y);
        }
        for_numbers!(x.dtype(), T => {
            // SAFETY: `execute` hands out operands that are valid for their layouts, and the output is nobody else's.
            unsafe { add_rows::<T>(source, &places, y, self.axis) }
        });
        Ok(())
    }

    /// The ids in order: a number for each row and each id.
    fn workspace(&self, inputs: &[&Meta]) -> usize {
        (inputs[0].shape()[self.axis] + inputs[1].n_elems()) * size_of::<usize>()
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        self.add_cuda(run, gpu, Order::Fixed)
    }

    fn run_cuda_unordered(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        self.add_cuda(run, gpu, cuda::order(run.outputs[0].dtype()))
    }

    fn workspace_cuda(&self, inputs: &[&Meta], _profile: &Profile) -> usize {
        Sort::new(inputs[1].n_elems(), inputs[0].shape()[self.axis]).workspace()
    }

    fn workspace_cuda_unordered(&self, inputs: &[&Meta], profile: &Profile) -> usize {
        match cuda::order(inputs[0].dtype) {
            Order::Fixed => self.workspace_cuda(inputs, profile),
            Order::Any => 0,
        }
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        wanted[2].then_some(SavedRef::Input(1)).into_iter().collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        if backward.wants(2) {
            let source = gradient.index_select(self.axis, &backward.input(1)?)?;
            backward.set_grad(2, source)?;
        }
        backward.set_grad(0, gradient)
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }
}

/// For each row the places of the ids that name it, in rising order.
struct Places<'a> {
    /// Where each row's places end; they begin where those of the row before end.
    ends: &'a [usize],
    order: &'a [usize],
}

impl<'a> Places<'a> {
    /// Sorts the ids by counting.
    ///
    /// # Safety
    /// The ids are valid for their layout, of type `I`, and below `n_rows`; `scratch` has room for both.
    unsafe fn sort<I: Index>(ids: &Operand, n_rows: usize, scratch: &'a mut [usize]) -> Places<'a> {
        let n_ids = ids.n_elems();
        let stride = read_as(ids, Shape::within_bounds([n_ids])).strides()[0];
        let first = ids.ptr().cast::<I>().cast_const();
        let id_at = |place: usize| {
            // SAFETY: a place of the ids.
            let id: i64 = unsafe { *first.offset(place as isize * stride) }.cast();
            id as usize
        };
        let (ends, order) = scratch.split_at_mut(n_rows);
        ends.fill(0);
        (0..n_ids).for_each(|place| ends[id_at(place)] += 1);
        let mut start = 0;
        for end in ends.iter_mut() {
            start += std::mem::replace(end, start);
        }
        for place in 0..n_ids {
            let end = &mut ends[id_at(place)];
            order[*end] = place;
            *end += 1;
        }
        Places { ends, order }
    }

    fn of(&self, row: usize) -> &[usize] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.order[start..self.ends[row]]
    }
}

/// # Safety
/// The operands are valid for their layouts and of type `T`, the places are places of the source, and `y` is nobody
/// else's.
unsafe fn add_rows<T: Element<Compute: Number>>(
    source: &Operand,
    places: &Places<'_>,
    y: &Operand,
    axis: usize,
) {
    let n_id_axes = source.shape().rank() + 1 - y.shape().rank();
    let layout = read_as(source, three(source.shape(), axis, n_id_axes));
    let &[outer, step, inner] = layout.strides() else { unreachable!("three axes") };
    let &[n_before, n_rows, row_len] = three(y.shape(), axis, 1).dims() else { unreachable!("three axes") };
    let (source, y) = (SharedPtr::new(source.ptr().cast::<T>()), SharedPtr::new(y.ptr().cast::<T>()));
    let n_units = n_before * n_rows;
    // The ids may all name one row; a task of few rows leaves the others to other threads.
    let per_task = units_per_task(row_len * (1 + places.order.len() / n_rows.max(1)));
    threads::parallel(n_units.div_ceil(per_task), |task| {
        let mut sums = [<T::Compute as Number>::ZERO; TILE];
        for unit in task * per_task..n_units.min((task + 1) * per_task) {
            let places = places.of(unit % n_rows);
            for col in (0..if places.is_empty() { 0 } else { row_len }).step_by(TILE) {
                // SAFETY: `col` is a column of the row, and no other task has this row.
                unsafe {
                    let from = source.get().offset((unit / n_rows) as isize * outer + col as isize * inner);
                    let to = y.get().add(unit * row_len + col);
                    add_tile(from, step, inner, places, to, &mut sums[..TILE.min(row_len - col)]);
                }
            }
        }
    });
}

/// Adds a part of the rows at some places to a part of one row; `sums` is scratch of that length.
///
/// # Safety
/// `to` is valid for as many elements as `sums` has, `from` for as many at each place, by their strides.
unsafe fn add_tile<T: Element<Compute: Number>>(
    from: *const T,
    step: isize,
    inner: isize,
    places: &[usize],
    to: *mut T,
    sums: &mut [T::Compute],
) {
    simd::vectorize(
        #[inline(always)]
        || {
            // SAFETY: the caller's promise.
            unsafe {
                for (col, sum) in sums.iter_mut().enumerate() {
                    *sum = (*to.add(col)).widen();
                }
                for &place in places {
                    let row = from.offset(place as isize * step);
                    // Two loops, because the compiler makes wide ones only of what it knows to lie densely.
                    if inner == 1 {
                        for (col, sum) in sums.iter_mut().enumerate() {
                            *sum = Number::add(*sum, (*row.add(col)).widen());
                        }
                    } else {
                        for (col, sum) in sums.iter_mut().enumerate() {
                            *sum = Number::add(*sum, (*row.offset(col as isize * inner)).widen());
                        }
                    }
                }
                for (col, &sum) in sums.iter().enumerate() {
                    *to.add(col) = T::narrow(sum);
                }
            }
        },
    );
}

impl Tensor {
    /// The tensor with the rows of `source` added to the rows of `axis` that `ids` name; ids may repeat. `source` has the
    /// tensor's shape with the axes of `ids` in place of `axis`.
    ///
    /// # Errors
    /// An axis that the tensor does not have; ids that are not int64 or int32, or out of range; a source of another
    /// shape or dtype; memory that is full.
    #[doc = example!("index_add")]
    #[doc(alias("segment_sum", "unsorted_segment_sum"))]
    #[track_caller]
    pub fn index_add(&self, axis: impl Integer, ids: &Tensor, source: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        add_at(Arg::Lent(self), self.shape().axis("index_add", axis)?, ids, source)
    }

    /// Like [`index_add`](Tensor::index_add), written over this tensor if nobody else holds it.
    ///
    /// # Errors
    /// Those of [`index_add`](Tensor::index_add).
    #[track_caller]
    pub fn into_index_add(self, axis: impl Integer, ids: &Tensor, source: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("index_add", axis)?;
        add_at(Arg::Given(self), axis, ids, source)
    }
}

fn add_at(x: Arg<'_>, axis: usize, ids: &Tensor, source: &Tensor) -> Result<Tensor> {
    // A source whose axes do not go with the ids is refused by `infer`, as it lies.
    let source = match axis + ids.rank() <= source.rank() {
        true => readable_as(source, &three(source.shape(), axis, ids.rank()))?,
        false => source.clone(),
    };
    let ids = readable_as(ids, &Shape::within_bounds([ids.n_elems()]))?;
    call_with(OpRef::shipped(IndexAdd { axis }), smallvec::smallvec![x, Arg::Given(ids), Arg::Given(source)])
}

pub(super) fn samples() -> Vec<Sample> {
    let indices = |shape: &[usize], bound: i64| input(shape, Values::Indices(bound));
    let sum = |x: &[Array], named: &dyn Fn(&[usize], usize) -> f64, axis: usize| {
        let ids = x[1].values.clone();
        Array::build(&x[0].shape, |i| {
            let at_row =
                |(place, &id): (usize, &f64)| if id == i[axis] as f64 { named(i, place) } else { 0.0 };
            x[0].at(i) + ids.iter().enumerate().map(at_row).sum::<f64>()
        })
    };
    vec![
        Sample::new("rows", vec![floats(&[3, 4]), indices(&[6], 3), floats(&[6, 4])], |x| {
            x[0].index_add(0, &x[1], &x[2])
        })
        .reference(move |x| sum(x, &|i, place| x[2].at(&[place, i[1]]), 0))
        .torch("x0.index_add(0, x1, x2)")
        .example("x0.index_add(0, &x1, &x2)")
        .refuses(vec![floats(&[3, 4]), indices(&[6], 3), floats(&[5, 4])], "it must have shape [6, 4]")
        .refuses(vec![floats(&[3, 4]), floats(&[6]), floats(&[6, 4])], "int64 or int32"),
        Sample::new("middle", vec![floats(&[2, 3, 2]), indices(&[5], 3), floats(&[2, 5, 2])], |x| {
            x[0].index_add(1, &x[1], &x[2])
        })
        .reference(move |x| sum(x, &|i, place| x[2].at(&[i[0], place, i[2]]), 1))
        .torch("x0.index_add(1, x1, x2)"),
        Sample::new("batch of ids", vec![floats(&[3, 2]), indices(&[2, 2], 3), floats(&[2, 2, 2])], |x| {
            x[0].index_add(0, &x[1], &x[2])
        })
        .reference(move |x| sum(x, &|i, place| x[2].at(&[place / 2, place % 2, i[1]]), 0)),
    ]
}
