//! Attention on a GPU.
//!
//! Floats of 16 bits whose rows are whole 16-byte pieces go through tensor cores (`forward.cu`, `backward.cu`), tile by tile;
//! operands that do not lie so are copied into scratch memory first. Products are made by each warp for itself (`warps.cuh`), or,
//! on a Hopper GPU and for rows of 64, by four warps together (`group.cuh`), with the same fragments and the same code around. The rest, f32 and f64 above all, has kernels for any
//! length and stride (`plain_forward.cu`, `plain_backward.cu`). Backward is two passes over the scores: one whose blocks own
//! queries, one whose blocks own keys. So every sum is made by one block in one order, and no block waits for another. One
//! pass needs five products of tiles instead of seven, and either atomic additions in no fixed order or a copy of the queries'
//! gradient for each block of keys. The former is what a device that is not deterministic gets from the tiled kernels, with
//! the sums in f32 in scratch memory; the plain ones would add far too often.

use plimsoll_cuda::{Gpu, Grid, Kernel, Param, Profile, Template};

use super::tiles::Extents;
use super::{Attention, statistics_dtype};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::eager::execute::Order;
use crate::eager::op::{Meta, Operand, Run};
use crate::ops::cuda::{CODE_BITS, c_name, code, copy};

macro_rules! template {
    ($name:literal, $($file:literal),*) => {
        Template { name: $name, text: concat!(include_str!("places.cuh"), $(include_str!($file)),*) }
    };
}

macro_rules! tiled {
    ($name:literal, $file:literal) => {
        template!($name, "tiles.cuh", "warps.cuh", "group.cuh", "rows.cuh", $file)
    };
}

static FORWARD: Template = tiled!("tiled", "forward.cu");
static BACKWARD: Template = tiled!("tiled_backward", "backward.cu");
static QUERIES: Template = tiled!("queries", "queries.cu");
static STATISTICS: Template = template!("statistics", "statistics.cu");
static PLAIN_FORWARD: Template = template!("plain", "plain.cuh", "plain_forward.cu");
static PLAIN_BACKWARD: Template = template!("plain_backward", "plain.cuh", "plain_backward.cu");

/// The leading dimensions that a kernel knows.
const MAX_LEAD: usize = crate::base::shape::MAX_RANK - 2;
/// The elements of 16 bits that are moved at once.
const PIECE: usize = 8;
/// The architecture whose tensor cores take whole tiles from shared memory.
const HOPPER: u32 = 90;
/// The longest rows whose sums fit the registers of a warp.
const MAX_TILED: usize = 128;
/// The warps of a block of the tiled kernels, and of the plain ones.
const TILED_WARPS: usize = 4;
const PLAIN_WARPS: usize = 8;
/// Each head has statistics for a multiple of so many queries.
const STATISTICS_ROUNDING: usize = 64;
/// Copies in scratch memory begin at multiples of this.
const ALIGNMENT: usize = 256;

/// The matrices of an operand, as the kernels take them.
#[repr(C)]
#[derive(Clone, Copy)]
struct Matrices {
    first: *mut u8,
    row: i64,
    col: i64,
    lead: [i64; MAX_LEAD],
}

// SAFETY: `places.cuh` has the same structure.
unsafe impl Param for Matrices {}

impl Matrices {
    const NONE: Matrices = Matrices { first: std::ptr::null_mut(), row: 0, col: 0, lead: [0; MAX_LEAD] };

    fn new(first: *mut u8, layout: &Layout) -> Matrices {
        let strides = layout.strides();
        let inner = strides.len() - 2;
        let mut lead = [0; MAX_LEAD];
        for (to, &stride) in lead.iter_mut().zip(&strides[..inner]) {
            *to = stride as i64;
        }
        Matrices { first, row: strides[inner] as i64, col: strides[inner + 1] as i64, lead }
    }

    fn of(operand: &Operand) -> Matrices {
        Matrices::new(operand.ptr(), &operand.meta.layout)
    }
}

/// The extents of all operands, as the kernels take them.
#[repr(C)]
struct Numbers {
    n_lead: u32,
    lead: [u32; MAX_LEAD],
    n_heads: u32,
    n_queries: u32,
    n_keys: u32,
    depth: u32,
    width: u32,
    scale: f64,
}

// SAFETY: `places.cuh` has the same structure.
unsafe impl Param for Numbers {}

/// How a block of a tiled kernel divides its work: bands of 16 rows for each warp, and rows of a streamed tile.
#[derive(Clone, Copy)]
struct Tiling {
    bands: usize,
    cols: usize,
}

impl Tiling {
    /// What fills the registers of a thread without spilling any.
    fn forward(extents: &Extents, architecture: u32) -> Tiling {
        match is_by_group(extents, architecture) {
            true => Tiling::BY_GROUP,
            false => Tiling { bands: if extents.depth.max(extents.width) <= 64 { 2 } else { 1 }, cols: 64 },
        }
    }

    /// The same for backward, which has twice the sums; where blocks add to the queries' gradients, warps multiply alone.
    fn backward(extents: &Extents, architecture: u32, pass: Pass) -> Tiling {
        match is_by_group(extents, architecture) && pass != Pass::All {
            true => Tiling::BY_GROUP,
            false => Tiling { cols: 32, ..Tiling::forward(extents, 0) },
        }
    }

    /// Four warps that multiply together need little room each, and many blocks hide each other's waiting.
    const BY_GROUP: Tiling = Tiling { bands: 1, cols: 64 };

    fn rows(&self) -> usize {
        TILED_WARPS * self.bands * 16
    }
}

/// Whether the warps of a block multiply together, as `group.cuh` says.
fn is_by_group(extents: &Extents, architecture: u32) -> bool {
    architecture == HOPPER && rounded(extents.depth) == 64 && rounded(extents.width) == 64
}

/// Lengths in tiles, and of their rows in shared memory.
fn rounded(length: usize) -> usize {
    length.next_multiple_of(16)
}

fn row_len(extents: &Extents) -> usize {
    rounded(extents.depth) + PIECE + rounded(extents.width) + PIECE
}

/// One call.
struct Call<'a> {
    op: &'a Attention,
    name: &'static str,
    gpu: &'a Gpu,
    extents: Extents,
    dtype: DType,
    mask: Option<&'a Operand<'a>>,
    is_tiled: bool,
}

/// Whether tensor cores take operands of that dtype and these lengths.
fn is_tiled(dtype: DType, extents: &Extents) -> bool {
    let fits = |length: usize| (PIECE..=MAX_TILED).contains(&length) && length.is_multiple_of(PIECE);
    matches!(dtype, DType::F16 | DType::BF16) && fits(extents.depth) && fits(extents.width)
}

/// Whether rows are neighbouring elements that begin at 16-byte pieces, given that blocks do.
fn is_aligned(meta: &Meta) -> bool {
    let (dims, strides) = (meta.shape().dims(), meta.layout.strides());
    let inner = dims.len() - 1;
    let outer = dims[..inner].iter().zip(&strides[..inner]);
    let is_even = |(&dim, &stride): (&usize, &isize)| dim == 1 || stride % PIECE as isize == 0;
    strides[inner] == 1 && meta.layout.offset().is_multiple_of(PIECE) && outer.into_iter().all(is_even)
}

/// The bytes of an operand's copy, if the tiled kernels need one.
fn copied_bytes(meta: &Meta) -> usize {
    if is_aligned(meta) { 0 } else { meta.n_bytes().next_multiple_of(ALIGNMENT) }
}

/// Scratch memory of forward.
pub(super) fn workspace(inputs: &[&Meta]) -> usize {
    let extents = Extents::of(inputs[0], inputs[1], inputs[2]);
    match is_tiled(inputs[0].dtype, &extents) {
        true => inputs[..3].iter().map(|meta| copied_bytes(meta)).sum(),
        false => 0,
    }
}

/// Scratch memory of backward: statistics, the sums of the queries' gradients if blocks add to them, then copies.
pub(super) fn backward_workspace(inputs: &[&Meta], profile: &Profile, order: Order) -> usize {
    let extents = Extents::of(inputs[1], inputs[2], inputs[3]);
    let order = possible(order, inputs[0].dtype, &extents, profile);
    let copies: usize = match is_tiled(inputs[0].dtype, &extents) {
        true => inputs[..4].iter().map(|meta| copied_bytes(meta)).sum(),
        false => 0,
    };
    statistics_bytes(inputs[0].dtype, &extents) + query_sums_bytes(order, &extents) + copies
}

/// The order of sums where any would do: only tiles are added by several blocks, and where warps multiply together two passes
/// are faster.
fn possible(order: Order, dtype: DType, extents: &Extents, profile: &Profile) -> Order {
    match is_tiled(dtype, extents) && !is_by_group(extents, profile.architecture) {
        true => order,
        false => Order::Fixed,
    }
}

/// The bytes of the queries' gradients in f32, as fragments of whole tiles.
fn query_sums_bytes(order: Order, extents: &Extents) -> usize {
    let n_rows = extents.n_heads() * extents.n_queries.next_multiple_of(STATISTICS_ROUNDING);
    match order {
        Order::Fixed => 0,
        Order::Any => (n_rows * rounded(extents.depth) * size_of::<f32>()).next_multiple_of(ALIGNMENT),
    }
}

fn statistics_bytes(dtype: DType, extents: &Extents) -> usize {
    let n = extents.n_heads() * extents.n_queries.next_multiple_of(STATISTICS_ROUNDING);
    (2 * n * statistics_dtype(dtype).size()).next_multiple_of(ALIGNMENT)
}

/// Computes the output, and the logarithms of the sums if somebody reads them.
pub(super) fn forward(op: &Attention, run: &Run<'_>, gpu: &Gpu) -> Result<()> {
    let [q, k, v, ..] = run.inputs else { unreachable!("queries, keys and values") };
    let call = Call::new(op, "attention", gpu, [q, k, v], run.inputs.get(3));
    let Extents { n_queries, depth, width, .. } = call.extents;
    let output = run.outputs[0].ptr();
    if run.outputs[0].n_elems() == 0 && run.aux_outputs.is_empty() || call.extents.n_heads() * n_queries == 0
    {
        return Ok(());
    }
    let [q, k, v] = call.read([q, k, v], run.workspace)?;
    let log_sums = run.aux_outputs.first().map_or(std::ptr::null_mut(), Operand::ptr);
    let (kernel, rows, shared) = if call.is_tiled {
        let tiling = Tiling::forward(&call.extents, gpu.profile().architecture);
        let stage = tiling.cols * row_len(&call.extents);
        let queries = tiling.rows() * (rounded(depth) + PIECE);
        (call.tiled(&FORWARD, tiling, Pass::Queries)?, tiling.rows(), 2 * (2 * stage + queries))
    } else {
        (call.plain(&PLAIN_FORWARD, Pass::Queries)?, PLAIN_WARPS, call.plain_shared(depth + width)?)
    };
    let grid = Grid::of(call.extents.n_heads() * n_queries.div_ceil(rows), call.threads()).shared(shared);
    // SAFETY: `infer` has checked the shapes, the matrices are those of the operands or of copies, and the outputs are fresh.
    unsafe { gpu.launch(&kernel, grid, &[&q, &k, &v, &call.mask(), &output, &log_sums, &call.numbers()]) }?;
    Ok(())
}

/// Computes the gradients of queries, keys and values.
pub(super) fn backward(op: &Attention, run: &Run<'_>, gpu: &Gpu, order: Order) -> Result<()> {
    let [gradient, q, k, v, output, log_sums, ..] = run.inputs else { unreachable!("six operands or more") };
    let call = Call::new(op, "attention_backward", gpu, [q, k, v], run.inputs.get(6));
    let order = possible(order, call.dtype, &call.extents, gpu.profile());
    let statistics = run.workspace;
    let query_sums = statistics.wrapping_add(statistics_bytes(call.dtype, &call.extents));
    let n_bytes = query_sums_bytes(order, &call.extents);
    let copies = query_sums.wrapping_add(n_bytes);
    call.statistics(gradient, output, log_sums, statistics)?;
    let operands = call.read([gradient, q, k, v], copies)?;
    let [dq, dk, dv] = [0, 1, 2].map(|idx| run.outputs[idx].ptr());
    if order == Order::Any {
        if n_bytes > 0 {
            // SAFETY: `workspace` has asked for the sums.
            unsafe { gpu.fill(call.name, query_sums, 0, n_bytes) }?;
        }
        call.backward(&operands, statistics, [dk, dv, query_sums], Pass::All)?;
        return call.queries(query_sums, dq);
    }
    let none = std::ptr::null_mut();
    call.backward(&operands, statistics, [dq, none, none], Pass::Queries)?;
    call.backward(&operands, statistics, [dk, dv, none], Pass::Keys)
}

/// What a launch of backward computes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// The queries' gradient; blocks own queries.
    Queries,
    /// Those of keys and values; blocks own keys.
    Keys,
    /// All three; blocks own keys, and add to the queries' gradient.
    All,
}

impl<'a> Call<'a> {
    fn new(
        op: &'a Attention,
        name: &'static str,
        gpu: &'a Gpu,
        [q, k, v]: [&Operand; 3],
        mask: Option<&'a Operand<'a>>,
    ) -> Call<'a> {
        let extents = Extents::of(q.meta, k.meta, v.meta);
        let is_tiled = is_tiled(q.dtype(), &extents);
        Call { op, name, gpu, extents, dtype: q.dtype(), mask, is_tiled }
    }

    /// Where the kernels read operands: as they lie, or copies in scratch memory.
    fn read<const N: usize>(&self, operands: [&Operand; N], scratch: *mut u8) -> Result<[Matrices; N]> {
        let mut matrices = operands.map(Matrices::of);
        let mut at = scratch;
        for (operand, matrices) in operands.iter().zip(&mut matrices) {
            if !self.is_tiled || is_aligned(operand.meta) {
                continue;
            }
            let meta = Meta::fresh(*operand.shape(), operand.dtype());
            copy(self.gpu, self.name, operand, &Operand::new(at, &meta))?;
            *matrices = Matrices::new(at, &meta.layout);
            at = at.wrapping_add(copied_bytes(operand.meta));
        }
        Ok(matrices)
    }

    fn mask(&self) -> Matrices {
        self.mask.map_or(Matrices::NONE, Matrices::of)
    }

    fn threads(&self) -> u32 {
        32 * if self.is_tiled { TILED_WARPS } else { PLAIN_WARPS } as u32
    }

    fn numbers(&self) -> Numbers {
        let Extents { lead, n_queries, n_keys, depth, width } = self.extents;
        let mut extents = [1; MAX_LEAD];
        for (to, &extent) in extents.iter_mut().zip(lead.iter()) {
            *to = extent as u32;
        }
        Numbers {
            n_lead: lead.rank() as u32,
            lead: extents,
            n_heads: self.extents.n_heads() as u32,
            n_queries: n_queries as u32,
            n_keys: n_keys as u32,
            depth: depth as u32,
            width: width as u32,
            scale: self.op.scale,
        }
    }

    /// What all kernels are compiled for, as bits and as definitions.
    fn common(&self) -> (u64, String) {
        let mask = match self.mask.map(Operand::dtype) {
            None => 0,
            Some(DType::Bool) => 1,
            Some(_) => 2,
        };
        let key = (code(self.dtype) << 3) | (u64::from(self.op.causal) << 2) | mask;
        let text = format!(
            "#define T {}\n#define C {}\n#define CAUSAL {}\n#define MASK {mask}\n",
            c_name(self.dtype),
            c_name(statistics_dtype(self.dtype)),
            u8::from(self.op.causal)
        );
        (key, text)
    }

    fn tiled(&self, template: &'static Template, tiling: Tiling, pass: Pass) -> Result<Kernel> {
        let [depth, width] = [rounded(self.extents.depth), rounded(self.extents.width)];
        let (common, text) = self.common();
        let lengths = ((depth as u64 / 16) << 4) | (width as u64 / 16);
        let key = (lengths << 2 | pass as u64) << (CODE_BITS + 3) | common;
        let Tiling { bands, cols } = tiling;
        Ok(self.gpu.kernel(template, self.name, key, || {
            format!(
                "{text}#define DEPTH {depth}\n#define WIDTH {width}\n#define BANDS {bands}\n#define COLS {cols}\n\
                 #define OWN_KEYS {}\n#define ADD_QUERIES {}\n",
                u8::from(pass != Pass::Queries),
                u8::from(pass == Pass::All)
            )
        })?)
    }

    fn plain(&self, template: &'static Template, pass: Pass) -> Result<Kernel> {
        let (common, text) = self.common();
        let own_keys = pass != Pass::Queries;
        let key = u64::from(own_keys) << (CODE_BITS + 3) | common;
        Ok(self.gpu.kernel(template, self.name, key, || {
            format!("{text}#define OWN_KEYS {}\n", u8::from(own_keys))
        })?)
    }

    /// Shared memory of the plain kernels: a piece that all warps use, and so many numbers for each warp.
    fn plain_shared(&self, per_warp: usize) -> Result<usize> {
        let bytes = (32 * 33 + PLAIN_WARPS * per_warp) * statistics_dtype(self.dtype).size();
        let Profile { name, shared_bytes_per_block, .. } = self.gpu.profile();
        if bytes <= *shared_bytes_per_block as usize {
            return Ok(bytes);
        }
        Err(Error::shape(
            self.name,
            format!(
                "queries of length {} and values of length {} in {} take {bytes} bytes of shared memory, and {name} has \
                 {shared_bytes_per_block}; use shorter ones, or attend on the CPU",
                self.extents.depth, self.extents.width, self.dtype
            ),
        ))
    }

    /// Writes what backward needs of each query to scratch memory.
    fn statistics(
        &self,
        gradient: &Operand,
        output: &Operand,
        log_sums: &Operand,
        to: *mut u8,
    ) -> Result<()> {
        let n = self.extents.n_heads() * self.extents.n_queries.next_multiple_of(STATISTICS_ROUNDING);
        let is_vector = self.is_tiled && is_aligned(gradient.meta) && is_aligned(output.meta);
        let v = if is_vector { PIECE } else { 1 };
        let lanes = self.extents.width.div_ceil(v).max(1).next_power_of_two().min(32);
        let (common, text) = self.common();
        let key = (lanes as u64) << (CODE_BITS + 4) | u64::from(is_vector) << (CODE_BITS + 3) | common;
        let kernel = self.gpu.kernel(&STATISTICS, self.name, key, || {
            format!("{text}#define LANES {lanes}\n#define V {v}\n")
        })?;
        let log_sums = {
            let layout = log_sums.meta.layout.unsqueezed(log_sums.shape().rank());
            Matrices::new(log_sums.ptr(), &layout)
        };
        let (gradient, output) = (Matrices::of(gradient), Matrices::of(output));
        // SAFETY: `infer` has checked the shapes, and `workspace` has asked for the statistics.
        unsafe {
            self.gpu.launch(
                &kernel,
                Grid::covering(n * lanes, 256),
                &[&gradient, &output, &log_sums, &to, &self.numbers()],
            )
        }?;
        Ok(())
    }

    /// Writes the queries' gradients that blocks have added up.
    fn queries(&self, query_sums: *mut u8, result: *mut u8) -> Result<()> {
        let architecture = self.gpu.profile().architecture;
        let tiling = Tiling { bands: 1, ..Tiling::backward(&self.extents, architecture, Pass::All) };
        let kernel = self.tiled(&QUERIES, tiling, Pass::All)?;
        let n_rows = self.extents.n_heads() * self.extents.n_queries.next_multiple_of(STATISTICS_ROUNDING);
        let grid = Grid::of(n_rows / tiling.rows(), self.threads());
        // SAFETY: the sums are as many as the kernel reads, launched before, and the output is fresh.
        unsafe { self.gpu.launch(&kernel, grid, &[&query_sums, &result, &self.numbers()]) }?;
        Ok(())
    }

    /// One of the passes of backward.
    fn backward(
        &self,
        [gradient, q, k, v]: &[Matrices; 4],
        statistics: *mut u8,
        [result, of_values, query_sums]: [*mut u8; 3],
        pass: Pass,
    ) -> Result<()> {
        let Extents { n_queries, n_keys, depth, width, .. } = self.extents;
        let n_own = if pass == Pass::Queries { n_queries } else { n_keys };
        let (kernel, rows, shared) = if self.is_tiled {
            let tiling = Tiling::backward(&self.extents, self.gpu.profile().architecture, pass);
            let elements = (tiling.rows() + 2 * tiling.cols) * row_len(&self.extents);
            let score_grads = if pass == Pass::All { tiling.rows() * (tiling.cols + PIECE) } else { 0 };
            let statistics = 2 * tiling.cols * 2 * size_of::<f32>();
            (self.tiled(&BACKWARD, tiling, pass)?, tiling.rows(), 2 * (elements + score_grads) + statistics)
        } else {
            (self.plain(&PLAIN_BACKWARD, pass)?, PLAIN_WARPS, self.plain_shared(2 * (depth + width))?)
        };
        let grid = Grid::of(self.extents.n_heads() * n_own.div_ceil(rows), self.threads()).shared(shared);
        let (mask, numbers) = (self.mask(), self.numbers());
        let params: [&dyn Param; 10] =
            [gradient, q, k, v, &mask, &statistics, &result, &of_values, &query_sums, &numbers];
        // SAFETY: `infer` has checked the shapes, the matrices are those of the operands or of copies, the statistics were
        // launched before, and the outputs are fresh.
        unsafe { self.gpu.launch(&kernel, grid, &params) }?;
        Ok(())
    }
}
