//! Devices: scopes, limits, ghosts, labels, the placement log.

use plimsoll_tensor::{
    Bytes, Device, ErrorKind, GradientTape, Result, Tensor, Variable, log_placements, scope, set_seed,
};

#[test]
fn tensors_are_made_on_the_device_in_scope() -> Result<()> {
    let (outer, inner) = (Device::separate_cpu(), Device::separate_cpu());
    let _outer = outer.enter();
    {
        let _inner = inner.enter();
        assert_eq!(Tensor::zeros([2])?.device(), inner);
    }
    assert_eq!(Tensor::zeros([2])?.device(), outer);
    Ok(())
}

#[test]
fn tensors_of_two_devices_do_not_mix() -> Result<()> {
    let (here, there) = (Device::separate_cpu(), Device::ghost_cpu());
    let x = {
        let _on = here.enter();
        Tensor::ones([2])?
    };
    let y = x.to_device(&there)?;
    let error = x.add(&y).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Device { op: "add", .. }));
    assert!(error.to_string().contains("cpu and ghost(cpu); bring one over with `to_device`"), "{error}");
    Ok(())
}

#[test]
fn values_go_from_device_to_device() -> Result<()> {
    let (here, there) = (Device::separate_cpu(), Device::separate_cpu());
    let _on = here.enter();
    let x = Tensor::from_slice(&[1i64, 2, 3], 3)?;
    let y = x.to_device(&there)?;
    assert_eq!((y.device(), y.to_vec::<i64>()?), (there, vec![1, 2, 3]));
    Ok(())
}

#[test]
fn a_limit_is_kept_and_its_error_names_the_holders() -> Result<()> {
    let device = Device::separate_cpu().limit(Bytes::mib(8))?;
    let _on = device.enter();
    let line = line!() + 1;
    let held = scope("encoder", || scope("0", || Tensor::zeros([1 << 20])))?;
    let error = Tensor::ones([1 << 21]).unwrap_err();
    assert!(error.is_out_of_memory());
    let text = error.to_string();
    assert!(text.contains("8.00 MiB (8,388,608 B) for temporary"), "{text}");
    assert!(text.contains(&format!("device.rs:{line} encoder.0 full")), "{text}");
    assert!(device.stats().committed <= 8 << 20);
    drop(held);
    Tensor::ones([1 << 20])?;
    device.set_limit(None)?;
    Tensor::ones([1 << 21])?;
    Ok(())
}

#[test]
fn a_ghost_has_shapes_but_no_values() -> Result<()> {
    let device = Device::ghost_cpu();
    let _on = device.enter();
    let x = Tensor::randn([3, 4])?.matmul(&Tensor::ones([4, 2])?)?;
    assert_eq!(x.shape().dims(), [3, 2]);
    let error = x.to_vec::<f32>().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Ghost { op: "to_vec" }));
    assert!(error.to_string().contains("a ghost tensor has a shape but no values"), "{error}");
    Ok(())
}

/// A small training step on the current device.
fn step() -> Result<()> {
    let w = Variable::new(Tensor::randn([300, 300])?);
    let tape = GradientTape::new();
    let loss = tape.record(|| w.matmul(&w)?.relu()?.matmul(&w)?.sum(..))?;
    tape.gradient(&loss, [&w]).map(drop)
}

#[test]
fn the_ghost_of_a_device_in_use_predicts_its_peaks_to_the_byte() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    set_seed(4);
    let held = [Tensor::zeros([100_000])?, Tensor::zeros([7])?];
    drop(Tensor::zeros([500_000])?);
    let ghost = device.ghost();
    assert_eq!(ghost.name(), "ghost(cpu)");
    assert_eq!(ghost.stats().in_use, device.stats().in_use);
    {
        let _ghost = ghost.enter();
        step()?;
    }
    step()?;
    let (predicted, real) = (ghost.stats(), device.stats());
    assert_eq!(predicted.peak_in_use, real.peak_in_use);
    assert_eq!(predicted.peak_committed, real.peak_committed);
    drop(held);
    Ok(())
}

#[test]
fn the_placement_log_says_which_op_ran_where() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let (result, log) = log_placements(|| Tensor::ones([2, 2])?.matmul(&Tensor::ones([2, 2])?)?.sum(..));
    result?;
    let placed: Vec<(&str, &str)> = log.iter().map(|entry| (entry.op, entry.device.as_str())).collect();
    assert_eq!(placed, [("full", "cpu"), ("full", "cpu"), ("matmul", "cpu"), ("sum", "cpu")]);
    assert!(log[2].site.to_string().contains("device.rs"));
    Ok(())
}

#[test]
fn the_rows_of_a_report_add_up() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let _held = (Tensor::zeros([1000])?, Variable::new(Tensor::zeros([10])?));
    let stats = device.stats();
    assert_eq!(stats.rows().total(), stats.in_use);
    let text = device.report().to_string();
    assert!(text.contains("parameters") && text.contains("temporary"), "{text}");
    assert_eq!(device.trim().get() % (2 << 20), 0);
    Ok(())
}

#[cfg(feature = "ndarray")]
#[test]
fn arrays_come_and_go() -> Result<()> {
    let array = ndarray::array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    let x = Tensor::from_ndarray(&array.t())?;
    assert_eq!(
        (x.shape().dims(), x.to_vec::<f32>()?),
        ([3, 2].as_slice(), vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0])
    );
    assert_eq!(x.t()?.to_ndarray::<f32>()?.into_dyn(), array.into_dyn());
    Ok(())
}

#[test]
fn an_error_tells_devices_of_one_name_apart() -> Result<()> {
    let (here, there) = (Device::separate_cpu(), Device::separate_cpu());
    let on = |device: &Device| Tensor::ones(2)?.to_device(device);
    let number = |device: &Device| {
        let text = format!("{device:?}");
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        format!("cpu (number {digits}, with a pool of its own)")
    };
    assert_ne!(number(&here), number(&there));
    let error = on(&here)?.add(&on(&there)?).unwrap_err().to_string();
    let expected = format!("operands are on {} and {}; bring one over", number(&here), number(&there));
    assert!(error.contains(&expected), "{error}");
    let variable = Variable::new(on(&here)?).named("w");
    let error = variable.assign(&on(&there)?).unwrap_err().to_string();
    assert!(error.contains(&number(&here)) && error.contains(&number(&there)), "{error}");
    // Other names need no numbers.
    let ghost = here.ghost();
    let error = on(&here)?.add(&on(&ghost)?).unwrap_err().to_string();
    assert!(error.contains("operands are on cpu and ghost(cpu); bring one over"), "{error}");
    Ok(())
}

#[test]
fn devices_are_found_by_name() {
    for name in ["cpu", "CPU", "/CPU:0", "cpu:0"] {
        assert_eq!(Device::named(name).unwrap(), Device::cpu(), "{name}");
    }
    let error = Device::named("cpu:1").unwrap_err().to_string();
    assert!(error.contains("means no device"), "{error}");
    assert!(Device::named_or_cpu("tpu").is_err());
    // A GPU far beyond what a machine has is not there on any.
    assert!(Device::named("/GPU:4000").unwrap_err().to_string().contains("is not there"));
    assert_eq!(Device::named_or_cpu("/GPU:4000").unwrap(), Device::cpu());
}

#[cfg(feature = "emulated")]
#[test]
fn what_a_driver_counts_as_used_is_the_pools_and_what_lies_outside() -> Result<()> {
    let (device, other) = (Device::emulated()?, Device::emulated()?);
    let memory = |device: &Device| Ok::<_, plimsoll_tensor::Error>(device.driver_memory()?.unwrap());
    assert_eq!((memory(&device)?.used, memory(&device)?.outside()), (0, 0));
    let here = Tensor::zeros([3 << 20])?.to_device(&device)?;
    let there = Tensor::zeros([1 << 20])?.to_device(&other)?;
    let (mine, its) = (memory(&device)?, memory(&other)?);
    assert_eq!((mine.committed, mine.outside()), (device.stats().committed, other.stats().committed));
    assert_eq!((mine.used, its.outside()), (its.used, mine.committed));
    drop((here, there));
    assert_eq!(memory(&device)?.used, 0);
    assert_eq!(Device::cpu().driver_memory()?, None);
    Ok(())
}
