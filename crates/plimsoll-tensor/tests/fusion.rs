//! Fusion: calls of pointwise ops become one, with the reduction, softmax, norm, cross entropy or gradient that reads what they make,
//! with eager's bits, and never with a higher peak.
//!
//! Random chains are drawn by a fixed seed; `PLIMSOLL_CHAINS` says how many for each dtype (20).

#![forbid(unsafe_code)]

use plimsoll_tensor::{
    DType, Device, Generator, GradientTape, PlannedProgram, Program, Result, Tensor, Unconnected, set_seed,
};
use plimsoll_testkit::device_under_test;

/// The names of the calls of a function after all passes, whose results, peak and draws are compared with eager code's.
fn fused(
    device: &Device,
    arguments: &[&Tensor],
    f: impl Fn(Vec<Tensor>) -> Result<Vec<Tensor>>,
) -> Result<Vec<&'static str>> {
    let recorded = Program::record(device, arguments, &f)?;
    let planned = PlannedProgram::with_passes(Program::record(device, arguments, &f)?)?;
    let passed = planned.program();
    assert!(passed.footprint(device, None)?.peak <= recorded.footprint(device, None)?.peak);
    let generator = Generator::current();
    let eager = f(arguments.iter().map(|&argument| argument.clone()).collect())?;
    let after = Generator::current().next_draw();
    generator.make_current();
    let run = passed.run(arguments, None)?;
    assert_eq!(Generator::current().next_draw(), after);
    for (number, (run, eager)) in run.iter().zip(&eager).enumerate() {
        let bits = |tensor: &Tensor| -> Result<Vec<u64>> {
            Ok(tensor.to_f64_vec()?.into_iter().map(f64::to_bits).collect())
        };
        let (run, eager) = (bits(run)?, bits(eager)?);
        let differs = run.iter().zip(&eager).position(|(run, eager)| run != eager);
        assert_eq!(differs, None, "result {number} of\n{passed}\nmade from\n{recorded}");
    }
    Ok(passed.calls().map(|call| call.op.name()).collect())
}

#[test]
fn a_chain_is_one_call_and_takes_the_memory_of_its_ends() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let (x, bias) = (Tensor::randn([70, 65])?, Tensor::randn([65])?);
    let chain = |x: Vec<Tensor>| Ok(vec![x[0].add(&x[1])?.gelu()?.dropout(0.25)?.affine(2.0, 1.0)?]);
    assert_eq!(fused(&device, &[&x, &bias], chain)?, ["fused"]);
    let planned = PlannedProgram::with_passes(Program::record(&device, &[&x, &bias], chain)?)?;
    let peaks = [planned.recorded(), planned.program()].map(|program| program.footprint(&device, None));
    let [recorded, passed] = peaks;
    assert!(recorded?.peak - passed?.peak >= 70 * 65 * 4, "only the result is acquired");
    Ok(())
}

#[test]
fn what_others_read_is_an_output_and_what_they_read_in_between_ends_a_group() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let x = Tensor::randn([40, 40])?;
    let names = fused(&device, &[&x], |x| {
        let y = x[0].exp()?;
        let z = y.neg()?.sin()?;
        Ok(vec![z.matmul(&y)?, z])
    })?;
    assert_eq!(names, ["fused", "matmul"]);
    let names = fused(&device, &[&x], |x| {
        let y = x[0].exp()?;
        let product = y.matmul(&x[0])?;
        Ok(vec![y.mul(&product)?.tanh()?])
    })?;
    assert_eq!(names, ["exp", "matmul", "fused"]);
    Ok(())
}

#[test]
fn a_value_that_is_seen_in_another_shape_is_stored() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let x = Tensor::randn([12, 12])?;
    let names = fused(&device, &[&x], |x| {
        let y = x[0].exp()?;
        Ok(vec![y.t()?.add(&y)?.sqrt()?])
    })?;
    assert_eq!(names, ["exp", "fused"]);
    Ok(())
}

#[test]
fn two_draws_are_two_calls_and_the_numbers_of_draws_stay() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    set_seed(11);
    let x = Tensor::ones([30, 41])?;
    let names = fused(&device, &[&x], |x| Ok(vec![x[0].dropout(0.5)?.neg()?.dropout(0.5)?.exp()?]))?;
    assert_eq!(names, ["fused", "fused"]);
    Ok(())
}

#[test]
fn numbers_that_change_keep_the_program() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let x = Tensor::randn([33])?;
    let scaled = |scale: f64| move |x: Vec<Tensor>| Ok(vec![x[0].affine(scale, 0.0)?.exp()?]);
    let mut planned = PlannedProgram::with_passes(Program::record(&device, &[&x], scaled(0.5))?)?;
    planned.adopt(Program::record(&device, &[&x], scaled(0.25))?)?;
    let expected = x.affine(0.25, 0.0)?.exp()?.to_vec::<f32>()?;
    assert_eq!(planned.run(&[&x])?[0].to_vec::<f32>()?, expected);
    Ok(())
}

#[test]
fn a_reduction_takes_in_what_makes_its_input() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let (x, y) = (Tensor::randn([90, 130])?, Tensor::randn([130])?);
    let loss = |x: Vec<Tensor>| Ok(vec![x[0].sub(&x[1])?.square()?.mean(..)?]);
    assert_eq!(fused(&device, &[&x, &y], loss)?, ["fused_fold"]);
    let planned = PlannedProgram::with_passes(Program::record(&device, &[&x, &y], loss)?)?;
    let peak = |program: &Program| program.footprint(&device, None).map(|footprint| footprint.peak);
    let less = peak(planned.recorded())? - peak(planned.program())?;
    assert!(less >= 90 * 130 * 4, "{less} bytes less: what is reduced is nowhere");
    // An op alone, seen in another shape; an output of its own for what others read, and two results of one reduction.
    let names = fused(&device, &[&x, &y], |x| Ok(vec![x[0].exp()?.reshape([30, 390])?.sum(1)?]))?;
    assert_eq!(names, ["fused_fold"]);
    let names = fused(&device, &[&x, &y], |x| {
        let z = x[0].mul(&x[1])?.tanh()?;
        Ok(vec![z.sum(0)?, z.matmul(&x[0].t()?)?])
    })?;
    assert_eq!(names, ["fused_fold", "matmul"]);
    // It cannot wait for a reduction where others read before.
    let names = fused(&device, &[&x, &y], |x| {
        let z = x[0].mul(&x[1])?.tanh()?;
        let product = z.matmul(&x[0].t()?)?;
        Ok(vec![z.sum(0)?, product])
    })?;
    assert_eq!(names, ["fused", "matmul", "sum"]);
    Ok(())
}

#[test]
fn gradients_of_reductions_that_save_take_in_their_inputs() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let x = Tensor::randn([33, 70])?;
    let names = fused(&device, &[&x], |x| {
        let tape = GradientTape::new();
        tape.watch(&x[0])?;
        let loss = tape.record(|| x[0].sin()?.max(1)?.sum(..)?.add(&x[0].tanh()?.var(0)?.sum(..)?))?;
        let [gradient] = tape.gradient(&loss, [&x[0]])?;
        Ok(vec![loss, gradient])
    })?;
    assert!(names.contains(&"fused_fold"), "{names:?}");
    Ok(())
}

#[test]
fn what_a_softmax_reads_is_made_in_the_memory_of_its_result() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let (scores, mask) = (Tensor::randn([90, 130])?, Tensor::randn([130])?);
    let masked = |x: Vec<Tensor>| Ok(vec![x[0].affine(0.125, 0.0)?.add(&x[1])?.softmax(-1)?]);
    assert_eq!(fused(&device, &[&scores, &mask], masked)?, ["fused_fold"]);
    let planned = PlannedProgram::with_passes(Program::record(&device, &[&scores, &mask], masked)?)?;
    let peak = |program: &Program| program.footprint(&device, None).map(|footprint| footprint.peak);
    let rounded = |n: u64| (4 * n).next_multiple_of(512);
    assert_eq!(
        peak(planned.program())?,
        2 * rounded(90 * 130) + rounded(130),
        "arguments and the result alone"
    );
    // Lines that are too long to be kept in registers, and a line that is none.
    let long = Tensor::randn([3, 9001])?;
    assert_eq!(fused(&device, &[&long], |x| Ok(vec![x[0].neg()?.log_softmax(1)?]))?, ["fused_fold"]);
    let names = fused(&device, &[&scores], |x| Ok(vec![x[0].neg()?.softmax(0)?]))?;
    assert_eq!(names, ["affine", "softmax"], "its lines lie side by side");
    Ok(())
}

#[test]
fn what_a_norm_keeps_is_written_where_it_is_made() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let (x, y) = (Tensor::randn([70, 96])?, Tensor::randn([70, 96])?);
    let (gamma, beta) = (Tensor::randn([96])?, Tensor::randn([96])?);
    let arguments = [&x, &y, &gamma, &beta];
    let names = fused(&device, &arguments, |x| {
        let sum = x[0].add(&x[1].dropout(0.25)?)?;
        Ok(vec![sum.layer_norm(&x[2], &x[3], 1e-5)?, sum])
    })?;
    assert_eq!(names, ["fused_fold"]);
    let names = fused(&device, &arguments, |x| {
        let (normed, mean, variance) = x[0].mul(&x[1])?.batch_norm(&x[2], &x[3], 1e-5)?;
        Ok(vec![normed, mean, variance])
    })?;
    // Batch norm reads twice, and its result is written while what it reads is still wanted.
    assert_eq!(names, ["mul", "batch_norm"]);
    let names = fused(&device, &arguments, |x| {
        let product = x[0].mul(&x[1])?;
        Ok(vec![product.batch_norm_relu(&x[2], &x[3], 1e-5)?.0, product])
    })?;
    assert_eq!(names, ["fused_fold"]);
    Ok(())
}

#[test]
fn the_gradient_of_a_residual_block_s_end_is_made_where_the_norm_s_sums_read_it() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let (x, beside, weights) = (Tensor::randn([50, 64])?, Tensor::randn([50, 64])?, Tensor::randn([50, 64])?);
    let (gamma, beta) = (Tensor::randn([64])?, Tensor::randn([64])?);
    let names = fused(&device, &[&x, &beside, &gamma, &beta, &weights], |x| {
        let tape = GradientTape::new();
        x[..4].iter().try_for_each(|x| tape.watch(x))?;
        let y = tape.record(|| {
            let normed = x[0].batch_norm(&x[2], &x[3], 1e-5)?.0;
            normed.into_add(x[1].clone())?.relu()
        })?;
        // Two gradients of the output, as the next block gives them.
        let (one, other) = (x[4].matmul(&x[4].t()?)?.matmul(&x[4])?, x[4].matmul(&x[4].t()?)?.matmul(&x[0])?);
        let of_output = one.into_add(other)?;
        let sources = [&x[0], &x[1], &x[2], &x[3]];
        let gradients = tape.gradients(&[&y], Some(&[&of_output]), &sources, Unconnected::None)?;
        Ok(gradients.into_iter().flatten().collect())
    })?;
    assert!(names.contains(&"batch_norm_add_relu"), "{names:?}");
    assert!(!names.iter().any(|name| name.ends_with("backward")), "{names:?}");
    Ok(())
}

/// A random chain, what reads it along its last axis, and the gradients of that.
fn read_along_lines(seed: u64, dtype: DType, x: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut numbers = Numbers(seed);
    let tape = GradientTape::new();
    x[..4].iter().try_for_each(|x| tape.watch(x))?;
    let (kind, rate) = (numbers.below(9), 0.25 * numbers.below(2) as f64);
    let mut kept = Vec::new();
    let results = tape.record(|| -> Result<Vec<Tensor>> {
        let mut made = x[0].add(&x[1])?;
        for _ in 0..numbers.below(3) {
            made = match numbers.below(5) {
                0 => made.mul(&x[2])?,
                1 => made.tanh()?,
                2 => made.affine(0.5, 0.125)?,
                3 => made.dropout(rate)?,
                _ => made.cast(DType::F32)?.sigmoid()?.cast(dtype)?,
            };
        }
        if numbers.below(2) == 0 {
            kept.push(made.clone());
        }
        let rows = made.reshape([-1, x[2].shape()[0] as isize])?;
        let normed = |(normed, mean, variance): (Tensor, Tensor, Tensor)| vec![normed, mean, variance];
        Ok(match kind {
            0 => vec![made.softmax(-1)?],
            1 => vec![made.log_softmax(-1)?],
            2 => vec![made.layer_norm(&x[2], &x[3], 1e-5)?],
            3 => vec![made.rms_norm(&x[2], 1e-5)?],
            4 => normed(made.batch_norm(&x[2], &x[3], 1e-5)?),
            5 => normed(made.batch_norm_relu(&x[2], &x[3], 1e-5)?),
            6 => normed(made.batch_norm_add_relu(&x[2], &x[3], x[1].clone(), 1e-5)?),
            7 => vec![rows.cross_entropy(&x[4].reshape([-1, x[2].shape()[0] as isize])?)?],
            _ => vec![rows.sparse_cross_entropy(&x[5])?],
        })
    })?;
    // The gradient that comes in is a product, whose factors follow each other.
    let loss = tape.record(|| results[0].tanh()?.mul(&results[0])?.sum(..))?;
    let gradients = tape.gradient_or_none(&loss, [&x[0], &x[1], &x[2], &x[3]])?;
    Ok(results.into_iter().chain(kept).chain(gradients.into_iter().flatten()).collect())
}

#[test]
fn random_chains_into_softmax_norms_and_losses_have_the_bits_of_eager_code() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let mut n_folded = 0;
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for seed in 0..n_chains() {
            set_seed(seed);
            let shapes = [[3, 5, 7], [2, 9, 64], [40, 3, 16], [1, 70, 130], [3, 2, 1100], [5, 40, 48]];
            let [a, b, c] = shapes[seed as usize % shapes.len()];
            let labels: Vec<i64> = (0..a * b).map(|row| ((row * 7) % c) as i64).collect();
            let inputs = [
                Tensor::randn([a, b, c])?.cast(dtype)?,
                Tensor::randn([b, a, c])?.cast(dtype)?.transpose(0, 1)?,
                Tensor::randn([c])?.cast(dtype)?,
                Tensor::randn([c])?.cast(dtype)?,
                Tensor::randn([a, b, c])?.softmax(-1)?.cast(dtype)?,
                Tensor::from_slice(&labels, [a * b])?,
            ];
            let work = |x: Vec<Tensor>| read_along_lines(seed, dtype, &x);
            let names = fused(&device, &inputs.iter().collect::<Vec<_>>(), work)?;
            n_folded += names.iter().filter(|&&name| name == "fused_fold").count() as u64;
        }
    }
    assert!(n_folded > 3 * n_chains(), "{n_folded} folds of {}", 4 * n_chains());
    Ok(())
}

/// A random chain over inputs of three axes, and reductions of what it makes.
fn reductions(seed: u64, dtype: DType, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut numbers = Numbers(seed);
    let mut x = inputs[numbers.below(2)].clone();
    let mut steps = Vec::new();
    for _ in 0..1 + numbers.below(4) {
        let other = &inputs[numbers.below(inputs.len())];
        x = match numbers.below(7) {
            0 => x.add(other)?,
            1 => x.mul(other)?,
            2 => x.tanh()?,
            3 => x.affine(0.5, 0.125)?,
            4 => x.dropout(0.25)?,
            5 => x.cast(DType::F32)?.sigmoid()?.cast(dtype)?,
            _ => x.maximum(other)?,
        };
        steps.push(x.clone());
    }
    let axes: &[&[usize]] = &[&[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]];
    let axes = axes[numbers.below(axes.len())];
    let reduced = match numbers.below(8) {
        0 | 1 => x.sum(axes)?,
        2 => x.mean_keepdims(axes)?,
        3 => x.max(axes)?,
        4 => x.norm(axes)?,
        5 => x.logsumexp(axes)?,
        6 => x.argmin(axes)?,
        _ => x.var_corrected(axes, 0.0)?,
    };
    let mut results = vec![reduced];
    // Some of what lies between is read elsewhere, too.
    if numbers.below(2) == 0 {
        results.push(steps[numbers.below(steps.len())].clone());
    }
    Ok(results)
}

#[test]
fn random_chains_into_reductions_have_the_bits_of_eager_code() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let mut n_folded = 0;
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for seed in 0..n_chains() {
            set_seed(seed);
            let shapes = [[3, 5, 7], [2, 9, 64], [40, 33, 16], [1, 70, 130], [600, 3, 8], [4, 1, 4096]];
            let [a, b, c] = shapes[seed as usize % shapes.len()];
            let inputs = [
                Tensor::randn([a, b, c])?.cast(dtype)?,
                Tensor::randn([b, a, c])?.cast(dtype)?.transpose(0, 1)?,
                Tensor::randn([c])?.cast(dtype)?,
                Tensor::randn([a, 1, 1])?.cast(dtype)?,
                Tensor::randn([b, 1])?.cast(dtype)?,
            ];
            let work = |x: Vec<Tensor>| reductions(seed, dtype, &x);
            let names = fused(&device, &inputs.iter().collect::<Vec<_>>(), work)?;
            n_folded += names.iter().filter(|&&name| name == "fused_fold").count() as u64;
        }
    }
    assert!(n_folded > 2 * n_chains(), "{n_folded} reductions of {}", 4 * n_chains());
    Ok(())
}

/// How many random programs there are for each dtype.
fn n_chains() -> u64 {
    std::env::var("PLIMSOLL_CHAINS").ok().and_then(|n| n.parse().ok()).unwrap_or(20)
}

/// A generator of small numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }
}

/// A random network of pointwise ops, casts, broadcasts, views and reductions over the inputs.
fn network(seed: u64, dtype: DType, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut numbers = Numbers(seed);
    let mut values = inputs.to_vec();
    let n_ops = 4 + numbers.below(12);
    for _ in 0..n_ops {
        let at = numbers.below(values.len());
        let with = numbers.below(values.len());
        // Recent values more often, so that there are chains.
        let x = if numbers.below(3) > 0 { values[values.len() - 1].clone() } else { values[at].clone() };
        let other = values[with].clone();
        let y = match numbers.below(16) {
            0 => x.add(&other)?,
            1 => x.mul(&other)?,
            2 => x.sub(&other)?.abs()?,
            3 => x.tanh()?,
            4 => x.sigmoid()?,
            5 => x.gelu()?,
            6 => x.affine(0.5, 0.125)?,
            7 => x.gt(&other)?.where_(&x, &other)?,
            8 => x.dropout(0.25)?,
            9 => x.cast(DType::F32)?.exp()?.cast(dtype)?.clamp(-4.0, 4.0)?,
            10 => x.maximum(&other)?,
            11 => x.square()?.into_affine(0.25, 1.0)?.into_relu()?,
            12 => x.silu()?.round()?,
            13 => x.add(&x.mean_keepdims(-1)?)?,
            14 => x.relu()?,
            _ => x.t()?.copied()?.t()?.mul(&other)?,
        };
        values.push(y);
    }
    Ok(values.split_off(inputs.len()))
}

#[test]
fn random_networks_and_their_gradients_have_the_bits_of_eager_code() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let mut n_fused = 0;
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for seed in 0..n_chains() {
            set_seed(seed);
            let n = 5 + 67 * (seed as usize % 3);
            let inputs = [
                Tensor::randn([n, n])?.cast(dtype)?,
                Tensor::randn([1, n])?.cast(dtype)?,
                Tensor::randn([n, 1])?.cast(dtype)?,
            ];
            let work = |x: Vec<Tensor>| {
                let tape = GradientTape::new();
                x.iter().try_for_each(|x| tape.watch(x))?;
                let (sum, last) = tape.record(|| {
                    let values = network(seed, dtype, &x)?;
                    let sums = values.iter().map(|value| value.mean(..)).collect::<Result<Vec<_>>>()?;
                    let first = sums[0].clone();
                    let sum = sums[1..].iter().try_fold(first, |sum, one| sum.add(one))?;
                    Ok::<_, plimsoll_tensor::Error>((sum, values[values.len() - 1].clone()))
                })?;
                let mut results = vec![sum.clone(), last];
                let gradients = tape.gradient_or_none(&sum, [&x[0], &x[1], &x[2]])?;
                results.extend(gradients.into_iter().flatten());
                Ok(results)
            };
            let names = fused(&device, &inputs.iter().collect::<Vec<_>>(), work)?;
            n_fused += names.iter().filter(|name| name.starts_with("fused")).count() as u64;
        }
    }
    assert!(n_fused > 4 * n_chains(), "{n_fused} fused calls in {} networks", 4 * n_chains());
    Ok(())
}
