//! Products against a plain loop: shapes, elements, layouts, epilogues, batches, threads, instruction sets.

mod matrix;
mod support;

use half::{bf16, f16};
use matrix::{Layout, Matrix, reference};
use plimsoll_cpu::threads;
use plimsoll_gemm::{Epilogue, Isa, PackedB, Shape, gemm, with_isa, workspace};
use support::{Number, Random, Workspace};

/// One product and how its result is checked.
#[derive(Clone, Copy, Debug)]
struct Case {
    shape: Shape,
    layouts: [Layout; 3],
    bias: bool,
    relu: bool,
    accumulate: bool,
}

impl Case {
    fn new(batch: usize, m: usize, n: usize, k: usize) -> Self {
        Self {
            shape: Shape { batch, m, n, k },
            layouts: [Layout::Rows; 3],
            bias: false,
            relu: false,
            accumulate: false,
        }
    }

    /// Runs the product and returns C's whole memory after checking every element of it.
    fn check<E: Number>(&self, isa: Isa) -> Vec<E> {
        let Shape { batch, m, n, k } = self.shape;
        let mut random = Random(17);
        let a = Matrix::<E>::random(&mut random, self.layouts[0], batch, m, k);
        let b = Matrix::<E>::random(&mut random, self.layouts[1], batch, k, n);
        let mut c = Matrix::<E>::random(&mut random, self.layouts[2], batch, m, n);
        let bias: Vec<E> = (0..n).map(|_| E::from_f64(random.next())).collect();
        let before = c.all().to_vec();
        let relu = |row: &mut [E::Real]| {
            row.iter_mut().for_each(|x| *x = E::real(E::real_to_f64(*x).max(0.0)));
        };
        let epilogue = Epilogue::<E> {
            bias: self.bias.then_some(bias.as_ptr()),
            activation: if self.relu { Some(&relu) } else { None },
            accumulate: self.accumulate,
        };
        let added: Vec<f64> = (0..batch * m * n)
            .map(|idx| {
                let old = if self.accumulate { c.get(idx / n / m, idx / n % m, idx % n) } else { 0.0 };
                old + if self.bias { bias[idx % n].to_f64() } else { 0.0 }
            })
            .collect();
        let mut memory = Workspace::new(workspace::<E>(&self.shape));
        // SAFETY: the matrices are as large as their shapes and layouts say.
        with_isa(isa, || unsafe {
            gemm(&self.shape, a.as_ref(), b.as_ref(), c.as_mut(), &epilogue, memory.slice())
        });
        memory.assert_guards();
        c.assert_only_matrix_changed(&before, batch, m, n);
        for (idx, extra) in added.into_iter().enumerate() {
            let at = (idx / n / m, idx / n % m, idx % n);
            let mut expected = reference(&self.shape, &a, &b, extra, at);
            if self.relu {
                expected.value = expected.value.max(0.0);
            }
            let got = c.get(at.0, at.1, at.2);
            assert!(
                (got - expected.value).abs() <= expected.tolerance,
                "{self:?} on {isa:?}: {at:?} is {got}, expected {} within {}",
                expected.value,
                expected.tolerance
            );
        }
        c.all().to_vec()
    }

    /// Checks the case for every element and instruction set.
    fn check_all(&self) {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            self.check::<f32>(isa);
            self.check::<f64>(isa);
            self.check::<f16>(isa);
            self.check::<bf16>(isa);
        }
    }
}

#[test]
fn small_shapes_and_tile_edges() {
    for m in [0, 1, 2, 5, 6, 7, 13, 14, 15, 29] {
        for n in [0, 1, 4, 8, 15, 16, 17, 31, 32, 33, 65] {
            for k in [0, 1, 3, 20] {
                Case::new(1, m, n, k).check_all();
            }
        }
    }
}

/// Multiplies by a packed B, with a bias and perhaps onto what is there, and checks every element.
fn check_packed<E: Number<Real: Number>>(isa: Isa, [m, n, k]: [usize; 3], layout: Layout, accumulate: bool) {
    let shape = Shape { batch: 1, m, n, k };
    let mut random = Random(23);
    let a = Matrix::<E>::random(&mut random, Layout::Spread, 1, m, k);
    let b = Matrix::<E>::random(&mut random, layout, 1, k, n);
    let mut c = Matrix::<E::Real>::random(&mut random, Layout::Rows, 1, m, n);
    let bias: Vec<E::Real> = (0..n).map(|_| E::real(random.next())).collect();
    let before = c.all().to_vec();
    let extra = |row: usize, col: usize| {
        let old = if accumulate { c.get(0, row, col) } else { 0.0 };
        old + E::real_to_f64(bias[col])
    };
    let expected: Vec<_> = (0..m * n)
        .map(|idx| reference(&shape, &a, &b, extra(idx / n, idx % n), (0, idx / n, idx % n)))
        .collect();
    let epilogue = Epilogue::<E::Real> { bias: Some(bias.as_ptr()), activation: None, accumulate };
    let mut packed = Workspace::new(PackedB::<E::Real>::bytes(k, n));
    let mut memory = Workspace::new(PackedB::<E::Real>::workspace(m, k));
    // SAFETY: the matrices are as large as their shapes and layouts say.
    with_isa(isa, || unsafe {
        let b = PackedB::pack(b.as_ref(), k, n, packed.slice());
        b.multiply(m, a.as_ref(), c.as_mut(), &epilogue, memory.slice());
    });
    packed.assert_guards();
    memory.assert_guards();
    c.assert_only_matrix_changed(&before, 1, m, n);
    for (idx, expected) in expected.into_iter().enumerate() {
        let got = c.get(0, idx / n, idx % n);
        let error: f64 = (got - expected.value).abs();
        assert!(
            error <= expected.tolerance,
            "[{m}, {n}, {k}] {layout:?} on {isa:?}: {idx} is {got}, expected {}",
            expected.value
        );
    }
}

#[test]
fn a_packed_operand_gives_the_same_product() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for shape in
            [[1, 1, 1], [3, 0, 2], [0, 3, 2], [2, 3, 0], [16, 100, 257], [7, 33, 600], [33, 250, 140]]
        {
            for (layout, accumulate) in [(Layout::Rows, true), (Layout::Columns, false)] {
                check_packed::<f32>(isa, shape, layout, accumulate);
                check_packed::<f64>(isa, shape, layout, accumulate);
                check_packed::<f16>(isa, shape, layout, accumulate);
                check_packed::<bf16>(isa, shape, layout, accumulate);
            }
        }
    }
}

#[test]
fn block_edges_of_depth() {
    for k in [255, 256, 257, 511, 513, 1025] {
        Case::new(1, 5, 37, k).check_all();
        Case::new(1, 37, 5, k).check_all();
    }
}

#[test]
fn several_tasks_and_chunks() {
    for (m, n, k) in
        [(130, 70, 90), (70, 300, 40), (57, 1100, 33), (1100, 33, 30), (600, 600, 12), (520, 530, 260)]
    {
        for isa in [Isa::Portable, Isa::best()] {
            Case::new(1, m, n, k).check::<f32>(isa);
            Case::new(1, m, n, k).check::<bf16>(isa);
        }
        Case::new(1, m, n, k).check::<f64>(Isa::best());
    }
}

#[test]
fn depth_split_into_parts() {
    for (m, n, k) in [(16, 16, 5000), (40, 9, 4111), (1, 30, 70_001)] {
        for (bias, relu, accumulate) in [(false, false, false), (true, true, true)] {
            let case = Case { bias, relu, accumulate, ..Case::new(1, m, n, k) };
            case.check::<f32>(Isa::best());
            case.check::<f16>(Isa::best());
            case.check::<f64>(Isa::best());
        }
    }
}

#[test]
fn every_layout() {
    for a in Layout::READABLE {
        for b in Layout::READABLE {
            for c in Layout::WRITABLE {
                for (m, n, k) in [(1, 40, 21), (40, 1, 21), (17, 35, 21), (17, 35, 300)] {
                    let case = Case { layouts: [a, b, c], ..Case::new(2, m, n, k) };
                    case.check::<f32>(Isa::best());
                    case.check::<f16>(Isa::best());
                }
            }
        }
    }
}

#[test]
fn epilogues() {
    for flags in 1..8 {
        let (bias, relu, accumulate) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        for c in [Layout::Rows, Layout::Spread] {
            for (m, n, k) in [(1, 50, 9), (50, 1, 9), (15, 33, 0), (15, 33, 9), (15, 33, 600), (130, 64, 300)]
            {
                let layouts = [Layout::Rows, Layout::Rows, c];
                Case { bias, relu, accumulate, layouts, ..Case::new(1, m, n, k) }.check_all();
            }
        }
    }
}

#[test]
fn batches() {
    let shapes = [
        (0, 4, 4, 4),
        (3, 7, 9, 5),
        (40, 33, 17, 20),
        (2, 210, 210, 210),
        (5, 1, 40, 30),
        (20, 1, 90, 70),
        (3, 300, 1, 500),
        (2, 1, 1300, 1000),
    ];
    for (batch, m, n, k) in shapes {
        let case = Case { bias: true, ..Case::new(batch, m, n, k) };
        case.check::<f32>(Isa::best());
        case.check::<f64>(Isa::best());
        case.check::<bf16>(Isa::best());
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let shapes = [
        (1, 300, 200, 700),
        (1, 20, 500, 600),
        (1, 8, 8, 20_000),
        (20, 60, 60, 60),
        (1, 1, 3000, 500),
        (1, 3000, 1, 500),
    ];
    for (batch, m, n, k) in shapes {
        let case = Case { bias: true, accumulate: true, ..Case::new(batch, m, n, k) };
        let one = threads::with_threads(1, || case.check::<f32>(Isa::best()));
        let narrow = threads::with_threads(1, || case.check::<bf16>(Isa::best()));
        for n_threads in [2, 7] {
            threads::with_threads(n_threads, || {
                let bits = |c: &[f32]| c.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(
                    bits(&case.check::<f32>(Isa::best())),
                    bits(&one),
                    "{case:?} on {n_threads} threads"
                );
                assert_eq!(case.check::<bf16>(Isa::best()), narrow, "{case:?} on {n_threads} threads");
            });
        }
    }
}

#[test]
fn workspace_stays_modest() {
    let bytes = |m, n, k| workspace::<f64>(&Shape { batch: 1, m, n, k });
    assert!(bytes(8, 8, 8) <= 4096, "small products need little: {}", bytes(8, 8, 8));
    for side in [1 << 10, 1 << 12, 1 << 16] {
        assert!(bytes(side, side, side) <= 4 << 20, "{side}: {}", bytes(side, side, side));
    }
    let half = workspace::<f16>(&Shape { batch: 64, m: 2048, n: 2048, k: 2048 });
    assert!(half <= 4 << 20, "{half}");
}

#[test]
#[should_panic(expected = "needs a workspace of")]
fn a_workspace_that_is_too_small_is_named() {
    let shape = Shape { batch: 1, m: 8, n: 8, k: 8 };
    let mut random = Random(1);
    let a = Matrix::<f32>::random(&mut random, Layout::Rows, 1, 8, 8);
    let mut c = Matrix::<f32>::random(&mut random, Layout::Rows, 1, 8, 8);
    let mut memory = Workspace::new(64);
    // SAFETY: the matrices are as large as the shape says; the workspace is refused before it is used.
    unsafe { gemm(&shape, a.as_ref(), a.as_ref(), c.as_mut(), &Epilogue::NONE, memory.slice()) };
}
