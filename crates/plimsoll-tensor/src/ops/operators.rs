//! `+`, `-`, `*` and `/` on tensors, variables and numbers: sugar for programs and examples, not used inside these crates.
//!
//! A tensor that is given by value is written over, if nobody else holds it; a variable never is. Operators cannot return errors, so they
//! panic with the text that the method of the same name returns; use the methods where that matters.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::base::error::Result;
use crate::eager::context;
use crate::eager::execute::Arg;
use crate::eager::tensor::Tensor;
use crate::eager::variable::Variable;
use crate::ops::binary::{self, Binary, binary_with};

/// The value, or a panic with the error's text at the user's line.
#[track_caller]
fn unwrap(result: Result<Tensor>) -> Tensor {
    match result {
        Ok(tensor) => tensor,
        Err(error) => panic!("{error}"),
    }
}

#[track_caller]
fn apply<B: Binary>(lhs: Arg<'_>, rhs: Arg<'_>) -> Tensor {
    unwrap(binary_with::<B>(lhs, rhs))
}

/// One operator for one pair of operands.
macro_rules! operator {
    ($trait:ident, $method:ident, $lhs:ty, $rhs:ty, |$a:ident, $b:ident| $body:expr) => {
        impl $trait<$rhs> for $lhs {
            type Output = Tensor;

            /// # Panics
            /// What the method of the same name refuses: shapes that do not broadcast, different dtypes, full memory.
            #[track_caller]
            fn $method(self, $b: $rhs) -> Tensor {
                let _line = context::at_callers_line();
                let $a = self;
                $body
            }
        }
    };
}

/// One operator for every pair of tensors, lent or given.
macro_rules! operator_of_tensors {
    ($trait:ident, $method:ident, $op:ty) => {
        operator!($trait, $method, &Tensor, &Tensor, |a, b| apply::<$op>(Arg::Lent(a), Arg::Lent(b)));
        operator!($trait, $method, Tensor, &Tensor, |a, b| apply::<$op>(Arg::Given(a), Arg::Lent(b)));
        operator!($trait, $method, &Tensor, Tensor, |a, b| apply::<$op>(Arg::Lent(a), Arg::Given(b)));
        operator!($trait, $method, Tensor, Tensor, |a, b| apply::<$op>(Arg::Given(a), Arg::Given(b)));
    };
}

/// One operator for every pair with a variable in it.
macro_rules! operator_of_variables {
    ($trait:ident, $method:ident, $op:ty) => {
        operator!($trait, $method, &Variable, &Variable, |a, b| apply::<$op>(Arg::Lent(a), Arg::Lent(b)));
        operator!($trait, $method, Variable, &Variable, |a, b| apply::<$op>(Arg::Lent(&a), Arg::Lent(b)));
        operator!($trait, $method, &Variable, Variable, |a, b| apply::<$op>(Arg::Lent(a), Arg::Lent(&b)));
        operator!($trait, $method, Variable, Variable, |a, b| apply::<$op>(Arg::Lent(&a), Arg::Lent(&b)));
        operator!($trait, $method, &Variable, &Tensor, |a, b| apply::<$op>(Arg::Lent(a), Arg::Lent(b)));
        operator!($trait, $method, Variable, &Tensor, |a, b| apply::<$op>(Arg::Lent(&a), Arg::Lent(b)));
        operator!($trait, $method, &Variable, Tensor, |a, b| apply::<$op>(Arg::Lent(a), Arg::Given(b)));
        operator!($trait, $method, Variable, Tensor, |a, b| apply::<$op>(Arg::Lent(&a), Arg::Given(b)));
        operator!($trait, $method, &Tensor, &Variable, |a, b| apply::<$op>(Arg::Lent(a), Arg::Lent(b)));
        operator!($trait, $method, &Tensor, Variable, |a, b| apply::<$op>(Arg::Lent(a), Arg::Lent(&b)));
        operator!($trait, $method, Tensor, &Variable, |a, b| apply::<$op>(Arg::Given(a), Arg::Lent(b)));
        operator!($trait, $method, Tensor, Variable, |a, b| apply::<$op>(Arg::Given(a), Arg::Lent(&b)));
        operator!($trait, $method, &Variable, f64, |a, b| $trait::$method(&**a, b));
        operator!($trait, $method, Variable, f64, |a, b| $trait::$method(&*a, b));
        operator!($trait, $method, f64, &Variable, |a, b| $trait::$method(a, &**b));
        operator!($trait, $method, f64, Variable, |a, b| $trait::$method(a, &*b));
    };
}

/// One operator for a tensor and a number, where it is an affine function of the tensor.
macro_rules! operator_of_numbers {
    ($trait:ident, $method:ident, |$number:ident| $right:expr, $left:expr) => {
        operator!($trait, $method, &Tensor, f64, |a, $number| {
            let (scale, shift) = $right;
            unwrap(a.affine(scale, shift))
        });
        operator!($trait, $method, Tensor, f64, |a, $number| {
            let (scale, shift) = $right;
            unwrap(a.into_affine(scale, shift))
        });
        operator!($trait, $method, f64, &Tensor, |$number, b| {
            let (scale, shift) = $left;
            unwrap(b.affine(scale, shift))
        });
        operator!($trait, $method, f64, Tensor, |$number, b| {
            let (scale, shift) = $left;
            unwrap(b.into_affine(scale, shift))
        });
    };
}

operator_of_tensors!(Add, add, binary::add::Add);
operator_of_tensors!(Sub, sub, binary::sub::Sub);
operator_of_tensors!(Mul, mul, binary::mul::Mul);
operator_of_tensors!(Div, div, binary::div::Div);

operator_of_variables!(Add, add, binary::add::Add);
operator_of_variables!(Sub, sub, binary::sub::Sub);
operator_of_variables!(Mul, mul, binary::mul::Mul);
operator_of_variables!(Div, div, binary::div::Div);

operator_of_numbers!(Add, add, |number| (1.0, number), (1.0, number));
operator_of_numbers!(Sub, sub, |number| (1.0, -number), (-1.0, number));
operator_of_numbers!(Mul, mul, |number| (number, 0.0), (number, 0.0));

operator!(Div, div, &Tensor, f64, |a, b| unwrap(a.div(b)));
operator!(Div, div, Tensor, f64, |a, b| {
    let divisor = unwrap(Tensor::full_like_scalar(&a, b));
    apply::<binary::div::Div>(Arg::Given(a), Arg::Lent(&divisor))
});
operator!(Div, div, f64, &Tensor, |a, b| {
    let dividend = unwrap(Tensor::full_like_scalar(b, a));
    apply::<binary::div::Div>(Arg::Lent(&dividend), Arg::Lent(b))
});
operator!(Div, div, f64, Tensor, |a, b| {
    let dividend = unwrap(Tensor::full_like_scalar(&b, a));
    apply::<binary::div::Div>(Arg::Lent(&dividend), Arg::Given(b))
});

impl Neg for &Tensor {
    type Output = Tensor;

    /// # Panics
    /// A tensor of truth values; memory that is full.
    #[track_caller]
    fn neg(self) -> Tensor {
        let _line = context::at_callers_line();
        unwrap(self.affine(-1.0, 0.0))
    }
}

impl Neg for Tensor {
    type Output = Tensor;

    /// # Panics
    /// A tensor of truth values; memory that is full.
    #[track_caller]
    fn neg(self) -> Tensor {
        let _line = context::at_callers_line();
        unwrap(self.into_affine(-1.0, 0.0))
    }
}

impl Neg for &Variable {
    type Output = Tensor;

    /// # Panics
    /// A variable of truth values; memory that is full.
    #[track_caller]
    fn neg(self) -> Tensor {
        -&**self
    }
}

impl Neg for Variable {
    type Output = Tensor;

    /// # Panics
    /// A variable of truth values; memory that is full.
    #[track_caller]
    fn neg(self) -> Tensor {
        -&*self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.to_vec().unwrap()
    }

    #[test]
    fn operators_compute_what_they_say() {
        let a = Tensor::from_vec(vec![1.0f32, 2.0]).unwrap();
        let b = Tensor::from_vec(vec![4.0f32, 0.5]).unwrap();
        assert_eq!(values(&(&a + &b)), [5.0, 2.5]);
        assert_eq!(values(&(a.clone() - &b)), [-3.0, 1.5]);
        assert_eq!(values(&(&a * b.clone())), [4.0, 1.0]);
        assert_eq!(values(&(a.clone() / b.clone())), [0.25, 4.0]);
        assert_eq!(values(&(&a + 1.0)), [2.0, 3.0]);
        assert_eq!(values(&(1.0 - &a)), [0.0, -1.0]);
        assert_eq!(values(&(&a - 1.0)), [0.0, 1.0]);
        assert_eq!(values(&(3.0 * &a * 2.0)), [6.0, 12.0]);
        assert_eq!(values(&(&a / 4.0 / 2.0)), [0.125, 0.25]);
        assert_eq!(values(&(2.0 / &a)), [2.0, 1.0]);
        assert_eq!(values(&(2.0 / a.clone())), [2.0, 1.0]);
        assert_eq!(values(&-(-&a)), [1.0, 2.0]);
    }

    #[test]
    fn a_variable_stands_wherever_a_tensor_does() {
        let tensor = Tensor::from_vec(vec![4.0f32, 0.5]).unwrap();
        let v = Variable::new(Tensor::from_vec(vec![1.0f32, 2.0]).unwrap());
        let w = Variable::new(tensor.clone());
        let sums = [
            &v + &w,
            v.clone() + &w,
            &v + w.clone(),
            v.clone() + w.clone(),
            &v + &tensor,
            v.clone() + &tensor,
            &v + tensor.clone(),
            v.clone() + tensor.clone(),
            &tensor + &v,
            &tensor + v.clone(),
            tensor.clone() + &v,
            tensor.clone() + v.clone(),
        ];
        assert!(sums.iter().all(|sum| values(sum) == [5.0, 2.5]));
        let with_numbers = [&v - 1.0, v.clone() - 1.0, -(1.0 - &v), -(1.0 - v.clone())];
        assert!(with_numbers.iter().all(|difference| values(difference) == [0.0, 1.0]));
        assert_eq!((values(&(&v * &w)), values(&(&v / &w))), (vec![4.0, 1.0], vec![0.25, 4.0]));
        assert_eq!((values(&(&v / 2.0)), values(&(2.0 / &v))), (vec![0.5, 1.0], vec![2.0, 1.0]));
        assert_eq!((values(&-&v), values(&-v.clone())), (vec![-1.0, -2.0], vec![-1.0, -2.0]));
        assert_eq!((values(&v), values(&w)), (vec![1.0, 2.0], vec![4.0, 0.5]));
    }

    #[test]
    fn a_tape_sees_the_variable_of_an_operator() {
        let v = Variable::new(Tensor::from_vec(vec![1.0f32, 2.0]).unwrap());
        let tape = crate::GradientTape::new();
        let loss = tape.record(|| (&v * &v + 3.0 * &v).sum(..)).unwrap();
        let [gradient] = tape.gradient(&loss, [&v]).unwrap();
        assert_eq!(values(&gradient), [5.0, 7.0]);
    }

    #[test]
    fn given_operands_are_written_over() {
        let a = Tensor::ones(1000).unwrap();
        let b = Tensor::ones(1000).unwrap();
        let address = a.storage().ptr();
        let sum = a + &b;
        assert_eq!(sum.storage().ptr(), address);
        assert_eq!((-(2.0 - sum * 3.0) / 2.0).storage().ptr(), address);
    }

    #[test]
    #[should_panic(expected = "add: shapes [2] and [3] do not broadcast")]
    fn operators_panic_with_the_text_of_the_method() {
        let _ = Tensor::zeros(2).unwrap() + Tensor::zeros(3).unwrap();
    }
}
