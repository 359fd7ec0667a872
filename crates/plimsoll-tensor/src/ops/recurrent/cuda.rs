//! A sequence on a GPU: the inputs of many steps are multiplied at once, then each step is one product of the hidden
//! states and one kernel for everything else.
//!
//! The sums of a few steps lie in scratch memory in f32 (f64 for f64), as many as make a product that fills the GPU; the
//! saved gates are written from there. The states are carried in that type, too, and are rounded where a product reads
//! them.

use plimsoll_cuda::{Epilogue, Gpu, Grid, Matmul, MatmulOperands, Matrix, Param, Profile, Template};
use smallvec::SmallVec;

use super::Recurrent;
use super::cell::{Cell, GateGroup};
use super::gradient::RecurrentBackward;
use super::kernel::Extents;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::eager::op::{Meta, Operand, Run, SavedRef};
use crate::ops::activation::Activation;
use crate::ops::cuda::elementwise::{convert, fill};
use crate::ops::cuda::{CODE_BITS, c_name, code, scalar};
use crate::ops::unary::Unary;
use crate::ops::unary::relu::Relu;
use crate::ops::unary::sigmoid::Sigmoid;
use crate::ops::unary::tanh::Tanh;

static FORWARD: Template = Template { name: "step", text: include_str!("forward.cu") };
static BACKWARD: Template = Template { name: "back", text: include_str!("backward.cu") };

/// About the rows of inputs that are multiplied at once: enough to fill a GPU.
const STAGED_ROWS: usize = 2048;
/// Pieces of scratch memory begin at multiples of this, so that the library's widest loads fit.
const ALIGNMENT: usize = 256;
/// The library may sum a product in so many parts, each in scratch memory.
const MOST_PARTS: usize = 8;
const THREADS: u32 = 256;

/// A step, as `forward.cu` takes it.
#[repr(C)]
struct StepParam {
    sums: *mut u8,
    carried: *mut u8,
    state: *mut u8,
    saved: *mut u8,
    sequence: *mut u8,
    finals: [*mut u8; 2],
    biases: [*mut u8; 2],
    bias_strides: [i64; 2],
    extents: [u64; 3],
    step: u64,
    n_columns: u64,
}

// SAFETY: `forward.cu` has the same struct.
unsafe impl Param for StepParam {}

/// A step taken back, as `backward.cu` takes it.
#[repr(C)]
struct BackParam {
    saved: *mut u8,
    d_sums: *mut u8,
    previous: *mut u8,
    after: *mut u8,
    d_hidden: *mut u8,
    d_cell: *mut u8,
    d_sequence: *mut u8,
    initial: *mut u8,
    saved_strides: [i64; 3],
    d_sequence_strides: [i64; 3],
    initial_strides: [i64; 2],
    extents: [u64; 3],
    step: u64,
}

// SAFETY: `backward.cu` has the same struct.
unsafe impl Param for BackParam {}

const NOTHING: *mut u8 = std::ptr::null_mut();

fn address(operand: Option<&Operand<'_>>) -> *mut u8 {
    operand.map_or(NOTHING, Operand::ptr)
}

fn strides<const N: usize>(operand: Option<&Operand<'_>>) -> [i64; N] {
    let mut strides = [0; N];
    if let Some(operand) = operand {
        strides.iter_mut().zip(operand.meta.layout.strides()).for_each(|(to, &from)| *to = from as i64);
    }
    strides
}

/// Pieces of scratch memory, laid out one after the other.
struct Pieces {
    at: *mut u8,
    len: usize,
}

impl Pieces {
    fn take(&mut self, n_bytes: usize) -> *mut u8 {
        let piece = self.at.wrapping_add(self.len);
        self.len += n_bytes.next_multiple_of(ALIGNMENT);
        piece
    }
}

/// How the library reads a matrix of weights; one that lies otherwise is copied first.
fn weights(meta: &Meta) -> Option<Matrix> {
    let (&[rows, cols], &[by_row, by_col]) = (meta.shape().dims(), meta.layout.strides()) else {
        return None;
    };
    let lies = |len: usize, along: isize, across: isize| along == 1 && across >= len as isize;
    let plain = lies(cols, by_col, by_row).then_some((false, by_row));
    let (transposed, row_stride) = plain.or_else(|| lies(rows, by_row, by_col).then_some((true, by_col)))?;
    Some(Matrix { transposed, row_stride: row_stride as usize, batch_stride: 0 })
}

/// Whether the library can read the inputs of one step after the other where they lie.
fn is_readable(x: &Meta) -> bool {
    let (&[_, _, features], &[by_row, by_step, 1]) = (x.shape().dims(), x.layout.strides()) else {
        return false;
    };
    by_row >= features as isize && by_step >= features as isize
}

/// The library's scratch memory for a product of so many numbers.
fn library_bytes(n_elems: usize, profile: &Profile) -> usize {
    n_elems.saturating_mul(MOST_PARTS * size_of::<f32>()).min(profile.matmul_workspace)
}

/// An operand that the library can read: itself, or a copy in a piece that [`copied_bytes`] makes room for.
fn readable<'a>(
    op: &'static str,
    gpu: &Gpu,
    operand: &Operand<'a>,
    fresh: &'a Meta,
    (is_readable, piece): (bool, *mut u8),
) -> Result<Operand<'a>> {
    if is_readable {
        return Ok(*operand);
    }
    let copy = Operand::new(piece, fresh);
    convert(op, gpu, operand, &copy)?;
    Ok(copy)
}

fn copied_bytes(is_readable: bool, meta: &Meta) -> usize {
    if is_readable { 0 } else { meta.n_bytes() }
}

fn fresh(meta: &Meta) -> Meta {
    Meta::fresh(*meta.shape(), meta.dtype)
}

/// What all products of a call have in common.
struct Products<'a> {
    op: &'static str,
    gpu: &'a Gpu,
    dtype: DType,
    workspace: *mut u8,
    workspace_bytes: usize,
}

/// One product: addresses of a, b and c.
type Addresses = [*mut u8; 3];

impl Products<'_> {
    fn run(
        &self,
        [m, n, k, batch]: [usize; 4],
        forms: [Matrix; 3],
        beta: f64,
        [a, b, c]: Addresses,
    ) -> Result<()> {
        let [a_form, b_form, c_form] = forms;
        let matmul = Matmul {
            m,
            n,
            k,
            batch,
            input: scalar(self.dtype),
            output: scalar(self.dtype.accumulator()),
            a: a_form,
            b: b_form,
            c: c_form,
            alpha: 1.0,
            beta,
            tf32: false,
            epilogue: Epilogue::None,
        };
        let operands = MatmulOperands {
            a,
            b,
            c,
            bias: std::ptr::null_mut(),
            workspace: self.workspace,
            workspace_bytes: self.workspace_bytes,
        };
        // SAFETY: the callers' operands have these rows and columns at these strides, and the results lie in scratch memory.
        unsafe { self.gpu.matmul(self.op, &matmul, &operands) }?;
        Ok(())
    }
}

/// The address of a gate's first column of weights.
fn gate(weights: &Operand<'_>, part: &GateGroup, hidden: usize) -> *mut u8 {
    let column = (part.gate * hidden) as isize * weights.meta.layout.strides()[1];
    weights.ptr().wrapping_offset(column * weights.dtype().size() as isize)
}

/// Sets a row-major state to the values of another, or to zeros.
fn start(op: &'static str, gpu: &Gpu, from: Option<&Operand<'_>>, to: &Operand<'_>) -> Result<()> {
    match from {
        Some(from) => convert(op, gpu, from, to),
        None => fill(op, gpu, to, 0.0),
    }
}

/// What tells the kernels of a cell apart.
fn bits(cell: Cell, dtype: DType) -> u64 {
    let function = match cell {
        Cell::Simple(activation) => activation as u64,
        Cell::Lstm | Cell::Gru => 0,
    };
    (((function << 2) | number(cell)) << CODE_BITS) | code(dtype)
}

/// The cell's number in the kernels.
fn number(cell: Cell) -> u64 {
    match cell {
        Cell::Lstm => 0,
        Cell::Gru => 1,
        Cell::Simple(_) => 2,
    }
}

/// The types of the kernels, and the simple cell's function and derivative, which are those of the ops.
fn define(cell: Cell, dtype: DType) -> String {
    let [value, local_grad] = match cell {
        Cell::Simple(Activation::Relu) => Relu::CUDA,
        Cell::Simple(Activation::Sigmoid) => Sigmoid::CUDA,
        Cell::Simple(Activation::Tanh) => Tanh::CUDA,
        _ => ["x0", "C(1)"],
    };
    format!(
        "typedef {} T;\ntypedef {} C;\n#define CELL {}\n#define ACTIVATED {value}\n#define LOCAL_GRAD {local_grad}\n",
        c_name(dtype),
        c_name(dtype.accumulator()),
        number(cell)
    )
}

impl Extents {
    /// Steps whose inputs are multiplied at once on a GPU.
    fn staged_steps(&self) -> usize {
        STAGED_ROWS.div_ceil(self.batch.max(1)).clamp(1, self.steps.max(1))
    }

    fn n_units(&self) -> usize {
        self.batch * self.hidden
    }

    fn params(&self) -> [u64; 3] {
        [self.batch, self.hidden, self.steps].map(|extent| extent as u64)
    }
}

/// The scratch memory of the forward op.
struct ForwardRoom {
    sums: *mut u8,
    carried: *mut u8,
    state: *mut u8,
    x: *mut u8,
    weights: [*mut u8; 2],
    library: *mut u8,
    library_bytes: usize,
    total: usize,
}

impl ForwardRoom {
    fn new(at: *mut u8, extents: &Extents, inputs: &[&Meta], profile: &Profile) -> ForwardRoom {
        let (size, wide) = (inputs[0].dtype.size(), inputs[0].dtype.accumulator().size());
        let staged = extents.staged_steps() * extents.batch;
        let library_bytes = library_bytes(staged * extents.gates(), profile);
        let mut pieces = Pieces { at, len: 0 };
        ForwardRoom {
            sums: pieces.take(staged * extents.saved() * wide),
            carried: pieces.take(extents.n_units() * wide),
            state: pieces.take(extents.n_units() * size),
            x: pieces.take(copied_bytes(is_readable(inputs[0]), inputs[0])),
            weights: [1, 2].map(|idx| pieces.take(copied_bytes(weights(inputs[idx]).is_some(), inputs[idx]))),
            library: pieces.take(library_bytes),
            library_bytes,
            total: pieces.len,
        }
    }
}

impl Recurrent {
    pub(super) fn bytes_cuda(&self, inputs: &[&Meta], profile: &Profile) -> usize {
        let Ok(extents) = self.check(inputs) else { return 0 };
        ForwardRoom::new(NOTHING, &extents, inputs, profile).total
    }

    pub(super) fn run_on_gpu(&self, run: &Run<'_>, gpu: &Gpu) -> Result<()> {
        let metas: SmallVec<[&Meta; 8]> = run.inputs.iter().map(|input| input.meta).collect();
        let (extents, op) = (self.check(&metas)?, self.cell.name());
        if extents.n_units() == 0 {
            return Ok(());
        }
        let Extents { batch, steps, features, hidden, .. } = extents;
        let room = ForwardRoom::new(run.workspace, &extents, &metas, gpu.profile());
        let dtype = metas[0].dtype;
        let (size, wide) = (dtype.size(), dtype.accumulator().size());
        let (x_meta, w_meta, r_meta) = (fresh(metas[0]), fresh(metas[1]), fresh(metas[2]));
        let x = readable(op, gpu, &run.inputs[0], &x_meta, (is_readable(metas[0]), room.x))?;
        let w = readable(op, gpu, &run.inputs[1], &w_meta, (weights(metas[1]).is_some(), room.weights[0]))?;
        let r = readable(op, gpu, &run.inputs[2], &r_meta, (weights(metas[2]).is_some(), room.weights[1]))?;
        self.start_states(run, gpu, &extents, &room)?;
        let width = extents.saved();
        let products =
            Products { op, gpu, dtype, workspace: room.library, workspace_bytes: room.library_bytes };
        let (w_form, r_form) = (form(&w), form(&r));
        let sums_form = Matrix { transposed: false, row_stride: width, batch_stride: batch * width };
        let state_form = Matrix { transposed: false, row_stride: hidden, batch_stride: 0 };
        let [by_row, by_step, _] = strides::<3>(Some(&x));
        let x_form =
            Matrix { transposed: false, row_stride: by_row as usize, batch_stride: by_step as usize };
        let staged = extents.staged_steps();
        for first in (0..steps).step_by(staged) {
            let n_steps = staged.min(steps - first);
            let from = x.ptr().wrapping_add(first * by_step as usize * size);
            if features == 0 {
                let sums = Meta::fresh(Shape::within_bounds([n_steps * batch * width]), dtype.accumulator());
                fill(op, gpu, &Operand::new(room.sums, &sums), 0.0)?;
            } else {
                let extents = [batch, extents.gates(), features, n_steps];
                products.run(extents, [x_form, w_form, sums_form], 0.0, [from, w.ptr(), room.sums])?;
            }
            for step in first..first + n_steps {
                let sums = room.sums.wrapping_add((step - first) * batch * width * wide);
                for part in self.cell.gate_groups() {
                    let to = sums.wrapping_add(part.column * hidden * wide);
                    let beta = if part.accumulate { 1.0 } else { 0.0 };
                    products.run(
                        [batch, part.n_gates * hidden, hidden, 1],
                        [state_form, r_form, sums_form],
                        beta,
                        [room.state, gate(&r, part, hidden), to],
                    )?;
                }
                self.finish_step(run, gpu, &extents, &room, (step, sums))?;
            }
        }
        Ok(())
    }

    /// The states before the first step; they are the final ones of an empty sequence.
    fn start_states(&self, run: &Run<'_>, gpu: &Gpu, extents: &Extents, room: &ForwardRoom) -> Result<()> {
        let (op, n_states, dtype) = (self.cell.name(), self.cell.n_states(), run.inputs[0].dtype());
        let shape = Shape::within_bounds([extents.batch, extents.hidden]);
        let (wide, narrow) = (Meta::fresh(shape, dtype.accumulator()), Meta::fresh(shape, dtype));
        let initial = &run.inputs[self.first_state()..];
        start(op, gpu, initial.first(), &Operand::new(room.state, &narrow))?;
        start(op, gpu, initial.get(n_states - 1), &Operand::new(room.carried, &wide))?;
        if extents.steps == 0 {
            for state in 0..n_states {
                start(op, gpu, initial.get(state), &run.outputs[state])?;
            }
        }
        Ok(())
    }

    /// The gates and states of a step, from its sums.
    fn finish_step(
        &self,
        run: &Run<'_>,
        gpu: &Gpu,
        extents: &Extents,
        room: &ForwardRoom,
        (step, sums): (usize, *mut u8),
    ) -> Result<()> {
        let (n_states, op) = (self.cell.n_states(), self.cell.name());
        let dtype = run.inputs[0].dtype();
        let kernel = gpu.kernel(&FORWARD, op, bits(self.cell, dtype), || define(self.cell, dtype))?;
        let biases = &run.inputs[3..self.first_state()];
        let is_last = step + 1 == extents.steps;
        let saved = match self.saved() {
            SavedRef::Aux(idx) => run.aux_outputs.get(idx),
            _ => None,
        };
        let param = StepParam {
            sums,
            carried: room.carried,
            state: room.state,
            saved: address(saved),
            sequence: address(run.outputs.get(n_states)),
            finals: [
                address(run.outputs.first().filter(|_| is_last)),
                address(run.outputs.get(1).filter(|_| is_last && n_states > 1)),
            ],
            biases: [address(biases.first()), address(biases.get(1))],
            bias_strides: [0, 1].map(|idx| strides::<1>(biases.get(idx))[0]),
            extents: extents.params(),
            step: step as u64,
            n_columns: self.cell.n_saved() as u64,
        };
        // SAFETY: `check` has compared the extents of all operands; the scratch memory is laid out by them.
        unsafe { gpu.launch(&kernel, Grid::covering(extents.n_units(), THREADS), &[&param]) }?;
        Ok(())
    }
}

/// How the library reads weights that were made readable.
fn form(operand: &Operand<'_>) -> Matrix {
    weights(operand.meta).unwrap_or_else(|| unreachable!("copied where it is not readable"))
}

/// The scratch memory of the backward op.
struct BackwardRoom {
    after: *mut u8,
    d_states: [*mut u8; 2],
    weights: *mut u8,
    library: *mut u8,
    library_bytes: usize,
    total: usize,
}

impl BackwardRoom {
    fn new(at: *mut u8, extents: &Extents, inputs: &[&Meta], profile: &Profile) -> BackwardRoom {
        let state_bytes = extents.n_units() * inputs[0].dtype.accumulator().size();
        let library_bytes = library_bytes(extents.n_units(), profile);
        let mut pieces = Pieces { at, len: 0 };
        BackwardRoom {
            after: pieces.take(state_bytes),
            d_states: [state_bytes, extents.cell_state().min(1) * state_bytes]
                .map(|bytes| pieces.take(bytes)),
            weights: pieces.take(copied_bytes(weights(inputs[1]).is_some(), inputs[1])),
            library: pieces.take(library_bytes),
            library_bytes,
            total: pieces.len,
        }
    }
}

impl RecurrentBackward {
    pub(super) fn bytes_cuda(&self, inputs: &[&Meta], profile: &Profile) -> usize {
        let Ok(extents) = self.check(inputs) else { return 0 };
        BackwardRoom::new(NOTHING, &extents, inputs, profile).total
    }

    pub(super) fn run_on_gpu(&self, run: &Run<'_>, gpu: &Gpu) -> Result<()> {
        let metas: SmallVec<[&Meta; 8]> = run.inputs.iter().map(|input| input.meta).collect();
        let (extents, op) = (self.check(&metas)?, self.cell.backward_name());
        if extents.n_units() == 0 {
            return Ok(());
        }
        let room = BackwardRoom::new(run.workspace, &extents, &metas, gpu.profile());
        let (dtype, n_states) = (metas[0].dtype, self.cell.n_states());
        let r_meta = fresh(metas[1]);
        let r = readable(op, gpu, &run.inputs[1], &r_meta, (weights(metas[1]).is_some(), room.weights))?;
        let state = Meta::fresh(Shape::within_bounds([extents.batch, extents.hidden]), dtype.accumulator());
        let input = |idx: Option<usize>| idx.map(|idx| &run.inputs[idx]);
        let [d_sequence, d_hidden, d_cell] = self.gradients();
        let initial = |idx: usize| input(self.initial.then_some(2 + idx));
        start(op, gpu, initial(n_states - 1), &Operand::new(room.after, &state))?;
        for (from, to) in [d_hidden, d_cell].into_iter().zip(room.d_states).take(n_states) {
            start(op, gpu, input(from), &Operand::new(to, &state))?;
        }
        let mut param = BackParam {
            saved: run.inputs[0].ptr(),
            d_sums: run.outputs[0].ptr(),
            previous: run.outputs[1].ptr(),
            after: room.after,
            d_hidden: room.d_states[0],
            d_cell: room.d_states[1],
            d_sequence: address(input(d_sequence)),
            initial: address(initial(0)),
            saved_strides: strides(Some(&run.inputs[0])),
            d_sequence_strides: strides(input(d_sequence)),
            initial_strides: strides(initial(0)),
            extents: extents.params(),
            step: 0,
        };
        if extents.steps > 0 {
            self.launch(gpu, dtype, true, &param)?;
        }
        let products =
            Products { op, gpu, dtype, workspace: room.library, workspace_bytes: room.library_bytes };
        for step in (0..extents.steps).rev() {
            param.step = step as u64;
            self.launch(gpu, dtype, false, &param)?;
            if step > 0 || self.initial {
                self.through_weights(&extents, &products, &r, (&param, step))?;
            }
        }
        for (idx, to) in run.outputs[2..].iter().enumerate() {
            convert(op, gpu, &Operand::new(room.d_states[idx], &state), to)?;
        }
        Ok(())
    }

    /// Gives the gradients of the hidden states what goes through the recurrent weights.
    fn through_weights(
        &self,
        extents: &Extents,
        products: &Products<'_>,
        r: &Operand<'_>,
        (param, step): (&BackParam, usize),
    ) -> Result<()> {
        let Extents { batch, steps, hidden, .. } = *extents;
        let (width, size) = (extents.saved(), products.dtype.size());
        let plain = |row_stride: usize| Matrix { transposed: false, row_stride, batch_stride: 0 };
        let r_form = form(r);
        let turned = Matrix { transposed: !r_form.transposed, ..r_form };
        for (idx, part) in self.cell.gate_groups().iter().enumerate() {
            // Only a GRU's state also goes on past the gates; the others' gradient is what the first product gives.
            let beta = if idx > 0 || self.cell == Cell::Gru { 1.0 } else { 0.0 };
            let from = param.d_sums.wrapping_add((step * width + part.column * hidden) * size);
            products.run(
                [batch, hidden, part.n_gates * hidden, 1],
                [plain(steps * width), turned, plain(hidden)],
                beta,
                [from, gate(r, part, hidden), param.d_hidden],
            )?;
        }
        Ok(())
    }

    fn launch(&self, gpu: &Gpu, dtype: DType, is_rebuild: bool, param: &BackParam) -> Result<()> {
        let bits = (bits(self.cell, dtype) << 1) | u64::from(is_rebuild);
        let kernel = gpu.kernel(&BACKWARD, self.cell.backward_name(), bits, || {
            define(self.cell, dtype) + &format!("#define REBUILD {}\n", u8::from(is_rebuild))
        })?;
        let [batch, hidden, _] = param.extents;
        // SAFETY: `check` has compared the extents of all operands; the scratch memory is laid out by them, and a thread
        // reads what was saved before it writes over it.
        unsafe { gpu.launch(&kernel, Grid::covering((batch * hidden) as usize, THREADS), &[param]) }?;
        Ok(())
    }
}
