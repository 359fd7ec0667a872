//! Arguments that nobody means well with: extents whose product wraps, axes and strides out of range, every dtype, views of
//! every kind. What is drawn depends on a seed and a number alone, so that a call can be made twice: on a ghost, to learn
//! what it costs, and on the device.

use plimsoll_tensor::ops::registry::{Array, Input, Values};
use plimsoll_tensor::{DType, Result, Shape, Slice, Tensor};

use crate::draw::{dtype_of, tensor};
use crate::views::Arrangement;

/// Tensors with so many elements or fewer are made; larger ones are views that repeat a few.
const MOST_REAL: usize = 2048;

/// Extents that hurt. Those of a pair, such as the two after 2^32, multiply to something small modulo 2^64.
const EXTENTS: [usize; 22] = [
    0,
    1,
    1,
    64,
    4096,
    65_537,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    274_177,
    67_280_421_310_721,
    (1 << 32) + 1,
    641,
    6_700_417,
    1 << 40,
    (1 << 48) - 1,
    1 << 48,
    (1 << 48) + 1,
    1 << 61,
    (1 << 63) - 1,
    usize::MAX,
];

/// Extents that do not.
const SMALL: [usize; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33];

/// A source of arguments.
#[derive(Clone, Debug)]
pub struct Hostile(u64);

impl Hostile {
    /// The arguments of a call, by seed and number.
    pub fn new(seed: u64, number: u64) -> Hostile {
        let mut hostile = Hostile(seed ^ number.wrapping_mul(0xD134_2543_DE82_EF95));
        hostile.word();
        hostile
    }

    /// 64 bits: SplitMix64.
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.word() % n.max(1) as u64) as usize
    }

    /// One of a list.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// True in so many of a hundred cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Nothing, or what `f` draws.
    pub fn maybe<T>(&mut self, f: impl FnOnce(&mut Hostile) -> T) -> Option<T> {
        self.chance(50).then(|| f(self))
    }

    /// An extent that hurts.
    pub fn extent(&mut self) -> usize {
        self.pick(&EXTENTS)
    }

    /// A size, stride, padding or number of things: often sensible.
    pub fn count(&mut self) -> usize {
        match self.below(10) {
            0..6 => self.below(5),
            6..8 => self.pick(&SMALL),
            _ => self.extent(),
        }
    }

    /// An axis, position or shift: often sensible.
    pub fn signed(&mut self) -> isize {
        match self.below(10) {
            0..7 => self.below(9) as isize - 4,
            _ => {
                let extent = self.extent() as isize;
                let negated = if self.chance(50) { extent.wrapping_neg() } else { extent };
                self.pick(&[negated, isize::MIN, isize::MAX, -5, 8])
            }
        }
    }

    /// Several of them.
    pub fn list<T>(&mut self, f: impl Fn(&mut Hostile) -> T) -> Vec<T> {
        (0..self.below(5)).map(|_| f(self)).collect()
    }

    /// A number, also one that is none.
    pub fn number(&mut self) -> f64 {
        self.pick(&[
            0.0,
            -0.0,
            1.0,
            0.5,
            -1.0,
            2.5,
            1e300,
            -1e300,
            5e-324,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
        ])
    }

    /// A dtype.
    pub fn dtype(&mut self) -> DType {
        self.pick(&DType::ALL)
    }

    /// A float dtype, or rarely another.
    pub fn float(&mut self) -> DType {
        if self.chance(10) {
            self.dtype()
        } else {
            self.pick(&[DType::F32, DType::F32, DType::F64, DType::F16, DType::BF16])
        }
    }

    /// The extents of a shape: mostly small, with one or two that hurt.
    pub fn dims(&mut self) -> Vec<usize> {
        let rank = if self.chance(5) { self.below(10) } else { self.below(5) };
        let mut dims: Vec<usize> = (0..rank).map(|_| self.pick(&SMALL)).collect();
        for _ in 0..self.below(3) {
            if rank > 0 {
                dims[self.below(rank)] = self.extent();
            }
        }
        dims
    }

    /// What is taken of an axis.
    pub fn slice(&mut self) -> Slice {
        if self.chance(20) {
            return Slice::At(self.signed());
        }
        let (start, end) = (self.maybe(Hostile::signed), self.maybe(Hostile::signed));
        Slice::Range { start, end, step: if self.chance(50) { 1 } else { self.signed() } }
    }

    /// A tensor of floats, mostly.
    ///
    /// # Errors
    /// A shape that cannot be.
    pub fn tensor(&mut self) -> Result<Tensor> {
        let (dims, dtype) = (self.dims(), self.float());
        self.tensor_of(&dims, dtype)
    }

    /// A tensor of those extents.
    ///
    /// # Errors
    /// A shape that cannot be.
    pub fn tensor_of(&mut self, dims: &[usize], dtype: DType) -> Result<Tensor> {
        let range = if dtype.is_float() { (-2.0, 2.0) } else { (0.0, 3.0) };
        self.filled(dims, dtype, range)
    }

    /// Positions: mostly below `bound`.
    ///
    /// # Errors
    /// A shape that cannot be.
    pub fn indices(&mut self, dims: &[usize], bound: i64) -> Result<Tensor> {
        let dtype = self.pick(&[DType::I64, DType::I64, DType::I32]);
        self.filled(dims, dtype, (0.0, bound as f64))
    }

    /// The extents of a sample's inputs, changed: one extent that occurs in them becomes another wherever it occurs, so
    /// that they still fit each other, or any extent of one of them does, or an axis comes or goes.
    pub fn changed(&mut self, inputs: &[Input]) -> Vec<Vec<usize>> {
        let mut shapes: Vec<Vec<usize>> = inputs.iter().map(|input| input.shape.clone()).collect();
        for _ in 0..1 + self.below(2) {
            let known: Vec<usize> = shapes.concat();
            if known.is_empty() {
                break;
            }
            let (old, new) = (self.pick(&known), self.count());
            let alone = self.below(shapes.len());
            match self.below(10) {
                0..6 => shapes.iter_mut().flatten().filter(|dim| **dim == old).for_each(|dim| *dim = new),
                6..8 => {
                    let at = self.below(shapes[alone].len());
                    shapes[alone].get_mut(at).into_iter().for_each(|dim| *dim = new);
                }
                8 => shapes[alone].insert(0, new),
                _ => drop(shapes[alone].pop()),
            }
        }
        shapes
    }

    /// The inputs of a sample, of those extents and of a dtype under test or another.
    ///
    /// # Errors
    /// A shape that cannot be.
    pub fn inputs(&mut self, inputs: &[Input], shapes: &[Vec<usize>]) -> Result<Vec<Tensor>> {
        let under_test = if self.chance(20) { self.dtype() } else { self.float() };
        let one = |(input, dims): (&Input, &Vec<usize>)| {
            let dtype = if self.chance(4) { self.dtype() } else { dtype_of(input.values, under_test) };
            let range = match input.values {
                Values::Floats(low, high) | Values::Constants(low, high) | Values::Of(_, low, high) => {
                    (low, high)
                }
                Values::Indices(bound) => (0.0, bound as f64),
                Values::Truths => (0.0, 2.0),
            };
            self.filled(dims, dtype, range)
        };
        inputs.iter().zip(shapes).map(one).collect()
    }

    /// A tensor with values of a range and a few that are out of it, lying in memory in any way.
    fn filled(&mut self, dims: &[usize], dtype: DType, (low, high): (f64, f64)) -> Result<Tensor> {
        let n_elems = dims.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim)).unwrap_or(usize::MAX);
        if n_elems > MOST_REAL {
            return self.repeated(dims, dtype, (low, high));
        }
        let is_wild = self.chance(15);
        let value = |hostile: &mut Hostile| match is_wild && hostile.chance(30) {
            true => hostile.pick(&[-1.0, high, 255.0, -9.3e18, 9.3e18, f64::NAN, f64::INFINITY]),
            false => {
                let value = low + (high - low) * (hostile.word() >> 11) as f64 / (1u64 << 53) as f64;
                if dtype.is_float() { value } else { value.floor() }
            }
        };
        let array = Array::new(dims, (0..n_elems).map(|_| value(self)).collect());
        let arrangement = match self.chance(50) {
            true => Arrangement::Contiguous,
            false => self.pick(&Arrangement::OTHERS),
        };
        match n_elems > 0 && dims.len() <= 8 {
            true => arrangement.tensor(&arrangement.values(&array), dtype),
            false => tensor(&array, dtype),
        }
    }

    /// A view that repeats a few values to more elements than there could be memory for.
    fn repeated(&mut self, dims: &[usize], dtype: DType, range: (f64, f64)) -> Result<Tensor> {
        let shape = Shape::new(dims)?;
        let mut base = dims.to_vec();
        while let Some(largest) = (0..base.len()).max_by_key(|&axis| base[axis]) {
            if base.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim)).is_some_and(|n| n <= MOST_REAL) {
                break;
            }
            base[largest] = 1;
        }
        let base = self.filled(&base, dtype, range)?;
        base.broadcast_to(shape)
    }
}
