//! Samples of attention, with plain loops over f64 as their reference.

use super::{Attention, AttentionBackward, AttentionConfig, statistics_dtype};
use crate::base::dtype::DType;
use crate::eager::execute::apply;
use crate::eager::op::OpRef;
use crate::eager::tensor::Tensor;
use crate::ops::registry::{Array, Input, Sample, Values, floats, input, within};

pub(super) fn forward() -> Vec<Sample> {
    let sdpa = |rest: &str| format!("F.scaled_dot_product_attention(x0, x1, x2{rest})");
    let mask = input(&[3, 5], Values::Constants(-1.0, 1.0));
    vec![
        sample("plain", &[&[2, 3, 4], &[2, 5, 4], &[2, 5, 2]], None, false, None)
            .torch(sdpa(""))
            .example("x0.attention(&x1, &x2, &AttentionConfig::default())")
            .refuses(vec![floats(&[3, 4]), floats(&[5, 3]), floats(&[5, 2])], "with the same depth and keys")
            .refuses(vec![floats(&[4]), floats(&[5, 4]), floats(&[5, 2])], "two dimensions or more")
            .refuses(vec![floats(&[2, 3, 4]), floats(&[3, 5, 4]), floats(&[5, 2])], "do not broadcast"),
        sample("causal heads", &[&[2, 2, 4, 3], &[2, 2, 4, 3], &[2, 2, 4, 3]], None, true, Some(0.7))
            .torch(sdpa(", is_causal=True, scale=0.7")),
        sample("more keys than queries", &[&[2, 3, 4], &[1, 5, 4], &[5, 2]], None, true, None).torch(
            "F.scaled_dot_product_attention(x0, x1.expand(2, 5, 4), x2.expand(2, 5, 2), is_causal=True)",
        ),
        sample("added mask", &[&[2, 3, 4], &[2, 5, 4], &[2, 5, 2]], Some(mask), false, None)
            .torch(sdpa(", attn_mask=x3")),
        sample("learned mask", &[&[2, 3, 4], &[2, 5, 4], &[2, 5, 2]], Some(floats(&[2, 1, 5])), false, None)
            .torch(sdpa(", attn_mask=x3.expand(2, 3, 5)"))
            .refuses(
                vec![floats(&[3, 4]), floats(&[5, 4]), floats(&[5, 2]), floats(&[4, 5])],
                "does not broadcast to that of the scores",
            ),
        sample(
            "truths",
            &[&[2, 3, 4], &[2, 5, 4], &[2, 5, 2]],
            Some(input(&[2, 3, 5], Values::Truths)),
            false,
            None,
        ),
        sample("several blocks", &[&[1, 70, 3], &[1, 130, 3], &[1, 130, 2]], None, true, None)
            .torch(sdpa(", is_causal=True")),
        // Lengths that tensor cores take, in several of their tiles.
        sample("tiles", &[&[1, 130, 8], &[1, 40, 8], &[1, 40, 16]], None, true, None),
        sample("tiles of keys", &[&[1, 6, 24], &[1, 70, 24], &[1, 70, 8]], None, false, None),
        // More keys than one block owns, so that several blocks have a part in each query's gradient.
        sample("blocks of keys", &[&[2, 40, 24], &[2, 150, 24], &[2, 150, 8]], None, false, None),
        sample("blocks of long keys", &[&[1, 140, 80], &[1, 140, 80], &[1, 140, 16]], None, true, None),
        // The lengths that a Hopper GPU multiplies by four warps together.
        sample("rows of 64", &[&[2, 70, 64], &[2, 134, 64], &[2, 134, 64]], None, false, None),
        sample("rows of 64, causal", &[&[1, 134, 64], &[1, 134, 64], &[1, 134, 56]], None, true, Some(-0.2)),
        sample(
            "masked tiles",
            &[&[2, 20, 8], &[2, 40, 8], &[2, 40, 8]],
            Some(input(&[2, 1, 40], Values::Truths)),
            true,
            None,
        ),
        sample(
            "tiles with an added mask",
            &[&[2, 20, 8], &[2, 40, 8], &[2, 40, 8]],
            Some(input(&[20, 40], Values::Constants(-1.0, 1.0))),
            false,
            None,
        ),
    ]
}

fn sample(name: &str, shapes: &[&[usize]], mask: Option<Input>, causal: bool, scale: Option<f64>) -> Sample {
    let is_truths = mask.as_ref().is_some_and(|mask| mask.values == Values::Truths);
    let inputs = shapes.iter().map(|shape| floats(shape)).chain(mask).collect();
    let call =
        move |x: &[Tensor]| x[0].attention(&x[1], &x[2], &AttentionConfig { causal, scale, mask: x.get(3) });
    Sample::new(name, inputs, call).reference(move |x| reference(x, is_truths, causal, scale))
}

fn reference(x: &[Array], is_truths: bool, causal: bool, scale: Option<f64>) -> Array {
    let rank = x[0].shape.len();
    let (depth, n_keys) = (x[0].shape[rank - 1], x[1].shape[x[1].shape.len() - 2]);
    let scale = scale.unwrap_or(1.0 / (depth as f64).sqrt());
    let mut shape = x[0].shape.clone();
    shape[rank - 1] = x[2].shape[x[2].shape.len() - 1];
    Array::build(&shape, |idx| {
        let (lead, query, col) = (&idx[..rank - 2], idx[rank - 2], idx[rank - 1]);
        let at = |of: &Array, row: usize, col: usize| of.at(&[lead, &[row, col]].concat());
        let weight = |key: usize| {
            let product: f64 = (0..depth).map(|d| at(&x[0], query, d) * at(&x[1], key, d)).sum();
            let mask = x.get(3).map(|mask| at(mask, query, key));
            let hidden = (causal && key > query) || (is_truths && mask == Some(0.0));
            let added = if is_truths { 0.0 } else { mask.unwrap_or(0.0) };
            if hidden { 0.0 } else { (product * scale + added).exp() }
        };
        let total: f64 = (0..n_keys).map(weight).sum();
        let sum: f64 = (0..n_keys).map(|key| weight(key) * at(&x[2], key, col)).sum();
        if total == 0.0 { 0.0 } else { sum / total }
    })
}

pub(super) fn backward() -> Vec<Sample> {
    let sample = |name: &str, lead: &[usize], sizes: [usize; 4], causal: bool, mask: Option<Input>| {
        let [n_queries, n_keys, depth, width] = sizes;
        let masked = mask.is_some();
        let of = |rows: usize, cols: usize| floats(&[lead, &[rows, cols]].concat());
        let (q, k, v) = (of(n_queries, depth), of(n_keys, depth), of(n_keys, width));
        let log_sums = within(&[lead, &[n_queries, 1]].concat(), 2.0, 3.0);
        let inputs = [of(n_queries, width), q, k, v, of(n_queries, width), log_sums];
        let op = Attention { causal, scale: 0.5, masked };
        Sample::many(name, inputs.into_iter().chain(mask).collect(), move |x| {
            let log_sums = x[5].squeeze(-1)?.cast(statistics_dtype(x[0].dtype()))?;
            let mut inputs = vec![&x[0], &x[1], &x[2], &x[3], &x[4], &log_sums];
            inputs.extend(x.get(6));
            Ok(apply(OpRef::shipped(AttentionBackward(op)), &inputs)?.into_iter().collect())
        })
    };
    let truths = |shape: &[usize]| Some(input(shape, Values::Truths));
    let masked = sample("truths", &[2], [3, 5, 4, 2], false, truths(&[2, 3, 5]));
    let mut of_numbers = masked.inputs.clone();
    of_numbers[6] = input(&[2, 3, 5], Values::Of(DType::I64, 0.0, 2.0));
    vec![
        sample("plain", &[2], [3, 5, 4, 2], false, None),
        sample("causal heads", &[2, 2], [3, 5, 4, 2], true, None),
        masked.refuses(of_numbers, "the mask is int64"),
        sample("tiles", &[2], [7, 35, 8, 16], true, None),
        sample("masked tiles", &[1], [35, 7, 24, 8], false, truths(&[1, 35, 7])),
    ]
}
