//! `execute`: the one function that runs ops.
//!
//! Infer, take memory from the pool, run the kernel (a ghost skips that, and nothing else), record. All ways to
//! run an op end here: tensor methods, backward, replays, users' own ops, updates of variables.

use std::sync::Arc;

use plimsoll_memory::{Block, Owner, Work};
use smallvec::SmallVec;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::device::Device;
use crate::device::fault;
use crate::device::holders::{Held, Holder};
use crate::device::storage::Storage;
use crate::eager::check::{self, Kind};
use crate::eager::context;
use crate::eager::op::{
    AuxOutput, Gradient, Meta, Op, OpRef, Operand, Output, Run, SavedRef, SavedRefs, Tensors,
};
use crate::eager::recorder::{self, Execution, capture_args};
use crate::eager::tape::{FinishedCall, NodeRef, TapeCore};
use crate::eager::tensor::{Data, Nodes, Tensor};

/// An input of an op: small, because lists of them are passed by value.
pub(crate) enum Arg<'a> {
    /// Lent: read only.
    Lent(&'a Tensor),
    /// Given away: its memory may be used for the output.
    Given(Tensor),
    /// A variable's handle, with its value of this moment.
    Read(&'a Tensor, Box<StorageView>),
    /// Was given away, and the output is written over it.
    Overwritten(Box<StorageView>),
    /// Was given away, and is gone; only between two lines of `take_unshared`.
    Gone,
}

/// A list of inputs.
pub(crate) type Args<'a> = SmallVec<[Arg<'a>; 3]>;

/// A storage and what a tensor sees of it.
pub(crate) type StorageView = (Arc<Storage>, Meta);

/// What is seen of a storage that is held.
#[derive(Clone)]
pub(crate) struct HeldView {
    pub storage: Held,
    pub meta: Meta,
}

impl HeldView {
    pub fn new((storage, meta): StorageView, by: Holder) -> HeldView {
        HeldView { storage: Held::new(storage, by), meta }
    }

    pub fn view(&self) -> StorageView {
        (Arc::clone(&self.storage), self.meta)
    }
}

impl Arg<'_> {
    /// The tensor, unless it was consumed.
    pub fn tensor(&self) -> Option<&Tensor> {
        match self {
            Arg::Lent(tensor) | Arg::Read(tensor, _) => Some(tensor),
            Arg::Given(tensor) => Some(tensor),
            Arg::Overwritten(_) | Arg::Gone => None,
        }
    }

    /// Shape, strides and dtype.
    pub fn meta(&self) -> &Meta {
        match self {
            Arg::Lent(tensor) => tensor.meta(),
            Arg::Given(tensor) => tensor.meta(),
            Arg::Read(_, view) | Arg::Overwritten(view) => &view.1,
            Arg::Gone => unreachable!("gone only inside `take_unshared`"),
        }
    }

    /// The memory that the kernel reads.
    pub fn storage(&self) -> &Arc<Storage> {
        let tensor: &Tensor = match self {
            Arg::Read(_, view) | Arg::Overwritten(view) => return &view.0,
            Arg::Lent(tensor) => tensor,
            Arg::Given(tensor) => tensor,
            Arg::Gone => unreachable!("gone only inside `take_unshared`"),
        };
        match tensor.data() {
            Data::Value(storage) => storage,
            Data::Variable(_) => unreachable!("`execute` reads variables first"),
        }
    }

    /// Consumes a given tensor, known to be unshared, for its memory, which gets a new identity: records remember
    /// the storages that they read, and must not take the new contents for the old.
    fn take_unshared(&mut self) -> Option<Arc<Storage>> {
        let Arg::Given(tensor) = std::mem::replace(self, Arg::Gone) else { return None };
        let meta = *tensor.meta();
        match tensor.into_unshared() {
            Ok(storage) => {
                *self = Arg::Overwritten(Box::new((storage.clone(), meta)));
                Some(storage)
            }
            Err(tensor) => {
                *self = Arg::Given(tensor);
                None
            }
        }
    }
}

/// Runs an op on tensors; users' own ops are called this way.
///
/// # Errors
/// What the op's `infer` and `run` refuse, inputs on different devices, memory that is full.
#[track_caller]
pub fn apply(op: OpRef, inputs: &[&Tensor]) -> Result<Tensors> {
    let _line = context::at_callers_line();
    execute(op, inputs.iter().map(|tensor| Arg::Lent(tensor)).collect())
}

/// Runs an op that has one output.
pub(crate) fn call(op: OpRef, inputs: &[&Tensor]) -> Result<Tensor> {
    call_with(op, inputs.iter().map(|tensor| Arg::Lent(tensor)).collect())
}

/// Runs an op that has one output; inputs that are given may be overwritten.
pub(crate) fn call_with(op: OpRef, args: Args<'_>) -> Result<Tensor> {
    let mut outputs = execute(op, args)?;
    debug_assert_eq!(outputs.len(), 1);
    Ok(outputs.remove(0))
}

/// Runs an op: see the module's description.
pub(crate) fn execute(op: OpRef, mut args: Args<'_>) -> Result<Tensors> {
    read_variables(&mut args);
    recorder::check_symbolic(op.name(), args.iter().map(Arg::storage))?;
    if context::is_tracing() {
        capture_args(&mut args);
    }
    let device = device_of(&op, &args)?;
    let watchers = watchers(op.get(), &args)?;
    let as_composite = match op.gradient() {
        Gradient::Composite => !watchers.is_empty(),
        _ => watchers.len() > 1,
    };
    if as_composite {
        // A composite trusts its operands as a kernel does.
        op.get().infer(&metas(&args))?;
        let inputs: SmallVec<[&Tensor; 3]> = args.iter().filter_map(Arg::tensor).collect();
        if let Some(outputs) = op.get().composite(&inputs) {
            return outputs;
        }
    }
    let outputs = op.get().infer(&metas(&args))?;
    context::log_placement(op.name(), &device);
    let order = Order::now(&device);
    let call = Call { op: &op, device: &device, watchers: &watchers, order };
    match check::kind_of(&op, &outputs)? {
        Kind::Views => call.look(&args, &outputs),
        Kind::New => call.compute(args, &outputs),
    }
}

/// Runs an op that has run before on equal inputs, for what it made: its outputs and, if the gradients of the inputs
/// `wanted` say so, its auxiliary outputs.
pub(crate) fn recompute_op(
    op: OpRef,
    args: Args<'_>,
    wanted: Option<&[bool]>,
    order: Order,
) -> Result<SmallVec<[Arc<Storage>; 2]>> {
    let device = device_of(&op, &args)?;
    let outputs = op.get().infer(&metas(&args))?;
    let aux_outputs = wanted.map_or_else(SmallVec::new, |wanted| op.get().aux_outputs(&metas(&args), wanted));
    if check::kind_of(&op, &outputs)? != Kind::New {
        return Err(check::changed(&op));
    }
    let call = Call { op: &op, device: &device, watchers: &[], order };
    let (_, results, made) = call.make(args, &outputs, aux_outputs)?;
    let results = results.iter().map(|tensor| tensor.data().value().clone());
    Ok(results.chain(made.into_iter().map(|(_, storage)| storage)).collect())
}

/// Shapes, strides and dtypes of the inputs.
fn metas<'a>(args: &'a [Arg<'_>]) -> SmallVec<[&'a Meta; 3]> {
    args.iter().map(Arg::meta).collect()
}

/// Whether the sums of an execution have one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The same bits every time.
    Fixed,
    /// Any order: the device is not deterministic, and nobody asks for the bits a second time.
    Any,
}

impl Order {
    /// That of an op that runs now.
    pub fn now(device: &Device) -> Order {
        if !device.is_deterministic() && context::runs_once() { Order::Any } else { Order::Fixed }
    }
}

/// The bytes of scratch memory that an op needs for inputs of that form.
pub(crate) fn workspace_bytes(op: &OpRef, device: &Device, inputs: &[&Meta], order: Order) -> usize {
    match (device.profile(), order) {
        (None, _) => op.get().workspace(inputs),
        (Some(profile), Order::Fixed) => op.get().workspace_cuda(inputs, profile),
        (Some(profile), Order::Any) => op.get().workspace_cuda_unordered(inputs, profile),
    }
}

/// The scratch memory that an op needs for inputs of that form.
pub(crate) fn workspace(
    op: &OpRef,
    device: &Device,
    inputs: &[&Meta],
    order: Order,
) -> Result<Option<Block>> {
    match workspace_bytes(op, device, inputs, order) {
        0 => Ok(None),
        bytes => Ok(Some(device.acquire(bytes, context::label(Owner::Workspace, op.name()))?)),
    }
}

/// Calls the kernel with all memory given; a ghost has none. It records nothing: variables are updated so, too, with
/// outputs in the memory of inputs where the op's `overwrites` says so.
pub(crate) fn run(
    op: &OpRef,
    device: &Device,
    inputs: &[Operand<'_>],
    outputs: &[Operand<'_>],
    aux_outputs: &[Operand<'_>],
    workspace: Option<&Block>,
    order: Order,
) -> Result<()> {
    let writes_nothing = outputs.iter().chain(aux_outputs).all(|operand| operand.n_elems() == 0);
    let has_effect = op.has_effect();
    if has_effect && context::is_replaying() {
        return if writes_nothing { Ok(()) } else { Err(check::recomputed_effect(op)) };
    }
    if !writes_nothing {
        check::empty_lines(op, inputs.iter().chain(outputs).chain(aux_outputs))?;
    }
    if device.pool().wants_work() {
        note_work(op, device, inputs, outputs, aux_outputs, order);
    }
    if device.is_ghost() {
        return Ok(());
    }
    if writes_nothing && !has_effect {
        return Ok(());
    }
    let (ptr, len) = workspace.map_or((std::ptr::null_mut(), 0), |block| (block.as_ptr(), block.bytes()));
    let mut run = Run { inputs, outputs, aux_outputs, workspace: ptr, workspace_len: len, device, first: 0 };
    if device.gpu().is_some() {
        check::extents_on_gpu(op, inputs.iter().chain(outputs).chain(aux_outputs))?;
    }
    let Some(gpu) = device.gpu() else {
        return op.get().run(&mut run).map_err(|error| {
            let site = context::site(op.name());
            error.in_layer(site.scope(), site.described())
        });
    };
    match order {
        Order::Fixed => op.get().run_cuda(&mut run, gpu),
        Order::Any => op.get().run_cuda_unordered(&mut run, gpu),
    }?;
    // Where the host waits for each kernel, a value that this one refused is known.
    if gpu.waits() { fault::look(device) } else { Ok(()) }
}

/// Tells whoever records the device's pool that the kernel runs now, or would run on a ghost: what it reads and writes.
#[cold]
fn note_work(
    op: &OpRef,
    device: &Device,
    inputs: &[Operand<'_>],
    outputs: &[Operand<'_>],
    aux_outputs: &[Operand<'_>],
    order: Order,
) {
    let serial = |operand: &Operand<'_>| operand.block()?.serial_on(device);
    let reads: SmallVec<[u64; 4]> = inputs.iter().filter_map(serial).collect();
    let writes: SmallVec<[u64; 4]> = outputs.iter().chain(aux_outputs).filter_map(serial).collect();
    let inputs: SmallVec<[&Meta; 4]> = inputs.iter().map(|operand| operand.meta).collect();
    let outputs: SmallVec<[&Meta; 4]> = outputs.iter().map(|operand| operand.meta).collect();
    device.pool().mark_work(&Work {
        site: context::site(op.name()),
        nanoseconds: op.nanoseconds(device, &inputs, &outputs),
        repeats: order == Order::Fixed && !op.has_effect() && op.get().output_device().is_none(),
        reads: &reads,
        writes: &writes,
    });
}

/// Takes the values that variables have now.
fn read_variables(args: &mut Args<'_>) {
    for arg in args {
        let read = match arg {
            Arg::Lent(tensor) => match tensor.data() {
                Data::Variable(cell) => Arg::Read(tensor, Box::new(cell.value())),
                Data::Value(_) => continue,
            },
            _ => continue,
        };
        *arg = read;
    }
}

/// The device that an op runs on: that of its inputs, unless it is a copy to another.
fn device_of(op: &OpRef, args: &[Arg<'_>]) -> Result<Device> {
    let common = common_device(op.get(), args)?;
    let copied_to = op.get().output_device().filter(|_| !op.is_own());
    Ok(copied_to.map_or(common, context::recording_device))
}

/// The device of all inputs, or the current one for an op that has none.
fn common_device(op: &dyn Op, args: &[Arg<'_>]) -> Result<Device> {
    let Some((first, rest)) = args.split_first() else { return Ok(context::device()) };
    let device = first.storage().device();
    match rest.iter().map(|arg| arg.storage().device()).find(|&other| other != device) {
        None => Ok(device.clone()),
        Some(other) => {
            let [device, other] = device.names_apart(other);
            let detail = format!("operands are on {device} and {other}; bring one over with `to_device`");
            Err(Error::device(op.name(), detail))
        }
    }
}

/// A tape that watches some of an op's inputs.
struct Watcher {
    tape: Arc<TapeCore>,
    /// For each input, the node by which the tape knows it.
    edges: SmallVec<[Option<NodeRef>; 3]>,
    /// What the op's backward will read.
    saved: SavedRefs,
}

/// The recording tapes that watch an input, outermost first.
fn watchers(op: &dyn Op, args: &[Arg<'_>]) -> Result<SmallVec<[Watcher; 1]>> {
    let mut watchers = SmallVec::new();
    if !context::is_recording() || op.gradient() == Gradient::Zero {
        return Ok(watchers);
    }
    if let Some(tensor) = args.iter().filter_map(Arg::tensor).find(|tensor| context::is_sealed(tensor)) {
        return Err(Error::tape(format!(
            "{}: a tensor of shape {} recorded outside a recomputed function is used inside it; pass it as one of \
             the function's inputs",
            op.name(),
            tensor.shape()
        )));
    }
    context::with_tapes(|tapes| {
        for tape in tapes {
            let find = |arg: &Arg<'_>| arg.tensor().and_then(|tensor| tape.find(tensor));
            let edges: SmallVec<[Option<NodeRef>; 3]> = args.iter().map(find).collect();
            if edges.iter().all(Option::is_none) {
                continue;
            }
            let wanted: SmallVec<[bool; 4]> = edges.iter().map(Option::is_some).collect();
            watchers.push(Watcher { tape: tape.clone(), edges, saved: op.saved(&wanted) });
        }
    });
    match op.gradient() {
        Gradient::None(reason) if !watchers.is_empty() => Err(Error::not_differentiable(op.name(), reason)),
        _ => Ok(watchers),
    }
}

/// The auxiliary outputs that an op made.
type MadeAuxOutputs = SmallVec<[(AuxOutput, Arc<Storage>); 2]>;

/// One execution on its way.
struct Call<'a> {
    op: &'a OpRef,
    device: &'a Device,
    watchers: &'a [Watcher],
    order: Order,
}

impl Call<'_> {
    /// Views: no memory, no kernel.
    fn look(&self, args: &[Arg<'_>], outputs: &[Output]) -> Result<Tensors> {
        self.check_saved(args.len(), outputs.len(), 0)?;
        let views = outputs.iter().map(|output| check::view(self.op, args, output));
        Ok(self.finish(args, views.collect::<Result<_>>()?, &[]))
    }

    /// Takes memory, runs the kernel, records.
    fn compute(&self, args: Args<'_>, outputs: &[Output]) -> Result<Tensors> {
        let aux_outputs = self.aux_outputs(&args);
        self.check_saved(args.len(), outputs.len(), aux_outputs.len())?;
        let (args, results, aux_outputs) = self.make(args, outputs, aux_outputs)?;
        // What is copied from another device cannot be recomputed: a step's log knows one device.
        let step_log = context::step_log().filter(|_| self.op.get().output_device().is_none());
        step_log
            .map(|step_log| {
                step_log.record(self.op, &args, &results, &aux_outputs, self.wanted(args.len()), self.order)
            })
            .transpose()?;
        Ok(self.finish(&args, results, &aux_outputs))
    }

    /// Takes memory and runs the kernel.
    fn make<'a>(
        &self,
        mut args: Args<'a>,
        outputs: &[Output],
        aux_outputs: SmallVec<[AuxOutput; 2]>,
    ) -> Result<(Args<'a>, Tensors, MadeAuxOutputs)> {
        check::aux_outputs(self.op, &aux_outputs)?;
        let mut results = Tensors::new();
        for output in outputs {
            let &Output::New { shape, dtype } = output else { return Err(check::changed(self.op)) };
            let reused = if results.is_empty() { self.reuse(&mut args, &shape, dtype)? } else { None };
            let storage = reused.map_or_else(|| self.fresh(&shape, dtype), Ok)?;
            results.push(Tensor::over(storage, Meta::fresh(shape, dtype), Nodes::new()));
        }
        let mut made = MadeAuxOutputs::new();
        for aux in aux_outputs {
            made.push((aux, self.fresh(aux.meta.shape(), aux.meta.dtype)?));
        }
        let workspace = workspace(self.op, self.device, &metas(&args), self.order)?;
        // What an effect leaves in a program is one call, however often its function is rerun while it is recorded.
        let is_recomputed_effect = self.op.has_effect() && context::is_replaying();
        if context::is_tracing() && !is_recomputed_effect {
            self.trace(&args, &results, &made, workspace.as_ref())?;
        }
        run(
            self.op,
            self.device,
            &args.iter().map(|x| Operand::of(x.storage(), x.meta())).collect::<SmallVec<[Operand<'_>; 4]>>(),
            &results
                .iter()
                .map(|y| Operand::of(y.data().value(), y.meta()))
                .collect::<SmallVec<[Operand<'_>; 2]>>(),
            &made.iter().map(|(e, s)| Operand::of(s, &e.meta)).collect::<SmallVec<[Operand<'_>; 2]>>(),
            workspace.as_ref(),
            self.order,
        )?;
        drop(workspace);
        Ok((args, results, made))
    }

    /// Tells of the call where a function is being recorded.
    fn trace(
        &self,
        args: &[Arg<'_>],
        results: &Tensors,
        made: &MadeAuxOutputs,
        workspace: Option<&Block>,
    ) -> Result<()> {
        let outputs = results.iter().map(|tensor| (tensor.data().value(), tensor.meta()));
        let execution = Execution {
            op: self.op,
            device: self.device,
            order: self.order,
            wanted: self.wanted(args.len()),
            outputs: outputs.chain(made.iter().map(|(aux, storage)| (storage, &aux.meta))).collect(),
            n_aux: made.len(),
            workspace,
        };
        context::with_tracer(|tracer| tracer.call(args, execution)).unwrap_or(Ok(()))
    }

    /// A new block for an output. An op of somebody's own may leave it as it is, and not every byte is a truth value.
    fn fresh(&self, shape: &Shape, dtype: DType) -> Result<Arc<Storage>> {
        let mut storage = Storage::new(self.device, shape, dtype, self.op.name())?;
        if dtype == DType::Bool && self.op.is_own() {
            storage.clear()?;
        }
        Ok(storage)
    }

    /// Refuses positions of saved values that the op does not have.
    fn check_saved(&self, n_inputs: usize, n_outputs: usize, n_aux: usize) -> Result<()> {
        let all = [n_inputs, n_outputs, n_aux];
        for watcher in self.watchers {
            check::saved(self.op, "saved", &watcher.saved, all)?;
        }
        match (self.watchers.is_empty(), self.op.is_own()) {
            (false, true) => check::rebuilding(self.op, all),
            _ => Ok(()),
        }
    }

    /// The auxiliary outputs that the watching tapes want; the tapes share them.
    fn aux_outputs(&self, args: &[Arg<'_>]) -> SmallVec<[AuxOutput; 2]> {
        if self.watchers.is_empty() {
            return SmallVec::new();
        }
        self.op.get().aux_outputs(&metas(args), &self.wanted(args.len()))
    }

    /// The inputs whose gradients any watching tape wants.
    fn wanted(&self, n_inputs: usize) -> SmallVec<[bool; 4]> {
        let watched = |idx: usize| self.watchers.iter().any(|watcher| watcher.edges[idx].is_some());
        (0..n_inputs).map(watched).collect()
    }

    /// The memory of an input that was given away, for the first output: if the op may write there, the input is
    /// held by nobody else, and no tape saves it.
    fn reuse(&self, args: &mut [Arg<'_>], shape: &Shape, dtype: DType) -> Result<Option<Arc<Storage>>> {
        for &idx in self.op.get().overwrites() {
            let Some(Arg::Given(tensor)) = args.get(idx) else { continue };
            let is_saved = self.watchers.iter().any(|watcher| watcher.saved.contains(&SavedRef::Input(idx)));
            let fits = tensor.shape() == shape && tensor.dtype() == dtype;
            if is_saved || !fits || !tensor.is_unshared() {
                continue;
            }
            if let Some(storage) = args[idx].take_unshared() {
                storage.overwrite()?;
                storage.set_site(context::site(self.op.name()));
                return Ok(Some(storage));
            }
        }
        Ok(None)
    }

    /// Records the call on each watching tape, and tells the output tensors where they came from.
    fn finish(
        &self,
        args: &[Arg<'_>],
        mut outputs: Tensors,
        aux_outputs: &[(AuxOutput, Arc<Storage>)],
    ) -> Tensors {
        for watcher in self.watchers {
            let record = FinishedCall {
                op: self.op,
                edges: &watcher.edges,
                saved: &watcher.saved,
                args,
                outputs: &outputs,
                aux_outputs,
            };
            let node = watcher.tape.record(&record);
            // Nothing flows back through whole numbers, such as the indices of a sort.
            for (output, tensor) in
                outputs.iter_mut().enumerate().filter(|(_, tensor)| tensor.dtype().is_float())
            {
                tensor.add_node(NodeRef { node: node.clone(), output });
            }
        }
        context::with_step(|step| step.record(self.op, args, &outputs));
        outputs
    }
}
