//! Convolutions by cuDNN.
//!
//! The library is told of a convolution as a graph with one operation, and its heuristic names engines, the best first. The
//! first is taken that always gives the same bits, computes as exactly as was asked for, and finds room in the scratch
//! memory; nothing is timed. That is done once for each convolution, and kept within a bound (`plans`).

mod descriptor;

use std::sync::Arc;

use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type,
    cudnnBackendBehaviorNote_t as Behavior, cudnnBackendDescriptorType_t as Kind,
    cudnnBackendHeurMode_t as Mode, cudnnBackendNumericalNote_t as Note, cudnnConvolutionMode_t,
    cudnnDataType_t as DataType, cudnnHandle_t,
};
use cudarc::driver::sys::CUstream;

use self::descriptor::{Descriptor, check};
use super::address;
use super::context::{Context, check as check_driver};
use super::libraries::Library;
use super::plans::Plans;
use crate::convolution::{Convolution, ConvolutionOperands, Direction};
use crate::error::{Error, Result};
use crate::matmul::Scalar;

/// No engine asks for more than this.
const MAX_ALIGNMENT: usize = 16;

/// The most convolutions that are kept, with some 0.3 MiB of the host each. ResNet-50 has 53 layers, three directions each.
const MAX_PLANS: usize = 512;

/// The names of input, filter and output in a graph.
const UIDS: [i64; 3] = [1, 2, 3];

/// The library, and the convolutions that it has planned.
pub(super) struct Dnn {
    /// None where the library has no engine that keeps the promises.
    plans: Plans<Key, Option<Arc<Plan>>>,
    /// Those that the graph being captured uses.
    captured: Vec<Arc<Plan>>,
    handle: Arc<Handle>,
    /// The stream that the handle is bound to.
    stream: CUstream,
    context: Arc<Context>,
}

// SAFETY: the library's objects may be used by any thread, one at a time.
unsafe impl Send for Dnn {}

/// What a plan depends on. Blocks are aligned, so that an alignment follows from a view's offset and not from where a block
/// lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    convolution: Convolution,
    alignments: [u8; 3],
    workspace_bytes: usize,
}

impl Key {
    fn new(convolution: &Convolution, operands: &ConvolutionOperands) -> Key {
        let addresses = [operands.input, operands.filter, operands.output];
        Key {
            convolution: *convolution,
            alignments: addresses.map(|address| 1 << (address.addr() | MAX_ALIGNMENT).trailing_zeros()),
            workspace_bytes: operands.workspace_bytes,
        }
    }
}

impl Dnn {
    pub fn new(context: &Arc<Context>) -> Result<Dnn> {
        Library::Convolution.require()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the library is there and the context is current; the call writes one handle.
        check(unsafe { sys::cudnnCreate(&raw mut raw) }, "cudnnCreate")?;
        let handle = Arc::new(Handle { raw, context: context.clone() });
        let (plans, stream) = (Plans::at_most(MAX_PLANS), std::ptr::null_mut());
        let mut dnn = Dnn { plans, captured: Vec::new(), handle, stream, context: context.clone() };
        dnn.follow()?;
        Ok(dnn)
    }

    /// Whether there is an engine for a convolution, if it was asked for before.
    pub fn knows(&self, convolution: &Convolution, operands: &ConvolutionOperands) -> Option<bool> {
        if Shapes::of(convolution).n_elements().contains(&0) {
            return Some(true);
        }
        self.plans.peek(&Key::new(convolution, operands)).map(Option::is_some)
    }

    /// The plans that were captured since this was asked last.
    pub fn take_captured(&mut self) -> Vec<Arc<Plan>> {
        std::mem::take(&mut self.captured)
    }

    /// Makes the library's calls go to the stream that takes launches.
    fn follow(&mut self) -> Result<()> {
        let target = self.context.target();
        // The stream of a capture may have the address of an earlier one that is gone.
        if self.stream != target || target != self.context.stream {
            // SAFETY: handle and stream are alive.
            check(unsafe { sys::cudnnSetStream(self.handle.raw, target.cast()) }, "cudnnSetStream")?;
            self.stream = target;
        }
        Ok(())
    }

    /// Starts a convolution; false if the library has no engine for it.
    ///
    /// # Safety
    /// The addresses must be valid on the device, in stream order.
    pub unsafe fn convolve(
        &mut self,
        convolution: &Convolution,
        operands: &ConvolutionOperands,
    ) -> Result<bool> {
        let addresses = [operands.input, operands.filter, operands.output];
        let n_elements = Shapes::of(convolution).n_elements();
        if n_elements.contains(&0) {
            // The result is empty, or sums without terms.
            let which = match convolution.direction {
                Direction::ToInput => 0,
                Direction::ToFilter => 1,
                Direction::Forward => 2,
            };
            let n_bytes = n_elements[which] * convolution.scalar.size();
            // SAFETY: the caller vouches for the result's address.
            return unsafe { self.clear(addresses[which], n_bytes) }.map(|()| true);
        }
        self.follow()?;
        let key = Key::new(convolution, operands);
        // A plan that goes waits for the device, and nobody may wait while a graph is captured.
        let is_captured = self.context.target() != self.context.stream;
        let make = || Ok(Plan::new(&self.handle, &key)?.map(Arc::new));
        let Some(plan) = self.plans.get_or(key, !is_captured, make)?.clone() else { return Ok(false) };
        if is_captured {
            self.captured.push(plan.clone());
        }
        let pack = Descriptor::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &UIDS)?
            .with(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &addresses)?
            .with(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[operands.workspace])?
            .finished()?;
        // SAFETY: the plan fits the operands, which the caller vouches for.
        let status = unsafe { sys::cudnnBackendExecute(self.handle.raw, plan.execution.0, pack.0) };
        check(status, "cudnnBackendExecute").map(|()| true)
    }

    /// # Safety
    /// The address must be valid for as many bytes.
    unsafe fn clear(&self, to: *mut u8, n_bytes: usize) -> Result<()> {
        if n_bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller vouches for the address.
        let status =
            unsafe { cudarc::driver::sys::cuMemsetD8Async(address(to), 0, n_bytes, self.context.target()) };
        check_driver(status, "cuMemsetD8Async")
    }
}

/// The library's handle, destroyed when nothing made with it is left.
struct Handle {
    raw: cudnnHandle_t,
    context: Arc<Context>,
}

// SAFETY: any thread may use it, one at a time: `Dnn` alone calls with it, and whoever has it last destroys it.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: the handle is ours.
        let _ = unsafe { sys::cudnnDestroy(self.raw) };
    }
}

/// Extents of input, filter and output in the library's order: images or filters, channels, height, width.
struct Shapes([[usize; 4]; 3]);

impl Shapes {
    fn of(convolution: &Convolution) -> Shapes {
        let Convolution { n, input, output, c_in, c_out, filter, groups, .. } = *convolution;
        Shapes([
            [n, c_in, input[0], input[1]],
            [c_out, c_in / groups.max(1), filter[0], filter[1]],
            [n, c_out, output[0], output[1]],
        ])
    }

    fn n_elements(&self) -> [usize; 3] {
        self.0.map(|extents| extents.iter().product())
    }
}

/// A planned convolution.
pub(super) struct Plan {
    execution: Descriptor,
    /// What the plan was made from; the library does not say whether it still looks there.
    _graph: Graph,
    _config: Descriptor,
    handle: Arc<Handle>,
}

// SAFETY: any thread may use it, one at a time: `Dnn` alone executes it, and whoever has it last destroys it.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

impl Plan {
    /// The plan of the first engine that keeps the promises; none if there is no such engine, and the log says why.
    fn new(handle: &Arc<Handle>, key: &Key) -> Result<Option<Plan>> {
        let graph = Graph::new(handle.raw, key)?;
        let mut reasons = Vec::new();
        let mut configs = Vec::new();
        for mode in [Mode::CUDNN_HEUR_MODE_A, Mode::CUDNN_HEUR_MODE_FALLBACK] {
            match graph.configs(mode) {
                Ok(found) => configs.extend(found),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        // Engines that are compiled when they are planned cost seconds in every process, so they come last.
        let (later, first): (Vec<_>, Vec<_>) =
            configs.into_iter().partition(|config| is_compiled_late(config).unwrap_or(true));
        for config in first.into_iter().chain(later) {
            match execution(handle.raw, key, &config) {
                Ok(execution) => {
                    let handle = handle.clone();
                    return Ok(Some(Plan { execution, _graph: graph, _config: config, handle }));
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        let convolution = &key.convolution;
        log::info!(
            "cuDNN has no engine for {convolution:?} with {} bytes of scratch memory; of {} reasons, the last: {}",
            key.workspace_bytes,
            reasons.len(),
            reasons.last().map_or("it names no engine", String::as_str)
        );
        Ok(None)
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // A kernel that was compiled for it may still be running.
        let _ = self.handle.context.synchronize();
    }
}

/// The plan of a configuration, if it keeps the promises.
fn execution(handle: cudnnHandle_t, key: &Key, config: &Descriptor) -> Result<Descriptor> {
    let notes =
        engine(config)?.notes(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, Type::CUDNN_TYPE_NUMERICAL_NOTE)?;
    if let Some(note) = refused_notes(&key.convolution).iter().find(|&&note| notes.contains(&(note as u32))) {
        return Err(Error::new(format!("an engine has {note:?}")));
    }
    let execution = Descriptor::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?
        .with(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, &[handle])?
        .with(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[config.0])?
        .finished()?;
    let needed = execution.number(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
    match usize::try_from(needed) {
        Ok(needed) if needed <= key.workspace_bytes => Ok(execution),
        _ => Err(Error::new(format!("an engine needs {needed} bytes of scratch memory"))),
    }
}

/// What an engine may not do: round sums to 16 bits and, unasked, give other bits the next time or round f32.
fn refused_notes(convolution: &Convolution) -> Vec<Note> {
    let mut refused = vec![Note::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION];
    if !convolution.unordered {
        refused.push(Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
    }
    if convolution.scalar == Scalar::F32 && !convolution.tf32 {
        refused.push(Note::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
        refused.push(Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
    }
    refused
}

/// Whether the engine of a configuration is compiled when it is planned.
fn is_compiled_late(config: &Descriptor) -> Result<bool> {
    let notes =
        engine(config)?.notes(Name::CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, Type::CUDNN_TYPE_BEHAVIOR_NOTE)?;
    Ok(notes.contains(&(Behavior::CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION as u32)))
}

/// The engine of a configuration.
fn engine(config: &Descriptor) -> Result<Descriptor> {
    config.descriptor(Name::CUDNN_ATTR_ENGINECFG_ENGINE, Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)
}

/// A convolution as the library knows it.
struct Graph {
    graph: Descriptor,
    /// What the graph is made of.
    _parts: [Descriptor; 5],
}

impl Graph {
    fn new(handle: cudnnHandle_t, key: &Key) -> Result<Graph> {
        let parts = Graph::parts(&key.convolution, key.alignments)?;
        let graph = Descriptor::new(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, &[handle])?
            .with(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &[parts[0].0])?
            .finished()?;
        Ok(Graph { graph, _parts: parts })
    }

    /// Operation, convolution, input, filter, output.
    fn parts(convolution: &Convolution, alignments: [u8; 3]) -> Result<[Descriptor; 5]> {
        let data_type = match convolution.scalar {
            Scalar::F16 => DataType::CUDNN_DATA_HALF,
            Scalar::BF16 => DataType::CUDNN_DATA_BFLOAT16,
            Scalar::F32 => DataType::CUDNN_DATA_FLOAT,
            Scalar::F64 => DataType::CUDNN_DATA_DOUBLE,
        };
        let shapes = Shapes::of(convolution).0;
        let tensor = |which: usize| tensor(UIDS[which], shapes[which], data_type, alignments[which]);
        let [input, filter, output] = [tensor(0)?, tensor(1)?, tensor(2)?];
        let described = described(convolution)?;
        let operation = operation(convolution, [&input, &filter, &output, &described])?;
        Ok([operation, described, input, filter, output])
    }

    /// The configurations that a heuristic names, the best first.
    fn configs(&self, mode: Mode) -> Result<Vec<Descriptor>> {
        let heuristic = Descriptor::new(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[self.graph.0])?
            .with_number(Name::CUDNN_ATTR_ENGINEHEUR_MODE, Type::CUDNN_TYPE_HEUR_MODE, mode as u32)?
            .finished()?;
        heuristic.descriptors(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
    }
}

/// A tensor with channels last; extents are in the library's order.
fn tensor(uid: i64, extents: [usize; 4], data_type: DataType, alignment: u8) -> Result<Descriptor> {
    let [n, c, h, w] = extents.map(|extent| extent as i64);
    Descriptor::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
        .with_data_type(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, data_type)?
        .with(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &[n, c, h, w])?
        .with(Name::CUDNN_ATTR_TENSOR_STRIDES, &[h * w * c, 1, w * c, c])?
        .with(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[uid])?
        .with(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[i64::from(alignment)])?
        .finished()
}

/// Steps, padding and the type of sums.
fn described(convolution: &Convolution) -> Result<Descriptor> {
    let sums = match convolution.scalar {
        Scalar::F64 => DataType::CUDNN_DATA_DOUBLE,
        _ => DataType::CUDNN_DATA_FLOAT,
    };
    let mode = cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION as u32;
    let signed = |pair: [usize; 2]| pair.map(|number| number as i64);
    let after = [0, 1].map(|axis| padding_after(convolution, axis));
    Descriptor::new(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?
        .with_data_type(Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, sums)?
        .with_number(Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE, Type::CUDNN_TYPE_CONVOLUTION_MODE, mode)?
        .with(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[2i64])?
        .with(Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &signed(convolution.padding))?
        .with(Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &signed(after))?
        .with(Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &signed(convolution.stride))?
        .with(Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, &signed(convolution.dilation))?
        .finished()
}

/// The padding after the input: as much as before it if the output comes out right, because more engines know that; else
/// what the last output needs.
fn padding_after(convolution: &Convolution, axis: usize) -> usize {
    let Convolution { input, output, filter, padding, stride, dilation, .. } = *convolution;
    let reach = (filter[axis].max(1) - 1) * dilation[axis] + 1;
    let padded = input[axis] + 2 * padding[axis];
    if padded >= reach && (padded - reach) / stride[axis] + 1 == output[axis] {
        return padding[axis];
    }
    let needed = (output[axis].max(1) - 1) * stride[axis] + reach;
    needed.saturating_sub(input[axis] + padding[axis])
}

/// The operation, from input, filter, output and what describes it.
fn operation(convolution: &Convolution, parts: [&Descriptor; 4]) -> Result<Descriptor> {
    let (kind, names) = match convolution.direction {
        Direction::Forward => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            [
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            ],
        ),
        Direction::ToInput => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            [
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            ],
        ),
        Direction::ToFilter => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
            [
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
            ],
        ),
    };
    let mut operation = Descriptor::new(kind)?;
    for (name, part) in names.into_iter().zip(parts) {
        operation = operation.with(name, &[part.0])?;
    }
    let [.., alpha, beta] = names;
    match convolution.scalar {
        Scalar::F64 => operation.with(alpha, &[1.0f64])?.with(beta, &[0.0f64])?.finished(),
        _ => operation.with(alpha, &[1.0f32])?.with(beta, &[0.0f32])?.finished(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn along(input: usize, filter: usize, padding: usize, stride: usize, output: usize) -> Convolution {
        Convolution {
            direction: Direction::Forward,
            scalar: Scalar::F32,
            n: 1,
            input: [input, input],
            output: [output, output],
            c_in: 1,
            c_out: 1,
            filter: [filter, filter],
            padding: [padding, padding],
            stride: [stride, stride],
            dilation: [1, 1],
            groups: 1,
            tf32: false,
            unordered: false,
        }
    }

    #[test]
    fn engines_without_an_order_are_taken_where_they_are_asked_for() {
        let notes = |unordered| refused_notes(&Convolution { unordered, ..along(8, 3, 1, 1, 8) });
        let note = Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        assert!(notes(false).contains(&note) && !notes(true).contains(&note));
        assert!(notes(true).contains(&Note::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION));
    }

    #[test]
    fn padding_is_the_same_on_both_sides_where_it_can_be() {
        // ResNet's first layer, where two rows after would do.
        assert_eq!(padding_after(&along(224, 7, 3, 2, 112), 0), 3);
        assert_eq!(padding_after(&along(8, 3, 1, 1, 8), 0), 1);
        // "Same" padding with an even filter: none before, one after.
        assert_eq!(padding_after(&along(8, 2, 0, 1, 8), 0), 1);
        // Rows at the end that no output reaches.
        assert_eq!(padding_after(&along(8, 2, 0, 3, 3), 0), 0);
    }

    /// The library checks what it is told of a convolution when it is told. For that it needs a driver, but no GPU.
    #[test]
    fn the_library_takes_the_descriptions() {
        if let Err(missing) = Library::Driver.require().and(Library::Convolution.require()) {
            let text = missing.to_string();
            assert!(text.contains("libcuda.so.1") || text.contains("libcudnn.so.9"), "{text}");
            return;
        }
        for direction in [Direction::Forward, Direction::ToInput, Direction::ToFilter] {
            let convolution = Convolution { direction, ..along(8, 3, 1, 1, 8) };
            Graph::parts(&convolution, [16; 3]).unwrap();
        }
    }
}
