//! The updates of elementwise rules on a GPU: all parameters of one type in one launch (see `update.cu`).

use std::fmt::Write;

use plimsoll_cuda::{Gpu, Grid, Param, Template};
use smallvec::SmallVec;

use super::operands::Operands;
use super::{Common, Decay, MAX_STATES, Rule, Update};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::op::Operand;
use crate::ops::cuda::elementwise::Elementwise;
use crate::ops::cuda::tables::{Strided, for_each_table, is_aligned};
use crate::ops::cuda::{CODE_BITS, c_name, code};

static UPDATE: Template = Template { name: "update", text: include_str!("update.cu") };

/// What the kernels of optimizers begin with.
pub(super) const SHARED: &str = include_str!("shared.cuh");

/// The entries of a launch: with the other parameters they fill 4 KiB.
const N_ENTRIES: usize = 56;
/// Elements that a block updates.
const TILE: usize = 4096;
/// The threads of a block.
pub(super) const THREADS: u32 = 256;

/// Flags of an entry, as the kernels know them.
pub(super) const DECAYS: u64 = 1;
const ALIGNED: u64 = 2;

/// The attributes of a rule, as the kernels take them.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Attributes(pub [f64; 4]);

// SAFETY: `define` writes the same struct.
unsafe impl Param for Attributes {}

/// What is done before the rule, as the kernels take it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CommonParam {
    penalty: f64,
    decoupled: f64,
    clip: f64,
}

// SAFETY: `shared.cuh` has the same struct.
unsafe impl Param for CommonParam {}

impl CommonParam {
    pub fn new(common: &Common) -> CommonParam {
        let (penalty, decoupled) = match common.decay {
            Decay::None => (0.0, 0.0),
            Decay::L2(weight) => (weight, 0.0),
            Decay::Decoupled(weight) => (0.0, weight),
        };
        CommonParam { penalty, decoupled, clip: common.clip_value.unwrap_or(f64::INFINITY) }
    }
}

/// A parameter, as `update.cu` takes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    parameter: *mut u8,
    states: [*mut u8; MAX_STATES],
    copy: *mut u8,
    gradient: *mut u8,
    n: u64,
    flags: u64,
}

/// What the operands of a parameter are like: parameters of one kind share a launch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub parameter: DType,
    pub gradient: DType,
    pub copy: Option<DType>,
    pub n_states: usize,
    /// The number of a parameter whose gradient is strided; it is alone.
    pub strided: Option<usize>,
}

impl Kind {
    fn of(operands: &Operands<'_>, idx: usize) -> Kind {
        let gradient = operands.gradient(idx);
        Kind {
            parameter: operands.parameter(idx).dtype(),
            gradient: gradient.dtype(),
            copy: operands.copy(idx).map(Operand::dtype),
            n_states: operands.member(idx).n_states,
            strided: (!gradient.is_contiguous()).then_some(idx),
        }
    }

    /// Bits that tell kernels apart.
    pub fn bits(&self) -> u64 {
        let copy = self.copy.map_or(0, |dtype| 1 + code(dtype));
        let mut bits = (copy << CODE_BITS) | code(self.parameter);
        bits = (bits << CODE_BITS) | code(self.gradient);
        bits = (bits << 3) | self.n_states as u64;
        (bits << 1) | u64::from(self.strided.is_some())
    }

    /// The types and constants that kernels leave open, and what they share.
    pub fn define(&self) -> String {
        let mut text = String::new();
        for (name, value) in [
            ("T", c_name(self.parameter)),
            ("G", c_name(self.gradient)),
            ("S", self.copy.map_or("bf16", c_name)),
            ("HAS_COPY", if self.copy.is_some() { "1" } else { "0" }),
            ("STRIDED", if self.strided.is_some() { "1" } else { "0" }),
        ] {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "#define {name} {value}");
        }
        let _ = writeln!(text, "struct Attributes {{ double at[4]; }};\n{SHARED}");
        text
    }

    /// Where the elements of the strided gradient lie.
    pub fn gradient_places(&self, operands: &Operands<'_>) -> Strided {
        self.strided.map_or(Strided::UNUSED, |idx| Strided::of(operands.gradient(idx)))
    }
}

/// Calls `launch` once for every kind among the parameters that are wanted, in the order in which they occur.
pub(super) fn for_each_kind(
    operands: &Operands<'_>,
    wants: impl Fn(usize) -> bool,
    mut launch: impl FnMut(Kind, &dyn Fn(usize) -> bool) -> Result<()>,
) -> Result<()> {
    let mut seen: SmallVec<[Kind; 8]> = SmallVec::new();
    for idx in (0..operands.len()).filter(|&idx| wants(idx)) {
        let kind = Kind::of(operands, idx);
        if !seen.contains(&kind) {
            launch(kind, &|other| wants(other) && Kind::of(operands, other) == kind)?;
            seen.push(kind);
        }
    }
    Ok(())
}

/// Updates the parameters that are wanted, each from where its present values have been brought.
pub(super) fn update<R: Rule>(
    update: &Update<R>,
    operands: &Operands<'_>,
    gpu: &Gpu,
    wants: impl Fn(usize) -> bool,
) -> Result<()> {
    let (control, attributes) = (operands.control_place(), Attributes(update.rule.attributes()));
    let common = CommonParam::new(&update.common);
    for_each_kind(operands, wants, |kind, is_of_kind| {
        let kernel = gpu.kernel(&UPDATE, R::NAME, kind.bits(), || {
            let constants = [("N_STATES", kind.n_states), ("N_ENTRIES", N_ENTRIES), ("TILE", TILE)];
            let constants = constants.map(|(name, value)| format!("#define {name} {value}\n")).concat();
            kind.define() + &constants + R::CUDA
        })?;
        let places = kind.gradient_places(operands);
        let members = (0..operands.len()).filter(|&idx| is_of_kind(idx));
        let entries = members.map(|idx| (entry(operands, idx), operands.n_elems(idx).div_ceil(TILE)));
        for_each_table::<Entry, N_ENTRIES>(entries, |table, n_blocks| {
            // SAFETY: the entries are addresses of operands of these types, which hold as many elements; each is written
            // by one launch, and each element of it by one thread.
            unsafe {
                gpu.launch(
                    &kernel,
                    Grid::of(n_blocks, THREADS),
                    &[table, &control, &attributes, &common, &places],
                )
            }?;
            Ok(())
        })
    })
}

fn entry(operands: &Operands<'_>, idx: usize) -> Entry {
    let member = operands.member(idx);
    let state = |k: usize| match k < member.n_states {
        true => operands.state(idx, k).ptr(),
        false => std::ptr::null_mut(),
    };
    let mut entry = Entry {
        parameter: operands.parameter(idx).ptr(),
        states: [state(0), state(1), state(2)],
        copy: operands.copy(idx).map_or(std::ptr::null_mut(), Operand::ptr),
        gradient: operands.gradient(idx).ptr(),
        n: operands.n_elems(idx) as u64,
        flags: if member.decays { DECAYS } else { 0 },
    };
    let [s0, s1, s2] = entry.states;
    if [entry.parameter, s0, s1, s2, entry.copy, entry.gradient].into_iter().all(is_aligned) {
        entry.flags |= ALIGNED;
    }
    entry
}

impl Operands<'_> {
    /// Brings all variables to where their new values go, unless they are there already: in the usual case, an update
    /// in place, nothing is launched.
    pub fn carry_all_cuda(&self, op: &'static str, gpu: &Gpu) -> Result<()> {
        for (from, to) in self.variables().filter(|(from, to)| from.ptr() != to.ptr()) {
            let copy =
                Elementwise { op, inputs: &[from], outputs: &[to], numbers: &[], words: &[], variant: 0 };
            copy.run(gpu, || "y0 = x0;".to_owned())?;
        }
        Ok(())
    }
}
