//! Constructors: tensors from nothing but attributes. They are ops, so a ghost makes them, too, and a record can
//! repeat them.

use plimsoll_cpu::element::CastTo;
use plimsoll_cpu::random::{self as kernels, Draw};
use plimsoll_cpu::truncated::truncated_normal;
use plimsoll_cpu::{copy, map};
use plimsoll_cuda::Gpu;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::{IntoShape, Shape};
use crate::eager::context;
use crate::eager::execute::execute;
use crate::eager::op::{Meta, Op, OpRef, Outputs, Run, one};
use crate::eager::random;
use crate::eager::tensor::Tensor;
use crate::ops::cuda::elementwise::{self, Elementwise};
use crate::ops::kernel::{dst, for_all, for_floats, for_numbers};
use crate::ops::registry::{Array, OpInfo, Sample};

/// How the elements of a new tensor are made.
#[derive(Clone, Copy, Debug)]
enum Fill {
    /// The same number everywhere.
    Value(f64),
    /// `start + step * i`.
    Range { start: f64, step: f64 },
    /// Ones where row and column agree.
    Eye,
    /// Evenly distributed between two numbers.
    Uniform { low: f64, high: f64, draw: Draw },
    /// Normally distributed.
    Normal { mean: f64, std: f64, draw: Draw },
    /// Normally distributed within two standard deviations.
    TruncatedNormal { mean: f64, std: f64, draw: Draw },
    /// Whole numbers from a range, the end left out.
    Integers { low: i64, high: i64, draw: Draw },
}

/// A new tensor.
#[derive(Debug)]
struct Create {
    shape: Shape,
    dtype: DType,
    fill: Fill,
}

impl Op for Create {
    fn name(&self) -> &'static str {
        match self.fill {
            Fill::Value(_) => "full",
            Fill::Range { .. } => "arange",
            Fill::Eye => "eye",
            Fill::Uniform { .. } => "uniform",
            Fill::Normal { .. } => "normal",
            Fill::TruncatedNormal { .. } => "truncated_normal",
            Fill::Integers { .. } => "integers",
        }
    }

    fn infer(&self, _inputs: &[&Meta]) -> Result<Outputs> {
        one(self.shape, self.dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let output = &run.outputs[0];
        let (len, ptr) = (output.n_elems(), output.ptr());
        // SAFETY: the output is a fresh block of `len` elements of the dtype that each arm names.
        unsafe {
            match self.fill {
                Fill::Value(value) => for_all!(self.dtype, T => {
                    copy::fill::<T>(output.shape(), dst(output), <T as crate::base::dtype::Element>::from_f64(value));
                }),
                Fill::Range { start, step } => for_numbers!(self.dtype, T => {
                    map::generate::<T>(len, ptr.cast(), |first, tile| {
                        for (idx, value) in tile.iter_mut().enumerate() {
                            *value = (start + step * (first + idx) as f64).cast();
                        }
                    });
                }),
                Fill::Eye => for_numbers!(self.dtype, T => {
                    let width = self.shape[1];
                    map::generate::<T>(len, ptr.cast(), |first, tile| {
                        for (idx, value) in tile.iter_mut().enumerate() {
                            let at = first + idx;
                            *value = (at / width == at % width).cast();
                        }
                    });
                }),
                Fill::Uniform { low, high, draw } => for_floats!(self.dtype, T => {
                    kernels::uniform::<T>(len, ptr.cast(), draw, low.cast(), high.cast());
                }),
                Fill::Normal { mean, std, draw } => for_floats!(self.dtype, T => {
                    kernels::normal::<T>(len, ptr.cast(), draw, mean.cast(), std.cast());
                }),
                Fill::TruncatedNormal { mean, std, draw } => for_floats!(self.dtype, T => {
                    truncated_normal::<T>(len, ptr.cast(), draw, mean, std);
                }),
                Fill::Integers { low, high, draw } => for_numbers!(self.dtype, T => {
                    kernels::integers::<T>(len, ptr.cast(), draw, low, high);
                }),
            }
        }
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let output = &run.outputs[0];
        let drawn = |draw: Draw| [draw.seed, draw.number, 0, 0];
        let (numbers, words, body) = match self.fill {
            Fill::Value(value) => return elementwise::fill(self.name(), gpu, output, value),
            Fill::Range { start, step } => {
                ([start, step], [0; 4], "cast<C>(numbers.numbers[0] + numbers.numbers[1] * (double)index)")
            }
            Fill::Eye => ([0.0; 2], [self.shape[1] as u64, 0, 0, 0], "index / WORD(0) == index % WORD(0)"),
            Fill::Uniform { low, high, draw } => {
                // The width in the dtype's own steps, as on the host.
                let span =
                    if self.dtype == DType::F64 { high - low } else { f64::from(high as f32 - low as f32) };
                ([low, span], drawn(draw), "NUMBER(0) + NUMBER(1) * unit(C(0), WORD(0), WORD(1), index)")
            }
            Fill::Normal { mean, std, draw } => {
                ([mean, std], drawn(draw), "normal<C>(WORD(0), WORD(1), index, NUMBER(0), NUMBER(1))")
            }
            Fill::TruncatedNormal { mean, std, draw } => (
                [mean, std],
                drawn(draw),
                "(C)(numbers.numbers[0] + numbers.numbers[1] * truncated<C>(WORD(0), WORD(1), index))",
            ),
            Fill::Integers { low, high, draw } => (
                [0.0; 2],
                [draw.seed, draw.number, low as u64, high.wrapping_sub(low) as u64],
                "cast<C>(whole(WORD(0), WORD(1), index, WORD(2), WORD(3)))",
            ),
        };
        let kernel = Elementwise {
            op: self.name(),
            inputs: &[],
            outputs: &[output],
            numbers: &numbers,
            words: &words,
            variant: 0,
        };
        kernel.run_with(gpu, include_str!("create.cu"), || format!("y0 = {body};"))
    }

    fn with_draw(&self, next: &dyn Fn(Draw) -> Draw) -> Option<OpRef> {
        let mut fill = self.fill;
        match &mut fill {
            Fill::Value(_) | Fill::Range { .. } | Fill::Eye => return None,
            Fill::Uniform { draw, .. }
            | Fill::Normal { draw, .. }
            | Fill::TruncatedNormal { draw, .. }
            | Fill::Integers { draw, .. } => *draw = next(*draw),
        }
        Some(OpRef::shipped(Create { fill, ..*self }))
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

fn create(shape: Shape, dtype: DType, fill: Fill) -> Result<Tensor> {
    let create = Create { shape, dtype, fill };
    let name = create.name();
    match (dtype, fill) {
        (DType::Bool, Fill::Value(_)) => {}
        (DType::Bool, _) => {
            return Err(Error::dtype(name, "makes numbers, not bool; compare or `cast` them"));
        }
        (dtype, Fill::Uniform { .. } | Fill::Normal { .. } | Fill::TruncatedNormal { .. })
            if !dtype.is_float() =>
        {
            return Err(Error::dtype(
                name,
                format!("makes floats, not {dtype}; use `randint` for whole numbers"),
            ));
        }
        _ => {}
    }
    Ok(execute(OpRef::shipped(create), smallvec::SmallVec::new())?.remove(0))
}

impl Tensor {
    /// A tensor of one number, of that dtype, on the current device.
    ///
    /// # Errors
    /// A shape out of bounds; memory that is full.
    #[doc = example!("full_of")]
    #[doc(alias("full", "fill"))]
    #[track_caller]
    pub fn full_of(shape: impl IntoShape, value: f64, dtype: DType) -> Result<Tensor> {
        let _line = context::at_callers_line();
        create(shape.into_shape()?, dtype, Fill::Value(value))
    }

    /// A float32 tensor of one number, on the current device.
    ///
    /// # Errors
    /// A shape out of bounds; memory that is full.
    #[doc = example!("full")]
    #[doc(alias("fill", "constant"))]
    #[track_caller]
    pub fn full(shape: impl IntoShape, value: f64) -> Result<Tensor> {
        Tensor::full_of(shape, value, DType::F32)
    }

    /// A float32 tensor of zeros.
    ///
    /// # Errors
    /// A shape out of bounds; memory that is full.
    #[doc = example!("zeros")]
    #[track_caller]
    pub fn zeros(shape: impl IntoShape) -> Result<Tensor> {
        Tensor::full_of(shape, 0.0, DType::F32)
    }

    /// A tensor of zeros of that dtype.
    ///
    /// # Errors
    /// A shape out of bounds; memory that is full.
    #[doc = example!("zeros_of")]
    #[doc(alias = "zeros")]
    #[track_caller]
    pub fn zeros_of(shape: impl IntoShape, dtype: DType) -> Result<Tensor> {
        Tensor::full_of(shape, 0.0, dtype)
    }

    /// A float32 tensor of ones.
    ///
    /// # Errors
    /// A shape out of bounds; memory that is full.
    #[doc = example!("ones")]
    #[track_caller]
    pub fn ones(shape: impl IntoShape) -> Result<Tensor> {
        Tensor::full_of(shape, 1.0, DType::F32)
    }

    /// A tensor of ones of that dtype.
    ///
    /// # Errors
    /// A shape out of bounds; memory that is full.
    #[doc = example!("ones_of")]
    #[doc(alias = "ones")]
    #[track_caller]
    pub fn ones_of(shape: impl IntoShape, dtype: DType) -> Result<Tensor> {
        Tensor::full_of(shape, 1.0, dtype)
    }

    /// Zeros of this tensor's shape and dtype, on its device.
    ///
    /// # Errors
    /// Memory that is full.
    #[track_caller]
    pub fn zeros_like(&self) -> Result<Tensor> {
        self.full_like(0.0)
    }

    /// Ones of this tensor's shape and dtype, on its device.
    ///
    /// # Errors
    /// Memory that is full.
    #[track_caller]
    pub fn ones_like(&self) -> Result<Tensor> {
        self.full_like(1.0)
    }

    /// One number in this tensor's shape and dtype, on its device.
    ///
    /// # Errors
    /// Memory that is full.
    #[track_caller]
    pub fn full_like(&self, value: f64) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let _here = self.device().enter();
        create(*self.shape(), self.dtype(), Fill::Value(value))
    }

    /// One number of a tensor's dtype, repeated to its shape without taking memory for more than one.
    pub(crate) fn full_like_scalar(like: &Tensor, value: f64) -> Result<Tensor> {
        let _here = like.device().enter();
        create(Shape::SCALAR, like.dtype(), Fill::Value(value))?.broadcast_to(*like.shape())
    }

    /// The float32 identity matrix of `n` rows.
    ///
    /// # Errors
    /// A shape out of bounds; memory that is full.
    #[doc = example!("eye")]
    #[doc(alias = "identity")]
    #[track_caller]
    pub fn eye(n: usize) -> Result<Tensor> {
        let _line = context::at_callers_line();
        create([n, n].into_shape()?, DType::F32, Fill::Eye)
    }

    /// The numbers from `start` to before `end`, `step` apart, of that dtype.
    ///
    /// # Errors
    /// A step of zero or away from the end; memory that is full.
    #[doc = example!("arange_of")]
    #[doc(alias("arange", "range"))]
    #[track_caller]
    pub fn arange_of(start: f64, end: f64, step: f64, dtype: DType) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let n = ((end - start) / step).ceil();
        if !n.is_finite() || n < 0.0 {
            return Err(Error::argument(
                "arange",
                format!("no numbers from {start} to {end} in steps of {step}"),
            ));
        }
        create((n as usize).into_shape()?, dtype, Fill::Range { start, step })
    }

    /// The float32 numbers from zero to before `n`.
    ///
    /// # Errors
    /// Memory that is full.
    #[doc = example!("arange")]
    #[doc(alias = "range")]
    #[track_caller]
    pub fn arange(n: usize) -> Result<Tensor> {
        Tensor::arange_of(0.0, n as f64, 1.0, DType::F32)
    }

    /// `n` float32 numbers from `start` to `end`, both included, at even distances.
    ///
    /// # Errors
    /// Memory that is full.
    #[doc = example!("linspace")]
    #[track_caller]
    pub fn linspace(start: f64, end: f64, n: usize) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let step = if n > 1 { (end - start) / (n - 1) as f64 } else { 0.0 };
        create(n.into_shape()?, DType::F32, Fill::Range { start, step })
    }

    /// Float32 numbers with mean zero and standard deviation one, normally distributed.
    ///
    /// # Errors
    /// A shape out of bounds; memory that is full.
    #[doc = example!("randn")]
    #[doc(alias("random_normal", "standard_normal"))]
    #[track_caller]
    pub fn randn(shape: impl IntoShape) -> Result<Tensor> {
        Tensor::normal(shape, 0.0, 1.0, DType::F32)
    }

    /// Normally distributed numbers.
    ///
    /// # Errors
    /// A shape out of bounds, a dtype that is no float; memory that is full.
    #[doc = example!("normal")]
    #[doc(alias = "random_normal")]
    #[track_caller]
    pub fn normal(shape: impl IntoShape, mean: f64, std: f64, dtype: DType) -> Result<Tensor> {
        let _line = context::at_callers_line();
        create(shape.into_shape()?, dtype, Fill::Normal { mean, std, draw: random::draw() })
    }

    /// Normally distributed numbers within two standard deviations of the mean.
    ///
    /// # Errors
    /// A shape out of bounds, a dtype that is no float; memory that is full.
    #[doc = example!("truncated_normal")]
    #[doc(alias = "trunc_normal")]
    #[track_caller]
    pub fn truncated_normal(shape: impl IntoShape, mean: f64, std: f64, dtype: DType) -> Result<Tensor> {
        let _line = context::at_callers_line();
        create(shape.into_shape()?, dtype, Fill::TruncatedNormal { mean, std, draw: random::draw() })
    }

    /// Numbers evenly distributed from `low` to before `high`.
    ///
    /// # Errors
    /// A shape out of bounds, a dtype that is no float; memory that is full.
    #[doc = example!("uniform")]
    #[doc(alias("rand", "random_uniform"))]
    #[track_caller]
    pub fn uniform(shape: impl IntoShape, low: f64, high: f64, dtype: DType) -> Result<Tensor> {
        let _line = context::at_callers_line();
        create(shape.into_shape()?, dtype, Fill::Uniform { low, high, draw: random::draw() })
    }

    /// Whole numbers evenly distributed from `low` to before `high`.
    ///
    /// # Errors
    /// An empty range, a shape out of bounds; memory that is full.
    #[doc = example!("randint")]
    #[doc(alias = "random_integers")]
    #[track_caller]
    pub fn randint(shape: impl IntoShape, low: i64, high: i64, dtype: DType) -> Result<Tensor> {
        let _line = context::at_callers_line();
        if low >= high {
            return Err(Error::argument("randint", format!("no whole numbers from {low} to before {high}")));
        }
        create(shape.into_shape()?, dtype, Fill::Integers { low, high, draw: random::draw() })
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo { name: "full", doc: "One number everywhere.", samples: full_samples },
    &OpInfo { name: "arange", doc: "Numbers at even distances.", samples: arange_samples },
    &OpInfo { name: "eye", doc: "The identity matrix.", samples: eye_samples },
    &OpInfo { name: "uniform", doc: "Evenly distributed numbers.", samples: uniform_samples },
    &OpInfo { name: "normal", doc: "Normally distributed numbers.", samples: normal_samples },
    &OpInfo {
        name: "truncated_normal",
        doc: "Normal numbers within two deviations.",
        samples: truncated_samples,
    },
    &OpInfo { name: "integers", doc: "Evenly distributed whole numbers.", samples: integer_samples },
];

fn full_samples() -> Vec<Sample> {
    vec![
        Sample::new("matrix", vec![], |_| Tensor::full([2, 3], 1.5))
            .reference(|_| Array::new(&[2, 3], vec![1.5; 6]))
            .torch("torch.full((2, 3), 1.5)")
            .example("Tensor::full([2, 3], 1.5)"),
        Sample::new("zeros", vec![], |_| Tensor::zeros([2, 3]))
            .reference(|_| Array::new(&[2, 3], vec![0.0; 6]))
            .example("Tensor::zeros([2, 3])"),
        Sample::new("ones", vec![], |_| Tensor::ones([2, 3]))
            .reference(|_| Array::new(&[2, 3], vec![1.0; 6]))
            .example("Tensor::ones([2, 3])"),
        Sample::new("whole zeros", vec![], |_| Tensor::zeros_of([4], DType::I64))
            .reference(|_| Array::new(&[4], vec![0.0; 4]))
            .example("Tensor::zeros_of([4], DType::I64)"),
        Sample::new("whole ones", vec![], |_| Tensor::ones_of([4], DType::I32))
            .reference(|_| Array::new(&[4], vec![1.0; 4]))
            .example("Tensor::ones_of([4], DType::I32)"),
        Sample::new("whole numbers", vec![], |_| Tensor::full_of([4], 7.0, DType::U8))
            .reference(|_| Array::new(&[4], vec![7.0; 4]))
            .example("Tensor::full_of([4], 7.0, DType::U8)"),
    ]
}

fn arange_samples() -> Vec<Sample> {
    vec![
        Sample::new("steps", vec![], |_| Tensor::arange_of(1.0, 4.0, 0.5, DType::F32))
            .reference(|_| Array::new(&[6], vec![1.0, 1.5, 2.0, 2.5, 3.0, 3.5]))
            .torch("torch.arange(1.0, 4.0, 0.5)")
            .example("Tensor::arange_of(1.0, 4.0, 0.5, DType::F32)"),
        Sample::new("linspace", vec![], |_| Tensor::linspace(-1.0, 1.0, 5))
            .reference(|_| Array::new(&[5], vec![-1.0, -0.5, 0.0, 0.5, 1.0]))
            .torch("torch.linspace(-1.0, 1.0, 5)")
            .example("Tensor::linspace(-1.0, 1.0, 5)"),
        Sample::new("counted", vec![], |_| Tensor::arange(5))
            .reference(|_| Array::new(&[5], vec![0.0, 1.0, 2.0, 3.0, 4.0]))
            .example("Tensor::arange(5)"),
    ]
}

fn eye_samples() -> Vec<Sample> {
    let identity = |_: &[Array]| Array::build(&[3, 3], |i| f64::from(i[0] == i[1]));
    vec![
        Sample::new("three", vec![], |_| Tensor::eye(3))
            .reference(identity)
            .torch("torch.eye(3)")
            .example("Tensor::eye(3)"),
    ]
}

fn uniform_samples() -> Vec<Sample> {
    vec![
        Sample::new("matrix", vec![], |_| Tensor::uniform([7, 3], -1.0, 1.0, DType::F32))
            .example("set_seed(7); Tensor::uniform([7, 3], -1.0, 1.0, DType::F32)"),
    ]
}

fn normal_samples() -> Vec<Sample> {
    vec![
        Sample::new("matrix", vec![], |_| Tensor::normal([7, 3], 1.0, 2.0, DType::F32))
            .example("set_seed(7); Tensor::normal([7, 3], 1.0, 2.0, DType::F32)"),
        Sample::new("standard", vec![], |_| Tensor::randn([2, 3]))
            .example("set_seed(7); Tensor::randn([2, 3])"),
    ]
}

fn truncated_samples() -> Vec<Sample> {
    vec![
        Sample::new("matrix", vec![], |_| Tensor::truncated_normal([7, 3], 1.0, 2.0, DType::F32))
            .example("set_seed(7); Tensor::truncated_normal([7, 3], 1.0, 2.0, DType::F32)"),
    ]
}

fn integer_samples() -> Vec<Sample> {
    vec![
        Sample::new("vector", vec![], |_| Tensor::randint([9], -3, 4, DType::I64))
            .example("set_seed(7); Tensor::randint([9], -3, 4, DType::I64)"),
    ]
}
