//! A residual sum and its norm in one op: the bits of `dropout`, `add` and the norm one after the other, forward and backward,
//! on the CPU and on a GPU, also where lines are odd, strided (on the CPU), or too long to be kept in registers. The GPU is the
//! emulated one unless `PLIMSOLL_TEST_DEVICE` names a real one.

use plimsoll_tensor::{DType, Device, GradientTape, Result, Tensor, set_seed};

const EPS: f64 = 1e-5;

/// The CPU and a GPU, with pools of their own.
fn devices() -> [Device; 2] {
    let named = std::env::var("PLIMSOLL_TEST_DEVICE").ok();
    let gpu = match named.as_deref().and_then(|name| name.strip_prefix("cuda:")) {
        Some(number) => Device::separate_cuda(number.parse().unwrap()).unwrap(),
        None => Device::emulated().unwrap(),
    };
    [Device::separate_cpu(), gpu]
}

/// x, the branch, gamma, beta, and what the two results are weighed with.
type Inputs = [Tensor; 6];

fn inputs(dtype: DType, rows: usize, width: usize, is_turned: bool) -> Result<Inputs> {
    let matrix = || match is_turned {
        true => Tensor::normal([width, rows], 0.2, 1.0, dtype)?.t(),
        false => Tensor::normal([rows, width], 0.2, 1.0, dtype),
    };
    let vector = || Tensor::normal(width, 0.7, 0.3, dtype);
    Ok([matrix()?, matrix()?, vector()?, vector()?, matrix()?, matrix()?])
}

/// How sum and norm are made from x, the branch, gamma and beta.
type AddNorm<'a> = &'a dyn Fn(&Tensor, Tensor, &Tensor, &Tensor) -> Result<(Tensor, Tensor)>;

/// The bits of both results and of all gradients.
fn bits(add_norm: AddNorm<'_>, inputs: &Inputs, has_beta: bool) -> Result<Vec<Vec<u64>>> {
    let [x, branch, gamma, beta, of_sum, of_normed] = inputs;
    set_seed(9);
    let tape = GradientTape::new();
    let sources: &[&Tensor] = if has_beta { &[x, branch, gamma, beta] } else { &[x, branch, gamma] };
    sources.iter().try_for_each(|source| tape.watch(source))?;
    let (sum, normed) = tape.record(|| add_norm(x, branch.clone(), gamma, beta))?;
    let gradients = tape.gradients(
        &[&sum, &normed],
        Some(&[of_sum, of_normed]),
        sources,
        plimsoll_tensor::Unconnected::None,
    )?;
    let all = [Some(sum), Some(normed)].into_iter().chain(gradients).flatten();
    // Float64 has a number of its own for each number of the other types.
    let bits = |x: Tensor| Ok(x.cast(DType::F64)?.to_vec::<f64>()?.into_iter().map(f64::to_bits).collect());
    all.map(bits).collect()
}

#[test]
fn the_bits_are_those_of_one_op_after_the_other() -> Result<()> {
    for device in devices() {
        let _on = device.enter();
        // Each kernel of a GPU is compiled first, so it has one dtype of each width that matters.
        let dtypes = [DType::F32, DType::BF16, DType::F16, DType::F64];
        let n_dtypes = if device.profile().is_some() { 2 } else { 4 };
        for dtype in dtypes.into_iter().take(n_dtypes) {
            for (rows, width, is_turned) in [(7, 5, false), (9, 64, true), (33, 24, false), (2, 9000, false)]
            {
                // How the threads of a GPU share a line follows from strides, and the sum by itself has others.
                if is_turned && device.profile().is_some() {
                    continue;
                }
                set_seed(3);
                let inputs = inputs(dtype, rows, width, is_turned)?;
                for rate in [0.0, 0.25] {
                    let what = format!("{device} {dtype} {rows} x {width} {rate}");
                    let fused = bits(&|x, b, g, s| b.into_add_layer_norm(x, rate, g, s, EPS), &inputs, true)?;
                    let plain = |x: &Tensor, branch: Tensor, gamma: &Tensor, beta: &Tensor| {
                        let sum = x.add(&branch.dropout(rate)?)?;
                        let normed = sum.layer_norm(gamma, beta, EPS)?;
                        Ok((sum, normed))
                    };
                    assert_eq!(fused.len(), 6);
                    assert!(fused == bits(&plain, &inputs, true)?, "layer norm, {what}");
                    let fused = bits(&|x, b, g, _| b.into_add_rms_norm(x, rate, g, EPS), &inputs, false)?;
                    let plain = |x: &Tensor, branch: Tensor, gamma: &Tensor, _: &Tensor| {
                        let sum = x.add(&branch.dropout(rate)?)?;
                        let normed = sum.rms_norm(gamma, EPS)?;
                        Ok((sum, normed))
                    };
                    assert_eq!(fused.len(), 5);
                    assert!(fused == bits(&plain, &inputs, false)?, "RMS norm, {what}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_sum_takes_the_memory_of_a_branch_that_nobody_else_holds() -> Result<()> {
    for device in devices() {
        let _on = device.enter();
        let [x, branch, gamma, beta, ..] = inputs(DType::F32, 40, 64, false)?;
        let (expected, _) = branch.clone().into_add_layer_norm(&x, 0.0, &gamma, &beta, EPS)?;
        let expected = expected.to_vec::<f32>()?;
        let before = device.stats().in_use;
        let (sum, normed) = branch.into_add_layer_norm(&x, 0.0, &gamma, &beta, EPS)?;
        assert_eq!(device.stats().in_use, before + 40 * 64 * 4, "the norm alone is new");
        assert_eq!(sum.to_vec::<f32>()?, expected);
        drop(normed);
    }
    Ok(())
}

#[test]
fn only_what_a_gradient_reaches_is_given() -> Result<()> {
    let [x, branch, gamma, beta, ..] = inputs(DType::F32, 4, 8, false)?;
    for rate in [0.0, 0.5] {
        set_seed(1);
        let tape = GradientTape::new();
        [&x, &branch, &gamma].iter().try_for_each(|source| tape.watch(source))?;
        let (sum, normed) =
            tape.record(|| branch.clone().into_add_layer_norm(&x, rate, &gamma, &beta, EPS))?;
        drop(normed);
        let [dx, dbranch, dgamma] = tape.gradient_or_none(&sum, [&x, &branch, &gamma])?;
        assert!(dgamma.is_none());
        assert_eq!(dx.map(|dx| dx.to_vec::<f32>()).transpose()?, Some(vec![1.0; 32]));
        set_seed(1);
        let dropped = Tensor::ones([4, 8])?.dropout(rate)?;
        assert_eq!(dbranch.map(|db| db.to_vec::<f32>()).transpose()?, Some(dropped.to_vec()?));
    }
    Ok(())
}
