//! Every layout and dtype path of the drivers against indexing by hand.

use half::{bf16, f16};

use super::*;
use crate::threads::with_threads;

/// Row-major strides of a shape.
fn row_major(shape: &[usize]) -> Vec<isize> {
    (0..shape.len()).map(|axis| shape[axis + 1..].iter().product::<usize>() as isize).collect()
}

/// Every index of a shape, in row-major order.
fn indices(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let shape = shape.to_vec();
    (0..shape.iter().product()).map(move |mut flat: usize| {
        let mut index = vec![0; shape.len()];
        for axis in (0..shape.len()).rev() {
            index[axis] = flat % shape[axis];
            flat /= shape[axis];
        }
        index
    })
}

/// The offset of an index.
fn offset(index: &[usize], strides: &[isize]) -> usize {
    index.iter().zip(strides).map(|(&i, &s)| i as isize * s).sum::<isize>() as usize
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919) % 1013) as f32 - 500.0).collect()
}

/// Strides of an operand: as the shape, transposed, broadcast along each axis, or repeated everywhere.
fn layouts(shape: &[usize]) -> Vec<Vec<isize>> {
    let mut all = vec![row_major(shape), vec![0; shape.len()]];
    let reversed: Vec<usize> = shape.iter().rev().copied().collect();
    all.push(row_major(&reversed).into_iter().rev().collect());
    for axis in 0..shape.len() {
        let mut squeezed = shape.to_vec();
        squeezed[axis] = 1;
        let mut strides = row_major(&squeezed);
        strides[axis] = 0;
        all.push(strides);
    }
    all.push(row_major(shape).into_iter().map(|stride| stride * 2).collect());
    all
}

const SHAPES: [&[usize]; 10] =
    [&[], &[1], &[8], &[0, 3], &[5000], &[37, 61], &[3, 1100], &[700, 3], &[9, 1, 4, 33], &[2, 3, 4, 5, 2]];

#[test]
fn map2_follows_every_pair_of_layouts() {
    let memory = numbers(2 * 6000);
    for shape in SHAPES {
        let n_elems: usize = shape.iter().product();
        let strides = row_major(shape);
        for lhs in layouts(shape) {
            for rhs in layouts(shape) {
                let mut output = vec![0f32; n_elems];
                // SAFETY: every layout of these shapes stays inside `memory`.
                unsafe {
                    map2(
                        shape,
                        Operand::new(output.as_mut_ptr(), &strides),
                        Operand::new(memory.as_ptr(), &lhs),
                        Operand::new(memory.as_ptr(), &rhs),
                        |a: &[f32], b: &[f32], y: &mut [f32]| {
                            assert!(a.len() == y.len() && b.len() == y.len() && y.len() <= TILE_LEN);
                            for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                                *y = 2.0 * a - b;
                            }
                        },
                    );
                }
                let value =
                    |index: Vec<usize>| 2.0 * memory[offset(&index, &lhs)] - memory[offset(&index, &rhs)];
                assert!(output.into_iter().eq(indices(shape).map(value)), "{shape:?} {lhs:?} {rhs:?}");
            }
        }
    }
}

#[test]
fn outputs_may_be_strided() {
    let input = numbers(37 * 61);
    for strides in [[1, 37], [122, 2], [-61, 1], [61, -1]] {
        let mut memory = vec![f32::NAN; 4 * 37 * 61];
        let middle = 2 * 37 * 61;
        // SAFETY: these strides stay inside `memory` around its middle.
        unsafe {
            map1(
                &[37, 61],
                Operand::new(memory.as_mut_ptr().add(middle), &strides),
                Operand::new(input.as_ptr(), &[61, 1]),
                |x: &[f32], y: &mut [f32]| y.copy_from_slice(x),
            );
        }
        for index in indices(&[37, 61]) {
            let place =
                (middle as isize + index[0] as isize * strides[0] + index[1] as isize * strides[1]) as usize;
            assert_eq!(memory[place], input[index[0] * 61 + index[1]]);
        }
        assert_eq!(memory.iter().filter(|x| !x.is_nan()).count(), input.len());
    }
}

#[test]
fn narrow_types_are_computed_in_f32() {
    let a: Vec<bf16> = numbers(3000).into_iter().map(bf16::from_f32).collect();
    let b: Vec<f16> = numbers(3000).into_iter().map(|x| f16::from_f32(x * 0.01)).collect();
    let mut output = vec![bf16::ZERO; 3000];
    // SAFETY: three slices of the shape's length.
    unsafe {
        map2(
            &[3000],
            Operand::new(output.as_mut_ptr(), &[1]),
            Operand::new(a.as_ptr(), &[1]),
            Operand::new(b.as_ptr(), &[1]),
            |a: &[f32], b: &[f32], y: &mut [f32]| (0..y.len()).for_each(|i| y[i] = a[i] * b[i]),
        );
    }
    for i in 0..3000 {
        assert_eq!(output[i], bf16::from_f32(a[i].to_f32() * b[i].to_f32()));
    }
}

#[test]
fn the_output_may_be_an_input() {
    for strides in [[61, 1], [1, 37]] {
        let mut memory = numbers(37 * 61);
        let row = numbers(61);
        let before = memory.clone();
        let ptr = memory.as_mut_ptr();
        // SAFETY: output and left-hand side are the same memory with the same strides.
        unsafe {
            map2(
                &[37, 61],
                Operand::new(ptr, &strides),
                Operand::new(ptr.cast_const(), &strides),
                Operand::new(row.as_ptr(), &[0, 1]),
                |a: &[f32], b: &[f32], y: &mut [f32]| (0..y.len()).for_each(|i| y[i] = a[i] + b[i]),
            );
        }
        for index in indices(&[37, 61]) {
            let place = offset(&index, &strides);
            assert_eq!(memory[place], before[place] + row[index[1]]);
        }
    }
}

#[test]
fn map3_chooses_by_a_condition() {
    let shape = [40, 70];
    let (a, b) = (numbers(40 * 70), numbers(70));
    let condition: Vec<bool> = (0..40).map(|i| i % 3 == 0).collect();
    let mut output = vec![0f64; 40 * 70];
    // SAFETY: each operand covers the shape by its strides.
    unsafe {
        map3(
            &shape,
            Operand::new(output.as_mut_ptr(), &[70, 1]),
            [
                Operand::new(condition.as_ptr(), &[1, 0]),
                Operand::new(a.as_ptr(), &[70, 1]),
                Operand::new(b.as_ptr(), &[0, 1]),
            ],
            |c: &[bool], a: &[f32], b: &[f32], y: &mut [f64]| {
                assert!(size_of_val(y) <= TILE_BYTES);
                (0..y.len()).for_each(|i| y[i] = f64::from(if c[i] { a[i] } else { b[i] }));
            },
        );
    }
    for (i, &y) in output.iter().enumerate() {
        assert_eq!(y, f64::from(if condition[i / 70] { a[i] } else { b[i % 70] }));
    }
}

#[test]
fn generate_writes_every_index_once_for_any_number_of_threads() {
    for n_threads in [1, 2, 7] {
        let mut output = vec![-1i64; 3 * TASK_LEN + 5];
        // SAFETY: the vector has that many elements.
        unsafe {
            with_threads(n_threads, || {
                generate(output.len(), output.as_mut_ptr(), |first, tile| {
                    (0..tile.len()).for_each(|i| tile[i] = (first + i) as i64);
                });
            });
        }
        assert!(output.iter().enumerate().all(|(i, &y)| y == i as i64));
    }
}

#[test]
fn bits_are_equal_for_any_number_of_threads() {
    let shape = [300, 700];
    let memory = numbers(300 * 700);
    let run = |n_threads| {
        let mut output = vec![bf16::ZERO; memory.len()];
        with_threads(n_threads, || {
            // SAFETY: both operands cover the shape; the input is transposed.
            unsafe {
                map1(
                    &shape,
                    Operand::new(output.as_mut_ptr(), &[700, 1]),
                    Operand::new(memory.as_ptr(), &[1, 300]),
                    |x: &[f32], y: &mut [f32]| (0..y.len()).for_each(|i| y[i] = x[i] / 3.0),
                );
            }
        });
        output
    };
    let one = run(1);
    assert!(
        one.iter().zip(indices(&shape)).all(|(y, i)| *y == bf16::from_f32(memory[i[1] * 300 + i[0]] / 3.0))
    );
    assert_eq!(run(2), one);
    assert_eq!(run(7), one);
}
