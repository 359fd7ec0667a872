//! A sample of everything that touches raw memory, small enough to run under valgrind's memcheck: the pool, strided
//! kernels, products, reductions, random numbers, a tape, a step, threads.

use plimsoll::prelude::*;

#[test]
fn a_small_training_step() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    set_seed(2);
    let w1 = Variable::new(Tensor::normal([7, 9], 0.0, 0.3, DType::F32)?);
    let w2 = Variable::new(Tensor::normal([9, 3], 0.0, 0.3, DType::F32)?);
    for _ in 0..2 {
        Step::run(&device, || {
            let x = Tensor::randn([5, 7])?;
            let tape = GradientTape::new();
            let loss = tape.record(|| {
                let hidden = x.matmul(&w1)?.relu()?;
                hidden.matmul(&w2)?.exp()?.sum(..)
            })?;
            let [d1, d2] = tape.gradient(&loss, [&w1, &w2])?;
            w1.assign_sub(&d1.mul(1e-3)?)?;
            w2.assign_sub(&d2.mul(1e-3)?)
        })?;
    }
    assert!(w1.to_vec::<f32>()?.iter().all(|w| w.is_finite()));
    Ok(())
}

#[test]
fn strided_views_of_every_dtype() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    for dtype in DType::ALL {
        let x = Tensor::arange_of(0.0, 24.0, 1.0, DType::F64)?.reshape([2, 3, 4])?.cast(dtype)?;
        let turned = x.permute([2, 0, 1])?.contiguous()?;
        assert_eq!(turned.permute([1, 2, 0])?.to_f64_vec()?, x.to_f64_vec()?);
        if dtype != DType::Bool {
            let row = Tensor::ones([4])?.cast(dtype)?;
            assert_eq!(x.add(&row)?.sum([0, 1])?.shape().dims(), [4]);
        }
    }
    Ok(())
}

#[test]
fn threads_share_large_work() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let x = Tensor::uniform([300, 300], -1.0, 1.0, DType::F32)?;
    let y = x.t()?.add(&x)?.exp()?;
    assert_eq!(y.sum(0)?.shape().dims(), [300]);
    let part = Tensor::randn([40, 13])?;
    assert_eq!(part.matmul(&part.t()?)?.shape().dims(), [40, 40]);
    Ok(())
}
