//! The registry: the one list of ops, and what each brings for the tests and documents that are made from it.
//!
//! An op's file describes it once: what it computes (`Op`), how users call it (a method of `Tensor`), and, here,
//! samples: inputs, the same function as plain loops in f64, and PyTorch's expression for it. The test kit makes
//! every test of the suite from them, so an op that is in the list is tested, and one that is not does not exist.
//!
//! Nothing at run time asks the list. It is there where tests and documents are made (feature `testing`), and a program that
//! trains has neither the samples nor the time that compiling them takes.

use std::fmt;

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// One op of the registry. Ops state theirs as constants: a static would be compiled, and its samples with it, whether or not
/// anybody asks for the list.
pub struct OpInfo {
    /// The name that [`Op::name`](crate::Op::name) gives.
    pub name: &'static str,
    /// One sentence for the documents.
    pub doc: &'static str,
    /// Calls to test it with.
    pub samples: fn() -> Vec<Sample>,
}

impl fmt::Debug for OpInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpInfo({})", self.name)
    }
}

/// Every op, family by family.
#[cfg(any(test, feature = "testing"))]
pub fn registry() -> Vec<&'static OpInfo> {
    super::ALL.iter().flat_map(|family| family.iter().copied()).collect()
}

/// Functions that are made of ops and have no record of their own. They pass the same tests.
#[cfg(any(test, feature = "testing"))]
pub fn composed() -> Vec<&'static OpInfo> {
    super::COMPOSED.iter().flat_map(|family| family.iter().copied()).collect()
}

/// A function of tensors, called as a user would.
pub type Call = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// The same function as plain loops over f64.
pub type Reference = Box<dyn Fn(&[Array]) -> Vec<Array> + Send + Sync>;

/// One way to call an op.
pub struct Sample {
    /// What is special about it; part of the test's name.
    pub name: String,
    /// Inputs to draw.
    pub inputs: Vec<Input>,
    /// The call.
    pub call: Call,
    /// The independent reference; none for an op whose values are random or that a test of its own checks.
    pub reference: Option<Reference>,
    /// PyTorch's expression over `x0`, `x1`, ...; none where PyTorch has no such op.
    pub torch: Option<String>,
    /// How a user writes the call over `x0`, `x1`, ..., for the documents: an expression, or a `let` that names the results,
    /// after any statements that it needs. The first that a method has becomes the example in its docs.
    pub example: Option<String>,
    /// Calls that must fail, with a part of the text that the error must have.
    pub refuses: Vec<(Vec<Input>, &'static str)>,
    /// Whether the second derivative is checked, too.
    pub second_order: bool,
}

/// An input of a sample.
#[derive(Clone, Debug)]
pub struct Input {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its values.
    pub values: Values,
}

/// The values of a sample's input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// Floats of the dtype under test, drawn evenly from a range.
    Floats(f64, f64),
    /// As `Floats`, but no gradient is asked for.
    Constants(f64, f64),
    /// Whole numbers from zero up to a bound.
    Indices(i64),
    /// Truth values.
    Truths,
    /// Numbers of a given dtype, drawn from a range; no gradient is asked for.
    Of(DType, f64, f64),
}

impl Sample {
    /// A sample of a call with one output.
    pub fn new(
        name: impl Into<String>,
        inputs: Vec<Input>,
        call: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Sample {
        Sample::many(name, inputs, move |x| Ok(vec![call(x)?]))
    }

    /// A sample of a call with several outputs.
    pub fn many(
        name: impl Into<String>,
        inputs: Vec<Input>,
        call: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    ) -> Sample {
        Sample {
            name: name.into(),
            inputs,
            call: Box::new(call),
            reference: None,
            torch: None,
            example: None,
            refuses: Vec::new(),
            second_order: true,
        }
    }

    /// With plain loops over f64 as its reference.
    pub fn reference(mut self, f: impl Fn(&[Array]) -> Array + Send + Sync + 'static) -> Sample {
        self.reference = Some(Box::new(move |x| vec![f(x)]));
        self
    }

    /// With plain loops over f64 as its reference, for several outputs.
    pub fn references(mut self, f: impl Fn(&[Array]) -> Vec<Array> + Send + Sync + 'static) -> Sample {
        self.reference = Some(Box::new(f));
        self
    }

    /// With PyTorch's expression.
    pub fn torch(mut self, expression: impl Into<String>) -> Sample {
        self.torch = Some(expression.into());
        self
    }

    /// With the way in which a user writes the call.
    pub fn example(mut self, call: impl Into<String>) -> Sample {
        self.example = Some(call.into());
        self
    }

    /// With inputs that must be refused.
    pub fn refuses(mut self, inputs: Vec<Input>, text: &'static str) -> Sample {
        self.refuses.push((inputs, text));
        self
    }

    /// Without the check of the second derivative.
    pub fn first_order(mut self) -> Sample {
        self.second_order = false;
        self
    }
}

/// Floats between -2 and 2, whose gradients are checked.
pub fn floats(shape: &[usize]) -> Input {
    within(shape, -2.0, 2.0)
}

/// Floats of a range, whose gradients are checked.
pub fn within(shape: &[usize], low: f64, high: f64) -> Input {
    Input { shape: shape.to_vec(), values: Values::Floats(low, high) }
}

/// An input with other values.
pub fn input(shape: &[usize], values: Values) -> Input {
    Input { shape: shape.to_vec(), values }
}

/// A plain array of f64, row-major, for references.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// The extents.
    pub shape: Vec<usize>,
    /// The values in row-major order.
    pub values: Vec<f64>,
}

impl Array {
    /// An array from its parts.
    pub fn new(shape: &[usize], values: Vec<f64>) -> Array {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "as many values as the shape says");
        Array { shape: shape.to_vec(), values }
    }

    /// An array made index by index.
    pub fn build(shape: &[usize], mut f: impl FnMut(&[usize]) -> f64) -> Array {
        let mut index = vec![0; shape.len()];
        let mut values = Vec::new();
        for flat in 0..shape.iter().product() {
            let mut rest: usize = flat;
            for axis in (0..shape.len()).rev() {
                index[axis] = rest % shape[axis];
                rest /= shape[axis];
            }
            values.push(f(&index));
        }
        Array { shape: shape.to_vec(), values }
    }

    /// The value at an index; extents of one repeat and missing leading axes are skipped, as in broadcasting.
    pub fn at(&self, index: &[usize]) -> f64 {
        let skip = index.len() - self.shape.len();
        let flat = self
            .shape
            .iter()
            .zip(&index[skip..])
            .fold(0, |flat, (&dim, &idx)| flat * dim + if dim == 1 { 0 } else { idx });
        self.values[flat]
    }

    /// A function of each value.
    pub fn map(&self, f: impl Fn(f64) -> f64) -> Array {
        Array { shape: self.shape.clone(), values: self.values.iter().map(|&x| f(x)).collect() }
    }
}
