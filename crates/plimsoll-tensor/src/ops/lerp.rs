//! `lerp`: on the way from one tensor to another. Written with other ops; it is tested like them.

use crate::base::error::Result;
use crate::eager::context;
use crate::eager::tensor::Tensor;
use crate::ops::registry::{Array, OpInfo, Sample, floats};

impl Tensor {
    /// The point between this tensor and `end` that is `weight` of the way along: `self + weight (end - self)`. The
    /// shapes broadcast; a weight outside 0 to 1 goes beyond the ends.
    ///
    /// # Errors
    /// Shapes that do not broadcast, different dtypes; memory that is full.
    #[doc = example!("lerp")]
    #[track_caller]
    pub fn lerp(&self, end: &Tensor, weight: f64) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let way = end.sub(self)?.into_affine(weight, 0.0)?;
        way.into_add(self.clone())
    }
}

/// Functions made of ops.
pub const COMPOSED: &[&OpInfo] =
    &[&OpInfo { name: "lerp", doc: "The point between two tensors, by weight.", samples }];

fn samples() -> Vec<Sample> {
    let sample = |name: &str, from: &[usize], to: &[usize]| {
        Sample::new(name, vec![floats(from), floats(to)], |x| x[0].lerp(&x[1], 0.25))
            .reference(|x| Array::build(&[2, 3], |i| x[0].at(i) + 0.25 * (x[1].at(i) - x[0].at(i))))
            .example("x0.lerp(&x1, 0.25)")
    };
    vec![sample("equal shapes", &[2, 3], &[2, 3]), sample("row", &[2, 3], &[3])]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autograd::GradientTape;

    #[test]
    fn the_gradient_is_shared_by_weight() {
        let from = Tensor::from_vec(vec![1.0f64, -2.0]).unwrap();
        let to = Tensor::from_vec(vec![3.0f64, 2.0]).unwrap();
        let tape = GradientTape::new();
        tape.watch(&from).unwrap();
        tape.watch(&to).unwrap();
        let between = tape.record(|| from.lerp(&to, 0.25)).unwrap();
        assert_eq!(between.to_vec::<f64>().unwrap(), [1.5, -1.0]);
        let [start, end] = tape.gradient(&between, [&from, &to]).unwrap();
        assert_eq!(start.to_vec::<f64>().unwrap(), [0.75, 0.75]);
        assert_eq!(end.to_vec::<f64>().unwrap(), [0.25, 0.25]);
    }
}
