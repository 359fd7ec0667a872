//! A residual sum and the norm that follows it are one op: the numbers are those of one op after the other, and no more is
//! saved for backward.

use plimsoll_nn::layers::{Dense, Dropout, LayerNormalization, RMSNormalization, Residual, Sequential};
use plimsoll_nn::{BuiltLayer, Layer, Model};
use plimsoll_tensor::{Activation, GradientTape, Result, Shape, Tensor, Variable, set_seed};

const WIDTH: usize = 24;
const RATE: f64 = 0.25;
const EPS: f64 = 1e-5;

/// Pre-norm blocks with a last norm, as language models have them.
fn model(recompute: bool) -> Sequential {
    let block =
        || Sequential::new().add(LayerNormalization::new()).add(Dense::new(WIDTH)).add(Dropout::new(RATE));
    let plain = Sequential::new().add(RMSNormalization::new().epsilon(EPS)).add(Dense::new(WIDTH));
    let second = Residual::new(block()).named("second");
    let model = Sequential::new().add(Residual::new(block()).named("first"));
    let model = if recompute { model.add(second.recompute()) } else { model.add(second) };
    model.add(Residual::new(plain)).add(LayerNormalization::new())
}

/// The same model, one op after the other.
fn by_hand(x: &Tensor, variables: &[Variable]) -> Result<Tensor> {
    let [v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12] = variables else {
        unreachable!("thirteen variables")
    };
    let block = |x: &Tensor, gamma: &Variable, beta: &Variable, kernel: &Variable, bias: &Variable| {
        let branch = x.layer_norm(gamma, beta, EPS)?.linear(kernel, Some(bias), Activation::None)?;
        branch.dropout(RATE)?.into_add(x.clone())
    };
    let x = block(x, v0, v1, v2, v3)?;
    let x = block(&x, v4, v5, v6, v7)?;
    let x = x.rms_norm(v8, EPS)?.linear(v9, Some(v10), Activation::None)?.into_add(x.clone())?;
    x.layer_norm(v11, v12, EPS)
}

/// The bits of the output and of all gradients, and what the tape kept.
fn bits(
    x: &Tensor,
    variables: &[Variable],
    forward: impl Fn() -> Result<Tensor>,
) -> Result<(Vec<Vec<f32>>, usize)> {
    set_seed(5);
    let tape = GradientTape::new();
    tape.watch(x)?;
    let y = tape.record(forward)?;
    let loss = tape.record(|| y.mul(&y)?.sum(..))?;
    let kept = tape.saved().bytes();
    let sources: Vec<&Tensor> = variables.iter().map(|variable| &**variable).chain([x]).collect();
    let gradients = tape.gradients(&[&loss], None, &sources, plimsoll_tensor::Unconnected::None)?;
    let mut bits = vec![y.to_vec::<f32>()?];
    for gradient in gradients.into_iter().flatten() {
        bits.push(gradient.to_vec::<f32>()?);
    }
    Ok((bits, kept))
}

fn built(layer: &Sequential) -> Result<(Model, Tensor)> {
    set_seed(3);
    Ok((layer.build([WIDTH])?, Tensor::randn([96, WIDTH])?))
}

#[test]
fn the_bits_are_those_of_one_op_after_the_other() -> Result<()> {
    let (model, x) = built(&model(false))?;
    let variables = model.variables();
    let (fused, fused_bytes) = bits(&x, &variables, || model.call(&x))?;
    let (plain, plain_bytes) = bits(&x, &variables, || by_hand(&x, &variables))?;
    assert_eq!(fused.len(), 1 + 13 + 1);
    assert_eq!(fused, plain);
    assert_eq!(fused_bytes, plain_bytes);
    Ok(())
}

#[test]
fn a_recomputed_layer_has_the_same_bits() -> Result<()> {
    let (whole, x) = built(&model(false))?;
    let (recomputed, _) = built(&model(true))?;
    let (expected, bytes) = bits(&x, &whole.variables(), || whole.call(&x))?;
    let (found, fewer) = bits(&x, &recomputed.variables(), || recomputed.call(&x))?;
    assert_eq!(found, expected);
    assert!(fewer < bytes, "{fewer} {bytes}");
    Ok(())
}

#[test]
fn sums_and_norms_are_one_op() -> Result<()> {
    let (model, x) = built(&model(false))?;
    let tape = GradientTape::new();
    let y = tape.record(|| model.call(&x))?;
    let saved = tape.saved();
    let ops = |name: &str| saved.values().iter().filter(|value| value.op == name).count();
    // The first norm looks at the input; each of the others keeps a sum, gamma and statistics.
    assert_eq!([ops("layer_norm"), ops("add_layer_norm"), ops("add_rms_norm")], [4, 8, 3]);
    drop(y);
    Ok(())
}

/// A layer that shows that others get values, in the scope of the layer that they belong to.
struct Halved;

impl Layer for Halved {
    fn name(&self) -> &str {
        "halved"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        BuiltLayer::new(input, |x, _| x.affine(0.5, 0.0))
    }
}

#[test]
fn who_is_no_norm_gets_the_sum() -> Result<()> {
    let layers = Sequential::new().add(Residual::new(Sequential::new().add(Dense::new(WIDTH)))).add(Halved);
    let (model, x) = built(&layers)?;
    let [kernel, bias] = &model.variables()[..] else { unreachable!("two variables") };
    let expected = x.linear(kernel, Some(bias), Activation::None)?.into_add(x.clone())?.affine(0.5, 0.0)?;
    assert_eq!(model.infer(&x)?.to_vec::<f32>()?, expected.to_vec::<f32>()?);
    Ok(())
}
