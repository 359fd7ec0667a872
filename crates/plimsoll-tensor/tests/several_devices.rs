//! One function on several devices: copies between them on a tape and in programs, a pool and a limit for each.

#![forbid(unsafe_code)]

use plimsoll_tensor::{
    Bytes, Device, Error, Function, GradientTape, Program, Result, Tensor, Variable, set_seed,
};

const WIDTH: usize = 128;
const BATCH: usize = 4096;
const N_LAYERS: usize = 4;

/// A network whose first layers are on one device and whose last are on another.
struct Network {
    devices: [Device; 2],
    weights: Vec<Variable>,
}

impl Network {
    fn on(devices: [Device; 2]) -> Result<Network> {
        set_seed(7);
        let weight = |number: usize| {
            let _on = devices[usize::from(number >= N_LAYERS)].enter();
            Ok(Variable::new(Tensor::randn([WIDTH, WIDTH])?.affine(0.1, 0.0)?))
        };
        let weights = (0..2 * N_LAYERS).map(weight).collect::<Result<_>>()?;
        Ok(Network { devices, weights })
    }

    fn step(&self, x: &Tensor) -> Result<Tensor> {
        let tape = GradientTape::new();
        let loss = tape.record(|| {
            let mut x = x.clone();
            for (number, weight) in self.weights.iter().enumerate() {
                if number == N_LAYERS {
                    x = x.to_device(&self.devices[1])?;
                }
                x = x.matmul(weight)?.tanh()?.dropout(0.1)?;
            }
            x.square()?.mean(..)
        })?;
        let gradients = tape.variable_gradients(&loss, &self.weights)?;
        for (weight, gradient) in self.weights.iter().zip(gradients) {
            assert_eq!(gradient.device(), weight.device(), "a gradient is where its variable is");
            weight.assign_sub(&gradient.mul(0.1)?)?;
        }
        loss.to_device(&self.devices[0])
    }

    fn bits(&self) -> Result<Vec<Vec<f32>>> {
        self.weights.iter().map(|weight| weight.value().to_vec::<f32>()).collect()
    }
}

fn two_cpus() -> [Device; 2] {
    [Device::separate_cpu(), Device::separate_cpu()]
}

fn batch(device: &Device) -> Result<Tensor> {
    let _on = device.enter();
    Tensor::randn([BATCH, WIDTH])
}

/// Losses and weights.
type Outcome = (Vec<f32>, Vec<Vec<f32>>);

/// What comes of some steps, as a function or eagerly.
fn trained(network: Network, is_eager: bool) -> Result<Outcome> {
    let x = batch(&network.devices[0])?;
    set_seed(11);
    let network = std::sync::Arc::new(network);
    let step = Function::new({
        let network = network.clone();
        move |x: Tensor| network.step(&x)
    })
    .run_eagerly(is_eager);
    let losses = (0..4).map(|_| step.call(x.clone())?.item::<f32>()).collect::<Result<_>>()?;
    assert_eq!(step.eager_reason(), None);
    Ok((losses, network.bits()?))
}

#[test]
fn a_tape_records_copies_between_devices() -> Result<()> {
    let [first, second] = two_cpus();
    let _on = first.enter();
    let x = Variable::new(Tensor::from_vec(vec![1f32, 2.0, 3.0])?);
    let tape = GradientTape::new();
    let y = tape.record(|| x.square()?.to_device(&second)?.mul(3.0)?.to_device(&first)?.sum(..))?;
    assert_eq!(tape.gradient(&y, [&x])?[0].to_vec::<f32>()?, [6.0, 12.0, 18.0]);
    // A view is copied as what it shows.
    let table = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0], [2, 2])?;
    let turned = table.transpose(0, 1)?.to_device(&second)?;
    assert_eq!((turned.device(), turned.to_vec::<f32>()?), (second, vec![1.0, 3.0, 2.0, 4.0]));
    Ok(())
}

#[test]
fn inside_a_function_a_device_is_the_real_one() -> Result<()> {
    let [first, second] = two_cpus();
    let x = batch(&first)?;
    let (here, there) = (first.clone(), second.clone());
    let function = Function::new(move |x: Tensor| {
        assert_eq!(x.device(), here);
        assert!(x.is_ghost(), "it is being recorded");
        assert_eq!(x.to_device(&here)?.device(), here);
        let y = x.to_device(&there)?;
        assert_eq!(y.device(), there);
        let _on = there.enter();
        assert_eq!(Device::current(), there);
        y.add(&Tensor::ones([WIDTH])?)
    });
    let y = function.call(x.clone())?;
    assert_eq!((y.device(), function.eager_reason()), (second, None));
    assert_eq!(y.to_vec::<f32>()?, x.add(1.0)?.to_vec::<f32>()?);
    Ok(())
}

#[test]
fn a_program_of_several_pools_is_eager_code_on_each() -> Result<()> {
    let eager = trained(Network::on(two_cpus())?, true)?;
    let one = Device::separate_cpu();
    assert_eq!(trained(Network::on([one.clone(), one])?, true)?, eager, "where it runs changes no bit");
    let devices = two_cpus();
    assert_eq!(trained(Network::on(devices.clone())?, false)?, eager);
    for device in devices {
        assert_eq!(device.stats().in_use, 0, "everything came back");
    }
    Ok(())
}

/// A GPU and the host, which have kernels, streams and copies of their own.
#[cfg(feature = "emulated")]
#[test]
fn a_function_may_use_a_gpu_and_the_host() -> Result<()> {
    let devices = || Ok::<_, Error>([Device::emulated()?, Device::separate_cpu()]);
    let eager = trained(Network::on(devices()?)?, true)?;
    assert_eq!(trained(Network::on(devices()?)?, false)?, eager);
    let [gpu, cpu] = devices()?;
    assert_eq!(trained(Network::on([cpu, gpu])?, false)?.0.len(), eager.0.len());
    Ok(())
}

#[test]
fn the_footprint_on_each_device_is_what_the_run_takes() -> Result<()> {
    let devices = two_cpus();
    let network = Network::on(devices.clone())?;
    let x = batch(&devices[0])?;
    let program = Program::record(&devices[0], &[&x], |x| Ok(vec![network.step(&x[0])?]))?;
    assert_eq!(program.devices(), devices);
    let footprints = program.footprints()?;
    devices.iter().for_each(|device| device.pool().reset_peaks());
    drop(program.run(&[&x], None)?);
    for (device, footprint) in devices.iter().zip(&footprints) {
        let stats = device.stats();
        assert_eq!((stats.peak_in_use, stats.peak_rows), (footprint.peak, footprint.owners), "{device}");
    }
    let saved_for_backward = (N_LAYERS * WIDTH * BATCH * 4) as u64;
    assert!(footprints.iter().all(|footprint| footprint.peak > saved_for_backward));
    assert!(program.to_string().contains("to_device"), "{program}");
    Ok(())
}

/// A limit for each device, from what its part takes down to the least that works.
#[test]
fn each_device_keeps_its_own_limit() -> Result<()> {
    let expected = trained(Network::on(two_cpus())?, true)?;
    let natural = |limits: [Option<u64>; 2]| -> Result<([u64; 2], Result<Outcome>)> {
        let devices = two_cpus();
        let network = Network::on(devices.clone())?;
        for (device, limit) in devices.iter().zip(limits) {
            device.set_verify(true);
            device.set_limit(limit.map(Bytes::new))?;
        }
        let outcome = trained(network, false);
        Ok((devices.map(|device| device.stats().peak_committed), outcome))
    };
    let ([first, second], outcome) = natural([None, None])?;
    assert_eq!(outcome?, expected);
    let granule = Device::separate_cpu().pool().granule();
    let mut refused = [false; 2];
    for step in 0..8 {
        for which in 0..3 {
            let lower = |peak: u64, is_bound: bool| is_bound.then(|| peak - (step * granule).min(peak / 2));
            let limits = [lower(first, which != 1), lower(second, which != 0)];
            let (committed, outcome) = natural(limits)?;
            match outcome {
                Ok(outcome) => {
                    assert_eq!(outcome, expected, "under {limits:?}");
                    let kept = committed
                        .iter()
                        .zip(limits)
                        .all(|(&taken, limit)| taken <= limit.unwrap_or(u64::MAX));
                    assert!(kept, "{committed:?} of {limits:?}");
                }
                Err(error) => {
                    assert!(error.is_out_of_memory(), "{error}");
                    assert!(error.to_string().contains("the limit of cpu"), "{error}");
                    refused[usize::from(which == 1)] = true;
                }
            }
        }
    }
    assert_eq!(refused, [true, true], "limits that low cannot be kept");
    Ok(())
}

#[test]
fn a_step_that_fails_on_one_device_changes_nothing_on_another() -> Result<()> {
    let devices = two_cpus();
    let network = std::sync::Arc::new(Network::on(devices.clone())?);
    let before = network.bits()?;
    let step = Function::new({
        let network = network.clone();
        move |(x, index): (Tensor, Tensor)| {
            let loss = network.step(&x)?;
            // The index is looked at when the program runs, after the updates were staged.
            let picked = network.weights[N_LAYERS].index_select(0, &index)?;
            loss.add(&picked.sum(..)?.to_device(&network.devices[0])?)
        }
    });
    let (x, good, bad) = {
        let _on = devices[1].enter();
        (batch(&devices[0])?, Tensor::from_vec(vec![3i64])?, Tensor::from_vec(vec![3 + WIDTH as i64])?)
    };
    let error: Error = step.call((x.clone(), bad)).expect_err("there is no such row");
    assert!(error.to_string().contains("index"), "{error}");
    assert_eq!(network.bits()?, before);
    step.call((x, good))?;
    assert_ne!(network.bits()?, before);
    Ok(())
}
