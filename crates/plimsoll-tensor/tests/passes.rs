//! Passes: fewer calls, the same bits, never a higher peak. That every op's program keeps its bits is a check of the registry.

#![forbid(unsafe_code)]

use plimsoll_tensor::{
    DType, Device, Function, Generator, GradientTape, PlannedProgram, Program, Result, Tensor,
};
use plimsoll_testkit::device_under_test;

/// The names of the calls of a function, as recorded and after all passes.
fn names(
    device: &Device,
    arguments: &[&Tensor],
    f: impl Fn(Vec<Tensor>) -> Result<Vec<Tensor>>,
) -> Result<[Vec<&'static str>; 2]> {
    let record = || Program::record(device, arguments, &f);
    let planned = PlannedProgram::with_passes(record()?)?;
    let names = |program: &Program| program.calls().map(|call| call.op.name()).collect();
    let (recorded, passed) = (record()?, planned.program());
    assert_eq!(planned.recorded().calls().len(), recorded.calls().len());
    assert!(passed.footprint(device, None)?.peak <= recorded.footprint(device, None)?.peak);
    let generator = Generator::current();
    let bits = |program: &Program| -> Result<Vec<Vec<u64>>> {
        generator.make_current();
        let results = program.run(arguments, None)?;
        assert_eq!(Generator::current().next_draw(), generator.next_draw() + recorded.n_draws());
        results
            .iter()
            .map(|result| Ok(result.to_f64_vec()?.into_iter().map(f64::to_bits).collect()))
            .collect()
    };
    assert_eq!(bits(passed)?, bits(&recorded)?);
    Ok([names(&recorded), names(passed)])
}

#[test]
fn dead_calls_are_not_made_and_draws_keep_their_numbers() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let x = Tensor::randn([64, 64])?;
    let [recorded, passed] = names(&device, &[&x], |x| {
        let dead = x[0].matmul(&x[0])?.exp()?;
        let _noise = Tensor::randn([64, 64])?;
        let live = x[0].neg()?.dropout(0.5)?;
        drop(dead);
        Ok(vec![live])
    })?;
    assert_eq!((recorded.len(), passed), (5, vec!["fused"]), "{recorded:?}");
    Ok(())
}

#[test]
fn a_call_that_may_refuse_a_value_is_made_though_nobody_reads_it() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let lookup = Function::new(|(x, indices): (Tensor, Tensor)| {
        x.index_select(0, &indices)?;
        x.neg()
    })
    .passes(true);
    let call = |index: i64| lookup.call((Tensor::ones([3])?, Tensor::from_slice(&[index], [1])?));
    call(2)?;
    let refused = call(3).and_then(|y| y.to_vec::<f32>());
    assert!(refused.is_err());
    Ok(())
}

#[test]
fn equal_calls_are_made_once_where_that_raises_no_peak() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let x = Tensor::randn([128, 128])?;
    let [recorded, passed] = names(&device, &[&x], |x| {
        let product = |x: &Tensor| x.matmul(x)?.tanh();
        let (one, other) = (product(&x[0])?, product(&x[0])?);
        // Other attributes, other operands, and draws are not equal.
        let rest = x[0].affine(2.0, 0.0)?.add(&x[0].affine(2.5, 0.0)?)?;
        let drawn = x[0].dropout(0.5)?.sub(&x[0].dropout(0.5)?)?;
        Ok(vec![one.add(&other)?, rest, drawn])
    })?;
    let count = |names: &[&str], name: &str| names.iter().filter(|&&one| one == name).count();
    assert_eq!((count(&recorded, "matmul"), count(&recorded, "tanh")), (2, 2));
    // One product; two numbers and their sum; two draws and their difference; one tanh, added to itself.
    assert_eq!(passed, ["matmul", "fused", "dropout", "fused", "fused"]);
    Ok(())
}

#[test]
fn what_is_rebuilt_to_save_memory_stays_rebuilt() -> Result<()> {
    const N: usize = 1 << 16;
    let device = device_under_test();
    let _on = device.enter();
    let x = Tensor::randn([N])?;
    // The same value early and late; in between everything that there is room for.
    let [recorded, passed] = names(&device, &[&x], |x| {
        let early = x[0].exp()?.sum(..)?;
        let wide = Tensor::concat(&[&x[0], &x[0], &x[0]], 0)?.sum(..)?;
        let late = x[0].exp()?.mean(..)?;
        Ok(vec![early, wide, late])
    })?;
    let count = |names: &[&str], name: &str| names.iter().filter(|&&one| one == name).count();
    // Each is made again where it is reduced, so none of them takes memory.
    assert_eq!((count(&recorded, "exp"), count(&passed, "fused_fold")), (2, 2));
    Ok(())
}

#[test]
fn casts_there_and_back_are_left_out_for_whole_numbers() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let (whole, float) = (Tensor::from_slice(&[i32::MIN, -1, 7, i32::MAX], [4])?, Tensor::randn([4])?);
    let [recorded, passed] = names(&device, &[&whole, &float], |x| {
        let back = x[0].cast(DType::I64)?.cast(DType::I32)?;
        let there = x[1].cast(DType::F64)?.cast(DType::F32)?;
        Ok(vec![back.add(&x[0])?, there.neg()?])
    })?;
    // Those of floats stay, as part of what they are fused with.
    assert_eq!((recorded.len(), passed), (6, vec!["add", "fused"]));
    Ok(())
}

#[test]
fn numbers_that_change_do_not_change_what_runs_from_them() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let factor = std::cell::Cell::new(2.0);
    // Equal at first, so that one call serves both; then not.
    let function = Function::new(|x: Tensor| {
        let (one, other) = (x.affine(2.0, 1.0)?, x.affine(factor.get(), 1.0)?);
        one.mul(&other)
    })
    .recording(plimsoll_tensor::Recording::EachCall)
    .passes(true);
    for value in [2.0, 2.0, 3.0, 2.0, 5.0] {
        factor.set(value);
        let y = function.call(Tensor::ones([3])?)?.to_vec::<f32>()?;
        assert_eq!(y, [(3.0 * (value + 1.0)) as f32; 3]);
    }
    assert_eq!(function.eager_reason(), None);
    Ok(())
}

#[test]
fn gradients_under_passes_have_eagers_bits_and_no_higher_peak() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let (x, w) = (Tensor::randn([256, 64])?, Tensor::randn([64, 64])?);
    let step = |(x, w): (Tensor, Tensor)| {
        let tape = GradientTape::new();
        tape.watch(&w)?;
        let loss = tape.record(|| {
            let mut h = x.clone();
            for _ in 0..6 {
                h = h.matmul(&w)?.affine(0.1, 0.0)?.gelu()?.dropout(0.1)?;
            }
            h.square()?.mean(..)
        })?;
        let [dw] = tape.gradient(&loss, [&w])?;
        Ok((loss, dw))
    };
    let bits = |f: &dyn Fn((Tensor, Tensor)) -> Result<(Tensor, Tensor)>| -> Result<(Vec<u32>, u64)> {
        Generator::new(3).make_current();
        device.pool().reset_peaks();
        let (loss, dw) = f((x.clone(), w.clone()))?;
        let peak = device.stats().peak_in_use;
        let values = dw.to_vec::<f32>()?.into_iter().chain([loss.item()?]);
        Ok((values.map(f32::to_bits).collect(), peak))
    };
    let (eager, eager_peak) = bits(&step)?;
    for passes in [false, true] {
        let function = Function::new(step).passes(passes);
        for _ in 0..3 {
            let (values, peak) = bits(&|arguments| function.call(arguments))?;
            assert!(
                values == eager && peak <= eager_peak,
                "passes {passes}: {peak} B, eagerly {eager_peak} B"
            );
        }
    }
    Ok(())
}
