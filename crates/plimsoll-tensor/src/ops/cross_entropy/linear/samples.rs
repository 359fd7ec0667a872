//! The registry's entries of the op and of the one that scales its gradients.

use super::scale;
use crate::base::dtype::DType;
use crate::eager::execute::call;
use crate::eager::op::OpRef;
use crate::eager::tensor::Tensor;
use crate::ops::registry::{Array, OpInfo, Sample, Values, floats, input};

/// The registry's entry of the op.
pub(crate) const INFO: OpInfo = OpInfo {
    name: "linear_cross_entropy",
    doc: "The mean cross entropy of a linear function of rows and class indices, without its logits.",
    samples,
};

/// The registry's entry of the op that scales its gradients.
pub(crate) const SCALE_INFO: OpInfo = OpInfo {
    name: "scale_gradient",
    doc: "A gradient times a number of the accumulator's dtype.",
    samples: scale_samples,
};

fn reference(x: &[Array], by_class: bool, ignored: Option<i64>) -> Array {
    let k = x[0].shape[x[0].shape.len() - 1];
    let n_rows = x[0].values.len() / k;
    let n_classes = x[1].shape[usize::from(!by_class)];
    let weight = |at: usize, class: usize| x[1].at(&if by_class { [class, at] } else { [at, class] });
    let logit = |row: usize, class: usize| -> f64 {
        (0..k).map(|at| x[0].values[row * k + at] * weight(at, class)).sum()
    };
    let label = |row: usize| x[2].values[row];
    let counted: Vec<usize> =
        (0..n_rows).filter(|&row| ignored.is_none_or(|ignored| ignored as f64 != label(row))).collect();
    let loss = |row: usize| {
        let sum: f64 = (0..n_classes).map(|class| logit(row, class).exp()).sum();
        sum.ln() - logit(row, label(row) as usize)
    };
    Array::new(&[], vec![counted.iter().map(|&row| loss(row)).sum::<f64>() / counted.len() as f64])
}

fn samples() -> Vec<Sample> {
    let labels = |shape: &[usize]| input(shape, Values::Indices(5));
    let wrong = input(&[4], Values::Of(DType::I64, 5.0, 9.0));
    vec![
        Sample::new("rows", vec![floats(&[4, 3]), floats(&[3, 5]), labels(&[4])], |x| {
            x[0].linear_cross_entropy(&x[1], &x[2], None)
        })
        .reference(|x| reference(x, false, None))
        .torch("F.cross_entropy(x0 @ x1, x2)")
        .example("x0.linear_cross_entropy(&x1, &x2, None)")
        .refuses(vec![floats(&[4, 3]), floats(&[3, 5]), wrong], "is not one of the 5 classes")
        .refuses(vec![floats(&[4, 3]), floats(&[4, 5]), labels(&[4])], "weights of shape [4, 5]")
        .refuses(vec![floats(&[4, 3]), floats(&[3, 5]), labels(&[3])], "but labels are [3]"),
        Sample::new(
            "sequences against a table, one class ignored",
            vec![floats(&[2, 3, 4]), floats(&[5, 4]), labels(&[2, 3])],
            |x| x[0].linear_cross_entropy(&x[1].t()?, &x[2], Some(1)),
        )
        .reference(|x| reference(x, true, Some(1)))
        .torch("F.cross_entropy((x0 @ x1.T).movedim(-1, 1), x2, ignore_index=1)"),
    ]
}

fn scale_samples() -> Vec<Sample> {
    let call = |x: &[Tensor]| {
        let factor = x[1].cast(x[0].dtype().accumulator())?;
        call(OpRef::fixed(&scale::ScaleGradient), &[&x[0], &factor])
    };
    let sample = |name: &str, shape: &[usize]| {
        Sample::new(name, vec![floats(shape), floats(&[])], call)
            .reference(|x| x[0].map(|value| value * x[1].values[0]))
            .torch("x0 * x1")
    };
    vec![sample("a matrix", &[3, 4]), sample("a cube", &[2, 3, 2])]
}
