//! Adafactor on a GPU: the passes of `adafactor.cu`, each a launch for all parameters of one type.

use plimsoll_cuda::{Gpu, Grid, Template};

use super::cut::Cut;
use super::{Adafactor, Factored};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::op::Operand;
use crate::ops::cuda::tables::for_each_table;
use crate::ops::optimizer::cuda::{Attributes, CommonParam, DECAYS, Kind, THREADS, for_each_kind};
use crate::ops::optimizer::operands::Operands;

static ADAFACTOR: Template = Template { name: Adafactor::NAME, text: include_str!("adafactor.cu") };

/// The entries of a launch: with the other parameters they stay below 4 KiB.
const N_ENTRIES: usize = 36;
const FACTORED: u64 = 2;
const N_PASSES: u64 = 5;

/// A parameter, as `adafactor.cu` takes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    parameter: *mut u8,
    states: [*mut u8; 2],
    copy: *mut u8,
    gradient: *mut u8,
    scratch: *mut u8,
    n_matrices: u64,
    n_rows: u64,
    n_cols: u64,
    strip_rows: u64,
    strips_per_matrix: u64,
    flags: u64,
}

/// Updates all parameters, whose present values have been brought to where the new ones go.
pub(super) fn run(op: &Factored, operands: &Operands<'_>, workspace: *mut u8, gpu: &Gpu) -> Result<()> {
    for_each_kind(
        operands,
        |_| true,
        |kind, is_of_kind| {
            (0..N_PASSES)
                .try_for_each(|pass| run_pass(op, operands, workspace, gpu, (&kind, is_of_kind), pass))
        },
    )
}

fn run_pass(
    op: &Factored,
    operands: &Operands<'_>,
    workspace: *mut u8,
    gpu: &Gpu,
    (kind, is_of_kind): (&Kind, &dyn Fn(usize) -> bool),
    pass: u64,
) -> Result<()> {
    let kernel = gpu.kernel(&ADAFACTOR, Adafactor::NAME, (kind.bits() << 3) | pass, || {
        kind.define() + &format!("#define PASS {pass}\n#define N_ENTRIES {N_ENTRIES}\n")
    })?;
    let epsilon = if kind.parameter == DType::F32 { f64::from(f32::EPSILON) } else { f64::EPSILON };
    let Adafactor { beta_2_decay, epsilon_1, epsilon_2, clip_threshold } = op.rule;
    let attributes = Attributes([beta_2_decay, epsilon_1.unwrap_or(epsilon), epsilon_2, clip_threshold]);
    let (control, common) = (operands.control_place(), CommonParam::new(&op.common));
    let places = kind.gradient_places(operands);
    let members = (0..operands.len()).scan(workspace.cast::<f64>(), |scratch, idx| {
        let (cut, own) = (Cut::of(operands.parameter(idx).shape()), *scratch);
        *scratch = scratch.wrapping_add(cut.scratch_len());
        Some((idx, cut, own.cast::<u8>()))
    });
    let entries = members.filter(|(idx, ..)| is_of_kind(*idx)).map(|(idx, cut, scratch)| {
        let n_blocks = match pass {
            1 if cut.is_factored => cut.n_matrices,
            1 => 0,
            3 => 1,
            _ => cut.n_strips(),
        };
        (entry(operands, idx, &cut, scratch), if cut.n_elems() == 0 { 0 } else { n_blocks })
    });
    for_each_table::<Entry, N_ENTRIES>(entries, |table, n_blocks| {
        // SAFETY: the entries are addresses of operands of these types and shapes, and each has its own part of the
        // scratch memory; within a launch each element is written by one block.
        unsafe {
            gpu.launch(
                &kernel,
                Grid::of(n_blocks, THREADS),
                &[table, &control, &attributes, &common, &places],
            )
        }?;
        Ok(())
    })
}

fn entry(operands: &Operands<'_>, idx: usize, cut: &Cut, scratch: *mut u8) -> Entry {
    let member = operands.member(idx);
    let state = |k: usize| match k < member.n_states {
        true => operands.state(idx, k).ptr(),
        false => std::ptr::null_mut(),
    };
    Entry {
        parameter: operands.parameter(idx).ptr(),
        states: [state(0), state(1)],
        copy: operands.copy(idx).map_or(std::ptr::null_mut(), Operand::ptr),
        gradient: operands.gradient(idx).ptr(),
        scratch,
        n_matrices: cut.n_matrices as u64,
        n_rows: cut.n_rows as u64,
        n_cols: cut.n_cols as u64,
        strip_rows: cut.strip_rows as u64,
        strips_per_matrix: cut.strips_per_matrix as u64,
        flags: if member.decays { DECAYS } else { 0 } | if cut.is_factored { FACTORED } else { 0 },
    }
}
