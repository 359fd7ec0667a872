//! A case: an op, one of its samples, the values of the inputs, and a float dtype.
//!
//! Values are drawn once per input, from the names of op and sample, so that a test that fails fails again, and a new op
//! does not change the inputs of the others.

use plimsoll_tensor::op::{Gradient, OpRef};
use plimsoll_tensor::ops::registry::{Array, Input, OpInfo, Sample, Values};
use plimsoll_tensor::{
    DType, Device, Element, Generator, GradientTape, Result, Step, StepRecord, Tensor, Unconnected,
};

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
    /// The gradients of a weighted sum of the float outputs (see [`weights`]), one per input that was watched.
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
            match records.iter().find(|record| record.op.name() == self.op.name) {
                Some(record) => return Ok(record.op.clone()),
                None => names = records.iter().map(|record| record.op.name()).collect(),
            }
        }
        Err(format!("the call executes {names:?}, and none of them is `{}`", self.op.name).into())
    }

    /// The inputs whose gradients exist: none for an op that is declared without a gradient.
    ///
    /// # Errors
    /// The call executes no op of the entry's name.
    pub fn differentiable(&self) -> Outcome<Vec<usize>> {
        match self.executed()?.gradient() {
            Gradient::Backward | Gradient::Composite => Ok(self.watched()),
            Gradient::Zero | Gradient::None(_) => Ok(Vec::new()),
        }
    }

    /// Runs a part of a check on this case; a failure names op, sample and dtype.
    pub fn check<T>(&self, part: impl FnOnce(&Self) -> Outcome<T>) -> Outcome<T> {
        let place = |failure: Failure| {
            failure.at(format_args!("{}, sample `{}`, {}", self.op.name, self.sample.name, self.dtype))
        };
        guarded(|| part(self)).map_err(place)
    }
}

/// Runs a part of a check for every sample of an op in every given dtype, each on a device of its own, in whose pool
/// nothing may be left.
pub fn for_each_sample(
    op: &'static OpInfo,
    dtypes: &[DType],
    part: impl Fn(&Case<'_>) -> Outcome,
) -> Outcome {
    let samples = (op.samples)();
    if samples.is_empty() {
        return Err(format!("{} has no samples", op.name).into());
    }
    let open = |values: Values| matches!(values, Values::Floats(..) | Values::Constants(..));
    let outcomes = samples.iter().flat_map(|sample| {
        // Without an input of the dtype under test, all dtypes are the same case.
        let is_open = sample.inputs.iter().any(|input| open(input.values));
        let dtypes = if is_open { dtypes } else { &dtypes[..1] };
        let alone = |case: &Case<'_>| {
            let device = Device::separate_cpu();
            let there = device.enter();
            part(case)?;
            drop(there);
            nothing_left(&device)
        };
        dtypes.iter().map(|&dtype| Case::new(op, sample, dtype).check(alone)).collect::<Vec<_>>()
    });
    crate::outcome::all(outcomes)
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

/// The dtype of an input.
pub fn dtype_of(values: Values, under_test: DType) -> DType {
    match values {
        Values::Floats(..) | Values::Constants(..) => under_test,
        Values::Indices(_) => DType::I64,
        Values::Truths => DType::Bool,
        Values::Of(dtype, ..) => dtype,
    }
}

/// Draws values for inputs.
pub fn draw_all(op: &OpInfo, sample: &str, inputs: &[Input], dtype: DType) -> Vec<Array> {
    let one = |(idx, input): (usize, &Input)| draw(&format!("{}/{sample}/{idx}", op.name), input, dtype);
    inputs.iter().enumerate().map(one).collect()
}

/// Draws the values of one input; they depend on the key alone, and are rounded to the dtype.
pub fn draw(key: &str, input: &Input, dtype: DType) -> Array {
    let mut uniform = Uniform::new(key);
    let n_elems = input.shape.iter().product();
    let dtype = dtype_of(input.values, dtype);
    let (low, high) = match input.values {
        Values::Floats(low, high) | Values::Constants(low, high) | Values::Of(_, low, high) => (low, high),
        Values::Indices(bound) => (0.0, bound as f64),
        Values::Truths => (0.0, 2.0),
    };
    let mut one = || {
        let value = low + (high - low) * uniform.next();
        round(if dtype.is_float() { value } else { value.floor() }, dtype)
    };
    Array::new(&input.shape, (0..n_elems).map(|_| one()).collect())
}

/// Numbers from zero to one that depend on a key: SplitMix64 over a hash of it.
pub struct Uniform(u64);

impl Uniform {
    /// The numbers of a key.
    pub fn new(key: &str) -> Uniform {
        Uniform(key.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        }))
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "the numbers do not end")]
    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Calls a generic expression with the Rust type of a dtype.
macro_rules! with_type {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F64 => with_type!(@ $T, f64, $body),
            DType::F32 => with_type!(@ $T, f32, $body),
            DType::F16 => with_type!(@ $T, half::f16, $body),
            DType::BF16 => with_type!(@ $T, half::bf16, $body),
            DType::I64 => with_type!(@ $T, i64, $body),
            DType::I32 => with_type!(@ $T, i32, $body),
            DType::U8 => with_type!(@ $T, u8, $body),
            DType::Bool => with_type!(@ $T, bool, $body),
        }
    };
    (@ $T:ident, $type:ty, $body:expr) => {{
        type $T = $type;
        $body
    }};
}

/// A number as its dtype holds it.
pub fn round(value: f64, dtype: DType) -> f64 {
    with_type!(dtype, T => <T as Element>::from_f64(value).to_f64())
}

/// An array as a contiguous tensor on the current device.
///
/// # Errors
/// Memory that is full.
pub fn tensor(array: &Array, dtype: DType) -> Result<Tensor> {
    with_type!(dtype, T => {
        let values: Vec<T> = array.values.iter().map(|&value| <T as Element>::from_f64(value)).collect();
        Tensor::from_slice(&values, array.shape.as_slice())
    })
}

/// The weight of an output's element: small numbers that every float dtype holds, with no sum in common.
pub fn weight(flat: usize) -> f64 {
    ((flat * 7 + 3) % 11) as f64 / 4.0 - 1.25
}

/// The weights of a float output's elements: the gradient that its backward begins with.
///
/// # Errors
/// Memory that is full.
pub fn weights(output: &Tensor) -> Result<Tensor> {
    let _there = output.device().enter();
    let values = (0..output.n_elems()).map(weight).collect();
    tensor(&Array::new(output.shape(), values), output.dtype())
}
