//! The GRU with reset after the product: r, z = σ(sums), n = tanh(sum of inputs + r q), h' = (1 - z) n + z h.
//!
//! q is the candidate's sum of hidden states, with its bias. r, z, n and q are all that backward needs: hidden states
//! follow from them, step by step, without a product.

use plimsoll_cpu::simd;

use super::cell::{CarriedState, StepBack, StepGradients, columns};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;
use crate::ops::compute::Compute;

pub(super) fn step<C: Compute>(row: &mut [C], hidden: &mut [C]) {
    let size = hidden.len();
    let (of_both, rest) = row.split_at_mut(2 * size);
    let (n, q) = rest.split_at_mut(size);
    simd::vectorize(
        #[inline(always)]
        || {
            of_both.iter_mut().for_each(|x| *x = x.sigmoid());
            let (r, z) = of_both.split_at(size);
            for ((n, &r), &q) in n.iter_mut().zip(r).zip(&*q) {
                *n = (*n + r * q).tanh();
            }
            for ((h, &n), &z) in hidden.iter_mut().zip(&*n).zip(z) {
                *h = n + z * (*h - n);
            }
        },
    );
}

pub(super) fn advance<C: Compute>(row: &[C], hidden: &mut [C]) {
    let size = hidden.len();
    let (z, n) = (&row[size..2 * size], &row[2 * size..3 * size]);
    simd::vectorize(
        #[inline(always)]
        || {
            for ((h, &n), &z) in hidden.iter_mut().zip(n).zip(z) {
                *h = n + z * (*h - n);
            }
        },
    );
}

pub(super) fn back<C: Compute>(step: StepBack<'_, C>) {
    let StepBack { row, before, d_hidden, .. } = step;
    let size = before.len();
    let (of_both, rest) = row.split_at_mut(2 * size);
    let (r, z) = of_both.split_at_mut(size);
    let (n, q) = rest.split_at_mut(size);
    simd::vectorize(
        #[inline(always)]
        || {
            for (((z, n), dh), &h) in z.iter_mut().zip(n.iter_mut()).zip(d_hidden.iter_mut()).zip(before) {
                let kept = *dh * *z;
                let d_z = kept * (h - *n) * (C::ONE - *z);
                *n = (*dh - kept) * (C::ONE - *n * *n);
                *z = d_z;
                *dh = kept;
            }
            for ((r, q), &d_n) in r.iter_mut().zip(q.iter_mut()).zip(&*n) {
                let d_q = d_n * *r;
                *r = d_q * *q * (C::ONE - *r);
                *q = d_q;
            }
        },
    );
}

pub(super) fn plain_step(
    of_input: &Tensor,
    of_hidden: &Tensor,
    state: &CarriedState,
) -> Result<CarriedState> {
    let ([r, z, n], [r_hidden, z_hidden, q]) = (columns(of_input)?, columns(of_hidden)?);
    let (r, z) = (r.add(&r_hidden)?.sigmoid()?, z.add(&z_hidden)?.sigmoid()?);
    let n = n.add(&r.mul(&q)?)?.tanh()?;
    let hidden = n.add(&z.mul(&state.hidden.sub(&n)?)?)?;
    Ok(CarriedState { hidden, cell: None })
}

pub(super) fn plain_advance(row: &Tensor, hidden: &Tensor) -> Result<Tensor> {
    let [_, z, n, _] = &columns(row)?;
    n.add(&z.mul(&hidden.sub(n)?)?)
}

pub(super) fn plain_back(
    row: &Tensor,
    [before, after]: [&Tensor; 2],
    d_hidden: &Tensor,
) -> Result<StepGradients> {
    let [r, z, n, q] = &columns(row)?;
    let rest = |x: &Tensor| x.affine(-1.0, 1.0);
    let kept = d_hidden.mul(z)?;
    let d_z = kept.mul(&before.sub(n)?)?.mul(&rest(z)?)?;
    let d_n = d_hidden.sub(&kept)?.mul(&rest(&n.square()?)?)?;
    let d_q = d_n.mul(r)?;
    let d_r = d_q.mul(q)?.mul(&rest(r)?)?;
    let row = Tensor::concat(&[&d_r, &d_z, &d_n, &d_q], -1)?;
    Ok(StepGradients { row, hidden: after.clone(), d_hidden: kept, d_cell: None })
}
