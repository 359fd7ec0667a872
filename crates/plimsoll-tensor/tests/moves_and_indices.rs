//! Copies, casts, random numbers and sums at indices on a GPU against the CPU, bit by bit, in sizes that the registry's
//! samples do not reach: several tiles, blocks and passes. The GPU is the emulated one unless `PLIMSOLL_TEST_DEVICE`
//! names a real one.

use std::fs::File;
use std::sync::Arc;

use half::{bf16, f16};
use plimsoll_tensor::{DType, Device, Element, Result, Slice, Tensor, Variable, set_seed};

/// A GPU with a pool of its own.
fn gpu() -> Device {
    match std::env::var("PLIMSOLL_TEST_DEVICE")
        .ok()
        .and_then(|name| name.strip_prefix("cuda:").map(str::to_owned))
    {
        Some(number) => Device::separate_cuda(number.parse().unwrap()).unwrap(),
        None => Device::emulated().unwrap(),
    }
}

/// The bytes of a tensor's values, in row-major order.
fn bits(x: &Tensor) -> Vec<u64> {
    fn of<T: Element>(x: &Tensor, bits: impl Fn(T) -> u64) -> Vec<u64> {
        x.to_vec::<T>().unwrap().into_iter().map(bits).collect()
    }
    match x.dtype() {
        DType::F64 => of::<f64>(x, f64::to_bits),
        DType::F32 => of::<f32>(x, |x| u64::from(x.to_bits())),
        DType::F16 => of::<f16>(x, |x| u64::from(x.to_bits())),
        DType::BF16 => of::<bf16>(x, |x| u64::from(x.to_bits())),
        DType::I64 => of::<i64>(x, |x| x as u64),
        DType::I32 => of::<i32>(x, |x| x as u64),
        DType::U8 => of::<u8>(x, u64::from),
        DType::Bool => of::<bool>(x, u64::from),
    }
}

/// Checks that a function of tensors gives the same bits on a GPU as on the CPU.
fn same(name: &str, inputs: &[&Tensor], f: impl Fn(&[Tensor]) -> Result<Tensor>) {
    let here: Vec<Tensor> = inputs.iter().map(|&x| x.clone()).collect();
    let gpu = gpu();
    let there: Vec<Tensor> = inputs.iter().map(|x| x.to_device(&gpu).unwrap()).collect();
    let expected = f(&here).unwrap();
    let _on = gpu.enter();
    let got = f(&there).unwrap();
    assert_eq!(got.device(), gpu, "{name}");
    assert!(bits(&got) == bits(&expected), "{name}: the GPU gives other bits than the CPU");
}

/// Numbers in that shape and dtype.
fn drawn(shape: &[usize], dtype: DType) -> Tensor {
    match dtype {
        DType::Bool => Tensor::randn(shape).unwrap().gt(0.0).unwrap(),
        dtype => Tensor::uniform(shape, 0.0, 100.0, DType::F32).unwrap().cast(dtype).unwrap(),
    }
}

const ALL: [DType; 8] =
    [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8, DType::Bool];

#[test]
fn views_are_copied_whatever_their_strides() {
    for dtype in ALL {
        let (matrix, cube) = (drawn(&[70, 45], dtype), drawn(&[3, 40, 33], dtype));
        same("a matrix turned", &[&matrix], |x| x[0].t()?.copied());
        same("a batch of matrices turned", &[&cube], |x| x[0].permute([0, 2, 1])?.copied());
        same("axes turned round", &[&cube], |x| x[0].permute([2, 1, 0])?.copied());
        same("rows of heads", &[&drawn(&[2, 9, 3, 16], dtype)], |x| x[0].permute([0, 2, 1, 3])?.copied());
        same("backwards", &[&cube], |x| x[0].flip(..)?.copied());
        same("with gaps", &[&cube], |x| {
            x[0].slice((.., Slice::from(1..).step(3), Slice::from(..).step(-2)))?.copied()
        });
        same("columns from the second on", &[&matrix], |x| x[0].narrow(1, 1, 44)?.copied());
        same("a column repeated", &[&matrix], |x| x[0].narrow(1, 3, 1)?.broadcast_to([70, 19])?.copied());
        same("dense", &[&cube], |x| x[0].copied());
    }
}

#[test]
fn casts_follow_the_rules_of_the_cpu() {
    let values = [
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.0,
        1.999,
        -1.999,
        254.9,
        255.0,
        256.0,
        300.7,
        -300.7,
        65_504.0,
        65_519.9,
        70_000.0,
        2_147_483_647.0,
        2_147_483_648.0,
        -2_147_483_648.0,
        -2_147_483_649.0,
        4_294_967_297.0,
        9.3e18,
        -9.3e18,
        1e40,
        -1e40,
        1e-8,
        3e-5,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let numbers = Tensor::from_slice(&values, values.len()).unwrap();
    for from in ALL {
        let x = numbers.cast(from).unwrap();
        for to in ALL {
            // What is not a number has many bits; which ones is nobody's promise.
            same(&format!("{from} to {to}"), &[&x], |x| {
                let y = x[0].cast(to)?;
                match to.is_float() {
                    true => y.is_nan()?.logical_not()?.where_(&y, &y.full_like(7.0)?),
                    false => Ok(y),
                }
            });
        }
    }
}

#[test]
fn many_tensors_are_put_side_by_side() {
    let parts: Vec<Tensor> = (0..21).map(|i| drawn(&[5, 1 + i * 7 % 23], DType::BF16)).collect();
    let parts: Vec<&Tensor> = parts.iter().collect();
    same("columns", &parts, |x| Tensor::concat(&x.iter().collect::<Vec<_>>(), 1));
    let tall: Vec<Tensor> = (0..3).map(|i| drawn(&[40 + i, 36], DType::F32)).collect();
    same("turned", &tall.iter().collect::<Vec<_>>(), |x| {
        let turned: Vec<Tensor> = x.iter().map(Tensor::t).collect::<Result<_>>()?;
        Tensor::concat(&turned.iter().collect::<Vec<_>>(), 1)
    });
    same("padding", &[&drawn(&[6, 33], DType::F16)], |x| x[0].pad(&[(1, 2), (3, 4)], 1.5));
}

#[test]
fn random_numbers_have_the_same_bits() {
    let again = |f: &dyn Fn() -> Result<Tensor>| {
        set_seed(11);
        f()
    };
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        same("uniform", &[], |_| again(&|| Tensor::uniform([1027], -0.3, 2.1, dtype)));
        same("dropout", &[&drawn(&[33, 64], dtype)], |x| again(&|| x[0].dropout(0.3)));
        same("dropout of a view", &[&drawn(&[33, 64], dtype)], |x| again(&|| x[0].t()?.dropout(0.3)));
    }
    for dtype in [DType::F32, DType::I64, DType::I32, DType::U8] {
        same("integers", &[], |_| again(&|| Tensor::randint([517], 3, 200, dtype)));
        same("a range", &[], |_| Tensor::arange_of(0.1, 90.0, 0.1, dtype));
    }
    same("wide integers", &[], |_| again(&|| Tensor::randint([64], i64::MIN, i64::MAX, DType::I64)));
    same("the identity", &[], |_| Tensor::eye(19));
}

#[test]
fn normal_numbers_are_those_of_the_cpu_up_to_the_last_places() -> Result<()> {
    let gpu = gpu();
    for (dtype, tolerance) in [(DType::F32, 2e-6), (DType::F64, 1e-14)] {
        for truncated in [false, true] {
            let make = || {
                set_seed(5);
                match truncated {
                    true => {
                        Tensor::truncated_normal([2049], 0.5, 2.0, dtype)?.cast(DType::F64)?.to_vec::<f64>()
                    }
                    false => Tensor::normal([2049], 0.5, 2.0, dtype)?.cast(DType::F64)?.to_vec::<f64>(),
                }
            };
            let expected = make()?;
            let _on = gpu.enter();
            let far = make()?.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(far <= tolerance, "{dtype}: {far}");
        }
    }
    Ok(())
}

#[test]
fn sums_at_indices_are_made_in_their_order() -> Result<()> {
    for (n_ids, n_rows) in [(3000, 700), (1, 1), (2500, 3), (1025, 70_000)] {
        let ids = Tensor::randint([n_ids], 0, n_rows as i64, DType::I64)?;
        for (dtype, width) in [(DType::BF16, 16), (DType::F32, 3), (DType::I32, 1)] {
            let (table, rows) = (drawn(&[n_rows, width], dtype), drawn(&[n_ids, width], dtype));
            same("index_add", &[&table, &ids, &rows], |x| x[0].index_add(0, &x[1], &x[2]));
            same("embedding", &[&table, &ids], |x| x[0].embedding(&x[1]));
        }
    }
    let (ids, x) = (Tensor::randint([40, 30], 0, 19, DType::I32)?, drawn(&[19, 32], DType::F32));
    let source = drawn(&[30, 40], DType::F32);
    same("scatter_add of views", &[&x, &ids, &source], |x| x[0].scatter_add(0, &x[1], &x[2].t()?));
    same("gather of views", &[&x, &ids], |x| x[0].t()?.gather(1, &x[1].t()?));
    let (x, ids) = (drawn(&[3, 11, 8], DType::F16), Tensor::randint([50], 0, 11, DType::I64)?);
    let source = drawn(&[3, 8, 50], DType::F16);
    same("index_add along another axis", &[&x, &ids, &source], |x| {
        x[0].index_add(1, &x[1], &x[2].permute([0, 2, 1])?)
    });
    Ok(())
}

#[test]
fn variables_are_read_from_a_file_in_pieces() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("values");
    let values: Vec<f32> = (0..(5 << 18)).map(|i| i as f32 * 0.5).collect();
    let bytes: Vec<u8> = [0u8; 12].into_iter().chain(values.iter().flat_map(|x| x.to_le_bytes())).collect();
    std::fs::write(&path, &bytes).unwrap();
    let gpu = gpu();
    let _on = gpu.enter();
    let variable = Variable::new(Tensor::zeros([5 << 18])?);
    let file = Arc::new(File::open(&path).unwrap());
    Variable::read_file(&file, &path, &[(&variable, 12)])?;
    assert_eq!(variable.to_vec::<f32>()?, values);
    Ok(())
}
