//! Functions: arguments that are given away, arguments that are only described, and effects.

#![forbid(unsafe_code)]

use std::process::Command;
use std::sync::{Arc, Mutex};

use plimsoll_tensor::op::{Gradient, Meta, Op, OpRef, Outputs, Run, one};
use plimsoll_tensor::{
    Bytes, DType, Device, Function, GradientTape, Nested, OffsetPlan, PlannedProgram, Program, Result, Shape,
    Tensor, Variable, apply, recompute,
};
use plimsoll_testkit::device_under_test;
use serde_json::Value;

/// As many floats as make 4 MiB.
const MANY: usize = 1 << 20;
const MIB: u64 = 1 << 20;

#[test]
fn a_donated_argument_is_written_over() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let plain = Function::new(|x: Tensor| Ok(x + 1.0));
    let donating = Function::new(|x: Tensor| Ok(x + 1.0)).donate([0]);
    let spec = || Tensor::spec([MANY], DType::F32);
    assert_eq!((plain.plan(spec()?)?.peak, donating.plan(spec()?)?.peak), (8 * MIB, 4 * MIB));
    for _ in 0..5 {
        let y = donating.call(Tensor::ones([MANY])?)?;
        assert_eq!((y.to_vec::<f32>()?, device.stats().in_use), (vec![2.0; MANY], 4 * MIB));
    }
    assert_eq!((device.stats().peak_in_use, donating.eager_reason()), (4 * MIB, None));
    Ok(())
}

#[test]
fn a_donated_argument_is_freed_after_its_last_use() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let spread = |x: Tensor| {
        let sum = x.sum(..)?;
        drop(x);
        sum.broadcast_to([2 * MANY])?.contiguous()
    };
    let (plain, donating) = (Function::new(spread), Function::new(spread).donate([0]));
    let spec = || Tensor::spec([MANY], DType::F32);
    let peaks = (plain.plan(spec()?)?.peak / MIB, donating.plan(spec()?)?.peak / MIB);
    assert_eq!(peaks, (12, 8));
    for _ in 0..3 {
        let y = donating.call(Tensor::ones([MANY])?)?;
        assert_eq!(y.to_vec::<f32>()?, vec![MANY as f32; 2 * MANY]);
    }
    assert_eq!((device.stats().peak_in_use / MIB, donating.eager_reason()), (8, None));
    Ok(())
}

#[test]
fn what_is_not_the_callers_to_give_is_refused_and_stays() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let donating = Function::new(|(x, y): (Tensor, Tensor)| x.add(&y)).donate([1]);
    let refused = |x: &Tensor, y: Tensor, why: &str| -> Result<()> {
        let error = donating.call((x.clone(), y)).unwrap_err().to_string();
        assert!(error.contains("argument 1 is donated") && error.contains(why), "{error}");
        Ok(())
    };
    let x = Tensor::ones([300])?;
    refused(&x, x.clone(), "something else holds it")?;
    let rows = Tensor::ones([2, 300])?;
    refused(&x, rows.narrow(0, 0, 1)?, "part of a larger tensor")?;
    refused(&x, (*Variable::new(Tensor::ones([300])?)).clone(), "something else holds it")?;
    assert_eq!((x.to_vec::<f32>()?, rows.to_vec::<f32>()?), (vec![1.0; 300], vec![1.0; 600]));
    assert_eq!(donating.call((x.clone(), Tensor::ones([300])?))?.to_vec::<f32>()?, vec![2.0; 300]);
    let none = Function::new(|x: Tensor| x.neg()).donate([2]);
    let error = none.call(x).unwrap_err().to_string();
    assert!(error.contains("argument 2 is donated, and there are 1 tensors"), "{error}");
    Ok(())
}

/// A small network whose saved values can be recomputed, its input given away; returns the gradient of its weights.
fn gradient(weights: &Variable, x: Tensor) -> Result<Tensor> {
    let tape = GradientTape::new();
    let loss = tape.record(|| {
        let mut h = x.matmul(weights)?;
        drop(x);
        for _ in 0..6 {
            h = h.matmul(weights)?.tanh()?.sigmoid()?;
        }
        h.mean(..)
    })?;
    let [gradient] = tape.gradient(&loss, [weights])?;
    Ok(gradient)
}

#[test]
fn donating_functions_keep_limits_with_eagers_bits() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let weights = Variable::new(Tensor::randn([256, 256])?.affine(0.05, 0.0)?);
    let x = Tensor::randn([2048, 256])?.to_vec::<f32>()?;
    let inputs = || Tensor::from_slice(&x, [2048, 256]);
    let eager = gradient(&weights, inputs()?)?.to_vec::<f32>()?;
    let train = Function::new({
        let weights = weights.clone();
        move |x: Tensor| gradient(&weights, x)
    })
    .donate([0]);
    let described = || Tensor::spec([2048, 256], DType::F32);
    let plans = train.memory_plans(described()?)?;
    let natural = plans.candidates().last().expect("there is one").peaks.committed;
    // Without passes the program may need less than the leanest of these.
    let least = train.least_limit(described()?)?;
    assert!(least <= plans.least(), "{least} {}", plans.least());
    assert!(least < natural, "{least} {natural}");
    for limit in [natural, (natural + least) / 2, least] {
        device.trim();
        device.set_limit(Some(Bytes::new(limit)))?;
        for verifies in [false, true] {
            device.set_verify(verifies);
            assert_eq!(train.call(inputs()?)?.to_vec::<f32>()?, eager, "limit {limit}");
        }
        assert!(device.stats().committed <= limit);
        assert_eq!(train.eager_reason(), None);
        device.set_limit(None)?;
    }
    device.trim();
    device.set_limit(Some(Bytes::new(least - 2 * MIB)))?;
    let error = train.call(inputs()?).unwrap_err().to_string();
    assert!(error.contains("least"), "{error}");
    Ok(())
}

#[test]
fn a_description_is_planned_like_the_arguments_themselves() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let scores = Function::new(|(x, n): (Tensor, Tensor)| x.matmul(&x.transpose(0, 1)?)?.softmax(1)?.mul(&n));
    let described = || {
        Ok::<_, plimsoll_tensor::Error>((Tensor::spec([512, 64], DType::F32)?, Tensor::spec((), DType::F32)?))
    };
    let planned = scores.plan(described()?)?;
    assert_eq!(device.stats().in_use, 0);
    let real = (Tensor::ones([512, 64])?, Tensor::ones(())?);
    let measured = scores.plan(real.clone())?;
    assert_eq!((planned.peak, planned.committed), (measured.peak, measured.committed));
    device.set_limit(Some(Bytes::new(planned.committed)))?;
    scores.prepare(described()?)?;
    scores.call(real)?;
    assert_eq!(device.stats().peak_in_use, planned.peak);
    let error = scores.call(described()?).unwrap_err().to_string();
    assert!(error.contains("on spec("), "{error}");
    Ok(())
}

/// An op of one's own that tells of each value that it sees.
#[derive(Debug)]
struct Tell(Arc<Mutex<Vec<f32>>>);

impl Op for Tell {
    fn name(&self) -> &'static str {
        "tell"
    }

    fn infer(&self, _inputs: &[&Meta]) -> Result<Outputs> {
        one(Shape::new(&[0])?, DType::F32)
    }

    fn has_effect(&self) -> bool {
        true
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (inputs, _) = run.slices::<f32>(self.name())?;
        let value = inputs[0][0];
        self.0.lock().expect("nobody panics").push(value);
        Ok(())
    }
}

#[test]
fn effects_happen_once_each_and_in_order() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = OpRef::new(Tell(told.clone()));
    let weights = Variable::new(Tensor::eye(256)?);
    let train = Function::new(move |x: Tensor| {
        let tape = GradientTape::new();
        let loss = tape.record(|| {
            let mut h = x.matmul(&weights)?;
            for _ in 0..4 {
                h = h.tanh()?.matmul(&weights)?;
                apply(tell.clone(), &[&h.sum(..)?])?;
                h = recompute(&[&h], {
                    let tell = tell.clone();
                    move |h| {
                        apply(tell.clone(), &[&h[0].mean(..)?])?;
                        h[0].sigmoid()
                    }
                })?;
            }
            h.mean(..)
        })?;
        let [gradient] = tape.gradient(&loss, [&weights])?;
        Ok(gradient)
    });
    let x = Tensor::ones([2048, 256])?;
    let take = || std::mem::take(&mut *told.lock().expect("nobody panics"));
    let eager = train.call(x.clone())?.to_vec::<f32>()?;
    let expected = take();
    assert_eq!(expected.len(), 8);
    let least = train.least_limit(x.clone())?;
    assert_eq!(take(), Vec::<f32>::new(), "a dry run has no effects");
    for verifies in [false, true] {
        device.set_verify(verifies);
        device.set_limit(Some(Bytes::new(least)))?;
        assert_eq!((train.call(x.clone())?.to_vec::<f32>()?, take()), (eager.clone(), expected.clone()));
        device.set_limit(None)?;
    }
    Ok(())
}

/// What the test below looks at from outside.
#[test]
fn prints() -> Result<()> {
    if std::env::var("PLIMSOLL_TEST_PRINTS").is_err() {
        return Ok(());
    }
    let device = device_under_test();
    let _on = device.enter();
    let shown = Function::new(|x: Tensor| {
        x.debug_print("x")?;
        x.sum(..)?.debug_print("sum")?;
        x.gt(0.5)?.debug_print("large")?;
        Tensor::arange_of(0.0, 4000.0, 1.0, DType::I64)?.reshape([40, 100])?.debug_print("many")
    });
    shown.call(Tensor::from_slice(&[0.25f32, 1.5], 2)?)?;
    shown.call(Tensor::from_slice(&[2.0f32, 3.0], 2)?)
}

#[test]
fn a_function_prints_at_each_call() -> Result<()> {
    let program = std::env::current_exe().expect("a test is a program");
    let output = Command::new(program)
        .args(["--exact", "prints", "--nocapture"])
        .env("PLIMSOLL_TEST_PRINTS", "1")
        .output()
        .expect("it can be run");
    let text = String::from_utf8(output.stderr).expect("text");
    let many = "many: [[   0    1    2 ...   97   98   99]\n";
    let first = ["x: [0.25 1.5 ]\n", "sum: 1.75\n", "large: [false  true]\n", many];
    let second = ["x: [2. 3.]\n", "sum: 5.", "large: [true true]\n", many];
    let mut rest = text.as_str();
    for line in first.iter().chain(&second) {
        let Some((_, after)) = rest.split_once(line) else { panic!("{line:?} is not in {text}") };
        rest = after;
    }
    Ok(())
}

/// The most bytes in use that the instructions of a document lead to. Blocks that live at the same time must not overlap.
fn peak_of(document: &Value) -> u64 {
    let number = |value: &Value| value.as_u64().expect("a number");
    let rounded = |block: usize| number(&document["blocks"][block]["bytes"]).next_multiple_of(512);
    let offset = |block: usize| document["blocks"][block]["offset"].as_u64();
    let (mut live, mut in_use, mut peak) = (Vec::<usize>::new(), 0, 0);
    for instruction in document["instructions"].as_array().expect("a list") {
        if let Some(block) = instruction.get("acquire").map(|block| number(&block["block"]) as usize) {
            if let Some(start) = offset(block) {
                let is_apart = |&other: &usize| match offset(other) {
                    Some(other_start) => {
                        start + rounded(block) <= other_start || other_start + rounded(other) <= start
                    }
                    None => true,
                };
                assert!(live.iter().all(is_apart), "block {block} lies over another");
            }
            live.push(block);
            in_use += rounded(block);
            peak = peak.max(in_use);
        } else if let Some(block) = instruction.get("release").map(|block| number(&block["block"]) as usize) {
            live.retain(|&other| other != block);
            in_use -= rounded(block);
        }
    }
    peak
}

#[test]
fn a_document_of_a_program_tells_all_of_its_memory() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let weights = Variable::new(Tensor::eye(256)?).named("weights");
    let x = Tensor::ones([2048, 256])?;
    let record = || Program::record(&device, &[&x], |x| Ok(vec![gradient(&weights, x[0].clone())?]));
    let document = |program: &Program, offsets: Option<&OffsetPlan>| {
        serde_json::to_value(program.document(offsets)).expect("it has no keys that are no text")
    };
    let (program, held) = (record()?, device.stats().in_use);
    assert_eq!(document(&program, None), document(&record()?, None), "the same numbers every time");
    assert_eq!(document(&program, None)["variables"][0]["name"], "weights");
    let (played, offsets) = program.placed(&device)?;
    assert_eq!(peak_of(&document(&program, Some(&offsets))) + held, played.peak);
    let mut planned = PlannedProgram::new(program);
    device.set_limit(Some(Bytes::new(played.committed * 3 / 5)))?;
    let Some((program, offsets)) = planned.prepare()? else { panic!("there is a limit") };
    let lean = document(program, offsets[0]);
    assert_eq!(peak_of(&lean) + held, program.placed(&device)?.0.peak);
    assert!(lean["calls"].as_array().expect("a list").iter().any(|call| call["is_repeated"] == true));
    Ok(())
}

/// How arguments are arranged decides which program runs, also where the tensors are alike.
#[test]
fn arrangements_and_plain_values_have_programs_of_their_own() -> Result<()> {
    let (x, y) = (Tensor::full([2], 3.0)?, Tensor::full([2], 5.0)?);
    let chosen = Function::new(|(a, b): (Option<Tensor>, Option<Tensor>)| match (a, b) {
        (Some(a), None) => a.mul(10.0),
        (None, Some(b)) => b.mul(100.0),
        _ => Tensor::zeros([2]),
    });
    assert_eq!(chosen.call((Some(x.clone()), None))?.to_vec::<f32>()?, [30.0; 2]);
    assert_eq!(chosen.call((None, Some(x.clone())))?.to_vec::<f32>()?, [300.0; 2]);

    let sums = Function::new(|(a, b): (Vec<Tensor>, Vec<Tensor>)| {
        let sum = |list: Vec<Tensor>| list.iter().try_fold(Tensor::zeros([2])?, |sum, part| sum.add(part));
        sum(a)?.sub(&sum(b)?)
    });
    let three = [x.clone(), x.clone(), y.clone()];
    let split = |at: usize| (three[..at].to_vec(), three[at..].to_vec());
    assert_eq!(sums.call(split(1))?.to_vec::<f32>()?, [-5.0; 2]);
    assert_eq!(sums.call(split(2))?.to_vec::<f32>()?, [1.0; 2]);

    let named = Function::new(|inputs: Nested<Tensor>| Tensor::try_from(inputs.get("a")?.clone())?.neg());
    let fields = |names: [&str; 2]| Nested::named(names.into_iter().zip([x.clone(), y.clone()]));
    assert_eq!(named.call(fields(["a", "b"]))?.to_vec::<f32>()?, [-3.0; 2]);
    assert_eq!(named.call(fields(["b", "a"]))?.to_vec::<f32>()?, [-5.0; 2]);

    let repeated = Function::new(|(x, times): (Tensor, usize)| (0..times).try_fold(x, |x, _| x.add(1.0)));
    for times in [0, 3, 1, 3] {
        assert_eq!(repeated.call((x.clone(), times))?.to_vec::<f32>()?, [3.0 + times as f32; 2]);
    }
    assert_eq!(repeated.eager_reason(), None);
    Ok(())
}
