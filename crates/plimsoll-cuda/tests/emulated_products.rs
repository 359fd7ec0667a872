//! Products on the emulated GPU: tensor cores, matrix products, convolutions; and its memory.

#![cfg(feature = "emulated")]

use std::sync::{Arc, LazyLock};

use half::{bf16, f16};
use plimsoll_cuda::{
    Convolution, ConvolutionOperands, Direction, Epilogue, Gpu, Grid, Matmul, MatmulOperands, Matrix, Scalar,
    Template,
};
use plimsoll_memory::{Region, Source};

/// The GPU of these tests.
fn gpu() -> &'static Gpu {
    static GPU: LazyLock<Arc<Gpu>> = LazyLock::new(|| Gpu::emulated().unwrap());
    &GPU
}

/// Small numbers that all types hold, and of which sums are exact in any order.
fn small(idx: usize, seed: usize) -> f64 {
    ((idx * 31 + seed * 17) % 23) as f64 * 0.25 - 2.5
}

/// Numbers as a type has them in memory.
fn encode(scalar: Scalar, values: &[f64]) -> Vec<u64> {
    let bytes: Vec<u8> = match scalar {
        Scalar::F16 => values.iter().flat_map(|&x| f16::from_f64(x).to_ne_bytes()).collect(),
        Scalar::BF16 => values.iter().flat_map(|&x| bf16::from_f64(x).to_ne_bytes()).collect(),
        Scalar::F32 => values.iter().flat_map(|&x| (x as f32).to_ne_bytes()).collect(),
        Scalar::F64 => values.iter().flat_map(|&x| x.to_ne_bytes()).collect(),
    };
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    });
    words.collect()
}

/// The other way round.
fn decode(scalar: Scalar, words: &[u64], n: usize) -> Vec<f64> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let number = |bytes: &[u8]| match scalar {
        Scalar::F16 => f16::from_ne_bytes([bytes[0], bytes[1]]).to_f64(),
        Scalar::BF16 => bf16::from_ne_bytes([bytes[0], bytes[1]]).to_f64(),
        Scalar::F32 => f64::from(f32::from_ne_bytes(bytes.try_into().unwrap())),
        Scalar::F64 => f64::from_ne_bytes(bytes.try_into().unwrap()),
    };
    bytes.chunks(scalar.size()).take(n).map(number).collect()
}

fn address(words: &mut [u64]) -> *mut u8 {
    words.as_mut_ptr().cast()
}

/// One warp multiplies a, 16 × 16, by b, 16 × 8, from shared memory. b lies transposed, or not and is then transposed by
/// the load.
static TENSOR_CORE: Template = Template {
    name: "tensor_core",
    text: "KERNEL ENTRY(const u16* a, const u16* b, float* d) {
        DYNAMIC_SHARED(u16, shared);
        u16 *shared_a = shared, *shared_b = shared + 256;
        int lane = threadIdx.x, row = lane % 8, matrix = lane / 8;
        copy_async_16(shared_a + 8 * lane, a + 8 * lane);
        copy_async_commit();
        copy_async_16(shared_b + 8 * lane, b + 8 * (lane % 16), lane < 16);
        copy_async_commit();
        copy_async_wait<1>();
        __syncwarp();
        u32 fragment_a[4], fragment_b[4];
        ldmatrix_x4(fragment_a, shared_a + (matrix % 2 * 8 + row) * 16 + matrix / 2 * 8);
        copy_async_wait<0>();
        __syncwarp();
        if (B_TRANSPOSED) ldmatrix_x4(fragment_b, shared_b + row * 16 + matrix % 2 * 8);
        else ldmatrix_x4_transposed(fragment_b, shared_b + (matrix % 2 * 8 + row) * 8);
        float sum[4] = {1, 2, 3, 4};
        mma_16x8x16(sum, fragment_a, fragment_b, T{});
        for (int i = 0; i < 4; i++) d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[i];
    }",
};

#[test]
fn tensor_cores_multiply() {
    let gpu = gpu();
    for (variant, (scalar, transposed)) in
        [(Scalar::F16, 0), (Scalar::F16, 1), (Scalar::BF16, 0), (Scalar::BF16, 1)].into_iter().enumerate()
    {
        let name = if scalar == Scalar::F16 { "f16" } else { "bf16" };
        let define = || format!("typedef {name} T;\n#define B_TRANSPOSED {transposed}\n");
        let kernel = gpu.kernel(&TENSOR_CORE, "product", variant as u64, define).unwrap();
        let a: Vec<f64> = (0..256).map(|idx| small(idx, 1)).collect();
        let b: Vec<f64> = (0..128).map(|idx| small(idx, 2)).collect();
        let (mut a_words, mut b_words, mut d) = (encode(scalar, &a), encode(scalar, &b), [0.0f32; 128]);
        let params = [address(&mut a_words), address(&mut b_words), d.as_mut_ptr().cast()];
        // SAFETY: the parameters are those of the kernel, as large as it wants them.
        unsafe { gpu.launch(&kernel, Grid::of(1, 32).shared(1024), &[&params[0], &params[1], &params[2]]) }
            .unwrap();
        for (idx, &got) in d.iter().enumerate() {
            let (row, column) = (idx / 8, idx % 8);
            let b_at = |k: usize| if transposed == 1 { b[column * 16 + k] } else { b[k * 8 + column] };
            let before = (1 + row / 8 * 2 + column % 2) as f64;
            let expected: f64 = (0..16).map(|k| a[row * 16 + k] * b_at(k)).sum::<f64>() + before;
            assert_eq!(f64::from(got), expected, "{name}, row {row}, column {column}");
        }
    }
}

#[test]
fn a_copy_that_is_not_waited_for_shows() {
    static EAGER: Template = Template {
        name: "eager",
        text: "KERNEL ENTRY(const float* x, float* y) {
            __shared__ alignas(16) float tile[8];
            copy_async_16(tile, x);
            copy_async_commit();
            copy_async_16(tile + 4, x, false);
            copy_async_commit();
            copy_async_wait<1>();
            y[0] = tile[3];
            y[1] = tile[4];
            copy_async_wait<0>();
            y[2] = tile[4];
        }",
    };
    let gpu = gpu();
    let kernel = gpu.kernel(&EAGER, "eager", 0, String::new).unwrap();
    let (mut x, mut y) = ([5.0f32; 4], [0.0f32; 3]);
    let params = [x.as_mut_ptr().cast::<u8>(), y.as_mut_ptr().cast::<u8>()];
    // SAFETY: the parameters are those of the kernel.
    unsafe { gpu.launch(&kernel, Grid::of(1, 1), &[&params[0], &params[1]]) }.unwrap();
    assert!(y[0] == 5.0 && y[1].is_nan() && y[2] == 0.0, "{y:?}");
}

#[test]
fn a_tensor_core_needs_its_whole_warp() {
    let gpu = gpu();
    let define = || "typedef f16 T;\n#define B_TRANSPOSED 0\n".to_owned();
    let kernel = gpu.kernel(&TENSOR_CORE, "product", 0, define).unwrap();
    let (mut a, mut b, mut d) = ([0u64; 64], [0u64; 32], [0u64; 64]);
    let params = [address(&mut a), address(&mut b), address(&mut d)];
    // SAFETY: as above.
    let error =
        unsafe { gpu.launch(&kernel, Grid::of(1, 31).shared(1024), &[&params[0], &params[1], &params[2]]) }
            .unwrap_err();
    assert!(error.to_string().contains("31 threads from 0 on in ldmatrix_x4"), "{error}");
}

/// A batch of two products with strides wider than the rows, and an accumulated result.
fn matmul(input: Scalar, output: Scalar, transposed: [bool; 2], epilogue: Epilogue) -> Matmul {
    let matrix = |transposed, row_stride, batch_stride| Matrix { transposed, row_stride, batch_stride };
    let stride = |transposed, rows: usize, columns: usize| 1 + if transposed { rows } else { columns };
    Matmul {
        m: 3,
        n: 5,
        k: 4,
        batch: 2,
        input,
        output,
        a: matrix(transposed[0], stride(transposed[0], 3, 4), 40),
        b: matrix(transposed[1], stride(transposed[1], 4, 5), 0),
        c: matrix(false, 7, 30),
        alpha: 0.5,
        beta: 2.0,
        tf32: false,
        epilogue,
    }
}

/// What a product gives, and what it should be.
fn multiply(matmul: &Matmul) -> [Vec<f64>; 2] {
    let numbers = |n, seed| (0..n).map(|idx| small(idx, seed)).collect::<Vec<f64>>();
    let (a, b, c, bias) = (numbers(80, 1), numbers(40, 2), numbers(60, 3), numbers(5, 4));
    let [mut a_words, mut b_words] = [&a, &b].map(|values| encode(matmul.input, values));
    let [mut c_words, mut bias_words] = [&c, &bias].map(|values| encode(matmul.output, values));
    let operands = MatmulOperands {
        a: address(&mut a_words),
        b: address(&mut b_words),
        c: address(&mut c_words),
        bias: address(&mut bias_words),
        workspace: std::ptr::null_mut(),
        workspace_bytes: 0,
    };
    // SAFETY: the operands are as large as the product's strides want them.
    unsafe { gpu().matmul("linear", matmul, &operands) }.unwrap();
    let at = |matrix: &Matrix, batch: usize, row: usize, column: usize| {
        let place = if matrix.transposed { [column, row] } else { [row, column] };
        batch * matrix.batch_stride + place[0] * matrix.row_stride + place[1]
    };
    let mut expected = c;
    for place in 0..2 * 15 {
        let (batch, row, column) = (place / 15, place / 5 % 3, place % 5);
        let terms = (0..4).map(|k| a[at(&matmul.a, batch, row, k)] * b[at(&matmul.b, batch, k, column)]);
        let c_idx = at(&matmul.c, batch, row, column);
        let x = 0.5 * terms.sum::<f64>() + 2.0 * expected[c_idx];
        expected[c_idx] = match matmul.epilogue {
            Epilogue::None | Epilogue::ColumnSums => x,
            Epilogue::Bias => x + bias[column],
            Epilogue::BiasRelu => (x + bias[column]).max(0.0),
        };
    }
    if matmul.epilogue == Epilogue::ColumnSums {
        let sum = |column: usize| (0..4).map(|k| b[at(&matmul.b, 0, k, column)]).sum::<f64>();
        let sums: Vec<f64> = (0..5).map(sum).collect();
        assert_eq!(decode(matmul.output, &bias_words, 5), sums, "{matmul:?}");
    }
    [decode(matmul.output, &c_words, 60), expected]
}

#[test]
fn matrix_products_follow_their_description() {
    use Scalar::{BF16, F16, F32, F64};
    for (input, output) in [(F16, F16), (BF16, BF16), (F32, F32), (F64, F64), (BF16, F32), (F16, F32)] {
        for transposed in [[false, false], [true, false], [false, true], [true, true]] {
            for epilogue in [Epilogue::None, Epilogue::Bias, Epilogue::BiasRelu, Epilogue::ColumnSums] {
                let matmul = matmul(input, output, transposed, epilogue);
                let [got, expected] = multiply(&matmul);
                // The result is rounded once, to half a unit in the last of so many bits.
                let precision = match output {
                    F16 => 11,
                    BF16 => 8,
                    F32 => 24,
                    F64 => 52,
                };
                let close = |x: f64, y: f64| (x - y).abs() <= y.abs().max(1e-3) * 0.5f64.powi(precision);
                assert!(
                    got.iter().zip(&expected).all(|(&x, &y)| close(x, y)),
                    "{matmul:?}: {got:?} {expected:?}"
                );
            }
        }
    }
}

#[test]
fn tf32_has_ten_bits_of_fraction() {
    let mut matmul = matmul(Scalar::F32, Scalar::F32, [false, false], Epilogue::None);
    matmul = Matmul { m: 1, n: 1, k: 1, batch: 1, alpha: 1.0, beta: 0.0, ..matmul };
    for (tf32, expected) in [(false, 1.0 + 0.5f64.powi(11) + 0.5f64.powi(20)), (true, 1.0 + 0.5f64.powi(10))]
    {
        let mut a = encode(Scalar::F32, &[1.0 + 0.5f64.powi(11) + 0.5f64.powi(20)]);
        let (mut b, mut c) = (encode(Scalar::F32, &[1.0]), encode(Scalar::F32, &[f64::NAN]));
        let operands = MatmulOperands {
            a: address(&mut a),
            b: address(&mut b),
            c: address(&mut c),
            bias: std::ptr::null_mut(),
            workspace: std::ptr::null_mut(),
            workspace_bytes: 0,
        };
        // SAFETY: one number each.
        unsafe { gpu().matmul("linear", &Matmul { tf32, ..matmul }, &operands) }.unwrap();
        assert_eq!(decode(Scalar::F32, &c, 1), [expected]);
    }
}

/// The convolution's three operands, the one of the direction computed by the GPU.
fn convolve(convolution: &Convolution, operands: [&[f64]; 3]) -> Vec<f64> {
    let mut words = operands.map(|values| encode(convolution.scalar, values));
    let result = match convolution.direction {
        Direction::ToInput => 0,
        Direction::ToFilter => 1,
        Direction::Forward => 2,
    };
    words[result].fill(u64::MAX);
    let [input, filter, output] = words.each_mut().map(|words| address(words));
    let addresses =
        ConvolutionOperands { input, filter, output, workspace: std::ptr::null_mut(), workspace_bytes: 0 };
    // SAFETY: the operands are as large as the convolution wants them.
    assert!(unsafe { gpu().convolve("conv2d", convolution, &addresses) }.unwrap());
    decode(convolution.scalar, &words[result], operands[result].len())
}

#[test]
fn convolutions_follow_their_description() {
    let forward = Convolution {
        direction: Direction::Forward,
        scalar: Scalar::F64,
        n: 2,
        input: [5, 6],
        output: [3, 3],
        c_in: 4,
        c_out: 6,
        filter: [3, 2],
        padding: [1, 1],
        stride: [2, 2],
        dilation: [1, 2],
        groups: 2,
        tf32: false,
        unordered: false,
    };
    let input: Vec<f64> = (0..2 * 5 * 6 * 4).map(|idx| small(idx, 1)).collect();
    let filter: Vec<f64> = (0..6 * 3 * 2 * 2).map(|idx| small(idx, 2)).collect();
    // The output from the definition: a padded image, and each output's window of it.
    let padded = |n: usize, y: usize, x: usize, c: usize| match (y.checked_sub(1), x.checked_sub(1)) {
        (Some(y), Some(x)) if y < 5 && x < 6 => input[((n * 5 + y) * 6 + x) * 4 + c],
        _ => 0.0,
    };
    let mut output = Vec::new();
    for idx in 0..2 * 3 * 3 * 6 {
        let (n, y, x, c) = (idx / 54, idx / 18 % 3, idx / 6 % 3, idx % 6);
        let taps = (0..12).map(|tap| {
            let (i, j, k) = (tap / 4, tap / 2 % 2, tap % 2);
            padded(n, 2 * y + i, 2 * x + 2 * j, c / 3 * 2 + k) * filter[c * 12 + tap]
        });
        output.push(taps.sum::<f64>());
    }
    for scalar in [Scalar::F64, Scalar::F32] {
        assert_eq!(convolve(&Convolution { scalar, ..forward }, [&input, &filter, &output]), output);
    }
    // The gradients are its transposes: <output, conv(x, w)> = <to_input(output, w), x> = <to_filter(output, x), w>.
    let grad_out: Vec<f64> = (0..output.len()).map(|idx| small(idx, 3)).collect();
    let dot = |lhs: &[f64], rhs: &[f64]| lhs.iter().zip(rhs).map(|(x, y)| x * y).sum::<f64>();
    for direction in [Direction::ToInput, Direction::ToFilter] {
        let gradient = convolve(&Convolution { direction, ..forward }, [&input, &filter, &grad_out]);
        let to_input = direction == Direction::ToInput;
        let at = if to_input { &input } else { &filter };
        assert_eq!(dot(&gradient, at), dot(&grad_out, &output), "{direction:?}");
        // One element alone, moved by one, moves the output by what the gradient says.
        for idx in [0, 7, at.len() - 1] {
            let mut moved = at.clone();
            moved[idx] += 1.0;
            let operands = if to_input { [&moved, &filter, &output] } else { [&input, &moved, &output] };
            let change =
                dot(&grad_out, &convolve(&forward, operands.map(Vec::as_slice))) - dot(&grad_out, &output);
            assert_eq!(gradient[idx], change, "{direction:?} {idx}");
        }
    }
}

#[test]
fn memory_is_counted_bounded_and_not_zero() {
    let gpu = gpu();
    let total = gpu.memory().unwrap().total;
    let granule = gpu.profile().granule;
    let pages = gpu.pages().unwrap();
    pages.commit(Region::Step, 0..2 * granule).unwrap();
    assert_eq!(gpu.memory().unwrap().free, total - 2 * granule);
    // SAFETY: the page is committed.
    assert!(unsafe { pages.base(Region::Step).cast::<f32>().read() }.is_nan());
    let error = pages.commit(Region::Data, 0..total).unwrap_err().to_string();
    assert!(error.contains(&(total - 2 * granule).to_string()), "{error}");
    pages.decommit(Region::Step, 0..granule).unwrap();
    assert_eq!(gpu.memory().unwrap().free, total - granule);
    drop(pages);
    assert_eq!(gpu.memory().unwrap().free, total);
}
