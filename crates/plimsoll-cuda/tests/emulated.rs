//! The emulated GPU: what kernels do on it, and what it refuses.

#![cfg(feature = "emulated")]

use std::sync::Arc;

use half::{bf16, f16};
use plimsoll_cpu::random::Draw;
use plimsoll_cuda::{Fault, FaultCell, Gpu, Grid, Param, Template};

/// Numbers on the device; on the emulated one that is the host's memory.
fn device<T>(values: &mut [T]) -> *mut u8 {
    values.as_mut_ptr().cast()
}

/// Compiles and runs a template with no open ends.
fn run(
    gpu: &Gpu,
    template: &'static Template,
    grid: Grid,
    params: &[&dyn Param],
) -> plimsoll_cuda::Result<()> {
    let kernel = gpu.kernel(template, template.name, 0, String::new)?;
    // SAFETY: the tests pass what their kernels take.
    unsafe { gpu.launch(&kernel, grid, params) }
}

fn gpu() -> Arc<Gpu> {
    Gpu::emulated().unwrap()
}

#[test]
fn threads_exchange_through_shared_memory() {
    static REVERSE: Template = Template {
        name: "reverse",
        text: "KERNEL ENTRY(const int* x, int* y) {
            __shared__ alignas(16) int tile[96];
            tile[threadIdx.x] = x[blockIdx.x * 96 + threadIdx.x];
            __syncthreads();
            y[blockIdx.x * 96 + threadIdx.x] = tile[95 - threadIdx.x];
        }",
    };
    let mut x: Vec<i32> = (0..96 * 3).collect();
    let mut y = vec![0; x.len()];
    run(&gpu(), &REVERSE, Grid::of(3, 96), &[&device(&mut x), &device(&mut y)]).unwrap();
    let expected: Vec<i32> = x.chunks(96).flat_map(|block| block.iter().rev().copied()).collect();
    assert_eq!(y, expected);
}

#[test]
fn indices_cover_a_grid_of_three_and_two_axes() {
    static COUNT: Template = Template {
        name: "count",
        text: "KERNEL ENTRY(int* y) {
            int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
            atomicAdd(&y[block * 12 + threadIdx.y * blockDim.x + threadIdx.x], block + 1);
        }",
    };
    let mut y = vec![0; 2 * 3 * 4 * 12];
    let grid = Grid { blocks: [2, 3, 4], threads: [4, 3], shared_bytes: 0 };
    run(&gpu(), &COUNT, grid, &[&device(&mut y)]).unwrap();
    assert!(y.iter().enumerate().all(|(idx, &value)| value == idx as i32 / 12 + 1), "{y:?}");
}

#[test]
fn blocks_sum_and_find_extremes() {
    static SUMS: Template = Template {
        name: "sums",
        text: "KERNEL ENTRY(const double* x, double* y) {
            __shared__ double scratch[32];
            double mine = x[blockIdx.x * blockDim.x + threadIdx.x];
            double sum = block_sum(mine, scratch), most = block_max(mine, scratch), least = warp_min(mine);
            double* to = y + 3 * (blockIdx.x * blockDim.x + threadIdx.x);
            to[0] = sum, to[1] = most, to[2] = least;
        }",
    };
    let value = |idx: usize| ((idx * 7919) % 1009) as f64 - 500.0;
    for n_threads in [32, 256, 1024] {
        let mut x: Vec<f64> = (0..2 * n_threads).map(value).collect();
        let mut y = vec![0.0; 3 * x.len()];
        run(&gpu(), &SUMS, Grid::of(2, n_threads as u32), &[&device(&mut x), &device(&mut y)]).unwrap();
        for (idx, got) in y.chunks(3).enumerate() {
            let block = &x[idx / n_threads * n_threads..][..n_threads];
            let warp = &x[idx / 32 * 32..][..32];
            let most = block.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let least = warp.iter().copied().fold(f64::INFINITY, f64::min);
            assert_eq!(got, [block.iter().sum(), most, least], "thread {idx} of {n_threads}");
        }
    }
}

#[test]
fn shuffles_and_votes_do_what_the_manual_says() {
    static SHUFFLES: Template = Template {
        name: "shuffles",
        text: "KERNEL ENTRY(i64* y) {
            int lane = threadIdx.x;
            i64 mine = 100 + lane;
            i64* to = y + 10 * lane;
            to[0] = __shfl_sync(ALL_LANES, mine, 5);
            to[1] = __shfl_sync(ALL_LANES, mine, 9, 8);
            to[2] = __shfl_xor_sync(ALL_LANES, mine, 17);
            to[3] = __shfl_down_sync(ALL_LANES, (int)mine, 3);
            to[4] = __shfl_up_sync(ALL_LANES, mine, 2, 16);
            to[5] = __ballot_sync(ALL_LANES, lane % 3 == 0);
            to[6] = __any_sync(ALL_LANES, lane == 7);
            to[7] = __all_sync(ALL_LANES, lane != 7);
            if (lane < 16) to[8] = __shfl_xor_sync(0xffffu, mine, 1);
            else to[8] = __shfl_xor_sync(0xffff0000u, mine, 2);
            __syncwarp();
            to[9] = (i64)__shfl_down_sync(ALL_LANES, (float)mine, 1, 8);
        }",
    };
    let mut y = vec![0i64; 320];
    run(&gpu(), &SHUFFLES, Grid::of(1, 32), &[&device(&mut y)]).unwrap();
    for lane in 0..32i64 {
        let ballot: i64 = (0..32).filter(|lane| lane % 3 == 0).map(|lane| 1 << lane).sum();
        let expected = [
            105,
            100 + lane / 8 * 8 + 1,
            100 + (lane ^ 17),
            100 + if lane + 3 < 32 { lane + 3 } else { lane },
            100 + if lane % 16 >= 2 { lane - 2 } else { lane },
            ballot,
            1,
            0,
            100 + if lane < 16 { lane ^ 1 } else { lane ^ 2 },
            100 + if lane % 8 < 7 { lane + 1 } else { lane },
        ];
        assert_eq!(y[10 * lane as usize..][..10], expected, "lane {lane}");
    }
}

#[test]
fn threads_that_have_returned_are_not_waited_for() {
    static EARLY: Template = Template {
        name: "early",
        text: "KERNEL ENTRY(int n, int* y) {
            __shared__ int tile[64];
            if (threadIdx.x >= n) return;
            tile[threadIdx.x] = threadIdx.x;
            __syncthreads();
            int lanes = __ballot_sync(ALL_LANES, 1);
            y[threadIdx.x] = tile[n - 1 - threadIdx.x] + 1000 * __popc(lanes);
        }",
    };
    let mut y = vec![0; 64];
    run(&gpu(), &EARLY, Grid::of(1, 64), &[&40i32, &device(&mut y)]).unwrap();
    let expected = (0..64).map(|idx: i32| match idx {
        0..32 => 32_000 + 39 - idx,
        32..40 => 8_000 + 39 - idx,
        _ => 0,
    });
    assert_eq!(y, expected.collect::<Vec<_>>());
}

#[test]
fn atomics_count_in_shared_and_global_memory() {
    static ATOMICS: Template = Template {
        name: "atomics",
        text: "KERNEL ENTRY(int* counts, float* sum, u32* ends, u64* cell) {
            __shared__ int bins[4];
            if (threadIdx.x < 4) bins[threadIdx.x] = 0;
            __syncthreads();
            atomicAdd(&bins[threadIdx.x % 4], 1);
            __syncthreads();
            if (threadIdx.x < 4) atomicAdd(&counts[threadIdx.x], bins[threadIdx.x]);
            atomicAdd(sum, 0.5f);
            atomicMax(&ends[0], threadIdx.x + 1);
            atomicMin(&ends[1], threadIdx.x + 1);
            atomicOr(&ends[2], 1u << threadIdx.x % 32);
            atomicCAS(&cell[0], 0, 42 + threadIdx.x * 0);
            if (threadIdx.x == 9) atomicExch(&cell[1], 7);
        }",
    };
    let (mut counts, mut sum) = ([0; 4], [0.0f32]);
    let (mut ends, mut cell) = ([0, u32::MAX, 0], [0u64, 1]);
    let params: [&dyn Param; 4] =
        [&device(&mut counts), &device(&mut sum), &device(&mut ends), &device(&mut cell)];
    run(&gpu(), &ATOMICS, Grid::of(3, 50), &params).unwrap();
    assert_eq!((counts, sum), ([39, 39, 36, 36], [75.0]));
    assert_eq!((ends, cell), ([50, 1, u32::MAX], [42, 7]));
}

#[test]
fn floats_of_16_bits_are_those_of_the_host() {
    static WIDEN: Template = Template {
        name: "widen_all",
        text: "KERNEL ENTRY(float* halves, float* brains) {
            u32 bits = blockIdx.x * blockDim.x + threadIdx.x;
            halves[bits] = widen(f16{(u16)bits});
            brains[bits] = widen(bf16{(u16)bits});
        }",
    };
    static NARROW: Template = Template {
        name: "narrow_all",
        text: "KERNEL ENTRY(const float* x, f16* halves, bf16* brains) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            halves[i] = narrow<f16>(x[i]);
            brains[i] = narrow<bf16>(x[i]);
        }",
    };
    let gpu = gpu();
    let grid = Grid::of(64, 1024);
    let (mut halves, mut brains) = (vec![0.0f32; 1 << 16], vec![0.0f32; 1 << 16]);
    run(&gpu, &WIDEN, grid, &[&device(&mut halves), &device(&mut brains)]).unwrap();
    let same =
        |got: f32, expected: f32| got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
    for bits in 0..=u16::MAX {
        assert!(same(halves[usize::from(bits)], f16::from_bits(bits).to_f32()), "f16 {bits:#x}");
        assert!(same(brains[usize::from(bits)], bf16::from_bits(bits).to_f32()), "bf16 {bits:#x}");
    }
    // Each number of 16 bits, what lies halfway to the next one, and the neighbours of that.
    for number in [&halves, &brains] {
        for shift in [0u32, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001] {
            let mut x: Vec<f32> =
                number.iter().map(|x| f32::from_bits(x.to_bits().wrapping_add(shift))).collect();
            let (mut to_halves, mut to_brains) = (vec![f16::ZERO; 1 << 16], vec![bf16::ZERO; 1 << 16]);
            run(&gpu, &NARROW, grid, &[&device(&mut x), &device(&mut to_halves), &device(&mut to_brains)])
                .unwrap();
            for ((x, half), brain) in x.into_iter().zip(to_halves).zip(to_brains) {
                let nan = x.is_nan() && half.is_nan() && brain.is_nan();
                let equal = half.to_bits() == f16::from_f32(x).to_bits()
                    && brain.to_bits() == bf16::from_f32(x).to_bits();
                assert!(nan || equal, "{x:e} ({:#x}): {half}, {brain}", x.to_bits());
            }
        }
    }
}

#[test]
fn random_words_are_those_of_the_host() {
    static WORDS: Template = Template {
        name: "words",
        text: "KERNEL ENTRY(u64 seed, u64 draw, u32* y) {
            u64 i = blockIdx.x * blockDim.x + threadIdx.x;
            y[i] = random_word(seed, draw, i);
        }",
    };
    let draw = Draw { seed: 0x0123_4567_89ab_cdef, number: 0x9876_5432_10fe };
    let mut y = vec![0u32; 1024];
    run(&gpu(), &WORDS, Grid::of(4, 256), &[&draw.seed, &draw.number, &device(&mut y)]).unwrap();
    assert!(y.iter().enumerate().all(|(idx, &word)| word == draw.word(idx)));
}

#[test]
fn a_cell_tells_the_first_fault_of_the_first_call_whatever_the_order_of_threads() {
    static CHECK: Template = Template {
        name: "check",
        text: "KERNEL ENTRY(const i64* x, i64 bound, Note* cell, u64 call, u32* seen) {
            u32 i = blockIdx.x * blockDim.x + threadIdx.x;
            if (x[i] >= bound) fault(cell, call, i, x[i]);
            if (i == 0) *seen = is_noted(cell);
        }",
    };
    let gpu = gpu();
    let mut seen = [0u32];
    let mut check = |x: &mut [i64], cell: &FaultCell, calls: &[u64]| {
        for &call in calls {
            let (x, seen, address) = (device(x), device(&mut seen), cell.address());
            run(&gpu, &CHECK, Grid::of(2, 64), &[&x, &17i64, &address, &call, &seen]).unwrap();
        }
        gpu.synchronize().unwrap();
        seen[0]
    };
    // Odd blocks run their threads backwards.
    let mut x: Vec<i64> = (0..128).rev().map(|value| value * 3_000_000_000_000).collect();
    let cell = gpu.fault_cell().unwrap();
    check(&mut x, &cell, &[5, 3, 4]);
    assert_eq!(cell.take(), Some(Fault { call: 3, position: 0, value: 127 * 3_000_000_000_000 }));
    let last = 4_095;
    assert_eq!(last, FaultCell::MAX_CALLS);
    let mut x: Vec<i64> = (0..128).map(|i| if i < 70 { i64::MIN + i } else { i64::MAX - i }).collect();
    let cell = gpu.fault_cell().unwrap();
    check(&mut x, &cell, &[last]);
    assert_eq!(cell.take(), Some(Fault { call: last, position: 70, value: i64::MAX - 70 }));
    // A cell that was dropped with a fault in it comes back empty, and so does one that was looked into.
    let cell = gpu.fault_cell().unwrap();
    check(&mut x, &cell, &[1]);
    drop(cell);
    for _ in 0..200 {
        let cell = gpu.fault_cell().unwrap();
        let mut good = vec![0; 128];
        assert_eq!(check(&mut good, &cell, &[1]), 0);
        assert_eq!(cell.take(), None);
    }
    let (one, other) = (gpu.fault_cell().unwrap(), gpu.fault_cell().unwrap());
    check(&mut x, &one, &[1]);
    assert!(other.take().is_none() && one.take().is_some());
}

#[test]
fn a_text_that_is_refused_is_named_with_what_the_compiler_says() {
    static BROKEN: Template =
        Template { name: "broken", text: "KERNEL ENTRY(int* y) { y[0] = no_such_name; }" };
    let error = gpu().kernel(&BROKEN, "scatter", 0x2a, String::new).unwrap_err().to_string();
    assert!(error.contains("scatter_broken_2a") && error.contains("no_such_name"), "{error}");
}

#[test]
fn a_barrier_that_some_threads_miss_is_an_error() {
    static MISSED: Template = Template {
        name: "missed",
        text: "KERNEL ENTRY(int* y) {
            if (threadIdx.x < 20) __syncthreads();
            else y[threadIdx.x] = __shfl_xor_sync(ALL_LANES, 1, 1);
        }",
    };
    let gpu = gpu();
    let mut y = vec![0; 32];
    let error = run(&gpu, &MISSED, Grid::of(1, 32), &[&device(&mut y)]).unwrap_err().to_string();
    for part in [
        "missed_0",
        "20 threads from 0 on at __syncthreads in line ",
        "12 threads from 20 on in __shfl_xor_sync",
    ] {
        assert!(error.contains(part), "{error}");
    }
    static TWO: Template = Template {
        name: "two_barriers",
        text: "KERNEL ENTRY(int* y) {
            if (threadIdx.x < 20) __syncthreads();
            else
                __syncthreads();
        }",
    };
    let error = run(&gpu, &TWO, Grid::of(1, 32), &[&device(&mut y)]).unwrap_err().to_string();
    assert!(error.contains("two_barriers_0") && error.contains("12 threads from 20 on"), "{error}");
    // The stacks of those that waited are used again.
    static FINE: Template =
        Template { name: "fine", text: "KERNEL ENTRY(int* y) { y[threadIdx.x] = threadIdx.x; }" };
    run(&gpu, &FINE, Grid::of(1, 32), &[&device(&mut y)]).unwrap();
    assert!(y.into_iter().eq(0..32));
}

#[test]
fn shared_memory_that_nobody_wrote_is_not_a_number() {
    static UNWRITTEN: Template = Template {
        name: "unwritten",
        text: "KERNEL ENTRY(float* y) {
            __shared__ float declared[32];
            DYNAMIC_SHARED(float, asked);
            y[4 * blockIdx.x] = declared[threadIdx.x];
            y[4 * blockIdx.x + 1] = asked[threadIdx.x];
            y[4 * blockIdx.x + 2] = declared[threadIdx.x] = 1.0f;
            y[4 * blockIdx.x + 3] = asked[threadIdx.x] = 2.0f;
        }",
    };
    let mut y = vec![0.0f32; 8];
    run(&gpu(), &UNWRITTEN, Grid::of(2, 1).shared(128), &[&device(&mut y)]).unwrap();
    for block in y.chunks(4) {
        assert!(block[0].is_nan() && block[1].is_nan() && block[2..] == [1.0, 2.0], "{block:?}");
    }
}

#[test]
fn wrong_indices_and_addresses_are_errors() {
    static BEYOND: Template = Template {
        name: "beyond",
        text: "KERNEL ENTRY(float* y) {
            __shared__ float tile[32];
            tile[threadIdx.x] = 1.0f;
            __syncthreads();
            y[threadIdx.x] = tile[threadIdx.x];
        }",
    };
    static UNALIGNED: Template = Template {
        name: "unaligned",
        text: "KERNEL ENTRY(float* y, int first) { *(Vector<float, 4>*)(y + first) = {{1, 2, 3, 4}}; }",
    };
    let gpu = gpu();
    // Aligned to 16 bytes.
    let mut y = [0u128; 16];
    let mut fails = |template, n_threads, first| {
        let result = run(&gpu, template, Grid::of(1, n_threads), &[&device(&mut y), &first]);
        result.map_err(|error| error.to_string())
    };
    assert_eq!(fails(&BEYOND, 32, 0i32), Ok(()));
    let error = fails(&BEYOND, 64, 0).unwrap_err();
    assert!(
        error.contains("kernel `beyond_0`: thread 32 uses an index beyond its array in line "),
        "{error}"
    );
    assert_eq!(fails(&UNALIGNED, 1, 4), Ok(()));
    let error = fails(&UNALIGNED, 1, 2).unwrap_err();
    assert!(error.contains("thread 0 uses an address that its type is not aligned to in line "), "{error}");
}

#[test]
fn gpus_on_several_threads_do_not_disturb_each_other() {
    static PREFIX: Template = Template {
        name: "prefix",
        text: "KERNEL ENTRY(i64* y, i64 first) {
            __shared__ i64 tile[64];
            tile[threadIdx.x] = first;
            for (int step = 1; step < 64; step *= 2) {
                __syncthreads();
                i64 other = threadIdx.x >= step ? tile[threadIdx.x - step] : 0;
                __syncthreads();
                tile[threadIdx.x] += other;
            }
            y[blockIdx.x * 64 + threadIdx.x] = tile[threadIdx.x];
        }",
    };
    std::thread::scope(|scope| {
        for first in 1..5i64 {
            scope.spawn(move || {
                let gpu = gpu();
                let mut y = vec![0i64; 64 * 50];
                run(&gpu, &PREFIX, Grid::of(50, 64), &[&device(&mut y), &first]).unwrap();
                assert!(y.iter().enumerate().all(|(idx, &sum)| sum == first * (idx as i64 % 64 + 1)));
            });
        }
    });
}

#[test]
fn launches_that_the_driver_would_refuse_are_errors() {
    static TINY: Template = Template { name: "tiny", text: "KERNEL ENTRY(int* y) { y[0] = 1; }" };
    static GREEDY: Template = Template {
        name: "greedy",
        text: "KERNEL ENTRY(int* y) { __shared__ int much[16384]; much[threadIdx.x] = 1; y[0] = much[0]; }",
    };
    let mut y = [0];
    let mut fails = |template, grid| run(&gpu(), template, grid, &[&device(&mut y)]).unwrap_err().to_string();
    for (grid, part) in [
        (Grid::of(1, 1025), "1025 threads"),
        (Grid { blocks: [1, 65536, 1], ..Grid::of(1, 1) }, "65535 along y and z"),
        (Grid::of(1, 1).shared(300 << 10), "307200 bytes of shared memory"),
    ] {
        let error = fails(&TINY, grid);
        assert!(error.contains("tiny_0") && error.contains(part), "{error}");
    }
    assert!(fails(&GREEDY, Grid::of(1, 1)).contains("declares 65536 bytes"));
}
