//! `einsum`: sums of products over named axes, as numpy writes them.
//!
//! It is made of views, products and sums, so that its derivatives are theirs. Operands are multiplied from left to
//! right, each pair as one matrix product over the axes that neither a later operand nor the result has: nothing of the
//! size of all indices together is ever made. Axes are permuted as views; a copy is made only where axes that do not lie
//! together must become one. Which order of products is the cheapest is the caller's choice: it is the order of the
//! operands.

mod spec;

use self::spec::{Label, Spec};
use crate::base::axes::Axes;
use crate::base::error::{Error, Result};
use crate::base::shape::MAX_RANK;
use crate::eager::context;
use crate::eager::tensor::Tensor;
use crate::ops::registry::{Array, OpInfo, Sample, Values, floats, input};

/// A tensor whose axes have names, each once.
struct Named {
    tensor: Tensor,
    labels: Vec<Label>,
}

impl Named {
    /// An operand: axes with one name become their diagonal, and axes of extent one that stand for many are dropped.
    fn operand(tensor: &Tensor, labels: &[Label], spec: &Spec) -> Result<Named> {
        let mut named = Named { tensor: tensor.clone(), labels: labels.to_vec() };
        while let Some((first, second)) = named.twice() {
            named.tensor = named.tensor.diagonal(first as isize, second as isize)?;
            let label = named.labels.remove(second);
            named.labels.remove(first);
            named.labels.push(label);
        }
        let is_stretched = |named: &Named, axis: usize| {
            named.tensor.shape()[axis] == 1 && spec.extent(named.labels[axis]) != 1
        };
        while let Some(axis) = (0..named.labels.len()).find(|&axis| is_stretched(&named, axis)) {
            named.tensor = named.tensor.squeeze(axis)?;
            named.labels.remove(axis);
        }
        Ok(named)
    }

    /// Two axes of one name.
    fn twice(&self) -> Option<(usize, usize)> {
        (0..self.labels.len()).find_map(|second| {
            let first = self.labels[..second].iter().position(|&label| label == self.labels[second])?;
            Some((first, second))
        })
    }

    /// The sum over the axes whose names are not wanted.
    fn summed(self, is_wanted: impl Fn(Label) -> bool) -> Result<Named> {
        let axes = Axes::of((0..self.labels.len()).filter(|&axis| !is_wanted(self.labels[axis])));
        if axes.is_empty() {
            return Ok(self);
        }
        let labels = self.labels.into_iter().filter(|&label| is_wanted(label)).collect();
        Ok(Named { tensor: self.tensor.sum(axes)?, labels })
    }

    /// The axes in the order of the names, which are this tensor's.
    fn permuted(&self, labels: &[Label]) -> Result<Tensor> {
        let place = |label: &Label| self.labels.iter().position(|known| known == label);
        let axes: Vec<usize> = labels.iter().filter_map(place).collect();
        if axes.iter().enumerate().all(|(to, &from)| to == from) {
            return Ok(self.tensor.clone());
        }
        self.tensor.permute(axes)
    }

    /// The product with another tensor, summed over the names that both have and that are not wanted. Names that one of
    /// them has alone are wanted.
    fn times(&self, rhs: &Named, is_wanted: impl Fn(Label) -> bool, spec: &Spec) -> Result<Named> {
        let shared = |label: &&Label| rhs.labels.contains(label);
        let (both, lhs_only): (Vec<Label>, Vec<Label>) = self.labels.iter().partition(|label| shared(label));
        let (batch, contracted): (Vec<Label>, Vec<Label>) = both.iter().partition(|&&label| is_wanted(label));
        let rhs_only: Vec<Label> = rhs.labels.iter().copied().filter(|label| !both.contains(label)).collect();
        let labels = [batch.as_slice(), &lhs_only, &rhs_only].concat();
        let extents = |labels: &[Label]| labels.iter().map(|&label| spec.extent(label)).collect::<Vec<_>>();
        let joined = |labels: &[Label]| extents(labels).iter().product::<usize>();
        // A matrix product takes several axes of batches where they lie; only more than it can have become one.
        let batches = match batch.len() > MAX_RANK - 2 {
            true => vec![joined(&batch)],
            false => extents(&batch),
        };
        let lhs = self.permuted(&[batch.as_slice(), &lhs_only, &contracted].concat())?;
        let tensor = if contracted.is_empty() {
            let ones = vec![1; rhs_only.len()];
            let lhs = lhs.reshape([extents(&batch), extents(&lhs_only), ones].concat())?;
            let ones = vec![1; lhs_only.len()];
            let rhs = rhs.permuted(&[batch.as_slice(), &rhs_only].concat())?;
            lhs.mul(&rhs.reshape([extents(&batch), ones, extents(&rhs_only)].concat())?)?
        } else {
            let lhs =
                lhs.reshape([batches.as_slice(), &[joined(&lhs_only), joined(&contracted)]].concat())?;
            let rhs = rhs.permuted(&[batch.as_slice(), &contracted, &rhs_only].concat())?;
            let rhs =
                rhs.reshape([batches.as_slice(), &[joined(&contracted), joined(&rhs_only)]].concat())?;
            lhs.matmul(&rhs)?.reshape(extents(&labels))?
        };
        Ok(Named { tensor, labels })
    }
}

impl Tensor {
    /// The sum of products that a specification says, as numpy's `einsum`: a letter for each axis of each operand, then
    /// those of the result; what the result does not have is summed over. `"ij,jk->ik"` is a matrix product,
    /// `"bhid,bhjd->bhij"` attention's scores, `"ii->i"` a diagonal, `"...ij->...ji"` a transpose of the last axes. Without
    /// `->` the result has the letters that occur once, in the order of the alphabet.
    ///
    /// ```
    /// # use plimsoll_tensor::Tensor;
    /// # fn main() -> plimsoll_tensor::Result<()> {
    /// let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// let b = Tensor::from_slice(&[10.0f32, 100.0], 2)?;
    /// assert_eq!(Tensor::einsum("ij,j->i", &[&a, &b])?.to_vec::<f32>()?, [210.0, 430.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A specification that cannot be read or does not fit the operands, dtypes that differ, whole numbers that would
    /// have to be summed by a matrix product; memory that is full.
    #[doc = example!("einsum")]
    #[track_caller]
    pub fn einsum(spec: &str, operands: &[&Tensor]) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let Some(first) = operands.first() else {
            return Err(Error::argument(
                "einsum",
                format!("no operands for \"{spec}\"; there must be at least one"),
            ));
        };
        if let Some(odd) = operands.iter().find(|operand| operand.dtype() != first.dtype()) {
            return Err(Error::mixed_dtypes("einsum", first.dtype(), odd.dtype()));
        }
        let shapes: Vec<_> = operands.iter().map(|operand| operand.shape()).collect();
        let spec = Spec::new(spec, &shapes)?;
        let mut product: Option<Named> = None;
        for (idx, (tensor, labels)) in operands.iter().zip(&spec.operands).enumerate() {
            let later = |label: Label| spec.operands[idx + 1..].iter().flatten().any(|&other| other == label);
            let is_wanted = |label: Label| spec.output.contains(&label) || later(label);
            let operand = Named::operand(tensor, labels, &spec)?;
            product = Some(match product {
                None => operand.summed(is_wanted)?,
                Some(product) => {
                    let operand =
                        operand.summed(|label| is_wanted(label) || product.labels.contains(&label))?;
                    // What the product so far has alone is summed before it is multiplied, too.
                    let product =
                        product.summed(|label| is_wanted(label) || operand.labels.contains(&label))?;
                    product.times(&operand, is_wanted, &spec)?
                }
            });
        }
        product.map_or_else(|| Ok((*first).clone()), |product| product.permuted(&spec.output))
    }
}

/// Functions made of ops.
pub const COMPOSED: &[&OpInfo] =
    &[&OpInfo { name: "einsum", doc: "A sum of products over named axes.", samples }];

/// The definition: for each index of the result, the products at all indices that are summed over. Letters only.
fn reference(spec: &str, x: &[Array]) -> Array {
    let (inputs, output) = spec.split_once("->").expect("references name their result");
    let terms: Vec<&str> = inputs.split(',').collect();
    let extent = |letter: char| {
        let of = |(term, x): (&&str, &Array)| term.find(letter).map(|axis| x.shape[axis]);
        terms.iter().zip(x).filter_map(of).max().unwrap_or(1)
    };
    let mut summed: Vec<char> =
        inputs.chars().filter(|c| c.is_alphabetic() && !output.contains(*c)).collect();
    summed.sort_unstable();
    summed.dedup();
    let outer: Vec<usize> = output.chars().map(extent).collect();
    let inner: Vec<usize> = summed.iter().map(|&letter| extent(letter)).collect();
    Array::build(&outer, |at| {
        let products = Array::build(&inner, |along| {
            let place = |letter: char| match output.find(letter) {
                Some(axis) => at[axis],
                None => along[summed.iter().position(|&other| other == letter).unwrap_or(0)],
            };
            terms.iter().zip(x).map(|(term, x)| x.at(&term.chars().map(place).collect::<Vec<_>>())).product()
        });
        products.values.iter().sum()
    })
}

fn samples() -> Vec<Sample> {
    let call = |spec: &'static str| move |x: &[Tensor]| Tensor::einsum(spec, &x.iter().collect::<Vec<_>>());
    let torch = |spec: &str, n: usize| {
        let names: Vec<String> = (0..n).map(|idx| format!("x{idx}")).collect();
        format!("torch.einsum('{spec}', {})", names.join(", "))
    };
    let rust = |spec: &str, n: usize| {
        let names: Vec<String> = (0..n).map(|idx| format!("&x{idx}")).collect();
        format!("Tensor::einsum({spec:?}, &[{}])", names.join(", "))
    };
    // What is written for the op, and the same with letters alone and a result that is named.
    let sample = |name: &str, spec: &'static str, plain: &'static str, shapes: &[&[usize]]| {
        Sample::new(name, shapes.iter().map(|shape| floats(shape)).collect(), call(spec))
            .reference(move |x| reference(plain, x))
            .torch(torch(spec, shapes.len()))
            .example(rust(spec, shapes.len()))
    };
    let same = |name: &str, spec: &'static str, shapes: &[&[usize]]| sample(name, spec, spec, shapes);
    vec![
        same("matrices", "ij,jk->ik", &[&[3, 4], &[4, 2]])
            .refuses(
                vec![floats(&[3, 4]), floats(&[5, 2])],
                "index j is both 4 and 5 in the shapes [3, 4] and [5, 2]",
            )
            .refuses(vec![floats(&[3, 4])], "einsum: in \"ij,jk->ik\", it names 2 operands, but 1 are given")
            .refuses(
                vec![floats(&[3, 4]), floats(&[4])],
                "operand 1 has 2 indices, but its shape [4] has 1 axes",
            )
            .refuses(vec![floats(&[3, 4]), input(&[4, 2], Values::Indices(3))], "with `cast`"),
        same("attention", "bihd,bjhd->bhij", &[&[2, 3, 2, 4], &[2, 5, 2, 4]]),
        same("outer product", "i,jk->kij", &[&[2], &[3, 4]]),
        same("dot product", "i,i->", &[&[5], &[5]]),
        same("three operands", "ab,bc,cd->da", &[&[2, 3], &[3, 4], &[4, 2]]),
        same("summed before and behind", "abx,bcy->ca", &[&[2, 3, 2], &[3, 4, 3]]),
        same("an index of all three", "ai,bi,ci->abc", &[&[2, 3], &[3, 3], &[4, 3]]),
        same("a diagonal", "iji->j", &[&[3, 2, 3]])
            .refuses(vec![floats(&[3, 2, 4])], "index i is both 3 and 4"),
        sample("implicit", "ba,bc", "ba,bc->ac", &[&[2, 3], &[2, 4]]),
        sample("ellipsis", "...ij,...jk->...ik", "abij,abjk->abik", &[&[2, 1, 3, 2], &[2, 3, 2, 2]])
            .refuses(vec![floats(&[2, 3, 2]), floats(&[3, 2, 2])], "axis -1 of the ellipsis is both 2 and 3"),
        same("an extent of one stands for many", "ij,jk->ik", &[&[2, 1], &[3, 2]]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn what_cannot_be_read_is_shown() -> Result<()> {
        let x = Tensor::zeros([2, 2])?;
        for (spec, problem) in [
            ("i1->i", "`1` is no index"),
            ("......->", "two ellipses"),
            ("ij->ii", "the index i twice"),
            ("ij->ik", "the index k, which no operand has"),
            ("ij.->i", "`.` is no index"),
            ("ij-i", "`-` is no index"),
        ] {
            let error = Tensor::einsum(spec, &[&x]).unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains(spec), "{error}");
        }
        Ok(())
    }

    #[test]
    fn views_are_not_copied() -> Result<()> {
        // What other tests acquire at the same time is not counted here.
        let device = Device::separate_cpu();
        let _on = device.enter();
        let x = Tensor::zeros([2, 3, 3])?;
        assert!(Tensor::einsum("bij->jbi", &[&x])?.shares_memory_with(&x));
        assert!(Tensor::einsum("bii->ib", &[&x])?.shares_memory_with(&x));
        let before = device.stats().n_acquired;
        let heads = Tensor::zeros([2, 5, 3, 4])?;
        let scores = Tensor::einsum("bihd,bjhd->bhij", &[&heads, &heads])?;
        // The two that are made, and what the product packs its operands into.
        assert!(device.stats().n_acquired - before <= 3, "an operand was copied");
        assert_eq!(scores.shape().dims(), [2, 3, 5, 5]);
        Ok(())
    }
}
