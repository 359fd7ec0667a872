//! Adam whose states take a byte each.
//!
//! The mean of gradients and the root of the mean of squares are kept in eight bits, with one f32 scale for each 256
//! (see `quantise`); the root has twice the decades of the mean itself. They are widened block by block on the stack and
//! narrowed again, so nothing of the parameter's size is ever there in f32. Small parameters and f64 ones keep plain
//! states: they save little, and biases and norms are the ones that rounding hurts.

use std::ops::Range;

use plimsoll_cpu::simd;
use plimsoll_cuda::{Gpu, Grid, Template};

use super::cuda::{self, Attributes, CommonParam, DECAYS, THREADS};
use super::elements::{self, BLOCK_LEN, Room};
use super::operands::{Operands, UpdatedParameters};
use super::quantise::{
    SIGNED_VALUES, UNSIGNED_VALUES, dequantise_signed, dequantise_unsigned, quantise_signed,
    quantise_unsigned,
};
use super::samples::{parameters_and_targets, steps, torch_steps};
use super::{Adam, Algorithm, Common, Rule, StateSpec, Step, Update, UpdatedParameter, update_tile};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::eager::op::{Gradient, Meta, Op, OpRef, Operand, Outputs, Run};
use crate::ops::cuda::tables::for_each_table;
use crate::ops::registry::{Array, OpInfo, Sample};

/// Adam with states of eight bits: [`Adam`] with its two states quantised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam8bit {
    /// How much of the mean of gradients stays, from step to step.
    pub beta_1: f64,
    /// How much of the mean of squares stays, from step to step.
    pub beta_2: f64,
    /// What keeps the division from zero.
    pub epsilon: f64,
}

impl Adam8bit {
    const NAME: &'static str = "adam_8bit";

    /// Smaller parameters keep plain states.
    pub const LEAST_ELEMS: usize = 4096;

    /// Whether a parameter has quantised states: `m`, `m_scale`, `v`, `v_scale`, the codes of the parameter's shape in
    /// uint8 and the scales in float32, one for each [`Adam8bit::BLOCK_LEN`] elements. Else they are Adam's.
    pub fn quantises(n_elems: usize, dtype: DType) -> bool {
        n_elems >= Adam8bit::LEAST_ELEMS && dtype == DType::F32
    }

    /// Elements that share a scale.
    pub const BLOCK_LEN: usize = BLOCK_LEN;

    /// The states of a parameter: quantised, or those of Adam.
    fn states_of(shape: &Shape, dtype: DType) -> Vec<StateSpec> {
        let state = |name, shape, dtype| StateSpec { name, shape, dtype, initial: 0.0 };
        if !Adam8bit::quantises(shape.n_elems(), dtype) {
            return vec![state("m", *shape, dtype), state("v", *shape, dtype)];
        }
        let scales = Shape::within_bounds([shape.n_elems().div_ceil(BLOCK_LEN)]);
        vec![
            state("m", *shape, DType::U8),
            state("m_scale", scales, DType::F32),
            state("v", *shape, DType::U8),
            state("v_scale", scales, DType::F32),
        ]
    }

    fn plain(&self) -> Adam {
        let Adam8bit { beta_1, beta_2, epsilon } = *self;
        Adam { beta_1, beta_2, epsilon, amsgrad: false, epsilon_hat: false }
    }
}

impl Algorithm for Adam8bit {
    fn states(&self, shape: &Shape, dtype: DType) -> Vec<StateSpec> {
        Adam8bit::states_of(shape, dtype)
    }

    fn update(&self, common: Common, members: &[UpdatedParameter]) -> OpRef {
        OpRef::shipped(Quantised(Update {
            rule: self.plain(),
            common,
            members: UpdatedParameters::new(members),
        }))
    }
}

/// Adam over parameters of which some have quantised states.
#[derive(Debug)]
struct Quantised(Update<Adam>);

/// The number of a quantised parameter's states.
const N_STATES: usize = 4;

impl Op for Quantised {
    fn name(&self) -> &'static str {
        Adam8bit::NAME
    }

    fn never_refuses(&self) -> bool {
        true
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let states = |parameter: &Meta| Adam8bit::states_of(parameter.shape(), parameter.dtype);
        self.0.members.infer(self.name(), inputs, states)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let operands = Operands::new(&self.0.members, run);
        let control = operands.control();
        let singles = Step::<Adam, f32>::new(&self.0, &control);
        let doubles = Step::<Adam, f64>::new(&self.0, &control);
        operands.for_each_tile(|idx, range| {
            // SAFETY: tiles do not overlap, and each is visited by one thread.
            unsafe {
                operands.carry(idx, range.clone());
                match operands.parameter(idx).dtype() {
                    _ if control.overflow != 0.0 => {}
                    DType::F32 if self.0.members.member(idx).n_states == N_STATES => {
                        quantised_tile(&singles, &operands, idx, range);
                    }
                    DType::F32 => singles.tile(&operands, idx, range),
                    _ => doubles.tile(&operands, idx, range),
                }
            }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let operands = Operands::new(&self.0.members, run);
        operands.carry_all_cuda(self.name(), gpu)?;
        let is_quantised = |idx: usize| operands.member(idx).n_states == N_STATES;
        cuda::update(&self.0, &operands, gpu, |idx| !is_quantised(idx))?;
        self.update_quantised(&operands, gpu, is_quantised)
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it updates an optimizer's variables")
    }
}

static QUANTISED: Template = Template { name: "quantised", text: include_str!("quantised.cu") };

/// The entries of a launch: with the other parameters they stay below 4 KiB.
const N_ENTRIES: usize = 48;
/// Elements that a block of threads updates, a warp for each that share a scale.
const TILE: usize = 8 * BLOCK_LEN;

/// A parameter with quantised states, as `quantised.cu` takes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    parameter: *mut u8,
    states: [*mut u8; N_STATES],
    copy: *mut u8,
    gradient: *mut u8,
    n: u64,
    flags: u64,
}

impl Quantised {
    /// Updates the parameters that have quantised states on a GPU.
    fn update_quantised(
        &self,
        operands: &Operands<'_>,
        gpu: &Gpu,
        is_quantised: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let (control, attributes) = (operands.control_place(), Attributes(self.0.rule.attributes()));
        let common = CommonParam::new(&self.0.common);
        cuda::for_each_kind(operands, is_quantised, |kind, is_of_kind| {
            let kernel = gpu.kernel(&QUANTISED, self.name(), kind.bits(), || {
                let values = |name: &str, values: &[f32]| {
                    format!("static __device__ const float {name}[256] = {{{}}};\n", listed(values))
                };
                kind.define()
                    + &format!("#define N_ENTRIES {N_ENTRIES}\n")
                    + &values("SIGNED_VALUES", &SIGNED_VALUES)
                    + &values("UNSIGNED_VALUES", &UNSIGNED_VALUES)
                    + Adam::CUDA
            })?;
            let places = kind.gradient_places(operands);
            let members = (0..operands.len()).filter(|&idx| is_of_kind(idx));
            let entries = members.map(|idx| (entry(operands, idx), operands.n_elems(idx).div_ceil(TILE)));
            for_each_table::<Entry, N_ENTRIES>(entries, |table, n_blocks| {
                // SAFETY: the entries are addresses of operands of these types, which hold as many elements; each is
                // written by one launch, and each block of it by one warp.
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
}

/// Numbers as CUDA C, to the last bit.
fn listed(values: &[f32]) -> String {
    values.iter().map(|value| format!("{value:e}f,")).collect()
}

fn entry(operands: &Operands<'_>, idx: usize) -> Entry {
    Entry {
        parameter: operands.parameter(idx).ptr(),
        states: [0, 1, 2, 3].map(|state| operands.state(idx, state).ptr()),
        copy: operands.copy(idx).map_or(std::ptr::null_mut(), Operand::ptr),
        gradient: operands.gradient(idx).ptr(),
        n: operands.n_elems(idx) as u64,
        flags: if operands.member(idx).decays { DECAYS } else { 0 },
    }
}

/// Updates one tile of a parameter, block by block.
///
/// # Safety
/// As [`Step::tile`], for a parameter with quantised states.
unsafe fn quantised_tile(
    step: &Step<'_, Adam, f32>,
    operands: &Operands<'_>,
    idx: usize,
    range: Range<usize>,
) {
    let mut room = Room::new();
    let blocks = range.start / BLOCK_LEN..range.end.div_ceil(BLOCK_LEN);
    // SAFETY: the caller's promise; parameter, states and copy are different operands, and a tile begins with a block.
    unsafe {
        let gradient = elements::gradient::<f32>(operands.gradient(idx), range.clone(), &mut room);
        let parameter = elements::part::<f32>(operands.parameter(idx), range.clone());
        let [m, v] = [0, 2].map(|state| elements::part::<u8>(operands.state(idx, state), range.clone()));
        let [m_scales, v_scales] =
            [1, 3].map(|state| elements::part::<f32>(operands.state(idx, state), blocks.clone()));
        let whole = parameter.chunks_mut(BLOCK_LEN).zip(gradient.chunks(BLOCK_LEN));
        let states = m.chunks_mut(BLOCK_LEN).zip(m_scales).zip(v.chunks_mut(BLOCK_LEN).zip(v_scales));
        for ((parameter, gradient), (m, v)) in whole.zip(states) {
            block(step, step.members.member(idx).decays, parameter, gradient, m, v);
        }
        if let Some(copy) = operands.copy(idx) {
            elements::write_copy(parameter, copy, range);
        }
    }
}

/// Updates one block; states are codes and their scale.
fn block(
    step: &Step<'_, Adam, f32>,
    decays: bool,
    parameter: &mut [f32],
    gradient: &[f32],
    (m_codes, m_scale): (&mut [u8], &mut f32),
    (v_codes, v_scale): (&mut [u8], &mut f32),
) {
    let (mut m, mut v) = ([0.0f32; BLOCK_LEN], [0.0f32; BLOCK_LEN]);
    let (m, v) = (&mut m[..parameter.len()], &mut v[..parameter.len()]);
    simd::vectorize(
        #[inline(always)]
        || {
            dequantise_signed(m_codes, *m_scale, m);
            dequantise_unsigned(v_codes, *v_scale, v);
            v.iter_mut().for_each(|v| *v *= *v);
        },
    );
    update_tile::<Adam, f32>(
        &step.now,
        &step.before[usize::from(decays)],
        parameter,
        [m, v, &mut []],
        gradient,
    );
    simd::vectorize(
        #[inline(always)]
        || {
            v.iter_mut().for_each(|v| *v = v.sqrt());
            *m_scale = quantise_signed(m, m_codes);
            *v_scale = quantise_unsigned(v, v_codes);
        },
    );
}

/// The registry's entry of the op.
pub(super) const INFO: OpInfo = OpInfo {
    name: Adam8bit::NAME,
    doc: "Updates parameters by Adam with states of eight bits.",
    samples: registry_samples,
};

fn registry_samples() -> Vec<Sample> {
    let rule = Adam8bit { beta_1: 0.8, beta_2: 0.9, epsilon: 1e-3 };
    let torch = "torch.optim.Adam(parameters, lr=0.1, betas=(0.8, 0.9), eps=1e-3)";
    let plain = |name: &str, shapes| {
        Sample::many(name, parameters_and_targets(shapes), steps(rule, Common::default(), 10))
            .torch(torch_steps(torch, 10))
    };
    // The states of a first step begin as zero, exactly, so what they are rounded to does not matter yet.
    let quantised = Sample::many(
        "quantised, one step",
        parameters_and_targets([&[65, 64], &[9]]),
        steps(rule, Common::default(), 1),
    );
    let quantised = quantised.references(move |x| {
        let first_step = |(parameter, target): (&Array, &Array)| {
            let moved = parameter.values.iter().zip(&target.values);
            let moved = moved.map(|(&p, &t)| rule.plain().reference(1, 0.1, p, p - t, &mut [0.0, 0.0]));
            Array::new(&parameter.shape, moved.collect())
        };
        x[..2].iter().zip(&x[2..]).map(first_step).collect()
    });
    vec![
        plain("plain states", [&[7], &[2, 3, 5]]),
        plain("plain states of a matrix and a number", [&[4, 9], &[]]),
        quantised,
    ]
}
