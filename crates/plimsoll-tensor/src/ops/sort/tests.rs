//! What samples of random numbers do not show: NaN, infinities, zeros of both signs, long lines.

use super::*;

const AWKWARD: [f32; 9] = [0.0, f32::NAN, -0.0, 1.0, f32::NEG_INFINITY, -f32::NAN, f32::INFINITY, 1.0, -1.0];

#[test]
fn nan_is_the_greatest_and_zeros_are_equal() -> Result<()> {
    let x = Tensor::from_slice(&AWKWARD, 9)?;
    for x in [x.clone(), x.cast(DType::F64)?, x.cast(DType::BF16)?] {
        assert_eq!(x.argsort(0, false)?.to_vec::<i64>()?, [4, 8, 0, 2, 3, 7, 6, 1, 5]);
        assert_eq!(x.argsort(0, true)?.to_vec::<i64>()?, [1, 5, 6, 3, 7, 0, 2, 8, 4]);
        assert_eq!(x.top_k(4, 0)?.1.to_vec::<i64>()?, [1, 5, 6, 3]);
    }
    let (values, _) = x.sort(0, false)?;
    assert_eq!(values.to_vec::<f32>()?[3].to_bits(), (-0.0f32).to_bits());
    Ok(())
}

#[test]
fn the_ends_of_the_integers_are_in_order() -> Result<()> {
    let x = Tensor::from_vec(vec![0, i64::MAX, -1, i64::MIN])?;
    assert_eq!(x.argsort(0, false)?.to_vec::<i64>()?, [3, 2, 0, 1]);
    let x = Tensor::from_vec(vec![0, i32::MAX, -1, i32::MIN])?;
    assert_eq!(x.argsort(0, true)?.to_vec::<i64>()?, [1, 0, 2, 3]);
    Ok(())
}

#[test]
fn a_few_of_many_are_those_that_a_sort_puts_first() -> Result<()> {
    crate::eager::random::Generator::new(3).make_current();
    for dtype in [DType::I32, DType::I64] {
        let x = Tensor::randint([3, 5000], 0, 500, dtype)?;
        let (all, order) = x.sort(-1, true)?;
        for k in [1, 2, 17, 900, 4999] {
            let (values, indices) = x.top_k(k, -1)?;
            assert_eq!(values.to_f64_vec()?, all.narrow(-1, 0, k)?.to_f64_vec()?);
            assert_eq!(indices.to_vec::<i64>()?, order.narrow(-1, 0, k)?.to_vec::<i64>()?);
        }
    }
    Ok(())
}

#[test]
fn indices_are_no_way_back() -> Result<()> {
    let x = Tensor::from_vec(vec![3.0f32, 1.0, 2.0])?;
    let other = Tensor::from_vec(vec![10.0f32, 20.0, 30.0])?;
    let tape = crate::autograd::GradientTape::new();
    tape.watch(&x)?;
    tape.watch(&other)?;
    let target = tape.record(|| {
        let (values, indices) = x.top_k(2, 0)?;
        values.mul(&other.gather(0, &indices)?)
    })?;
    let [dx, dother] = tape.gradient(&target, [&x, &other])?;
    assert_eq!(dx.to_vec::<f32>()?, [10.0, 0.0, 30.0]);
    assert_eq!(dother.to_vec::<f32>()?, [3.0, 0.0, 2.0]);
    Ok(())
}
