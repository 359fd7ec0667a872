//! Memory that fails: every single acquisition of a step in turn, every 7th, every 100th. Each time an error, no panic,
//! no leak, model and generator as before; and the same step then succeeds with the same bits.

use plimsoll::Generator;
use plimsoll::prelude::*;
use plimsoll_memory::testing::Fail;

/// A small network with a random op in it.
struct Model {
    w1: Variable,
    b1: Variable,
    w2: Variable,
}

impl Model {
    fn new() -> Result<Model> {
        Ok(Model {
            w1: Variable::new(Tensor::normal([12, 16], 0.0, 0.3, DType::F32)?),
            b1: Variable::new(Tensor::zeros([16])?),
            w2: Variable::new(Tensor::normal([16, 4], 0.0, 0.3, DType::F32)?),
        })
    }

    fn variables(&self) -> [&Variable; 3] {
        [&self.w1, &self.b1, &self.w2]
    }

    /// The bits of the parameters and of the generator.
    fn state(&self) -> Result<(Vec<u32>, Generator)> {
        let mut bits = Vec::new();
        for variable in self.variables() {
            bits.extend(variable.to_vec::<f32>()?.into_iter().map(f32::to_bits));
        }
        Ok((bits, Generator::current()))
    }

    /// BuiltLayer, backward and update; `pin` keeps an old value alive, so that the update needs memory, too.
    fn step(&self, device: &Device, pin: Option<&Tensor>) -> Result<u32> {
        let _pinned = pin;
        Step::run(device, || {
            let x = Tensor::randn([8, 12])?;
            let tape = GradientTape::new();
            let loss = tape.record(|| {
                let hidden = x.matmul(&self.w1)?.add(&self.b1)?.relu()?;
                let noise = Tensor::uniform([8, 16], 0.5, 1.5, DType::F32)?;
                let y = hidden.mul(&noise)?.matmul(&self.w2)?;
                y.mul(&y)?.sum(..)
            })?;
            let [d1, db, d2] = tape.gradient(&loss, self.variables().map(|variable| &**variable))?;
            for (variable, gradient) in self.variables().into_iter().zip([d1, db, d2]) {
                variable.assign_sub(&gradient.mul(1e-2)?)?;
            }
            Ok(loss.item::<f32>()?.to_bits())
        })
    }
}

/// A model at a fixed state, and what a step that succeeds makes of it.
fn expected(device: &Device) -> Result<(u32, Vec<u32>)> {
    set_seed(11);
    let model = Model::new()?;
    let pin = model.w1.value();
    let loss = model.step(device, Some(&pin))?;
    Ok((loss, model.state()?.0))
}

#[test]
fn each_acquisition_failing_in_turn_is_an_error_that_changes_nothing() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let (loss, after) = expected(&device)?;
    let mut n_failed = 0;
    for nth in 1.. {
        set_seed(11);
        let model = Model::new()?;
        let pin = model.w1.value();
        let before = (model.state()?, device.stats().in_use);
        device.pool().fail_acquisition(nth);
        let outcome = model.step(&device, Some(&pin));
        device.pool().fail_acquisitions(Fail::Never);
        match outcome {
            Ok(bits) => {
                assert_eq!(bits, loss);
                break;
            }
            Err(error) => {
                assert!(error.is_out_of_memory(), "{error}");
                assert_eq!((model.state()?, device.stats().in_use), before, "acquisition {nth}");
                assert_eq!(device.pool().verify(), Ok(()));
                assert_eq!(model.step(&device, Some(&pin))?, loss, "acquisition {nth}");
                assert_eq!(model.state()?.0, after, "acquisition {nth}");
                n_failed += 1;
            }
        }
    }
    assert!(n_failed > 20, "the step takes memory more than {n_failed} times");
    assert_eq!(device.stats().in_use, 0);
    Ok(())
}

#[test]
fn every_seventh_and_every_hundredth_acquisition_failing() -> Result<()> {
    for every in [7, 100] {
        let device = Device::separate_cpu();
        let _on = device.enter();
        set_seed(11);
        let model = Model::new()?;
        let mut twin_losses = Vec::new();
        for _ in 0..30 {
            twin_losses.push(model.step(&device, None)?);
        }
        set_seed(11);
        let model = Model::new()?;
        let (mut losses, mut n_failed) = (Vec::new(), 0);
        device.pool().fail_acquisitions(Fail::Every(every));
        while losses.len() < 30 {
            let before = (model.state()?, device.stats().in_use);
            match model.step(&device, None) {
                Ok(loss) => losses.push(loss),
                Err(_) => {
                    n_failed += 1;
                    device.pool().fail_acquisitions(Fail::Never);
                    assert_eq!((model.state()?, device.stats().in_use), before);
                    losses.push(model.step(&device, None)?);
                    device.pool().fail_acquisitions(Fail::Every(every));
                }
            }
        }
        assert_eq!(losses, twin_losses, "every {every}th");
        let least = if every == 7 { 30 } else { 5 };
        assert!(n_failed >= least, "every {every}th acquisition failed {n_failed} of 30 steps");
    }
    Ok(())
}
