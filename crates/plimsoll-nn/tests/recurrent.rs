//! Recurrent layers: PyTorch's values, names and shapes, how they start, and what they keep.

use plimsoll_nn::initializer::Fans;
use plimsoll_nn::layers::{Bidirectional, Dense, GRU, LSTM, Merge, Sequential, SimpleRNN};
use plimsoll_nn::{Initializer, Layer, Model, Policy};
use plimsoll_tensor::{Activation, DType, GradientTape, IntoShape, Result, Tensor, set_seed};

/// Numbers that any program can make again: element i is ((i · factor) mod modulus) / modulus - 0.45.
fn grid(shape: impl IntoShape, factor: usize, modulus: usize) -> Result<Tensor> {
    let shape = shape.into_shape()?;
    let number = |idx: usize| (idx * factor % modulus) as f32 / modulus as f32 - 0.45;
    Tensor::from_slice(&(0..shape.n_elems()).map(number).collect::<Vec<_>>(), shape)
}

/// Assigns grids of these factors and moduli to the model's variables, zeros where there is none, and compares with what
/// PyTorch 2.15 gave for the same numbers in f64.
fn check(model: &Model, grids: &[Option<(usize, usize)>], expected: [f32; 4]) -> Result<()> {
    let variables = model.variables();
    assert_eq!(variables.len(), grids.len());
    for (variable, grid_of) in variables.iter().zip(grids) {
        variable.assign(&match grid_of {
            Some((factor, modulus)) => grid(*variable.shape(), *factor, *modulus)?,
            None => variable.zeros_like()?,
        })?;
    }
    let y = model.call(&grid([2, 3, 2], 5, 11)?)?;
    assert_eq!(y.shape().dims(), [2, 2]);
    for (y, expected) in y.to_vec::<f32>()?.into_iter().zip(expected) {
        // The states are below 1, and each is a sum of a few numbers in f32.
        assert!((y - expected).abs() < 5e-7, "{y}, expected {expected}");
    }
    Ok(())
}

#[test]
fn two_stacked_layers_give_the_values_of_pytorch() -> Result<()> {
    let (kernels, weights) = ([Some((7, 13)), Some((3, 17))], [Some((9, 19)), Some((11, 23))]);
    let one_bias = [&kernels[..], &[Some((5, 7))], &weights, &[None]].concat();
    let lstm = Sequential::new().add(LSTM::new(2).return_sequences()).add(LSTM::new(2)).build([3, 2])?;
    check(&lstm, &one_bias, [0.027_810_64, -0.012_635_48, 0.030_338_77, -0.015_485_26])?;
    let simple =
        Sequential::new().add(SimpleRNN::new(2).return_sequences()).add(SimpleRNN::new(2)).build([3, 2])?;
    check(&simple, &one_bias, [0.217_916_6, -0.011_645_16, 0.191_565_5, -0.010_486_23])?;
    let two_biases = [&kernels[..], &[Some((5, 7)), Some((3, 5))], &weights, &[None, None]].concat();
    let gru = Sequential::new().add(GRU::new(2).return_sequences()).add(GRU::new(2)).build([3, 2])?;
    check(&gru, &two_biases, [0.087_561_94, -0.000_818_239_9, 0.071_832_14, 0.018_359_15])
}

#[test]
fn a_bidirectional_layer_is_two_of_which_one_reads_backwards() -> Result<()> {
    set_seed(3);
    let x = grid([2, 5, 3], 5, 11)?;
    for (merge, width) in
        [(Merge::Concatenate, 8), (Merge::Sum, 4), (Merge::Multiply, 4), (Merge::Average, 4)]
    {
        let model = Bidirectional::new(LSTM::new(4).return_sequences()).merge(merge).build([5, 3])?;
        let names: Vec<String> = model.variables().iter().map(|variable| variable.name()).collect();
        let expected = ["kernel", "recurrent_kernel", "bias"]
            .map(|name| [format!("forward.{name}"), format!("backward.{name}")]);
        let expected: Vec<String> =
            (0..2).flat_map(|part| expected.iter().map(move |both| both[part].clone())).collect();
        assert_eq!(names, expected);
        let alone = LSTM::new(4).return_sequences().build([5, 3])?;
        let reading = |first: usize, x: &Tensor| {
            for (own, of_model) in alone.variables().iter().zip(&model.variables()[first..]) {
                own.assign(of_model)?;
            }
            alone.call(x)
        };
        let (forwards, backwards) = (reading(0, &x)?, reading(3, &x.flip(1)?)?.flip(1)?);
        let expected = match merge {
            Merge::Concatenate => Tensor::concat(&[&forwards, &backwards], -1)?,
            Merge::Sum => forwards.add(&backwards)?,
            Merge::Multiply => forwards.mul(&backwards)?,
            Merge::Average => forwards.add(&backwards)?.mul(0.5)?,
        };
        let given = model.call(&x)?;
        assert_eq!(given.shape().dims(), [2, 5, width]);
        assert_eq!(given.to_vec::<f32>()?, expected.to_vec::<f32>()?, "{merge:?}");
    }
    let ends = Bidirectional::new(GRU::new(4)).build([5, 3])?;
    assert_eq!(ends.call(&x)?.shape().dims(), [2, 8]);
    let error = Bidirectional::new(Dense::new(4)).build([3]).unwrap_err().to_string();
    assert!(error.contains("it must take a sequence"), "{error}");
    Ok(())
}

#[test]
fn variables_have_keras_names_and_shapes() -> Result<()> {
    let model = Sequential::new()
        .add(LSTM::new(3).return_sequences())
        .add(GRU::new(4).return_sequences())
        .add(SimpleRNN::new(5).no_bias())
        .build([7, 2])?;
    let described: Vec<(String, Vec<usize>)> =
        model.variables().iter().map(|v| (v.name(), v.shape().dims().to_vec())).collect();
    let expected: [(&str, &[usize]); 9] = [
        ("lstm.kernel", &[2, 12]),
        ("lstm.recurrent_kernel", &[3, 12]),
        ("lstm.bias", &[12]),
        ("gru.kernel", &[3, 12]),
        ("gru.recurrent_kernel", &[4, 12]),
        ("gru.bias", &[12]),
        ("gru.recurrent_bias", &[12]),
        ("simple_rnn.kernel", &[4, 5]),
        ("simple_rnn.recurrent_kernel", &[5, 5]),
    ];
    let expected: Vec<_> = expected.iter().map(|&(name, dims)| (name.to_owned(), dims.to_vec())).collect();
    assert_eq!(described, expected);
    assert_eq!(model.output_shape().dims(), [5]);
    Ok(())
}

#[test]
fn an_lstm_begins_with_open_forget_gates() -> Result<()> {
    let model = LSTM::new(2).build([3, 2])?;
    let bias = &model.variables()[2];
    assert_eq!(bias.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    Ok(())
}

/// The greatest difference between the products of a matrix's rows and those of orthogonal rows of length 1.
fn worst_product(matrix: &Tensor) -> Result<f64> {
    let n = matrix.shape()[0];
    let products = matrix.matmul(&matrix.t()?)?.to_f64_vec()?;
    let wanted = |idx: usize| if idx / n == idx % n { 1.0 } else { 0.0 };
    Ok(products.iter().enumerate().map(|(idx, x)| (x - wanted(idx)).abs()).fold(0.0, f64::max))
}

#[test]
fn orthogonal_matrices_are_orthogonal_whatever_their_shape() -> Result<()> {
    for seed in 0..5 {
        set_seed(seed);
        let fans = Fans { inputs: 1, outputs: 1 };
        for [rows, cols] in [[1, 1], [2, 2], [17, 17], [64, 64], [16, 64], [16, 32], [20, 30]] {
            // Each entry is a sum of at most 64 products in f32, or f64.
            for (dtype, tolerance) in [(DType::F32, 3e-6), (DType::F64, 1e-13)] {
                let wide = Initializer::Orthogonal.tensor([rows, cols], dtype, fans)?;
                let tall = Initializer::Orthogonal.tensor([cols, rows], dtype, fans)?;
                assert_eq!(tall.shape().dims(), [cols, rows]);
                let worst = worst_product(&wide)?.max(worst_product(&tall.t()?)?);
                assert!(worst < tolerance, "[{rows}, {cols}] {dtype}, seed {seed}: {worst:e}");
            }
        }
    }
    Ok(())
}

#[test]
fn the_summary_counts_gates_and_input() -> Result<()> {
    let (time, features, units) = (20, 6, 8);
    let model = LSTM::new(units).build([time, features])?;
    assert_eq!(model.summary(3)?.saved_bytes, 3 * time * (4 * units + features) * 4);
    Ok(())
}

#[test]
fn a_wrong_example_is_refused_by_name() {
    let error = Sequential::new().add(GRU::new(3)).build([5]).unwrap_err().to_string();
    assert!(error.contains("gru") && error.contains("[time, features]"), "{error}");
    let model = SimpleRNN::new(3).activation(Activation::Silu).build([4, 2]).unwrap();
    let error = model.call(Tensor::zeros([1, 4, 2]).unwrap()).unwrap_err().to_string();
    assert!(error.contains("Silu"), "{error}");
}

#[test]
fn a_layer_learns_in_mixed_precision() -> Result<()> {
    set_seed(3);
    let stack = Sequential::new().add(LSTM::new(8).return_sequences()).add(GRU::new(8)).add(Dense::new(1));
    let model = stack.with_policy(Policy::MixedBfloat16).build([5, 2])?;
    let x = Tensor::normal([16, 5, 2], 0.0, 1.0, DType::F32)?;
    // The sum of what was seen.
    let target = x.sum([1, 2])?.unsqueeze(1)?;
    let mut losses = Vec::new();
    for _ in 0..60 {
        let tape = GradientTape::new();
        let loss = tape.record(|| model.call(&x)?.cast(DType::F32)?.sub(&target)?.square()?.mean(..))?;
        losses.push(loss.item::<f32>()?);
        let variables = model.variables();
        let sources: Vec<&Tensor> = variables.iter().map(|variable| &**variable).collect();
        let gradients = tape.gradients(&[&loss], None, &sources, Default::default())?;
        for (variable, gradient) in variables.iter().zip(gradients) {
            let gradient = gradient.expect("every variable is used");
            variable.assign_sub(&gradient.cast(DType::F32)?.mul(0.05)?)?;
        }
    }
    assert!(losses[59] < 0.3 * losses[0], "{losses:?}");
    Ok(())
}
