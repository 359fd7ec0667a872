//! What attention keeps and needs: memory linear in the sequence, views read where they lie, blind queries.

use plimsoll_tensor::{AttentionConfig, DType, Device, GradientTape, Result, Tensor};

/// The bytes that a tape holds after an attention of `n` queries and keys, and the pool's peak with backward.
fn bytes_of(n: usize) -> Result<(usize, u64)> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let draw = || Tensor::normal([2, n, 16], 0.0, 1.0, DType::F32);
    let (q, k, v) = (draw()?, draw()?, draw()?);
    let tape = GradientTape::new();
    tape.watch(&q)?;
    let y = tape.record(|| q.attention(&k, &v, &AttentionConfig { causal: true, ..Default::default() }))?;
    let saved = tape.saved().bytes();
    tape.gradient(&y, [&q])?;
    Ok((saved, device.stats().peak_in_use))
}

#[test]
fn memory_is_linear_in_the_sequence() {
    let (saved, peak) = bytes_of(512).unwrap();
    // Queries, keys, values and output, and one number per query.
    assert_eq!(saved, 2 * 512 * (4 * 16 + 1) * 4);
    let (twice_saved, twice_peak) = bytes_of(1024).unwrap();
    assert_eq!(twice_saved, 2 * saved);
    assert!(twice_peak <= 2 * peak, "{peak} B became {twice_peak} B");
    let all_scores = 2 * 1024 * 1024 * 4;
    assert!(twice_peak < all_scores, "{twice_peak} B");
}

#[test]
fn operands_are_read_where_they_lie() {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let projected = Tensor::normal([2, 70, 3, 8], 0.0, 1.0, DType::F32).unwrap();
    let heads = projected.permute([0, 2, 1, 3]).unwrap();
    let before = device.stats().n_acquired;
    let y = heads.attention(&heads, &heads, &AttentionConfig::default()).unwrap();
    assert_eq!(device.stats().n_acquired - before, 2, "the output and the workspace");
    let copied = heads.copied().unwrap();
    let same = copied.attention(&copied, &copied, &AttentionConfig::default()).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), same.to_vec::<f32>().unwrap());
}

#[test]
fn a_query_that_sees_no_key_gives_zeros_and_no_gradient() {
    let draw = |n: usize| Tensor::normal([n, 4], 0.0, 1.0, DType::F32).unwrap();
    let (q, k, v) = (draw(2), draw(3), draw(3));
    let mask = Tensor::from_slice(&[false, false, false, true, false, true], [2, 3]).unwrap();
    let config = AttentionConfig { mask: Some(&mask), ..Default::default() };
    let tape = GradientTape::new();
    tape.watch(&q).unwrap();
    tape.watch(&v).unwrap();
    let y = tape.record(|| q.attention(&k, &v, &config)).unwrap();
    let [dq, dv] = tape.gradient(&y, [&q, &v]).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap()[..4], [0.0; 4]);
    assert!(y.to_vec::<f32>().unwrap()[4..].iter().all(|&y| y != 0.0));
    assert_eq!(dq.to_vec::<f32>().unwrap()[..4], [0.0; 4]);
    assert!(dv.to_vec::<f32>().unwrap().iter().all(|dv| dv.is_finite()));
    assert_eq!(dv.to_vec::<f32>().unwrap()[4..8], [0.0; 4]);
}

/// What tensor cores compute tile by tile, in several tiles of each kind and with operands that lie as a transformer's do, is
/// what the CPU computes in f32 from the same numbers.
#[cfg(feature = "emulated")]
#[test]
fn tiles_of_an_emulated_gpu_agree_with_the_cpu() {
    let attention = |device: &Device, dtype: DType, projected: &Tensor| {
        let projected = projected.to_device(device)?.cast(dtype)?;
        let _on = device.enter();
        let tape = GradientTape::new();
        tape.watch(&projected)?;
        let y = tape.record(|| {
            let heads = projected.permute([2, 0, 3, 1, 4])?;
            let of = |idx: usize| heads.narrow(0, idx, 1)?.squeeze(0);
            let config = AttentionConfig { causal: true, ..Default::default() };
            of(0)?.attention(&of(1)?, &of(2)?, &config)
        })?;
        let [gradient] = tape.gradient(&y, [&projected])?;
        Ok::<_, plimsoll_tensor::Error>([y.to_f64_vec()?, gradient.to_f64_vec()?])
    };
    for (depth, dtype) in [(64, DType::BF16), (128, DType::F16)] {
        let shape = [1, 150, 3, 2, depth];
        // Numbers that the narrow dtype holds, so that both sides begin with the same.
        let exact = Tensor::normal(shape, 0.0, 1.0, dtype).unwrap().cast(DType::F32).unwrap();
        let expected = attention(&Device::cpu(), DType::F32, &exact).unwrap();
        let actual = attention(&Device::emulated().unwrap(), dtype, &exact).unwrap();
        for (actual, expected) in actual.iter().zip(&expected) {
            for (actual, expected) in actual.iter().zip(expected) {
                // Weights and the gradients of scores are rounded to the narrow dtype before they are multiplied.
                assert!(
                    (actual - expected).abs() <= 0.02 + 0.02 * expected.abs(),
                    "{actual}, not {expected}"
                );
            }
        }
    }
}
