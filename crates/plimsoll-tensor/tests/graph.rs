//! Graphs by hand: eager's bits, nothing that the fetches do not need, and errors that say what to do.

#![forbid(unsafe_code)]

use plimsoll_tensor::{
    Bytes, DType, Function, Generator, GradientTape, Graph, Owner, Result, Session, Tensor, Variable,
    clear_session, set_seed,
};
use plimsoll_testkit::device_under_test;

/// The loss of a small network with dropout, and what leads to it.
fn loss(x: &Tensor, first: &Tensor, second: &Tensor) -> Result<Tensor> {
    let hidden = x.matmul(first)?.gelu()?.dropout(0.25)?;
    let scores = hidden.matmul(second)?.log_softmax(1)?;
    scores.square()?.mean(..)
}

fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(tensor.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect())
}

#[test]
fn gradients_have_eagers_bits() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    set_seed(7);
    let x = Tensor::randn([32, 20])?;
    let [first, second] = [Tensor::randn([20, 24])?, Tensor::randn([24, 10])?];
    let before = Generator::current();
    let eager: Vec<Vec<u32>> = {
        let tape = GradientTape::new();
        [&x, &first, &second].iter().try_for_each(|source| tape.watch(source))?;
        let loss = tape.record(|| loss(&x, &first, &second))?;
        let gradients = tape.gradient(&loss, [&x, &first, &second])?;
        std::iter::once(&loss).chain(&gradients).map(bits).collect::<Result<_>>()?
    };
    let after = Generator::current();

    let graph = Graph::new()?;
    let (inputs, y, gradients) = {
        let _building = graph.enter()?;
        let inputs = [x.shape(), first.shape(), second.shape()]
            .map(|shape| graph.placeholder(*shape, DType::F32).expect("a small shape"));
        let y = loss(&inputs[0], &inputs[1], &inputs[2])?;
        let gradients = graph.gradients(&[&y], &[&inputs[0], &inputs[1], &inputs[2]])?;
        let gradients: Vec<Tensor> = gradients.into_iter().flatten().collect();
        (inputs, y, gradients)
    };
    let session = Session::new(&graph);
    let feeds = [(&inputs[0], &x), (&inputs[1], &first), (&inputs[2], &second)];
    let fetches: Vec<&Tensor> = std::iter::once(&y).chain(&gradients).collect();
    let mut last = None;
    for run in 0..3 {
        before.make_current();
        (0..run).for_each(|_| drop(Tensor::randn([1])));
        let values = session.run_all(&fetches, &feeds)?;
        let values: Vec<Vec<u32>> = values.iter().map(bits).collect::<Result<_>>()?;
        // Each run draws anew, and takes as many draws as the eager code.
        assert_eq!(Generator::current().next_draw(), after.next_draw() + run);
        match run {
            0 => assert_eq!(values, eager),
            _ => assert_ne!(values, eager),
        }
        last = Some(values);
    }
    assert!(last.is_some());
    before.make_current();
    // One gradient alone has the same bits: forward and backward of dropout share a draw.
    let [dx] = session.run([&gradients[0]], &feeds)?;
    assert_eq!(bits(&dx)?, eager[1]);
    Ok(())
}

#[test]
fn only_what_fetches_need_runs_and_is_held() -> Result<()> {
    const N: usize = 512;
    const BYTES: u64 = (N * N * 4) as u64;
    let device = device_under_test();
    let _on = device.enter();
    let graph = Graph::new()?;
    let building = graph.enter()?;
    let x = graph.placeholder([N, N], DType::F32)?;
    let w = graph.placeholder([N, N], DType::F32)?;
    let mut h = x.clone();
    for _ in 0..6 {
        h = h.matmul(&w)?.tanh()?;
    }
    let y = h.mean(..)?;
    let dw = graph.gradients(&[&y], &[&w])?.remove(0).expect("it is connected");
    drop(building);
    assert_eq!(device.stats().in_use, 0);

    let session = Session::new(&graph);
    let calls = |fetches: &[&Tensor], op: &str| -> Result<usize> {
        let text = session.program_text(fetches)?;
        Ok(text.lines().filter(|line| line.contains(&format!("= {op}("))).count())
    };
    assert_eq!((calls(&[&y], "matmul")?, calls(&[&h], "mean")?), (6, 0));
    assert_eq!(session.program_text(&[&y])?.matches("backward").count(), 0);
    assert_eq!(session.program_text(&[&x])?.matches(" = ").count(), 0);
    // Forward holds two activations at a time, whatever the gradient of the same graph would keep. With the gradient all are
    // there, as on a tape.
    let (ones, feeds) = (Tensor::full([N, N], 0.001)?, [x.clone(), w.clone()]);
    let feeds = [(&feeds[0], &ones), (&feeds[1], &ones)];
    let peak = |fetch: &Tensor| -> Result<u64> {
        let before = device.stats().in_use;
        let planned = session.plan(&[fetch])?.peak;
        device.pool().reset_peaks();
        session.run([fetch], &feeds)?;
        let most = device.stats().peak_in_use;
        // The plan is of feeds that are not there yet.
        assert_eq!(planned - 2 * BYTES, most, "the plan is the run, to the byte");
        assert_eq!(device.stats().in_use, before);
        Ok(most - before)
    };
    let workspace = |_: u64| device.stats().peak_rows.get(Owner::Workspace);
    let held = peak(&y).map(|peak| peak - workspace(peak))?;
    assert!(held <= 2 * BYTES, "forward holds {held} B, more than two activations");
    let eager = {
        device.pool().reset_peaks();
        let before = device.stats().in_use;
        let tape = GradientTape::new();
        tape.watch(&ones)?;
        let (w, mut h) = (ones.clone(), ones.clone());
        let y = tape.record(|| {
            for _ in 0..6 {
                h = h.matmul(&w)?.tanh()?;
            }
            h.mean(..)
        })?;
        tape.gradient(&y, [&ones])?;
        device.stats().peak_in_use - before
    };
    assert!(peak(&dw)? <= eager, "{} B in a graph, {eager} B eagerly", peak(&dw)?);
    Ok(())
}

#[test]
fn variables_are_initialised_trained_and_freed() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let values: Vec<f32> = (0..24u8).map(|value| f32::from(value).sin()).collect();
    let data = Tensor::from_slice(&values, [8, 3])?;
    let graph = Graph::new()?;
    let building = graph.enter()?;
    let x = graph.placeholder([8, 3], DType::F32)?;
    let w = graph.variable(&Tensor::randn([3, 1])?)?.named("w");
    let b = Variable::new(Tensor::zeros([1])?).named("b");
    let y = x.matmul(&w)?.add(&b)?.square()?.mean(..)?;
    let gradients = graph.gradients(&[&y], &[&w, &b])?;
    let train = graph.operation(|| {
        for (variable, gradient) in [&w, &b].iter().zip(gradients.iter().flatten()) {
            variable.assign_sub(&gradient.mul(0.05)?)?;
        }
        Ok(())
    })?;
    let init = graph.initializer()?;
    assert_eq!(device.stats().in_use, 512);
    // As in TensorFlow 1, a session may run while the graph is entered.
    let session = Session::new(&graph);
    session.run([&init], &[])?;
    drop(building);
    assert_eq!(device.stats().rows().get(Owner::Parameters), 4 * (3 + 1));
    assert_eq!(b.value().to_vec::<f32>()?, [0.0]);
    let first = bits(&w.value())?;
    let (mut losses, mut eager) = (Vec::new(), Vec::new());
    let [ew, eb] = [&w, &b].map(|variable| variable.value().copied().map(Variable::new));
    let (ew, eb) = (ew?, eb?);
    for _ in 0..20 {
        let [y, nothing] = session.run([&y, &train], &[(&x, &data)])?;
        assert_eq!(nothing.n_elems(), 0);
        losses.push(y.item::<f32>()?);
        let tape = GradientTape::new();
        let y = tape.record(|| data.matmul(&ew)?.add(&eb)?.square()?.mean(..))?;
        let [dw, db] = tape.gradient(&y, [&ew, &eb])?;
        ew.assign_sub(&dw.mul(0.05)?)?;
        eb.assign_sub(&db.mul(0.05)?)?;
        eager.push(y.item::<f32>()?);
    }
    assert_eq!(losses, eager);
    assert!(losses[19] < losses[0]);
    assert_eq!((bits(&w.value())?, bits(&b.value())?), (bits(&ew.value())?, bits(&eb.value())?));
    // Initialising again draws anew; fetching a variable gives its value.
    session.run([&init], &[])?;
    assert_ne!(bits(&w.value())?, first);
    let [fetched] = session.run([&w], &[])?;
    assert_eq!(bits(&fetched)?, bits(&w.value())?);
    drop((ew, eb, data, fetched));
    assert_eq!(device.stats().in_use, 2 * 512);
    drop((w, b, gradients, train, init, x, y));
    clear_session();
    assert_eq!(device.stats().in_use, 2 * 512, "the graph owns its variables");
    drop((session, graph));
    assert_eq!(device.stats().in_use, 0);
    Ok(())
}

#[test]
fn a_variable_without_a_value_is_refused_wherever_it_is_used() -> Result<()> {
    let graph = Graph::new()?;
    let w = graph.variable(&Tensor::ones([3, 1])?)?.named("w");
    let y = {
        let _building = graph.enter()?;
        w.mul(2.0)?
    };
    let (session, column) = (Session::new(&graph), Tensor::ones([3, 1])?);
    let error = w.add(1.0).unwrap_err().to_string();
    assert!(error.contains("tensor of a graph, or a variable of one that was not initialised"), "{error}");
    let read = Function::new({
        let w = w.clone();
        move |x: Tensor| x.mul(&w)
    });
    let written = Function::new({
        let w = w.clone();
        move |x: Tensor| w.assign_sub(&x).map(|()| x)
    });
    for refused in [
        session.run([&y], &[]).err(),
        read.call(column.clone()).err(),
        written.call(column.clone()).err(),
        w.assign(&column).err(),
        w.assign_add(&column).err(),
    ] {
        let error = refused.expect("it has no value").to_string();
        assert!(error.contains("has no value yet; run `Graph::initializer` first"), "{error}");
    }
    assert!(w.value().to_vec::<f32>().is_err());
    session.run([&graph.initializer()?], &[])?;
    assert_eq!(read.call(column.clone())?.to_vec::<f32>()?, [1.0; 3]);
    written.call(column)?;
    assert_eq!(session.run([&y], &[])?[0].to_vec::<f32>()?, [0.0; 3]);
    Ok(())
}

#[test]
fn assignments_are_fetched_and_come_last() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let graph = Graph::new()?;
    let v = graph.variable(&Tensor::full([2], 3.0)?)?;
    let outside = Variable::new(Tensor::ones([2])?);
    let (grow, double, doubled) = {
        let _building = graph.enter()?;
        let doubled = v.mul(2.0)?;
        (graph.assign_add(&v, &Tensor::ones([2])?)?, graph.assign(&outside, &doubled)?, doubled)
    };
    let session = Session::new(&graph);
    session.run([&graph.initializer()?], &[])?;
    for n in 0..3u8 {
        let before = 2.0 * (3.0 + f32::from(n));
        let [doubled, ..] = session.run([&doubled, &grow, &double], &[])?;
        assert_eq!(
            (doubled.to_vec::<f32>()?, outside.value().to_vec::<f32>()?),
            (vec![before; 2], vec![before; 2])
        );
    }
    // A run that is refused changes nothing.
    let x = graph.placeholder([2], DType::F32)?;
    let set = graph.assign(&v, &x)?;
    assert!(session.run([&set, &grow], &[]).is_err());
    assert_eq!(v.value().to_vec::<f32>()?, [6.0; 2]);
    session.run([&set], &[(&x, &Tensor::zeros([2])?)])?;
    assert_eq!(v.value().to_vec::<f32>()?, [0.0; 2]);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_in_words() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let (graph, other) = (Graph::new()?, Graph::new()?);
    let x = graph.placeholder([2, 3], DType::F32)?;
    graph.set_name(&x, "pixels")?;
    let foreign = other.placeholder([2, 3], DType::F32)?;
    let y = {
        let _building = graph.enter()?;
        let error = x.add(&foreign).unwrap_err().to_string();
        assert!(error.contains("tensor of a graph"), "{error}");
        let error = x.to_vec::<f32>().unwrap_err().to_string();
        assert!(!error.is_empty());
        x.mul(2.0)?
    };
    let session = Session::new(&graph);
    let value = Tensor::ones([2, 3])?;
    let refused = |fetch: &Tensor, feeds: &[(&Tensor, &Tensor)], why: &str| {
        let error = session.run([fetch], feeds).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(&y, &[], "\"pixels\", float32[2, 3], is not fed");
    refused(&y, &[(&x, &Tensor::ones([3, 2])?)], "is float32[2, 3] and is fed float32[3, 2]");
    refused(&y, &[(&x, &Tensor::ones_of([2, 3], DType::F64)?)], "and is fed float64[2, 3]");
    refused(&y, &[(&y, &value)], "only placeholders can be");
    refused(&y, &[(&x, &value), (&foreign, &value)], "no tensor of this graph");
    refused(&y, &[(&x, &foreign)], "without values");
    refused(&foreign, &[], "fetch 0 is a float32[2, 3] and no tensor of this graph");
    refused(&value, &[], "no tensor of this graph");
    for used in [x.add(&value), value.add(&x), x.neg(), y.sum(..)] {
        let error = used.unwrap_err().to_string();
        assert!(error.contains("get its value with `Session::run`"), "{error}");
    }
    assert!(graph.constant(&foreign).is_err() && graph.variable(&foreign).is_err());
    let outside = Variable::new(Tensor::ones([2])?);
    {
        let _building = graph.enter()?;
        assert!(outside.mixed(DType::BF16).is_err());
    }
    let inside = Function::new({
        let graph = graph.clone();
        move |x: Tensor| graph.enter().map(|_| x)
    });
    assert!(inside.call(value.clone()).is_err());
    // A feed that lies otherwise in memory is fed all the same.
    let turned = Tensor::from_slice(&[1.0f32, 4.0, 2.0, 5.0, 3.0, 6.0], [3, 2])?.transpose(0, 1)?;
    let [y] = session.run([&y], &[(&x, &turned)])?;
    assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
    Ok(())
}

#[test]
fn a_graph_that_another_thread_builds_is_refused_and_comes_back() -> Result<()> {
    let graph = Graph::new()?;
    let x = graph.placeholder([1], DType::F32)?;
    let _building = graph.enter()?;
    std::thread::scope(|threads| {
        let elsewhere = threads.spawn(|| {
            let error = graph.enter().err().expect("it is entered here").to_string();
            assert!(error.contains("another thread"), "{error}");
            Session::new(&graph).run([&x], &[]).is_err()
        });
        assert!(elsewhere.join().expect("it does not panic"));
    });
    // Scopes end by themselves, in any order.
    let other = Graph::new()?;
    let outer = other.enter()?;
    let error = graph.enter().err().expect("it is outside another one").to_string();
    assert!(error.contains("outside"), "{error}");
    drop(_building);
    let again = graph.enter()?;
    drop(outer);
    let y = x.add(1.0)?;
    drop(again);
    assert!(x.add(1.0).is_err());
    let [y] = Session::new(&graph).run([&y], &[(&x, &Tensor::ones([1])?)])?;
    assert_eq!(y.item::<f32>()?, 2.0);
    Ok(())
}

#[test]
fn constants_are_held_and_not_copied() -> Result<()> {
    const N: usize = 1 << 18;
    let device = device_under_test();
    let _on = device.enter();
    let big = Tensor::ones([N])?;
    let in_use = device.stats().in_use;
    let graph = Graph::new()?;
    let (sum, db) = {
        let _building = graph.enter()?;
        let constant = graph.constant(&big)?;
        let sum = constant.mul(&big)?.sum(..)?;
        let db = graph.gradients(&[&sum], &[&constant])?.remove(0).expect("a constant is a source, too");
        (sum, db)
    };
    let session = Session::new(&graph);
    for _ in 0..3 {
        let [sum] = session.run([&sum], &[])?;
        assert_eq!(sum.item::<f32>()?, N as f32);
        drop(sum);
        assert_eq!(device.stats().in_use, in_use);
    }
    let [db] = session.run([&db], &[])?;
    assert_eq!((db.to_vec::<f32>()?[0], device.stats().rows().get(Owner::Gradients)), (1.0, (N * 4) as u64));
    Ok(())
}

#[test]
fn a_session_keeps_limits_with_the_same_bits() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    let graph = Graph::new()?;
    let (x, w, dw) = {
        let _building = graph.enter()?;
        let (x, w) =
            (graph.placeholder([1024, 128], DType::F32)?, graph.placeholder([128, 128], DType::F32)?);
        let mut h = x.clone();
        for _ in 0..10 {
            h = h.matmul(&w)?.tanh()?.sigmoid()?;
        }
        let y = h.mean(..)?;
        let dw = graph.gradients(&[&y], &[&w])?.remove(0).expect("it is connected");
        (x, w, dw)
    };
    let (data, weights) = (Tensor::randn([1024, 128])?, Tensor::randn([128, 128])?.mul(0.1)?);
    let session = Session::new(&graph);
    let run = || -> Result<Vec<u32>> { bits(&session.run([&dw], &[(&x, &data), (&w, &weights)])?[0]) };
    let natural = run()?;
    let committed = session.plan(&[&dw])?.committed;
    device.trim();
    device.set_limit(Some(Bytes::new(committed - committed / 4)))?;
    let (before, limited) = (device.recomputed().ops, run()?);
    assert_eq!(limited, natural);
    assert!(device.recomputed().ops > before && device.stats().committed <= committed - committed / 4);
    device.set_limit(None)?;
    Ok(())
}

#[test]
fn programs_of_a_session_are_bounded() -> Result<()> {
    let graph = Graph::new()?;
    let x = graph.placeholder([4], DType::F32)?;
    let sums: Vec<Tensor> = {
        let _building = graph.enter()?;
        (0..100u8).map(|n| x.add(f64::from(n))).collect::<Result<_>>()?
    };
    let session = Session::new(&graph).cache_bytes(20 << 10);
    let ones = Tensor::ones([4])?;
    for (n, sum) in (0..100u8).zip(&sums) {
        let [sum] = session.run([sum], &[(&x, &ones)])?;
        assert_eq!(sum.to_vec::<f32>()?, [1.0 + f32::from(n); 4]);
        assert!(session.cache().heap_bytes() <= 20 << 10);
    }
    let cache = session.cache();
    assert!(cache.n_evicted > 50 && cache.programs[0].signature.starts_with('%'), "{cache}");
    clear_session();
    assert!(session.cache().programs.is_empty());
    session.run([&sums[0]], &[(&x, &ones)])?;
    Ok(())
}

#[test]
fn a_graph_prints_as_text_and_as_a_picture() -> Result<()> {
    let graph = Graph::new()?;
    let building = graph.enter()?;
    let x = graph.placeholder([2, 3], DType::F32)?;
    let w = graph.variable(&Tensor::zeros([3, 1])?)?.named("w\" -> evil [label=\"");
    let y = x.matmul(&w)?.mean(..)?;
    graph.set_name(&y, "the \"loss\"\n\\N")?;
    let dw = graph.gradients(&[&y], &[&w])?.remove(0).expect("it is connected");
    graph.assign_sub(&w, &dw)?;
    drop(building);
    let text = graph.to_string();
    assert!(
        text.starts_with("graph: ") && text.contains("1 placeholders, 1 variables, 1 operations"),
        "{text}"
    );
    assert!(
        text.contains("= matmul(placeholder 0, \"w\\\" -> evil [label=\\\"\")  float32[2, 1]  forward"),
        "{text}"
    );
    assert!(text.contains("backward") && text.contains("tests/graph.rs"), "{text}");
    assert!(text.contains("updates \"w\\\" -> evil [label=\\\"\" by sub("), "{text}");
    let dot = graph.to_dot()?;
    assert!(dot.starts_with("digraph ") && dot.ends_with("}\n"), "{dot}");
    assert!(dot.contains("label=\"the \\\"loss\\\"\\n\\\\N\\nmean"), "{dot}");
    assert!(dot.contains("label=\"w\\\" -> evil [label=\\\"\\nfloat32[3, 1]\""), "{dot}");
    assert!(dot.contains("style=dashed"), "{dot}");
    // Outside of quotes there is nothing that a user wrote.
    let mut outside = String::new();
    let (mut is_quoted, mut chars) = (false, dot.chars());
    while let Some(c) = chars.next() {
        match (is_quoted, c) {
            (true, '\\') => _ = chars.next(),
            (_, '"') => is_quoted = !is_quoted,
            (false, c) => outside.push(c),
            (true, _) => {}
        }
    }
    assert!(!is_quoted && !outside.contains("evil"), "{dot}");
    Ok(())
}

#[test]
fn tapes_inside_a_graph_give_gradients_of_gradients() -> Result<()> {
    let graph = Graph::new()?;
    let building = graph.enter()?;
    let x = graph.placeholder((), DType::F32)?;
    let outer = GradientTape::new();
    outer.watch(&x)?;
    let dx = outer.record(|| {
        let inner = GradientTape::new();
        inner.watch(&x)?;
        let y = inner.record(|| x.mul(&x)?.mul(&x))?;
        let [dx] = inner.gradient(&y, [&x])?;
        Ok(dx)
    })?;
    let [ddx] = outer.gradient(&dx, [&x])?;
    drop(building);
    let [ddx] = Session::new(&graph).run([&ddx], &[(&x, &Tensor::full((), 5.0)?)])?;
    assert_eq!(ddx.item::<f32>()?, 30.0);
    Ok(())
}
