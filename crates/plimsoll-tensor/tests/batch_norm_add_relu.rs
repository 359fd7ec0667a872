//! The end of a residual block in one op: the bits of `batch_norm`, `add` and `relu` one after the other, forward and backward, on
//! the CPU and on a GPU, called by hand and put in their place by a pass over programs. The GPU is the emulated one unless
//! `PLIMSOLL_TEST_DEVICE` names a real one.

#![forbid(unsafe_code)]

use plimsoll_tensor::{
    DType, Device, GradientTape, PlannedProgram, Program, Result, Tensor, Unconnected, set_seed,
};

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

/// Float64 has a number of its own for each number of the other types, negative zero included.
fn bits(x: &Tensor) -> Result<Vec<u64>> {
    Ok(x.cast(DType::F64)?.to_vec::<f64>()?.into_iter().map(f64::to_bits).collect())
}

/// x, gamma, beta, what is added, and what the output is weighed with.
fn inputs(dtype: DType, shape: &[usize], is_turned: bool) -> Result<[Tensor; 5]> {
    let width = shape[shape.len() - 1];
    let image = || match is_turned {
        true => Tensor::normal([shape[1], shape[0], width], 0.2, 1.0, dtype)?.transpose(0, 1),
        false => Tensor::normal(shape, 0.2, 1.0, dtype),
    };
    let vector = || Tensor::normal(width, 0.7, 0.3, dtype);
    Ok([image()?, vector()?, vector()?, image()?, Tensor::normal(shape, 0.0, 1.0, dtype)?])
}

/// Output, mean and variance from x, gamma, beta and what is added.
type BlockEnd = fn(&[Tensor]) -> Result<(Tensor, Tensor, Tensor)>;

fn together(x: &[Tensor]) -> Result<(Tensor, Tensor, Tensor)> {
    x[0].batch_norm_add_relu(&x[1], &x[2], x[3].clone(), EPS)
}

fn one_by_one(x: &[Tensor]) -> Result<(Tensor, Tensor, Tensor)> {
    let (normed, mean, variance) = x[0].batch_norm(&x[1], &x[2], EPS)?;
    Ok((normed.into_add(x[3].clone())?.relu()?, mean, variance))
}

/// Output, mean, variance, and the gradients of all inputs.
fn with_gradients(end: BlockEnd, x: &[Tensor]) -> Result<Vec<Tensor>> {
    let tape = GradientTape::new();
    x[..4].iter().try_for_each(|input| tape.watch(input))?;
    let ((y, mean, variance), loss) = tape.record(|| -> Result<_> {
        let all = end(&x[..4])?;
        let loss = all.0.mul(&x[4])?.sum(..)?;
        Ok((all, loss))
    })?;
    let gradients: [Tensor; 4] = tape.gradient(&loss, [&x[0], &x[1], &x[2], &x[3]])?;
    Ok([y, mean, variance].into_iter().chain(gradients).collect())
}

fn all_bits(tensors: &[Tensor]) -> Result<Vec<Vec<u64>>> {
    tensors.iter().map(bits).collect()
}

#[test]
fn the_bits_are_those_of_one_op_after_the_other() -> Result<()> {
    for device in devices() {
        let _on = device.enter();
        // Each kernel of a GPU is compiled first, so it has one dtype of each width that matters.
        let dtypes = [DType::F32, DType::BF16, DType::F16, DType::F64];
        let n_dtypes = if device.profile().is_some() { 2 } else { 4 };
        for dtype in dtypes.into_iter().take(n_dtypes) {
            let shapes: [(&[usize], bool); 4] =
                [(&[7, 5], false), (&[9, 6, 8], true), (&[2, 5, 9, 64], false), (&[3, 1100], false)];
            for (shape, is_turned) in shapes {
                set_seed(3);
                let inputs = inputs(dtype, shape, is_turned)?;
                let [fused, plain] = [together as BlockEnd, one_by_one]
                    .map(|end| with_gradients(end, &inputs).and_then(|all| all_bits(&all)));
                assert!(fused? == plain?, "{device} {dtype} {shape:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_sum_that_rounds_to_minus_zero_and_what_is_not_a_number_pass_as_through_relu() -> Result<()> {
    for device in devices() {
        let _on = device.enter();
        for dtype in [DType::F32, DType::BF16] {
            let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2])?.cast(dtype)?;
            let vector = |values: &[f32]| Tensor::from_slice(values, 2)?.cast(dtype);
            let added = [0.0f32, -0.0, f32::NAN, f32::INFINITY, -1e-40, f32::NEG_INFINITY];
            let added = Tensor::from_slice(&added, [3, 2])?.cast(dtype)?;
            let inputs = [x, vector(&[0.0, 1e-30])?, vector(&[-0.0, -0.0])?, added];
            let [fused, plain] = [together as BlockEnd, one_by_one].map(|end| end(&inputs));
            // Which of the numbers that are none it is does not matter.
            let numbers = |x: Tensor| -> Result<Vec<_>> {
                let values = x.cast(DType::F64)?.to_vec::<f64>()?;
                Ok(values
                    .into_iter()
                    .map(|x| (x.is_nan(), if x.is_nan() { 0 } else { x.to_bits() }))
                    .collect())
            };
            assert_eq!(numbers(fused?.0)?, numbers(plain?.0)?, "{device} {dtype}");
        }
    }
    Ok(())
}

#[test]
fn it_takes_the_memory_of_what_is_added_where_nobody_else_holds_that() -> Result<()> {
    for device in devices() {
        let _on = device.enter();
        let inputs = inputs(DType::F32, &[40, 64], false)?;
        let expected = bits(&together(&inputs)?.0)?;
        let [x, gamma, beta, added, ..] = inputs;
        let before = device.stats().in_use;
        let (y, mean, variance) = x.batch_norm_add_relu(&gamma, &beta, added, EPS)?;
        // 64 numbers are half of the least that a block is.
        assert_eq!(device.stats().in_use, before + 2 * 512, "the statistics alone are new");
        assert_eq!(bits(&y)?, expected);
        drop((mean, variance));
    }
    Ok(())
}

#[test]
fn it_keeps_what_the_ops_one_by_one_keep() -> Result<()> {
    let inputs = inputs(DType::F32, &[300, 64], false)?;
    let kept = |end: BlockEnd| -> Result<usize> {
        let tape = GradientTape::new();
        inputs[..4].iter().try_for_each(|input| tape.watch(input))?;
        let _y = tape.record(|| end(&inputs))?;
        Ok(tape.saved().bytes())
    };
    // The input, the output, gamma and two numbers for each channel.
    assert_eq!(kept(together)?, 2 * 300 * 64 * 4 + 3 * 64 * 4);
    assert_eq!(kept(together)?, kept(one_by_one)?);
    Ok(())
}

#[test]
fn only_the_gradients_that_are_wanted_are_made() -> Result<()> {
    for device in devices() {
        let _on = device.enter();
        let inputs = inputs(DType::F32, &[12, 8], false)?;
        let gradients = |end: BlockEnd, wanted: &[usize]| -> Result<Vec<Vec<u64>>> {
            let tape = GradientTape::new();
            wanted.iter().try_for_each(|&input| tape.watch(&inputs[input]))?;
            let loss = tape.record(|| end(&inputs)?.0.mul(&inputs[4])?.sum(..))?;
            let sources: Vec<&Tensor> = wanted.iter().map(|&input| &inputs[input]).collect();
            let given = tape.gradients(&[&loss], None, &sources, Unconnected::None)?;
            given.iter().map(|gradient| bits(gradient.as_ref().expect("the output depends on it"))).collect()
        };
        for wanted in [&[0][..], &[1], &[2], &[3], &[0, 3], &[1, 2]] {
            assert_eq!(gradients(together, wanted)?, gradients(one_by_one, wanted)?, "{device} {wanted:?}");
        }
    }
    Ok(())
}

#[test]
fn a_program_makes_it_of_the_three_with_the_bits_of_eager_code() -> Result<()> {
    for device in devices() {
        let _on = device.enter();
        for dtype in [DType::F32, DType::BF16] {
            let inputs = inputs(dtype, &[3, 20, 64], false)?;
            let arguments: Vec<&Tensor> = inputs.iter().collect();
            let block = |x: Vec<Tensor>| {
                let mut results = with_gradients(one_by_one, &x)?;
                // The statistics are read at once, as running ones do.
                results.push(results[1].affine(0.9, 0.0)?);
                Ok(results)
            };
            let recorded = Program::record(&device, &arguments, block)?;
            let planned = PlannedProgram::with_passes(Program::record(&device, &arguments, block)?)?;
            let passed = planned.program();
            let names: Vec<&str> = passed.calls().map(|call| call.op.name()).collect();
            assert_eq!(names.iter().filter(|&&name| name == "batch_norm_add_relu").count(), 1, "{passed}");
            assert!(!names.contains(&"relu") && !names.contains(&"batch_norm"), "{passed}");
            let peaks = [&recorded, passed].map(|program| program.footprint(&device, None));
            let [before, after] = peaks;
            assert!(after?.peak <= before?.peak);
            let eager = all_bits(&block(inputs.to_vec())?)?;
            assert!(all_bits(&passed.run(&arguments, None)?)? == eager, "{passed}");
            assert!(all_bits(&recorded.run(&arguments, None)?)? == eager, "{recorded}");
        }
    }
    Ok(())
}

#[test]
fn three_calls_stay_where_others_read_between_them_or_what_is_added_comes_later() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let inputs = inputs(DType::F32, &[30, 64], false)?;
    let arguments: Vec<&Tensor> = inputs.iter().collect();
    let is_joined = |f: &dyn Fn(Vec<Tensor>) -> Result<Vec<Tensor>>| -> Result<bool> {
        let planned = PlannedProgram::with_passes(Program::record(&device, &arguments, f)?)?;
        let results = planned.program().run(&arguments, None)?;
        assert_eq!(all_bits(&results)?, all_bits(&f(inputs.to_vec())?)?);
        Ok(planned.program().calls().any(|call| call.op.name() == "batch_norm_add_relu"))
    };
    let normed = |x: &[Tensor]| x[0].batch_norm(&x[1], &x[2], EPS).map(|all| all.0);
    // From either side of the sum, and with what is made before.
    assert!(is_joined(&|x| Ok(vec![x[3].add(&normed(&x)?)?.relu()?]))?);
    assert!(is_joined(&|x| {
        let beside = x[3].matmul(&x[4].t()?)?.matmul(&x[3])?;
        Ok(vec![normed(&x)?.into_add(beside)?.into_relu()?])
    })?);
    assert!(!is_joined(&|x| Ok(vec![normed(&x)?.add(&x[3].matmul(&x[4].t()?)?.matmul(&x[3])?)?.relu()?]))?);
    assert!(!is_joined(&|x| {
        let y = normed(&x)?;
        Ok(vec![y.add(&x[3])?.relu()?, y])
    })?);
    assert!(!is_joined(&|x| {
        let sum = normed(&x)?.add(&x[3])?;
        Ok(vec![sum.relu()?, sum])
    })?);
    assert!(!is_joined(&|x| Ok(vec![normed(&x)?.add(&x[1])?.relu()?]))?, "what is added is repeated");
    assert!(!is_joined(&|x| Ok(vec![normed(&x)?.add(&x[3])?.tanh()?]))?);
    let with_relu = |x: &[Tensor]| x[0].batch_norm_relu(&x[1], &x[2], EPS).map(|all| all.0);
    assert!(!is_joined(&|x| Ok(vec![with_relu(&x)?.add(&x[3])?.relu()?]))?);
    Ok(())
}
