//! Reductions, norms, losses, scans and sorting of more elements than the samples of the registry have: where a device cuts
//! lines into pieces, or shares them among threads, these shapes reach each way in which it does. What a device computes is
//! compared to the same in f64 on the CPU.

use plimsoll_tensor::{DType, Device, GradientTape, IntoAxes, Result, Tensor, set_seed};
use plimsoll_testkit::{Tolerance, device_under_test};

/// Inputs of a dtype on the CPU.
struct Given {
    device: Device,
    dtype: DType,
    inputs: Vec<Tensor>,
}

/// All shapes are tried in the first, and the first few in the second: elements of two bytes are read by other means.
const FLOATS: [DType; 2] = [DType::F32, DType::BF16];

/// How many of so many shapes are tried in a dtype.
fn n_tried(dtype: DType, n_shapes: usize) -> usize {
    if dtype == DType::F32 { n_shapes } else { n_shapes.min(3) }
}

/// Numbers between `low` and `high` of each shape.
fn given(dtype: DType, shapes: &[&[usize]], (low, high): (f64, f64)) -> Result<Given> {
    let cpu = Device::cpu();
    let _here = cpu.enter();
    set_seed(shapes.len() as u64 + 7);
    let draw = |shape: &&[usize]| match dtype.is_float() {
        true => Tensor::uniform(*shape, low, high, dtype),
        false => Tensor::randint(*shape, low as i64, high as i64, dtype),
    };
    let inputs = shapes.iter().map(draw).collect::<Result<_>>()?;
    Ok(Given { device: device_under_test(), dtype, inputs })
}

impl Given {
    fn and(mut self, labels: Tensor) -> Given {
        self.inputs.push(labels);
        self
    }

    /// Whether what `f` makes of the inputs on the device is near what it makes of them in f64 on the CPU.
    fn agrees(&self, what: &str, f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>) -> Result<()> {
        let wide = |x: &Tensor| {
            if x.dtype() == self.dtype && self.dtype.is_float() { x.cast(DType::F64) } else { Ok(x.clone()) }
        };
        let cpu = Device::cpu();
        let expected = {
            let _here = cpu.enter();
            f(&self.inputs.iter().map(wide).collect::<Result<Vec<_>>>()?)?
        };
        let _here = self.device.enter();
        let moved: Vec<Tensor> =
            self.inputs.iter().map(|x| x.to_device(&self.device)).collect::<Result<_>>()?;
        let actual = f(&moved)?;
        assert_eq!(actual.len(), expected.len());
        for (idx, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
            assert_eq!(actual.shape(), expected.shape(), "{what}, result {idx}");
            let tolerance =
                if actual.dtype().is_float() { Tolerance::of(self.dtype) } else { Tolerance::EXACT };
            let (values, wanted) = (actual.to_f64_vec()?, expected.to_f64_vec()?);
            for (at, (&value, &wanted)) in values.iter().zip(&wanted).enumerate() {
                let shapes: Vec<_> = self.inputs.iter().map(Tensor::shape).collect();
                assert!(
                    tolerance.allows(value, wanted),
                    "{what} of {} {shapes:?}: result {idx} is {value} at {at}, not {wanted}",
                    self.dtype
                );
            }
        }
        Ok(())
    }
}

/// The gradients of the inputs of `f`, and what it gives.
fn differentiated(x: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let tape = GradientTape::new();
    let watched: Vec<&Tensor> = x.iter().filter(|x| x.dtype().is_float()).collect();
    watched.iter().try_for_each(|x| tape.watch(x))?;
    let y = tape.record(|| f(x))?;
    // A gradient that differs from element to element.
    let ramp = y.cast(DType::F64)?.affine(0.5, 1.0)?.sin()?.cast(y.dtype())?;
    let gradients = tape.gradients(&[&y], Some(&[&ramp]), &watched, plimsoll_tensor::Unconnected::Zeros)?;
    Ok(gradients.into_iter().flatten().chain([y]).collect())
}

/// Shapes and axes: whole tensors, long and short rows, columns, both at once, an axis between.
const REDUCED: [(&[usize], &[isize]); 10] = [
    (&[70_000], &[0]),
    (&[300, 96], &[1]),
    (&[5000, 40], &[0]),
    (&[3, 20_000], &[1]),
    (&[600, 1100], &[1]),
    (&[5000, 3], &[1]),
    (&[9000, 7], &[0]),
    (&[3, 700, 24], &[1]),
    (&[40, 6, 64], &[0, 2]),
    (&[30, 50, 8], &[0, 1]),
];

#[test]
fn sums_and_extremes() -> Result<()> {
    for dtype in FLOATS {
        for &(shape, axes) in &REDUCED[..n_tried(dtype, REDUCED.len())] {
            let of = given(dtype, &[shape], (0.1, 1.0))?;
            of.agrees("mean, argmin and var", |x| {
                let axes = axes.into_axes("a test", x[0].shape())?;
                Ok(vec![x[0].mean(axes)?, x[0].argmin(axes)?, x[0].var(axes)?])
            })?;
        }
        for &(shape, axes) in &REDUCED[..3] {
            let of = given(dtype, &[shape], (0.1, 1.0))?;
            of.agrees("max and logsumexp", |x| {
                let axes = axes.into_axes("a test", x[0].shape())?;
                Ok(vec![x[0].max(axes)?, x[0].logsumexp(axes)?])
            })?;
        }
    }
    Ok(())
}

#[test]
fn whole_numbers() -> Result<()> {
    for dtype in [DType::I64, DType::U8] {
        for &(shape, axes) in &REDUCED[..3] {
            let of = given(dtype, &[shape], (0.0, 100.0))?;
            of.agrees("sum, prod, argmin and all", |x| {
                let axes = axes.into_axes("a test", x[0].shape())?;
                Ok(vec![x[0].sum(axes)?, x[0].prod(axes)?, x[0].argmin(axes)?, x[0].all(axes)?])
            })?;
        }
    }
    Ok(())
}

#[test]
fn reductions_of_views() -> Result<()> {
    let of = given(DType::F32, &[&[64, 300], &[40, 6, 50]], (0.1, 1.0))?;
    of.agrees("transposed, sliced and repeated", |x| {
        let across = x[0].transpose(0, 1)?;
        let cut = x[0].narrow(1, 3, 290)?;
        let repeated = x[1].narrow(0, 2, 1)?.broadcast_to([300, 6, 50])?;
        Ok(vec![
            across.mean(0)?,
            across.mean(1)?,
            cut.mean(1)?,
            cut.mean(0)?,
            cut.var([0, 1])?,
            repeated.mean([0, 2])?,
            x[1].permute(&[2, 0, 1])?.mean(0)?,
            x[1].permute(&[1, 2, 0])?.argmax([0, 2])?,
        ])
    })
}

#[test]
fn gradients_of_reductions() -> Result<()> {
    for (shape, axes) in [(&[2000, 24][..], 0), (&[4, 9000], 1)] {
        let of = given(DType::F32, &[shape], (0.99, 1.01))?;
        of.agrees("the gradients of prod, max and std", |x| {
            let of = |f: &dyn Fn(&Tensor) -> Result<Tensor>| differentiated(x, |x| f(&x[0]));
            let short = |x: &Tensor| x.narrow(axes, 0, 900)?.prod(axes);
            Ok([of(&short)?, of(&|x| x.max(axes))?, of(&|x| x.std(axes))?].concat())
        })?;
    }
    Ok(())
}

/// Lines that a warp keeps, that a block keeps, that are too long for that; side by side, short, and of odd length.
const LINES: [(&[usize], isize); 7] = [
    (&[5, 768], -1),
    (&[3, 5000], -1),
    (&[2, 40_000], -1),
    (&[7, 1023], -1),
    (&[300, 10], -1),
    (&[64, 40, 64], 1),
    (&[3, 1500, 5], 1),
];

#[test]
fn softmax() -> Result<()> {
    for dtype in FLOATS {
        for &(shape, axis) in &LINES[..n_tried(dtype, LINES.len())] {
            let of = given(dtype, &[shape], (-3.0, 3.0))?;
            of.agrees("softmax and log_softmax", |x| Ok(vec![x[0].softmax(axis)?, x[0].log_softmax(axis)?]))?;
            if dtype == DType::F32 {
                of.agrees("softmax's gradient", |x| differentiated(x, |x| x[0].softmax(axis)))?;
                of.agrees("log_softmax's gradient", |x| differentiated(x, |x| x[0].log_softmax(axis)))?;
            }
        }
    }
    Ok(())
}

#[test]
fn cross_entropy() -> Result<()> {
    for dtype in FLOATS {
        let shapes = [[5, 768], [3, 5000], [2, 40_000], [40, 10], [7, 1023]];
        for shape in &shapes[..n_tried(dtype, shapes.len())] {
            let &[rows, classes] = shape;
            let labels = Tensor::randint(rows, 0, classes as i64, DType::I64)?;
            let sparse = given(dtype, &[shape], (-3.0, 3.0))?.and(labels);
            let dense = given(dtype, &[shape, shape], (-1.0, 1.0))?;
            let dense =
                Given { inputs: vec![dense.inputs[0].clone(), dense.inputs[1].softmax(-1)?], ..dense };
            sparse.agrees("sparse_cross_entropy", |x| Ok(vec![x[0].sparse_cross_entropy(&x[1])?]))?;
            dense.agrees("cross_entropy", |x| Ok(vec![x[0].cross_entropy(&x[1])?]))?;
            if dtype == DType::F32 {
                sparse.agrees("sparse_cross_entropy's gradient", |x| {
                    differentiated(x, |x| x[0].sparse_cross_entropy(&x[1]))
                })?;
                dense.agrees("cross_entropy's gradient", |x| {
                    differentiated(x, |x| x[0].cross_entropy(&x[1]))
                })?;
            }
        }
    }
    Ok(())
}

#[test]
fn norms_of_lines() -> Result<()> {
    for dtype in FLOATS {
        let shapes = [[40, 768], [3, 7000], [2, 40_000], [5, 1023], [900, 24]];
        for shape in &shapes[..n_tried(dtype, shapes.len())] {
            let width = [shape[1]];
            let of = given(dtype, &[shape, &width, &width], (-1.0, 2.0))?;
            of.agrees("layer_norm", |x| Ok(vec![x[0].layer_norm(&x[1], &x[2], 1e-5)?]))?;
            of.agrees("rms_norm", |x| Ok(vec![x[0].rms_norm(&x[1], 1e-5)?]))?;
            if dtype == DType::F32 {
                of.agrees("layer_norm's gradients", |x| {
                    differentiated(x, |x| x[0].layer_norm(&x[1], &x[2], 1e-5))
                })?;
                of.agrees("rms_norm's gradients", |x| {
                    differentiated(&x[..2], |x| x[0].rms_norm(&x[1], 1e-5))
                })?;
            }
        }
    }
    Ok(())
}

#[test]
fn norms_of_channels() -> Result<()> {
    for dtype in FLOATS {
        let shapes = [[20, 9, 9, 64], [2, 2, 2, 1040], [4, 5, 5, 300], [50, 3, 3, 5]];
        for shape in &shapes[..n_tried(dtype, shapes.len())] {
            let (width, groups) = ([shape[3]], if shape[3] == 5 { 1 } else { 4 });
            let of = given(dtype, &[shape, &width, &width], (-1.0, 2.0))?;
            of.agrees("batch_norm", |x| {
                let (y, mean, variance) = x[0].batch_norm(&x[1], &x[2], 1e-5)?;
                Ok(vec![y, mean, variance])
            })?;
            of.agrees("group_norm", |x| Ok(vec![x[0].group_norm(&x[1], &x[2], groups, 1e-5)?]))?;
            if dtype == DType::F32 {
                of.agrees("batch_norm's gradients", |x| {
                    differentiated(x, |x| Ok(x[0].batch_norm(&x[1], &x[2], 1e-5)?.0))
                })?;
                of.agrees("group_norm's gradients", |x| {
                    differentiated(x, |x| x[0].group_norm(&x[1], &x[2], groups, 1e-5))
                })?;
            }
        }
    }
    Ok(())
}

#[test]
fn scans() -> Result<()> {
    for (shape, axis) in
        [(&[3, 5000][..], 1), (&[40, 100], 1), (&[100, 40], 0), (&[2, 300, 3], 1), (&[6, 7], 1)]
    {
        for dtype in [DType::F64, DType::BF16] {
            let of = given(dtype, &[shape, shape], (0.1, 0.9))?;
            of.agrees("cumsum and linear_scan", |x| {
                Ok(vec![x[0].cumsum(axis)?, x[0].linear_scan(&x[1], axis)?])
            })?;
            if dtype == DType::F64 {
                of.agrees("their gradients", |x| {
                    differentiated(x, |x| x[0].linear_scan(&x[1].cumsum(axis)?, axis))
                })?;
            }
        }
        let of = given(DType::U8, &[shape], (0.0, 100.0))?;
        of.agrees("cumsum", |x| Ok(vec![x[0].cumsum(axis)?]))?;
    }
    Ok(())
}

#[test]
fn sorting() -> Result<()> {
    for dtype in [DType::F64, DType::F32, DType::I32] {
        for (shape, axis) in
            [(&[2, 5000][..], 1), (&[1, 2048], 1), (&[1, 2049], 1), (&[40, 33], 1), (&[70, 5], 0)]
        {
            let of = given(dtype, &[shape], (0.0, 100.0))?;
            of.agrees("sort, argsort and top_k", |x| {
                let (rising, rising_at) = x[0].sort(axis, false)?;
                let (falling, falling_at) = x[0].sort(axis, true)?;
                let (top, top_at) = x[0].top_k(5, axis)?;
                let only = x[0].argsort(axis, true)?;
                Ok(vec![rising, rising_at, falling, falling_at, top, top_at, only])
            })?;
        }
    }
    Ok(())
}
