//! Variables and steps: assigned in place, copied on write, all or nothing.

use plimsoll_tensor::{
    Device, Error, Generator, GradientTape, Owner, Result, Step, Tensor, Variable, set_seed,
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
