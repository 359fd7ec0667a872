//! Before a program's first run on a GPU: the kernels that its calls will ask for are compiled at once, by all cores.
//!
//! Each call is dry-run on a GPU on which nothing happens, with addresses that lie as those of the blocks will and mean nothing. Calls of ops that do
//! more with a device than start kernels are left out: their kernels are compiled when they are launched, as all others where
//! nothing is kept on disk.

use plimsoll_cpu::threads;
use plimsoll_cuda::{Gpu, KernelText, Profile};
use smallvec::SmallVec;

use super::{Call, Place, Program, ValueView};
use crate::device::Device;
use crate::eager::execute::Order;
use crate::eager::op::{Operand, Run};

/// Blocks are so far apart.
const APART: usize = 1 << 40;

impl Program {
    /// Compiles the kernels that are not there yet. What goes wrong here is told when the kernel is launched.
    pub(super) fn compile_ahead(&self) {
        for (number, device) in (0..).zip(&self.devices) {
            let Some(gpu) = device.gpu().filter(|gpu| gpu.compiles_ahead()) else { continue };
            let texts = self.texts_on(number, device, gpu.dry_gpu());
            threads::parallel(texts.len(), |text| {
                if let Err(error) = gpu.compile_ahead(&texts[text]) {
                    log::debug!("a kernel was not compiled ahead: {error}");
                }
            });
        }
    }

    /// The kernels that calls on the first device ask of a GPU of that model, as far as a dry run tells: those that were made for
    /// the program, and those of most ops.
    pub fn kernel_texts(&self, model: &Profile) -> Vec<KernelText> {
        self.texts_on(0, self.device(), &Gpu::dry(model.clone()))
    }

    fn texts_on(&self, number: u8, device: &Device, dry: &Gpu) -> Vec<KernelText> {
        let calls = self.calls.iter().filter(|call| call.device == number && starts_kernels_only(call));
        calls.for_each(|call| self.dry_run_call(call, device, dry));
        dry.take_noted()
    }

    /// Runs a call on a GPU on which nothing happens.
    fn dry_run_call(&self, call: &Call, device: &Device, gpu: &Gpu) {
        let n_outputs = call.outputs.len() - usize::from(call.n_aux);
        let (outputs, aux_outputs) = call.outputs.split_at(n_outputs);
        let operands = |views| -> SmallVec<[Operand<'_>; 4]> { self.dry_operands(views) };
        let (inputs, outputs, aux_outputs) =
            (operands(&call.inputs), operands(outputs), operands(aux_outputs));
        let mut run = Run {
            inputs: &inputs,
            outputs: &outputs,
            aux_outputs: &aux_outputs,
            workspace: call.workspace.map_or(std::ptr::null_mut(), |block| address(block as usize)),
            workspace_len: call.workspace.map_or(0, |block| self.block(block).n_bytes as usize),
            device,
            first: 0,
        };
        let ended = match call.order {
            Order::Fixed => call.op.get().run_cuda(&mut run, gpu),
            Order::Any => call.op.get().run_cuda_unordered(&mut run, gpu),
        };
        if let Err(error) = ended {
            log::debug!("{} could not be dry-run: {error}", call.op.name());
        }
    }

    fn dry_operands<'a>(&self, views: &'a [ValueView]) -> SmallVec<[Operand<'a>; 4]> {
        let others = self.n_blocks();
        let place = |view: &ValueView| match self.value(view.value).place {
            Place::Block(block) => block as usize,
            Place::Argument(_) | Place::Captured(_) | Place::Variable(_) => others + view.value as usize,
        };
        views.iter().map(|view| Operand::new(address(place(view)), &view.meta)).collect()
    }
}

/// An address for what has a number.
fn address(number: usize) -> *mut u8 {
    std::ptr::without_provenance_mut((number + 1).wrapping_mul(APART))
}

/// Whether all that a call does on a GPU is to start kernels with its operands: ops of somebody's own, with effects, that note
/// refused values or fetch bytes from elsewhere do more.
fn starts_kernels_only(call: &Call) -> bool {
    let op = call.op.get();
    let writes = call.outputs.iter().any(|view| view.meta.n_elems() > 0);
    let reads = !call.inputs.is_empty() && call.inputs.iter().all(|view| view.meta.n_elems() > 0);
    let refuses = !op.never_refuses() && call.inputs.iter().any(|view| !view.meta.dtype.is_float());
    let is_ours = !call.op.is_own() && !call.op.has_effect() && op.output_device().is_none();
    is_ours && writes && reads && (!refuses || call.op.pointwise().is_some())
}
