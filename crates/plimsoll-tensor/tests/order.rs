//! A GPU that is not deterministic: which executions may make sums in any order. Rows that are added by index tell, because
//! they need scratch memory where they have an order, and none where they have not; so a ghost shows all of it.

use plimsoll_cuda::Profile;
use plimsoll_memory::{Owner, TraceEvent};
use plimsoll_plan::Input;
use plimsoll_tensor::{AttentionConfig, DType, Device, GradientTape, Program, Result, Tensor, recompute};

fn ghost() -> Device {
    let device = Device::ghost_cuda(Profile::h200());
    device.set_deterministic(false);
    device
}

/// For each time that `index_add` ran, whether it took scratch memory.
fn ordered(device: &Device, f: impl FnOnce() -> Result<()>) -> Result<Vec<bool>> {
    device.pool().start_trace();
    f()?;
    let trace = device.pool().take_trace();
    let mut runs = Vec::new();
    let mut has_scratch = false;
    for event in trace {
        match event {
            TraceEvent::Acquire { label, .. } if label.site.op() == "index_add" => {
                has_scratch |= label.owner == Owner::Workspace;
            }
            TraceEvent::Work { site, .. } if site.op() == "index_add" => {
                runs.push(std::mem::take(&mut has_scratch));
            }
            _ => {}
        }
    }
    Ok(runs)
}

fn table_and_ids() -> Result<(Tensor, Tensor)> {
    Ok((Tensor::ones([1000, 16])?, Tensor::zeros([4096])?.cast(DType::I64)?))
}

/// The gradient of rows that are looked up: one `index_add`.
fn lookup_gradient(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let tape = GradientTape::new();
    tape.watch(table)?;
    let rows = tape.record(|| table.embedding(ids))?;
    Ok(tape.gradient(&rows, [table])?.into_iter().next().expect("one source"))
}

#[test]
fn a_device_has_an_order_unless_told_otherwise() {
    let gpu = Device::ghost_cuda(Profile::h200());
    assert!(gpu.is_deterministic() && gpu.ghost().is_deterministic());
    gpu.set_deterministic(false);
    assert!(!gpu.is_deterministic() && !gpu.ghost().is_deterministic());
    gpu.set_deterministic(true);
    assert!(gpu.is_deterministic());
    let cpu = Device::separate_cpu();
    cpu.set_deterministic(false);
    assert!(cpu.is_deterministic());
}

#[test]
fn backward_alone_has_none() -> Result<()> {
    let device = ghost();
    let _on = device.enter();
    let (table, ids) = table_and_ids()?;
    let rows = Tensor::ones([4096, 16])?;
    assert_eq!(ordered(&device, || table.index_add(0, &ids, &rows).map(drop))?, [true]);
    assert_eq!(ordered(&device, || lookup_gradient(&table, &ids).map(drop))?, [false]);
    // Sums of 16 bits would lose too much.
    let narrow = table.cast(DType::BF16)?;
    assert_eq!(ordered(&device, || lookup_gradient(&narrow, &ids).map(drop))?, [true]);
    device.set_deterministic(true);
    assert_eq!(ordered(&device, || lookup_gradient(&table, &ids).map(drop))?, [true]);
    Ok(())
}

/// What a tape records may be saved, and what is saved may be recomputed.
#[test]
fn what_a_tape_records_keeps_its_order() -> Result<()> {
    let device = ghost();
    let _on = device.enter();
    let (table, ids) = table_and_ids()?;
    let outer = GradientTape::new();
    let recorded = ordered(&device, || outer.record(|| lookup_gradient(&table, &ids)).map(drop))?;
    assert_eq!(recorded, [true]);
    Ok(())
}

/// A function that backward runs again adds rows as it did the first time, although backward is under way.
#[test]
fn what_is_recomputed_keeps_its_order() -> Result<()> {
    let device = ghost();
    let _on = device.enter();
    let (table, ids) = table_and_ids()?;
    let weights = Tensor::ones([1000, 16])?;
    let runs = ordered(&device, || {
        let tape = GradientTape::new();
        tape.watch(&weights)?;
        let (rows, table, ids) = (Tensor::ones([4096, 16])?, table.clone(), ids.clone());
        let product = tape.record(|| {
            recompute(&[&weights], move |inputs| inputs[0].mul(&table.index_add(0, &ids, &rows)?))
        })?;
        tape.gradient(&product, [&weights]).map(drop)
    })?;
    assert_eq!(runs, [true, true]);
    Ok(())
}

/// A planner is told that a gradient without an order cannot be recomputed, so what is computed from it is retained or
/// offloaded.
#[test]
fn a_planner_never_recomputes_what_has_no_order() -> Result<()> {
    let device = ghost();
    let _on = device.enter();
    let (table, ids) = table_and_ids()?;
    for is_deterministic in [false, true] {
        device.set_deterministic(is_deterministic);
        let program = Program::record(&device, &[], |_| {
            let step = lookup_gradient(&table, &ids)?;
            Ok(vec![table.sub(&step)?])
        })?;
        let trace = program.trace(&device, 0);
        let is_transient = |record: &plimsoll_plan::Record| record.inputs.contains(&Input::Transient);
        let passing: Vec<&str> = trace
            .records
            .iter()
            .filter(|record| is_transient(record))
            .filter_map(|record| record.site.map(|site| site.op()))
            .collect();
        assert_eq!(passing.contains(&"index_add"), !is_deterministic, "{passing:?}");
        assert!(!passing.contains(&"sub") && !passing.contains(&"embedding"), "{passing:?}");
    }
    Ok(())
}

/// The scratch memory of attention's gradients, in bytes.
fn attention_scratch(device: &Device, dtype: DType) -> Result<u64> {
    let operands = [0, 1, 2].map(|_| Tensor::ones([2, 3, 100, 32])?.cast(dtype));
    let [q, k, v] = operands;
    let (q, k, v) = (q?, k?, v?);
    let tape = GradientTape::new();
    tape.watch(&q)?;
    let y = tape.record(|| q.attention(&k, &v, &AttentionConfig { causal: true, ..Default::default() }))?;
    device.pool().start_trace();
    tape.gradient(&y, [&q])?;
    let scratch = device.pool().take_trace().into_iter().find_map(|event| match event {
        TraceEvent::Acquire { label, bytes, .. }
            if label.owner == Owner::Workspace && label.site.op() == "attention_backward" =>
        {
            Some(bytes)
        }
        _ => None,
    });
    Ok(scratch.expect("there are statistics at least"))
}

/// Queries' gradients are added up in f32, for whole tiles of 64 queries.
#[test]
fn attention_adds_up_in_scratch_memory() -> Result<()> {
    let device = ghost();
    let _on = device.enter();
    let unordered = [DType::BF16, DType::F32].map(|dtype| attention_scratch(&device, dtype));
    device.set_deterministic(true);
    let ordered = [DType::BF16, DType::F32].map(|dtype| attention_scratch(&device, dtype));
    let more = unordered.into_iter().zip(ordered).map(|(more, less)| Ok(more? - less?));
    assert_eq!(more.collect::<Result<Vec<u64>>>()?, [2 * 3 * 128 * 32 * 4, 0]);
    Ok(())
}
