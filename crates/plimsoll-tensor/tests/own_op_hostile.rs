//! Ops of somebody's own that state what is not so: each statement is an error that names the op, and none reaches memory.
//! There is no unsafe code here, so whatever goes wrong is the library's fault.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_memory::Pool;
use plimsoll_tensor::op::{
    AuxOutput, Form, Meta, Output, Outputs, Rebuild, Run, SavedRef, SavedRefs, Second, Tensors, one,
};
use plimsoll_tensor::{
    Backward, Bytes, DType, Device, GradientTape, Layout, Op, OpRef, Result, Shape, Step, Tensor, Variable,
    apply, with_ghosts,
};

/// What an op states about itself; nothing of it is checked here.
#[derive(Clone, Default)]
struct Statements {
    outputs: Vec<Output>,
    saved: Vec<SavedRef>,
    aux_outputs: Vec<AuxOutput>,
    rebuild: Option<(usize, Vec<SavedRef>)>,
    second: Option<Vec<SavedRef>>,
    overwrites: &'static [usize],
    workspace: usize,
    gives: Option<usize>,
    composite: Option<usize>,
}

struct Liar(Statements);

impl std::fmt::Debug for Liar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Liar")
    }
}

impl Op for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }

    fn infer(&self, _inputs: &[&Meta]) -> Result<Outputs> {
        Ok(self.0.outputs.iter().cloned().collect())
    }

    fn run(&self, _run: &mut Run<'_>) -> Result<()> {
        Ok(())
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        self.0.saved.iter().copied().collect()
    }

    fn aux_outputs(&self, _inputs: &[&Meta], _wanted: &[bool]) -> smallvec::SmallVec<[AuxOutput; 2]> {
        self.0.aux_outputs.iter().copied().collect()
    }

    fn rebuild(&self) -> Option<Rebuild> {
        let (output, reads) = self.0.rebuild.clone()?;
        Some(Rebuild { op: OpRef::new(Liar(self.0.clone())), output, reads: reads.into_iter().collect() })
    }

    fn second(&self, _inputs: &[&Meta]) -> Option<Second> {
        let reads = self.0.second.clone()?;
        Some(Second { op: OpRef::new(Liar(self.0.clone())), reads: reads.into_iter().collect() })
    }

    fn overwrites(&self) -> &'static [usize] {
        self.0.overwrites
    }

    fn workspace(&self, _inputs: &[&Meta]) -> usize {
        self.0.workspace
    }

    fn composite(&self, _inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        self.0.composite.map(|n| (0..n).map(|_| Tensor::zeros([2])).collect())
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        assert!(backward.gradient_of(99).is_none());
        let gradient = backward.gradient()?;
        backward.set_grad(self.0.gives.unwrap_or(0), gradient)
    }
}

fn new_output(dims: &[usize]) -> Output {
    Output::New { shape: Shape::new(dims).unwrap(), dtype: DType::F32 }
}

fn view(input: usize, dims: &[usize], strides: &[isize], offset: usize) -> Output {
    let layout = Layout::new(Shape::new(dims).unwrap(), strides, offset).unwrap();
    Output::View { input, layout: Box::new(layout) }
}

fn call(statements: Statements, x: &Tensor) -> Result<Tensors> {
    apply(OpRef::new(Liar(statements)), &[x])
}

fn refused(statements: Statements, x: &Tensor) -> String {
    call(statements, x).unwrap_err().to_string()
}

fn fenced() -> Device {
    Device::over("cpu", Pool::fenced().unwrap())
}

#[test]
fn views_stay_inside_the_storage_of_what_they_look_at() -> Result<()> {
    let _on = fenced().enter();
    let x = Tensor::from_slice(&[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0], [2, 3])?;
    let of = |output: Output| Statements { outputs: vec![output], ..Statements::default() };
    let beyond = [
        view(0, &[7], &[1], 0),
        view(0, &[6], &[1], 1),
        view(0, &[2], &[-1], 0),
        view(0, &[2, 2], &[4, 2], 0),
        view(0, &[2], &[isize::MIN], 5),
        view(0, &[(1 << 32) + 1], &[1 << 32], 0),
        view(0, &[1], &[0], usize::MAX),
        view(0, &[0], &[1], 7),
    ];
    for output in beyond {
        assert!(
            refused(of(output.clone()), &x).contains("reaches beyond its storage of 6 elements"),
            "{output:?}"
        );
    }
    assert!(refused(of(view(1, &[2], &[1], 0)), &x).contains("a view of input 1; the op has 1 inputs"));
    assert_eq!(call(of(view(0, &[3], &[-2], 5)), &x)?[0].to_vec::<f32>()?, [5.0, 3.0, 1.0]);
    assert!(call(of(view(0, &[4, 0], &[9, 9], 6)), &x)?[0].to_vec::<f32>()?.is_empty());
    // A view of a view is held against the storage, not against what the first one sees.
    let row = x.get(1)?;
    assert_eq!(call(of(view(0, &[6], &[1], 0)), &row)?[0].n_elems(), 6);
    Ok(())
}

#[test]
fn outputs_are_of_one_kind_and_there_is_one_at_least() -> Result<()> {
    let x = Tensor::zeros([2])?;
    let of = |outputs: Vec<Output>| Statements { outputs, ..Statements::default() };
    assert!(refused(of(vec![]), &x).contains("liar: `infer` states no outputs"));
    let mixed = vec![new_output(&[2]), view(0, &[2], &[1], 0)];
    assert!(refused(of(mixed), &x).contains("2 outputs of which 1 are views"));
    assert!(refused(of(vec![new_output(&[2]); 5000]), &x).contains("5000 outputs"));
    assert_eq!(call(of(vec![new_output(&[2]); 3]), &x)?.len(), 3);
    let variable = Variable::new(Tensor::zeros([2])?);
    for outputs in [vec![], vec![new_output(&[2]); 2], vec![view(0, &[2], &[1], 0)]] {
        let op = OpRef::new(Liar(of(outputs)));
        assert!(Variable::update(op, &[&variable], &[]).unwrap_err().to_string().starts_with("liar"));
    }
    Ok(())
}

#[test]
fn what_is_saved_and_rebuilt_must_be_there() -> Result<()> {
    let x = Tensor::zeros([2, 1000])?;
    let recorded = |change: &dyn Fn(&mut Statements)| {
        let mut statements = Statements { outputs: vec![new_output(&[2, 1000])], ..Statements::default() };
        change(&mut statements);
        let tape = GradientTape::new();
        tape.watch(&x)?;
        let y = tape.record(|| call(statements, &x))?.remove(0);
        tape.gradient(&y, [&x])
    };
    let text = |change: &dyn Fn(&mut Statements)| recorded(change).unwrap_err().to_string();
    for saved_ref in [SavedRef::Input(1), SavedRef::Output(1), SavedRef::Aux(0)] {
        assert!(text(&|s| s.saved = vec![saved_ref]).contains("`saved` names"), "{saved_ref:?}");
    }
    let strided = Layout::new(Shape::new(&[2, 2])?, &[1 << 30, 1], 0)?;
    let aux = AuxOutput { form: Form::Statistics, meta: Meta { layout: strided, dtype: DType::F32 } };
    assert!(text(&|s| s.aux_outputs = vec![aux]).contains("auxiliary outputs are row-major"));
    let fresh = AuxOutput { form: Form::Statistics, meta: Meta::fresh(Shape::new(&[1 << 40])?, DType::F32) };
    assert!(text(&|s| s.aux_outputs = vec![fresh]).contains("out of memory"));
    assert!(text(&|s| s.rebuild = Some((7, vec![]))).contains("`rebuild` names Output(7)"));
    assert!(text(&|s| s.rebuild = Some((0, vec![SavedRef::Aux(3)]))).contains("`rebuild` names Aux(3)"));
    assert!(text(&|s| s.gives = Some(5)).contains("gives input 5 a gradient; the op has 1 inputs"));
    assert!(text(&|s| s.workspace = usize::MAX).contains("out of memory"));
    recorded(&|s| s.overwrites = &[0, 9])?;
    Ok(())
}

#[test]
fn a_second_op_reads_what_the_first_has() -> Result<()> {
    let device = Device::separate_cpu().limit(Bytes::mib(64))?;
    let _on = device.enter();
    let x = Tensor::zeros([2])?;
    for reads in [vec![SavedRef::Input(4)], vec![SavedRef::Output(1)], vec![SavedRef::Aux(0)]] {
        let outputs = vec![new_output(&[2]); 2];
        let statements = Statements { outputs, second: Some(reads.clone()), ..Statements::default() };
        let made = Step::run(&device, || call(statements, &x));
        assert!(made.unwrap_err().to_string().contains("`second` names"), "{reads:?}");
    }
    Ok(())
}

#[test]
fn composites_may_give_any_number_of_outputs() -> Result<()> {
    let x = Tensor::zeros([2])?;
    for n in [0, 3] {
        let outputs = vec![new_output(&[2])];
        let statements = Statements { outputs, composite: Some(n), ..Statements::default() };
        let (outer, inner) = (GradientTape::new(), GradientTape::new());
        outer.watch(&x)?;
        inner.watch(&x)?;
        assert_eq!(outer.record(|| inner.record(|| call(statements, &x)))?.len(), n);
    }
    Ok(())
}

/// States a smaller output whenever it is asked again, and another dtype.
#[derive(Debug)]
struct Fickle(Arc<AtomicUsize>);

impl Op for Fickle {
    fn name(&self) -> &'static str {
        "fickle"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => one(*inputs[0].shape(), DType::F32),
            1 => one(Shape::new(&[1])?, DType::F32),
            _ => one(*inputs[0].shape(), DType::I32),
        }
    }

    fn run(&self, _run: &mut Run<'_>) -> Result<()> {
        Ok(())
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        backward.set_grad(0, gradient)
    }
}

#[test]
fn an_op_that_changes_its_mind_is_told_so_or_ignored_and_reads_nothing_beyond() -> Result<()> {
    let device = fenced();
    let _on = device.enter();
    let x = Variable::new(Tensor::ones([64, 64])?);
    let n_asked = Arc::<AtomicUsize>::default();
    let tape = GradientTape::new();
    let y = tape.record(|| apply(OpRef::new(Fickle(n_asked.clone())), &[&x])?.remove(0).square()?.sum(..))?;
    // The square's gradient reads its input, which the tape rebuilds by the cheap op that made it.
    if let Ok([gradient]) = tape.gradient(&y, [&x]) {
        assert_eq!(gradient.to_vec::<f32>()?.len(), 64 * 64);
    }
    assert!(n_asked.load(Ordering::Relaxed) > 1, "the op was asked again");
    Ok(())
}

/// States a bool output and does not write it.
#[derive(Debug)]
struct Silent(bool);

impl Op for Silent {
    fn name(&self) -> &'static str {
        "silent"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        one(*inputs[0].shape(), DType::Bool)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        if self.0 {
            let (inputs, outputs) = run.slices::<bool>(self.name())?;
            assert!(outputs[0].iter().all(|truth| !truth) && inputs[0].len() == outputs[0].len());
        }
        Ok(())
    }
}

/// Memory of a fenced pool is 255 where nobody wrote, and that is no truth value.
#[test]
fn truth_values_that_nobody_wrote_are_false() -> Result<()> {
    let _on = fenced().enter();
    let x = Tensor::from_slice(&[true; 100], [100])?;
    for uses_slices in [false, true] {
        let y = apply(OpRef::new(Silent(uses_slices)), &[&x])?.remove(0);
        assert_eq!(y.to_vec::<bool>()?, [false; 100]);
        assert_eq!(y.with_bytes(|bytes| bytes.to_vec())?, [0; 100]);
    }
    let variable = Variable::new(Tensor::from_slice(&[true; 100], [100])?);
    let held = variable.value();
    Variable::update(OpRef::new(Silent(false)), &[&variable], &[])?;
    assert_eq!((variable.to_vec::<bool>()?, held.to_vec::<bool>()?), (vec![false; 100], vec![true; 100]));
    Ok(())
}

#[test]
fn ghosts_live_on_ghost_devices() -> Result<()> {
    let device = fenced();
    let _on = device.enter();
    let (x, variable) = (Tensor::zeros([1000])?, Variable::new(Tensor::zeros([1000])?));
    for real in [&device, &Device::cpu()] {
        let variables = std::slice::from_ref(&variable);
        let error = with_ghosts(variables, real, || variable.add(1.0)).unwrap_err();
        assert!(error.to_string().contains("is no ghost"), "{error}");
    }
    let ghost = device.ghost();
    let shadow = {
        let _on = ghost.enter();
        Tensor::zeros([1000])?
    };
    assert!(shadow.add(&x).unwrap_err().to_string().contains("operands are on"));
    assert!(shadow.to_vec::<f32>().is_err());
    Ok(())
}

/// What is staged while a variable reads as a ghost has ghosts for inputs, and is not written to the real one.
#[test]
fn updates_staged_on_a_ghost_do_not_reach_the_device() -> Result<()> {
    let device = fenced();
    let _on = device.enter();
    let (one, other) = (Variable::new(Tensor::zeros([1000])?), Variable::new(Tensor::zeros([1000])?));
    let ghost = device.ghost();
    let staged = Step::run(&device, || {
        with_ghosts(std::slice::from_ref(&one), &ghost, || one.assign(&one.value().add(1.0)?))
    });
    assert!(staged.unwrap_err().to_string().contains("an input on ghost"));
    let held = one.value();
    let mixed = with_ghosts(std::slice::from_ref(&one), &ghost, || {
        Variable::update(OpRef::new(Twice), &[&other, &one], &[])
    });
    assert!(mixed.unwrap_err().to_string().contains("another variable on ghost"));
    assert_eq!((one.to_vec::<f32>()?, held.to_vec::<f32>()?), (vec![0.0; 1000], vec![0.0; 1000]));
    Ok(())
}

/// Gives two variables their old values.
#[derive(Debug)]
struct Twice;

impl Op for Twice {
    fn name(&self) -> &'static str {
        "twice"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        Ok(inputs.iter().map(|input| Output::New { shape: *input.shape(), dtype: input.dtype }).collect())
    }

    fn run(&self, _run: &mut Run<'_>) -> Result<()> {
        Ok(())
    }
}

/// The two shapes of the report: their product is 1 modulo 2^64.
#[test]
fn elements_that_wrap_around_are_refused() -> Result<()> {
    let one = Tensor::ones([1, 1])?;
    let (tall, wide) = (one.broadcast_to([67_280_421_310_721, 1])?, one.broadcast_to([1, 274_177])?);
    let text = |result: Result<Tensor>| result.unwrap_err().to_string();
    assert!(text(tall.add(&wide)).contains("broadcast to more elements than can be counted"));
    assert!(text(tall.matmul(&wide)).contains("than can be counted"));
    assert!(text(tall.tile(&[1, 274_177])).contains("counted"));
    assert!(text(Tensor::einsum("ab,bc->ac", &[&tall, &wide])).contains("counted"));
    assert!(text(Tensor::concat(&[&tall; 8], 0)).contains("counted"));
    assert!(text(tall.pad(&[(0, 0), (0, 274_176)], 0.0)).contains("counted"));
    assert!(text(tall.softmax(0)).contains("out of memory"));
    Ok(())
}
