//! What norms and losses keep for backward, and what they do where the derivative has an edge.

use plimsoll_tensor::op::Form;
use plimsoll_tensor::{DType, Device, GradientTape, Result, Saving, Tensor, Variable, set_seed, with_saving};

/// The text of an error.
fn refusal(result: Result<Tensor>) -> String {
    match result {
        Ok(tensor) => panic!("a tensor of shape {} came out", tensor.shape()),
        Err(error) => error.to_string(),
    }
}

/// The form and bytes of each saved value.
type SavedForms = Vec<(Form, usize)>;

/// A loss of logits, dense labels and classes.
type Loss = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

/// Gradients and saved values of `norm` followed by a matmul.
fn through_a_matmul(
    saving: Saving,
    norm: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
) -> Result<(Vec<Vec<f32>>, SavedForms)> {
    set_seed(11);
    let x = Tensor::randn([96, 64])?;
    let gamma = Variable::new(Tensor::randn(64)?);
    let beta = Variable::new(Tensor::randn(64)?);
    let weight = Variable::new(Tensor::randn([64, 8])?);
    with_saving(saving, || {
        let tape = GradientTape::new();
        tape.watch(&x)?;
        let y = tape.record(|| norm(&x, &gamma, &beta)?.matmul(&weight))?;
        let saved = tape.saved();
        let saved = saved.values().iter().map(|value| (value.form, value.bytes)).collect();
        let [dx, dgamma, dweight] = tape.gradient(&y, [&x, &gamma, &weight])?;
        Ok((vec![dx.to_vec()?, dgamma.to_vec()?, dweight.to_vec()?], saved))
    })
}

#[test]
fn the_output_of_a_norm_is_rebuilt_from_its_kept_statistics() -> Result<()> {
    type Norm = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
    let norms: [(Norm, usize); 4] = [
        (|x, gamma, beta| x.layer_norm(gamma, beta, 1e-5), 2 * 96 * 4),
        (|x, gamma, _| x.rms_norm(gamma, 1e-5), 96 * 4),
        (|x, gamma, beta| Ok(x.batch_norm(gamma, beta, 1e-5)?.0), 2 * 64 * 4),
        (|x, gamma, beta| Ok(x.batch_norm_relu(gamma, beta, 1e-5)?.0), 2 * 64 * 4),
    ];
    for (norm, statistics) in norms {
        let (lean, saved) = through_a_matmul(Saving::Lean, norm)?;
        let bytes =
            |form: Form| saved.iter().filter(|value| value.0 == form).map(|value| value.1).sum::<usize>();
        assert_eq!(bytes(Form::Statistics), statistics);
        assert_eq!(saved.iter().filter(|value| value.0 == Form::Derived).count(), 1, "{saved:?}");
        let (fast, saved) = through_a_matmul(Saving::Fast, norm)?;
        assert_eq!(saved.iter().filter(|value| value.0 == Form::Derived).count(), 0, "{saved:?}");
        assert_eq!(lean, fast);
    }
    Ok(())
}

/// The output, mean and variance from x, gamma and beta.
type BatchNorm = fn(&Tensor, &Tensor, &Tensor) -> Result<(Tensor, Tensor, Tensor)>;

/// The bits of a batch norm with relu, those of its statistics, and those of the gradients of x, gamma and beta.
fn bits_of_batch_norm(norm: BatchNorm, inputs: [&Tensor; 3], weights: &Tensor) -> Result<Vec<Vec<u64>>> {
    let tape = GradientTape::new();
    inputs.iter().try_for_each(|input| tape.watch(input))?;
    let ((y, mean, variance), loss) = tape.record(|| -> Result<_> {
        let all = norm(inputs[0], inputs[1], inputs[2])?;
        let loss = all.0.mul(weights)?.sum(..)?;
        Ok((all, loss))
    })?;
    let [dx, dgamma, dbeta] = tape.gradient(&loss, inputs)?;
    // Float64 has a number of its own for each of float32, negative zero included.
    let bits = |x: &Tensor| Ok(x.cast(DType::F64)?.to_vec::<f64>()?.into_iter().map(f64::to_bits).collect());
    [y, mean, variance, dx, dgamma, dbeta].iter().map(bits).collect()
}

#[test]
fn relu_inside_batch_norm_gives_the_bits_of_relu_behind_it() -> Result<()> {
    set_seed(5);
    // Norms of zero, above, below and on the edge: channels of zeros, and channels without scale, are where they could differ.
    let scales = [1.0, -0.7, 0.0, 0.0, 0.0, 2.5, -0.0, 1e-20];
    let shifts = [0.1, 0.0, 0.0, 0.5, -0.5, -0.0, -0.0, 1e-20];
    for dtype in [DType::F32, DType::F64] {
        let gamma = Tensor::from_slice(&scales, 8)?.cast(dtype)?;
        let beta = Tensor::from_slice(&shifts, 8)?.cast(dtype)?;
        let rows = Tensor::normal([60, 50, 8], 0.3, 1.0, dtype)?;
        let zeros =
            rows.mul(&Tensor::from_slice(&[1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0], 8)?.cast(dtype)?)?;
        let across = Tensor::normal([50, 60, 8], -0.2, 1.0, dtype)?.transpose(0, 1)?;
        let weights = Tensor::normal([60, 50, 8], 0.0, 1.0, dtype)?;
        for x in [&rows, &zeros, &across, &zeros.flip(1)?] {
            let inside =
                bits_of_batch_norm(|x, g, b| x.batch_norm_relu(g, b, 1e-5), [x, &gamma, &beta], &weights)?;
            let behind = bits_of_batch_norm(
                |x, g, b| {
                    let (y, mean, variance) = x.batch_norm(g, b, 1e-5)?;
                    Ok((y.into_relu()?, mean, variance))
                },
                [x, &gamma, &beta],
                &weights,
            )?;
            assert_eq!(inside, behind, "{dtype}");
        }
    }
    Ok(())
}

#[test]
fn relu_inside_batch_norm_lets_what_is_not_a_number_through() -> Result<()> {
    let x = Tensor::from_slice(&[f32::NAN, 1.0, 2.0, 3.0], [2, 2])?;
    let (y, ..) = x.batch_norm_relu(&Tensor::ones(2)?, &Tensor::zeros(2)?, 1e-5)?;
    let y = y.to_vec::<f32>()?;
    assert!(y[0].is_nan() && y[2].is_nan(), "{y:?}");
    assert!(y[1] == 0.0 && y[3] > 0.9, "{y:?}");
    Ok(())
}

#[test]
fn batch_norm_gives_the_statistics_of_the_batch() -> Result<()> {
    set_seed(2);
    let x = Tensor::normal([6, 5, 4], 3.0, 2.0, DType::F64)?;
    let (ones, zeros) = (Tensor::full_of(4, 1.0, DType::F64)?, Tensor::zeros_of(4, DType::F64)?);
    let (y, mean, variance) = x.batch_norm(&ones, &zeros, 1e-5)?;
    let close = |a: &Tensor, b: &Tensor| -> Result<bool> {
        Ok(a.to_vec::<f64>()?.iter().zip(b.to_vec::<f64>()?).all(|(a, b)| (a - b).abs() < 1e-12))
    };
    assert!(close(&mean, &x.mean([0, 1])?)?);
    assert!(close(&variance, &x.var_corrected([0, 1], 0.0)?)?);
    assert!(close(&y, &x.batch_norm_inference(&ones, &zeros, &mean, &variance, 1e-5)?)?);
    let narrow = x.cast(DType::BF16)?;
    let (y, mean, _) = narrow.batch_norm(&ones.cast(DType::BF16)?, &zeros.cast(DType::BF16)?, 1e-5)?;
    assert_eq!((y.dtype(), mean.dtype()), (DType::BF16, DType::F32));
    Ok(())
}

#[test]
fn cross_entropy_keeps_one_number_per_row_and_writes_over_the_logits() -> Result<()> {
    const LOGITS: u64 = 256 * 1000 * 4;
    let device = Device::separate_cpu();
    let _on = device.enter();
    let (x, labels) = (Tensor::randn([2, 256, 1000])?, Tensor::uniform([256, 1000], 0.0, 1.0, DType::F32)?);
    let classes = Tensor::randint(256, 0, 1000, DType::I64)?;
    let losses: [Loss; 2] = [
        |logits, labels, _| logits.cross_entropy(labels),
        |logits, _, classes| logits.sparse_cross_entropy(classes),
    ];
    for loss in losses {
        let before = device.stats().in_use;
        let tape = GradientTape::new();
        tape.watch(&x)?;
        // A sum keeps nothing, so its result is held for the loss alone.
        let loss = tape.record(|| loss(&x.sum(0)?, &labels, &classes)?.mean(..))?;
        let statistics: Vec<usize> = tape
            .saved()
            .values()
            .iter()
            .filter(|value| value.form == Form::Statistics)
            .map(|value| value.bytes)
            .collect();
        assert_eq!(statistics, [256 * 4]);
        let held = device.stats().in_use - before;
        assert!((LOGITS..LOGITS + 8192).contains(&held), "{held}");
        let scope = device.pool().peak_scope();
        let [gradient] = tape.gradient(&loss, [&x])?;
        let peak = scope.peak() - before;
        assert!(peak < LOGITS + 16_384, "backward takes no second block of that size: {peak}");
        assert_eq!(gradient.shape(), x.shape());
    }
    Ok(())
}

#[test]
fn a_persistent_tape_keeps_its_logits() -> Result<()> {
    let x = Variable::new(Tensor::randn([4, 5])?);
    let labels = Tensor::from_slice(&[1i64, 0, 4, 2], 4)?;
    let tape = GradientTape::new().persistent(true);
    let loss = tape.record(|| x.mul(2.0)?.sparse_cross_entropy(&labels))?;
    let [first] = tape.gradient(&loss, [&x])?;
    let [second] = tape.gradient(&loss, [&x])?;
    assert_eq!(first.to_vec::<f32>()?, second.to_vec::<f32>()?);
    Ok(())
}

#[test]
fn a_wrong_label_is_named_with_its_place() -> Result<()> {
    let logits = Tensor::zeros([2, 3, 5])?;
    let labels = Tensor::from_slice(&[0i32, 4, 1, 2, 9, -1], [2, 3])?;
    let error = refusal(logits.sparse_cross_entropy(&labels));
    assert!(error.contains("label 9 at [1, 1] is not one of the 5 classes"), "{error}");
    let labels = Tensor::from_slice(&[0i64, 4, -100, 2, -100, -100], [2, 3])?;
    let mean = logits.mean_sparse_cross_entropy_ignoring(&labels, -100)?;
    assert!((mean.item::<f32>()? - 5f32.ln()).abs() < 1e-6);
    Ok(())
}

#[test]
fn extremes_of_rows_are_stable() -> Result<()> {
    let x = Tensor::from_slice(&[1000.0f32, 1001.0, -1000.0, -1001.0], [2, 2])?;
    let expected = [0.26894143f32, 0.7310586, 0.7310586, 0.26894143];
    let (soft, log) = (x.softmax(-1)?.to_vec::<f32>()?, x.log_softmax(-1)?.exp()?.to_vec::<f32>()?);
    for values in [soft, log] {
        assert!(values.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{values:?}");
    }
    // Longer than one tile, so that the parts of a line are joined.
    let long = Tensor::arange(5000)?;
    let sum = long.softmax(0)?.sum(..)?.item::<f32>()?;
    assert!((sum - 1.0).abs() < 1e-5, "{sum}");
    Ok(())
}

/// The gradient of the sum of a function's results.
fn local_grad(x: &[f64], shape: [usize; 2], f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Vec<f64>> {
    let x = Tensor::from_slice(x, shape)?;
    let tape = GradientTape::new();
    tape.watch(&x)?;
    let y = tape.record(|| f(&x))?;
    tape.gradient(&y, [&x])?[0].to_vec()
}

#[test]
fn reductions_have_gradients_at_their_edges() -> Result<()> {
    // Of equal extremes the first one gets the gradient.
    assert_eq!(
        local_grad(&[1.0, 3.0, 3.0, 2.0, 2.0, 0.0], [2, 3], |x| x.max(1))?,
        [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    );
    assert_eq!(local_grad(&[1.0, 3.0, 3.0, 1.0], [2, 2], |x| x.min(..))?, [1.0, 0.0, 0.0, 0.0]);
    // A product with one zero, and with two.
    assert_eq!(
        local_grad(&[2.0, 0.0, 5.0, 0.0, 3.0, 0.0], [2, 3], |x| x.prod(1))?,
        [0.0, 10.0, 0.0, 0.0, 0.0, 0.0]
    );
    assert_eq!(local_grad(&[0.0, 0.0], [1, 2], |x| x.norm(1))?, [0.0, 0.0]);
    assert_eq!(local_grad(&[3.0, 3.0], [1, 2], |x| x.std(1))?, [0.0, 0.0]);
    Ok(())
}

#[test]
fn nothing_has_no_extreme_but_a_sum() -> Result<()> {
    let nothing = Tensor::zeros([3, 0])?;
    assert_eq!(nothing.sum(1)?.to_vec::<f32>()?, [0.0; 3]);
    assert!(nothing.mean(1)?.to_vec::<f32>()?.iter().all(|mean| mean.is_nan()));
    let error = refusal(nothing.max(1));
    assert!(error.contains("axes [1] of shape [3, 0] hold no element"), "{error}");
    assert_eq!(nothing.max(0)?.shape().dims(), [0]);
    Ok(())
}

#[test]
fn lines_without_elements_that_nobody_comes_to_the_end_of_are_refused() -> Result<()> {
    let x = Tensor::zeros([1, 1 << 40, 0])?;
    let parameters = Tensor::zeros([0])?;
    // Nothing is to be written.
    assert_eq!(x.group_norm(&parameters, &parameters, 2, 1e-5)?.n_elems(), 0);
    // Statistics are, and a sum.
    let tape = GradientTape::new();
    tape.watch(&x)?;
    let refused = tape.record(|| x.group_norm(&parameters, &parameters, 2, 1e-5)).unwrap_err();
    assert!(refused.to_string().contains("has no elements, but 1099511627776 lines"), "{refused}");
    assert!(x.sum(..).is_err());
    assert_eq!(Tensor::zeros([3, 1 << 20, 0])?.sum(..)?.item::<f32>()?, 0.0);
    Ok(())
}
