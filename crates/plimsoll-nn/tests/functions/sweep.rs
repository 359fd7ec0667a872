//! Limits from just below the natural peak down to the least that works.

use plimsoll_memory::Pool;
use plimsoll_memory::testing::FinePages;
use plimsoll_tensor::{Bytes, Device, ErrorKind, Function, Result, Tensor, Variable, set_seed};

use plimsoll_testkit::device_under_test;

use crate::networks::{
    Network, StepFn, distillation, encoder_decoder, gan, maml, mixture_of_experts, siamese, unet, vae,
    wgan_gp,
};

const N_STEPS: usize = 3;

/// Whether the functions run on the GPU that `PLIMSOLL_TEST_DEVICE` names.
pub fn on_gpu() -> bool {
    std::env::var("PLIMSOLL_TEST_DEVICE").is_ok_and(|name| name != "cpu")
}

/// A device with a pool of its own: the GPU under test, or a CPU in small granules.
pub fn device() -> Device {
    match on_gpu() {
        true => device_under_test(),
        false => Device::over("cpu", Pool::new(FinePages::new().expect("the system has addresses to spare"))),
    }
}

/// The bits of what the steps told, and of all that they changed.
#[derive(Debug, PartialEq)]
struct Outcome {
    told: Vec<Vec<u64>>,
    state: Vec<Vec<u64>>,
}

/// What the run took.
#[derive(Clone, Copy, Debug)]
struct Taken {
    peak_in_use: u64,
    peak_committed: u64,
}

fn bits(tensor: &Tensor) -> Result<Vec<u64>> {
    Ok(tensor.to_f64_vec()?.into_iter().map(f64::to_bits).collect())
}

/// Makes a few steps on a device of its own; with `verify`, each is compared with one that is not planned.
fn run(
    network: fn() -> Result<Network>,
    limit: Option<u64>,
    verify: bool,
    call: impl Fn(StepFn) -> StepFn,
) -> Result<(Outcome, Taken)> {
    let device = device();
    device.set_verify(verify);
    let _on = device.enter();
    let Network { step, state, batch } = network()?;
    device.set_limit(limit.map(Bytes::new))?;
    device.pool().reset_peaks();
    let step = call(step);
    set_seed(9);
    let mut told = Vec::new();
    for _ in 0..N_STEPS {
        told.extend(step(batch.clone())?.iter().map(bits).collect::<Result<Vec<_>>>()?);
    }
    let taken = device.stats();
    let state = state.iter().map(|variable: &Variable| bits(variable)).collect::<Result<_>>()?;
    let taken = Taken { peak_in_use: taken.peak_in_use, peak_committed: taken.peak_committed };
    Ok((Outcome { told, state }, taken))
}

/// A step as a function.
fn recorded(step: StepFn) -> StepFn {
    let function = Function::new(step);
    Box::new(move |batch| {
        let told = function.call(batch);
        assert_eq!(function.eager_reason(), None);
        told
    })
}

fn sweep(name: &str, network: fn() -> Result<Network>) -> Result<()> {
    let (expected, eager) = run(network, None, false, |step| step)?;
    let (outcome, natural) = run(network, None, true, recorded)?;
    assert_eq!(outcome, expected, "{name}: a function has eager's bits");
    let mut taken: Vec<(u64, Taken)> = Vec::new();
    let least = loop {
        let share = 95 - 10 * taken.len() as u64;
        let limit = natural.peak_committed * share / 100;
        match run(network, Some(limit), false, recorded) {
            Ok((outcome, used)) => {
                assert_eq!(outcome, expected, "{name} at {share} %");
                taken.push((limit, used));
            }
            Err(error) => match *error.kind() {
                ErrorKind::Limit { limit: refused, least, .. } if refused == limit => break least,
                _ => panic!("{name} at {share} %, {limit} bytes: {error}"),
            },
        }
    };
    let (outcome, used) = run(network, Some(least), true, recorded)?;
    assert_eq!(outcome, expected, "{name} at the least limit, {least}");
    taken.push((least, used));
    eprintln!("{name}: eager {eager:?}, natural {natural:?}, least {least}, {} limits", taken.len());
    for (limit, used) in &taken {
        assert!(used.peak_committed <= *limit, "{name}: {used:?} under {limit}");
    }
    for pair in taken.windows(2) {
        let [(above, more), (below, less)] = [pair[0], pair[1]];
        assert!(above >= below, "{name}: {above} works, and {below} was called the least");
        assert!(less.peak_committed <= more.peak_committed, "{name}: committed at {below} and {above}");
        assert!(less.peak_in_use <= more.peak_in_use, "{name}: in use at {below} and {above}");
    }
    let refused =
        run(network, Some(least - (least * 3 / 100).max(device().pool().granule())), false, recorded);
    match refused.map_err(|error| error.to_string()) {
        Err(text) => assert!(text.contains(&Bytes::new(least).to_string()), "{name}: {text}"),
        Ok(_) => panic!("{name}: 3 % below {least} was not refused"),
    }
    Ok(())
}

#[test]
fn a_gan_with_two_optimizers() -> Result<()> {
    sweep("gan", gan)
}

#[test]
fn a_critic_with_a_gradient_penalty() -> Result<()> {
    sweep("wgan-gp", wgan_gp)
}

#[test]
fn a_variational_autoencoder() -> Result<()> {
    sweep("vae", vae)
}

#[test]
fn a_siamese_network() -> Result<()> {
    sweep("siamese", siamese)
}

#[test]
fn a_student_of_a_frozen_teacher() -> Result<()> {
    sweep("distillation", distillation)
}

#[test]
fn learning_to_learn() -> Result<()> {
    sweep("maml", maml)
}

#[test]
fn an_encoder_and_a_decoder() -> Result<()> {
    sweep("encoder-decoder", encoder_decoder)
}

#[test]
fn a_mixture_of_experts() -> Result<()> {
    sweep("mixture of experts", mixture_of_experts)
}

#[test]
fn a_unet() -> Result<()> {
    sweep("unet", unet)
}
