//! A case: an op, one of its samples, the values of the inputs, and a float dtype.
//!
//! Values are drawn once per input and rounded to its dtype, so that results in different layouts, under different tapes
//! and on different devices are results for the same numbers.

use plimsoll_tensor::op::{Gradient, OpRef};
use plimsoll_tensor::ops::registry::{Array, Input, OpInfo, Sample, Values, composed};
use plimsoll_tensor::{
    DType, Device, Generator, GradientTape, Result, Step, StepRecord, Tensor, Unconnected,
};

use crate::device::device_under_test;
use crate::draw::{draw_all, dtype_of, tensor, weights};
use crate::needs::{CheckOutcome, Need};
use crate::outcome::{Failure, Outcome, guarded};

/// The float dtypes, widest first.
pub const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

/// One call of an op with given values.
pub struct Case<'a> {
    /// The op.
    pub op: &'static OpInfo,
    /// The sample.
    pub sample: &'a Sample,
    /// The dtype of the inputs whose dtype the sample leaves open.
    pub dtype: DType,
    /// The values of the inputs, representable in their dtypes.
    pub inputs: Vec<Array>,
}

/// The results of a call and of its backward.
pub struct Results {
    /// What the call gave.
    pub outputs: Vec<Tensor>,
    /// The gradients of a weighted sum of the float outputs (see `draw::weights`), one per input that was watched.
    pub gradients: Vec<Option<Tensor>>,
}

impl<'a> Case<'a> {
    /// The case with values drawn for it.
    pub fn new(op: &'static OpInfo, sample: &'a Sample, dtype: DType) -> Case<'a> {
        let inputs = draw_all(op, &sample.name, &sample.inputs, dtype);
        Case { op, sample, dtype, inputs }
    }

    /// The case with other inputs, of any shapes.
    pub fn with(op: &'static OpInfo, sample: &'a Sample, dtype: DType, inputs: Vec<Array>) -> Case<'a> {
        Case { op, sample, dtype, inputs }
    }

    /// The case with more rows, or longer ones, so that its largest input has `n_elems` elements or more; none if the
    /// call does not take such inputs.
    pub fn enlarged(&self, n_elems: usize) -> Option<Case<'a>> {
        // The emulated GPU takes a microsecond for each thread of a kernel, and has no threads of its own to start.
        let is_emulated = Device::current().name() == "emulated";
        let n_elems = if is_emulated { n_elems / 32 } else { n_elems };
        let inputs = &self.sample.inputs;
        let rank = inputs.iter().map(|input| input.shape.len()).max()?;
        let largest = inputs.iter().map(|input| input.shape.iter().product::<usize>()).max()?.max(1);
        let factor = n_elems.div_ceil(largest);
        let grown = |axis: &dyn Fn(usize, &Input) -> Option<usize>| {
            let mut inputs = inputs.clone();
            for (idx, input) in inputs.iter_mut().enumerate() {
                if let Some(at) =
                    axis(idx, input).filter(|&at| input.shape.get(at).is_some_and(|&dim| dim > 1))
                {
                    input.shape[at] *= factor;
                }
            }
            inputs
        };
        let watched = self.differentiable().ok()?;
        let n_rows = inputs[0].shape.first();
        let candidates = [
            grown(&|_, input| (input.shape.first() == n_rows).then_some(0)),
            grown(&|_, input| (input.shape.len() == rank).then_some(0)),
            grown(&|idx, _| (idx == 0).then_some(0)),
            grown(&|_, input| input.shape.len().checked_sub(1)),
        ];
        candidates.into_iter().find_map(|inputs| {
            let arrays = draw_all(self.op, &self.sample.name, &inputs, self.dtype);
            let large = Case::with(self.op, self.sample, self.dtype, arrays);
            let taken = large.tensors().is_ok_and(|inputs| large.is_taken(&inputs, &watched));
            (large.shapes() != self.shapes() && taken).then_some(large)
        })
    }

    /// Whether the call takes inputs, by itself and as the plain ops that it is recorded as under two tapes.
    pub fn is_taken(&self, inputs: &[Tensor], watched: &[usize]) -> bool {
        let (outer, inner) = (GradientTape::new(), GradientTape::new());
        let watch = |tape: &GradientTape| watched.iter().try_for_each(|&input| tape.watch(&inputs[input]));
        self.call(inputs).is_ok()
            && watch(&outer).is_ok()
            && watch(&inner).is_ok()
            && outer.record(|| inner.record(|| self.call(inputs))).is_ok()
    }

    /// The shapes of the inputs.
    pub fn shapes(&self) -> Vec<&[usize]> {
        self.inputs.iter().map(|input| input.shape.as_slice()).collect()
    }

    /// The dtype of an input.
    pub fn input_dtype(&self, input: usize) -> DType {
        dtype_of(self.sample.inputs[input].values, self.dtype)
    }

    /// The inputs as contiguous tensors on the current device.
    ///
    /// # Errors
    /// Memory that is full.
    pub fn tensors(&self) -> Result<Vec<Tensor>> {
        (0..self.inputs.len()).map(|input| tensor(&self.inputs[input], self.input_dtype(input))).collect()
    }

    /// The inputs whose gradients are checked.
    pub fn watched(&self) -> Vec<usize> {
        let floats = |&idx: &usize| matches!(self.sample.inputs[idx].values, Values::Floats(..));
        (0..self.inputs.len()).filter(floats).collect()
    }

    /// Calls the op with the generator at its beginning, so that random ops repeat themselves.
    ///
    /// # Errors
    /// Those of the call.
    pub fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        Generator::new(7).make_current();
        (self.sample.call)(inputs)
    }

    /// Calls the op under a tape that watches some inputs, and asks for their gradients.
    ///
    /// # Errors
    /// Those of the call and of its backward.
    pub fn differentiate(&self, inputs: &[Tensor], watched: &[usize]) -> Result<Results> {
        let tape = GradientTape::new();
        let sources: Vec<&Tensor> = watched.iter().map(|&idx| &inputs[idx]).collect();
        for source in &sources {
            tape.watch(source)?;
        }
        let outputs = tape.record(|| self.call(inputs))?;
        let targets: Vec<&Tensor> = outputs.iter().filter(|output| output.dtype().is_float()).collect();
        let weights: Vec<Tensor> = targets.iter().map(|target| weights(target)).collect::<Result<_>>()?;
        let weights: Vec<&Tensor> = weights.iter().collect();
        let gradients = tape.gradients(&targets, Some(&weights), &sources, Unconnected::None)?;
        Ok(Results { outputs, gradients })
    }

    /// The records of a call without a tape.
    ///
    /// # Errors
    /// Those of the call.
    pub fn records(&self) -> Result<Vec<StepRecord>> {
        let inputs = self.tensors()?;
        Ok(Step::traced(&Device::current(), || self.call(&inputs))?.1)
    }

    /// The op that the registry's entry describes, as the sample executes it; a cast to the dtype that is there already
    /// executes nothing, so each dtype is tried.
    ///
    /// # Errors
    /// The call executes no op of that name.
    pub fn executed(&self) -> Outcome<OpRef> {
        let mut names = Vec::new();
        for dtype in FLOATS {
            let records = Case::new(self.op, self.sample, dtype).records()?;
            match records.iter().find(|record| record.name() == self.op.name) {
                Some(record) => return Ok(record.op().clone()),
                None => names = records.iter().map(|record| record.name()).collect(),
            }
        }
        Err(format!("the call executes {names:?}, and none of them is `{}`", self.op.name).into())
    }

    /// Whether, and how, the call has a gradient; what is composed of ops has that of its ops.
    ///
    /// # Errors
    /// The call executes no op of the entry's name.
    pub fn gradient(&self) -> Outcome<Gradient> {
        match composed().into_iter().any(|function| std::ptr::eq(function, self.op)) {
            true => Ok(Gradient::Backward),
            false => Ok(self.executed()?.gradient()),
        }
    }

    /// The inputs whose gradients exist: none for an op that is declared without a gradient.
    ///
    /// # Errors
    /// The call executes no op of the entry's name.
    pub fn differentiable(&self) -> Outcome<Vec<usize>> {
        match self.gradient()? {
            Gradient::Backward | Gradient::Composite => Ok(self.watched()),
            Gradient::Zero | Gradient::None(_) => Ok(Vec::new()),
        }
    }

    /// The inputs of floats, whether their gradients are checked or not.
    pub fn floats(&self) -> Vec<usize> {
        (0..self.inputs.len()).filter(|&input| self.input_dtype(input).is_float()).collect()
    }

    /// The first input with a gradient, and another that is declared like it.
    ///
    /// # Errors
    /// The call executes no op of the entry's name.
    pub fn two_alike(&self) -> Outcome<Option<[usize; 2]>> {
        let watched = self.differentiable()?;
        let Some((&first, others)) = watched.split_first() else { return Ok(None) };
        let declared = &self.sample.inputs;
        let alike = |&&other: &&usize| {
            declared[other].shape == declared[first].shape && declared[other].values == declared[first].values
        };
        Ok(others.iter().find(alike).map(|&second| [first, second]))
    }

    /// Whether the call is a chain of elementwise ops from inputs of one shape to outputs of that shape.
    ///
    /// # Errors
    /// Those of the call.
    pub fn is_elementwise(&self) -> Outcome<bool> {
        let Some(first) = self.inputs.first() else { return Ok(false) };
        let cheap = |record: &StepRecord| record.is_cheap() && *record.shape == *first.shape;
        Ok(self.records()?.iter().all(cheap) && self.inputs.iter().all(|input| input.shape == first.shape))
    }

    /// Runs a part of a check on this case; a failure names op, sample and dtype.
    pub fn check<T>(&self, part: impl FnOnce(&Self) -> Outcome<T>) -> Outcome<T> {
        let place = |failure: Failure| {
            failure.at(format_args!("{}, sample `{}`, {}", self.op.name, self.sample.name, self.dtype))
        };
        guarded(|| part(self)).map_err(place)
    }
}

/// Runs a part of a check for every sample of an op that meets its needs, in every given dtype, each on a device of its own,
/// in whose pool nothing may be left. Without such a sample the check is ignored.
pub fn for_each_sample(
    op: &'static OpInfo,
    dtypes: &[DType],
    needs: &[Need],
    part: impl Fn(&Case<'_>) -> Outcome,
) -> Outcome<CheckOutcome> {
    let samples = (op.samples)();
    if samples.is_empty() {
        return Err(format!("{} has no samples", op.name).into());
    }
    let open = |values: Values| matches!(values, Values::Floats(..) | Values::Constants(..));
    let (mut fitting, mut unmet) = (Vec::new(), None);
    for sample in &samples {
        match unmet_need(&Case::new(op, sample, dtypes[0]), needs)? {
            None => fitting.push(sample),
            Some(need) => unmet = unmet.or(Some(need)),
        }
    }
    if let (true, Some(need)) = (fitting.is_empty(), unmet) {
        return Ok(CheckOutcome::Ignored(need.reason()));
    }
    let outcomes = fitting.into_iter().flat_map(|sample| {
        // Without an input of the dtype under test, all dtypes are the same case.
        let is_open = sample.inputs.iter().any(|input| open(input.values));
        let dtypes = if is_open { dtypes } else { &dtypes[..1] };
        let alone = |case: &Case<'_>| {
            let device = device_under_test();
            let there = device.enter();
            part(case)?;
            drop(there);
            nothing_left(&device)
        };
        dtypes.iter().map(|&dtype| Case::new(op, sample, dtype).check(alone)).collect::<Vec<_>>()
    });
    crate::outcome::all(outcomes).map(|()| CheckOutcome::Passed)
}

/// The first need that a sample does not meet.
fn unmet_need(case: &Case<'_>, needs: &[Need]) -> Outcome<Option<Need>> {
    case.check(|case| {
        let _there = device_under_test().enter();
        for &need in needs {
            if !need.is_met(case)? {
                return Ok(Some(need));
            }
        }
        Ok(None)
    })
}

/// A pool that nobody uses any more holds no block and no page.
///
/// # Errors
/// It does; the text lists the blocks.
pub fn nothing_left(device: &Device) -> Outcome {
    let stats = device.stats();
    stats.check()?;
    if stats.n_live == 0 && stats.committed == 0 {
        return Ok(());
    }
    Err(format!(
        "{} blocks and {} committed bytes are left on {device} when everything is dropped: {:?}",
        stats.n_live,
        stats.committed,
        device.snapshot().blocks()
    )
    .into())
}
