//! Variables and steps: assigned in place, copied on write, all or nothing.

use plimsoll_tensor::{
    Bytes, Device, Error, Generator, GradientTape, Owner, Result, Step, Tensor, Variable, set_seed,
};

fn vector(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len()).unwrap()
}

#[test]
fn an_assignment_is_in_place_unless_somebody_reads_the_old_value() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let v = Variable::new(Tensor::zeros([1000])?);
    let in_use = device.stats().in_use;
    v.assign(&Tensor::ones([1000])?)?;
    v.assign_add(&Tensor::ones([1000])?)?;
    assert_eq!((device.stats().in_use, v.version()), (in_use, 2));

    let before = v.value();
    v.assign_sub(&Tensor::ones([1000])?)?;
    assert_eq!(before.to_vec::<f32>()?, vec![2.0; 1000]);
    assert_eq!(v.to_vec::<f32>()?, vec![1.0; 1000]);
    assert_eq!(device.stats().rows().get(Owner::Parameters), 4000);
    assert_eq!(device.stats().rows().get(Owner::Temporary), 4000);
    Ok(())
}

#[test]
fn a_wrong_shape_or_dtype_is_refused_and_changes_nothing() -> Result<()> {
    let v = Variable::new(vector(&[1.0, 2.0])).named("bias");
    let error = v.assign(&vector(&[1.0])).unwrap_err();
    assert!(
        error.to_string().contains("variable \"bias\" is [2] float32, but the new value is [1]"),
        "{error}"
    );
    assert!(v.assign_add(&Tensor::from_slice(&[1.0f64, 2.0], 2)?).is_err());
    assert_eq!((v.to_vec::<f32>()?, v.version()), (vec![1.0, 2.0], 0));
    Ok(())
}

#[test]
fn a_variable_adds_itself() -> Result<()> {
    let v = Variable::new(vector(&[1.0, 2.0]));
    v.assign_add(&v)?;
    assert_eq!(v.to_vec::<f32>()?, [2.0, 4.0]);
    Ok(())
}

#[test]
fn a_variable_made_from_a_shared_view_has_its_own_memory_once_assigned() -> Result<()> {
    let matrix = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    let v = Variable::new(matrix.t()?);
    assert_eq!(v.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    v.assign_add(&Tensor::ones([2, 2])?)?;
    assert_eq!(v.to_vec::<f32>()?, [2.0, 4.0, 3.0, 5.0]);
    assert_eq!(matrix.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
    Ok(())
}

#[test]
fn a_step_writes_all_or_nothing() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let (a, b) = (Variable::new(vector(&[1.0])), Variable::new(vector(&[2.0])));
    set_seed(7);
    let generator = Generator::current();
    let failed: Result<()> = Step::run(&device, || {
        a.assign(&vector(&[10.0]))?;
        assert_eq!(a.to_vec::<f32>()?, [10.0], "a step sees its own assignments");
        Tensor::randn([3])?;
        Err(Error::argument("test", "the step fails"))
    });
    assert!(failed.is_err());
    assert_eq!((a.to_vec::<f32>()?, a.version()), (vec![1.0], 0));
    assert_eq!(Generator::current(), generator);

    Step::run(&device, || {
        a.assign(&vector(&[10.0]))?;
        b.assign_add(&a)?;
        b.assign_add(&vector(&[0.5]))
    })?;
    assert_eq!((a.to_vec::<f32>()?, b.to_vec::<f32>()?), (vec![10.0], vec![12.5]));
    Ok(())
}

#[test]
fn steps_do_not_nest() -> Result<()> {
    let device = Device::separate_cpu();
    let error = Step::run(&device, || Step::run(&device, || Ok(()))).unwrap_err();
    assert!(error.to_string().contains("do not nest"), "{error}");
    Step::run(&device, || Ok(()))
}

#[test]
fn every_op_of_a_step_leaves_a_record_and_its_ghost_the_same_ones() -> Result<()> {
    let names = |device: &Device| -> Result<Vec<String>> {
        let _on = device.enter();
        let x = Variable::new(Tensor::ones([4, 4])?);
        let (_, records) = Step::traced(device, || {
            let tape = GradientTape::new();
            let loss = tape.record(|| x.matmul(&x)?.relu()?.sum(..))?;
            let [dx] = tape.gradient(&loss, [&x])?;
            x.assign_sub(&dx)
        })?;
        Ok(records.iter().map(|record| format!("{} {}", record.name(), record.shape)).collect())
    };
    let real = names(&Device::separate_cpu())?;
    assert_eq!(real[..3], ["matmul [4, 4]", "relu [4, 4]", "sum []"]);
    assert_eq!(real, names(&Device::ghost_cpu())?);
    Ok(())
}

#[test]
fn a_variable_dropped_last_leaves_nothing_committed() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let v = Variable::new(Tensor::zeros([1 << 20])?);
    let w = v.clone();
    drop(v);
    assert!(device.stats().committed > 0);
    drop(w);
    assert_eq!((device.stats().in_use, device.stats().committed), (0, 0));
    Ok(())
}

/// A value that is rebuilt from a variable instead of being kept.
fn rebuilt_from(v: &Variable) -> Result<Tensor> {
    v.affine(3.0, 0.0)
}

#[test]
fn what_a_tape_would_rebuild_from_a_variable_is_not_rebuilt_from_a_later_value() -> Result<()> {
    let v = Variable::new(Tensor::full([2048], 2.0)?);
    let ten = Tensor::full([2048], 10.0)?;
    let tape = GradientTape::new();
    let sum = tape.record(|| {
        let y = rebuilt_from(&v)?;
        v.assign(&ten)?;
        y.mul(&y)?.sum(..)
    })?;
    // The derivative of (3v)² is 18v, at the value that was read.
    let gradient = tape.gradient(&sum, [&*v])?[0].to_vec::<f32>()?;
    assert!(gradient.iter().all(|&g| g == 36.0), "{} is not 36", gradient[0]);
    Ok(())
}

#[test]
fn what_a_step_log_knows_by_a_variables_memory_is_not_what_was_written_over_it() -> Result<()> {
    let device = Device::separate_cpu().limit(Bytes::mib(64))?;
    let _on = device.enter();
    let x = Tensor::full([2048], 2.0)?;
    let tape = GradientTape::new();
    tape.watch(&x)?;
    let sum = tape.record(|| {
        // The step's log, which there is under a limit, knows the product; the variable is made in its memory and goes on in
        // it.
        let v = Variable::new(x.mul(&x)?);
        v.assign_add(&Tensor::full([2048], 1.0)?)?;
        let read = v.value();
        drop(v);
        x.mul(&read)?.sum(..)
    })?;
    let gradient = tape.gradient(&sum, [&x])?[0].to_vec::<f32>()?;
    assert!(gradient.iter().all(|&g| g == 5.0), "{} is not 5", gradient[0]);
    Ok(())
}

#[test]
fn a_thread_that_assigns_and_a_tape_on_another_do_not_meet_in_one_block() -> Result<()> {
    const LEN: usize = 2048;
    let v = Variable::new(Tensor::full([LEN], 1.0)?);
    let tapes = |n: usize| -> Result<()> {
        for _ in 0..n {
            let tape = GradientTape::new();
            let sum = tape.record(|| {
                let y = rebuilt_from(&v)?;
                y.mul(&y)?.sum(..)
            })?;
            let gradient = tape.gradient(&sum, [&*v])?[0].to_vec::<f32>()?;
            // All elements of a value that was read are of one assignment.
            assert!(gradient.iter().all(|&g| g == gradient[0]), "a value was read while it was written");
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let assigning = scope.spawn(|| -> Result<()> {
            for k in 1..2000 {
                v.assign(&Tensor::full([LEN], f64::from(k))?)?;
            }
            Ok(())
        });
        tapes(500)?;
        assigning.join().expect("no panic")
    })
}
