//! Milliseconds of an optimizer's update over all parameters of a model: `cargo bench -p plimsoll-tensor --bench optimizer
//! -- [name]`. Beside it, PyTorch's: `torch.optim.Adam(parameters, fused=True)`, with gradients set.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::time::{Duration, Instant};

use plimsoll_tensor::optimizer::{
    Adafactor, Adagrad, Adam, Adam8bit, Algorithm, BeginStep, Common, Control, Decay, RmsProp, Sgd,
    UpdatedParameter,
};
use plimsoll_tensor::{Result, Tensor, Variable};

/// How long each figure is measured.
const MEASURING_TIME: Duration = Duration::from_millis(1500);

fn measure(name: &str, algorithm: &dyn Algorithm, shapes: &[&[usize]]) -> Result<()> {
    let (mut variables, mut members, mut gradients) = (Vec::new(), Vec::new(), Vec::new());
    for shape in shapes {
        let parameter = Variable::new(Tensor::randn(*shape)?);
        let states = algorithm.states(parameter.shape(), parameter.dtype());
        members.push(UpdatedParameter { n_states: states.len(), has_copy: false, decays: true });
        variables.push(parameter);
        for state in states {
            variables.push(Variable::new(Tensor::full_of(state.shape, state.initial, state.dtype)?));
        }
        gradients.push(Tensor::randn(*shape)?);
    }
    let control = Variable::new(Control::new(1e-3, 1.0).to_tensor()?);
    let n_parameters: usize = gradients.iter().map(|gradient| gradient.n_elems()).sum();
    let common = Common { decay: Decay::None, clip_value: None };
    let (begin, update) = (BeginStep::default().op(), algorithm.update(common, &members));
    let operands: Vec<&Variable> = variables.iter().chain([&control]).collect();
    let gradients: Vec<&Tensor> = gradients.iter().collect();
    let (start, mut best) = (Instant::now(), Duration::MAX);
    while start.elapsed() < MEASURING_TIME {
        let start = Instant::now();
        Variable::update_together(&[
            (begin.clone(), &[&control], &[]),
            (update.clone(), &operands, &gradients),
        ])?;
        best = best.min(start.elapsed());
    }
    println!("{name:<12} {n_parameters:>9} parameters {:>9.3} ms", best.as_secs_f64() * 1e3);
    Ok(())
}

fn main() -> Result<()> {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let adam = Adam { beta_1: 0.9, beta_2: 0.999, epsilon: 1e-8, amsgrad: false, epsilon_hat: false };
    let algorithms: [(&str, &dyn Algorithm); 6] = [
        ("sgd", &Sgd { momentum: 0.9, nesterov: false }),
        ("adam", &adam),
        ("rmsprop", &RmsProp { rho: 0.9, momentum: 0.0, epsilon: 1e-8, centered: false }),
        ("adagrad", &Adagrad { initial: 0.0, epsilon: 1e-10 }),
        ("adam_8bit", &Adam8bit { beta_1: 0.9, beta_2: 0.999, epsilon: 1e-8 }),
        (
            "adafactor",
            &Adafactor { beta_2_decay: -0.8, epsilon_1: None, epsilon_2: 1e-3, clip_threshold: 1.0 },
        ),
    ];
    // The dense model of the posts; ten million weights; two hundred small ones.
    let dense: &[&[usize]] = &[&[784, 1024], &[1024], &[1024, 10], &[10]];
    let large = [&[1024usize, 1024][..]; 10];
    let small = [&[256usize][..]; 200];
    for (name, algorithm) in algorithms.into_iter().filter(|(name, _)| name.contains(&filter)) {
        for shapes in [dense, &large, &small] {
            measure(name, algorithm, shapes)?;
        }
    }
    Ok(())
}
