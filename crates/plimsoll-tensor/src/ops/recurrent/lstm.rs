//! The LSTM: i, f, o = σ(sums), g = tanh(sum); c' = f c + i g; h' = o tanh(c').
//!
//! The gates are all that backward needs: cell and hidden states follow from them, step by step, without a product.

use plimsoll_cpu::simd;

use super::cell::{CarriedState, StepBack, StepGradients, columns};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;
use crate::ops::compute::Compute;

/// The gates of a row.
fn gates<C>(row: &mut [C]) -> [&mut [C]; 4] {
    let (of_states, rest) = row.split_at_mut(row.len() / 2);
    let (i, f) = of_states.split_at_mut(of_states.len() / 2);
    let (g, o) = rest.split_at_mut(rest.len() / 2);
    [i, f, g, o]
}

// Each loop writes one or two stretches and reads a few: with more, the compiler would not vectorise it, because it
// would have to make sure that none of them overlap.

pub(super) fn step<C: Compute>(row: &mut [C], hidden: &mut [C], cell: &mut [C]) {
    let n = hidden.len();
    simd::vectorize(
        #[inline(always)]
        || {
            row[..2 * n].iter_mut().for_each(|x| *x = x.sigmoid());
            row[2 * n..3 * n].iter_mut().for_each(|x| *x = x.tanh());
            row[3 * n..].iter_mut().for_each(|x| *x = x.sigmoid());
            let [i, f, g, o] = gates(row);
            for (((c, &f), &i), &g) in cell.iter_mut().zip(&*f).zip(&*i).zip(&*g) {
                *c = f * *c + i * g;
            }
            for ((h, &c), &o) in hidden.iter_mut().zip(&*cell).zip(&*o) {
                *h = o * c.tanh();
            }
        },
    );
}

pub(super) fn advance<C: Compute>(row: &[C], cell: &mut [C]) {
    let n = cell.len();
    let (i, f, g) = (&row[..n], &row[n..2 * n], &row[2 * n..3 * n]);
    simd::vectorize(
        #[inline(always)]
        || {
            for (((c, &f), &i), &g) in cell.iter_mut().zip(f).zip(i).zip(g) {
                *c = f * *c + i * g;
            }
        },
    );
}

pub(super) fn back<C: Compute>(step: StepBack<'_, C>) {
    let StepBack { row, before, after, d_hidden, d_cell } = step;
    let [i, f, g, o] = gates(row);
    simd::vectorize(
        #[inline(always)]
        || {
            after.iter_mut().for_each(|c| *c = c.tanh());
            for (((dc, &dh), &o), &t) in d_cell.iter_mut().zip(&*d_hidden).zip(&*o).zip(&*after) {
                *dc += dh * o * (C::ONE - t * t);
            }
            for ((o, t), &dh) in o.iter_mut().zip(after.iter_mut()).zip(&*d_hidden) {
                let hidden = *o * *t;
                *o = dh * hidden * (C::ONE - *o);
                *t = hidden;
            }
            for ((i, g), &dc) in i.iter_mut().zip(g.iter_mut()).zip(&*d_cell) {
                let d_i = dc * *g * *i * (C::ONE - *i);
                *g = dc * *i * (C::ONE - *g * *g);
                *i = d_i;
            }
            for ((f, dc), &c) in f.iter_mut().zip(d_cell.iter_mut()).zip(before) {
                let d_before = *dc * *f;
                *f = d_before * c * (C::ONE - *f);
                *dc = d_before;
            }
        },
    );
    d_hidden.fill(C::ZERO);
}

pub(super) fn plain_step(
    of_input: &Tensor,
    of_hidden: &Tensor,
    state: &CarriedState,
) -> Result<CarriedState> {
    let [i, f, g, o] = columns(&of_input.add(of_hidden)?)?;
    let (i, f, g, o) = (i.sigmoid()?, f.sigmoid()?, g.tanh()?, o.sigmoid()?);
    let cell = match &state.cell {
        Some(cell) => f.mul(cell)?.add(&i.mul(&g)?)?,
        None => i.mul(&g)?,
    };
    Ok(CarriedState { hidden: o.mul(&cell.tanh()?)?, cell: Some(cell) })
}

pub(super) fn plain_advance(row: &Tensor, cell: &Tensor) -> Result<Tensor> {
    let [i, f, g, _] = columns(row)?;
    f.mul(cell)?.add(&i.mul(&g)?)
}

pub(super) fn plain_back(
    row: &Tensor,
    [before, after]: [&Tensor; 2],
    d_hidden: &Tensor,
    d_cell: Option<&Tensor>,
) -> Result<StepGradients> {
    let [i, f, g, o] = &columns(row)?;
    let rest = |x: &Tensor| x.affine(-1.0, 1.0);
    let t = after.tanh()?;
    let through_hidden = d_hidden.mul(o)?.mul(&rest(&t.square()?)?)?;
    let dc = match d_cell {
        Some(d_cell) => d_cell.add(&through_hidden)?,
        None => through_hidden,
    };
    let hidden = o.mul(&t)?;
    let d_before = dc.mul(f)?;
    let parts = [
        dc.mul(g)?.mul(i)?.mul(&rest(i)?)?,
        d_before.mul(before)?.mul(&rest(f)?)?,
        dc.mul(i)?.mul(&rest(&g.square()?)?)?,
        d_hidden.mul(&hidden)?.mul(&rest(o)?)?,
    ];
    let row = Tensor::concat(&parts.each_ref(), -1)?;
    Ok(StepGradients { row, hidden, d_hidden: d_hidden.zeros_like()?, d_cell: Some(d_before) })
}
