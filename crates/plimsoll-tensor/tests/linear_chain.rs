//! A chain of linear layers and relus keeps one activation per layer, and nothing else.

use std::sync::{Arc, Mutex};

use plimsoll_tensor::{
    Activation, DType, Device, GradientTape, Owner, Result, Tensor, Variable, custom_gradient, set_seed,
};

const LAYERS: usize = 64;
const BATCH: usize = 256;
const WIDTH: usize = 512;
const ACTIVATION: usize = BATCH * WIDTH * 4;

/// One layer, given its input, weights and bias.
type Layer = fn(&Tensor, &Variable, &Variable) -> Result<Tensor>;

fn fused(x: &Tensor, w: &Variable, b: &Variable) -> Result<Tensor> {
    x.linear(w, Some(b), Activation::Relu)
}

fn plain(x: &Tensor, w: &Variable, b: &Variable) -> Result<Tensor> {
    x.matmul(w)?.add(b)?.relu()
}

/// What a chain held.
#[derive(Debug, PartialEq)]
struct Held {
    /// The bytes of blocks that are labelled as saved, after forward.
    after_forward: u64,
    /// The bytes that the tape says are its own, after forward.
    own: usize,
    /// The saved bytes whenever backward has left a layer, last layer first.
    during_backward: Vec<u64>,
    /// The first gradient's sum; a ghost has none.
    gradient: Option<f32>,
}

fn saved(device: &Device) -> u64 {
    let snapshot = device.snapshot();
    snapshot.blocks().iter().filter(|block| block.owner == Owner::Saved).map(|block| block.requested).sum()
}

/// A layer's input, unchanged; when its gradient arrives, the saved bytes are noted.
fn probed(x: &Tensor, device: &Device, seen: &Arc<Mutex<Vec<u64>>>) -> Result<Tensor> {
    let (device, seen) = (device.clone(), seen.clone());
    let note = move |gradient: &Tensor| {
        seen.lock().unwrap().push(saved(&device));
        Ok(vec![gradient.clone()])
    };
    custom_gradient(&[x], |x| Ok((x[0].clone(), note)))
}

fn measure(device: &Device, layer: Layer) -> Result<Held> {
    let _on = device.enter();
    let weight = || Tensor::normal([WIDTH, WIDTH], 0.0, 0.06, DType::F32).map(Variable::new);
    let weights: Vec<Variable> = (0..LAYERS).map(|_| weight()).collect::<Result<_>>()?;
    let bias = || Tensor::full(WIDTH, 0.01).map(Variable::new);
    let biases: Vec<Variable> = (0..LAYERS).map(|_| bias()).collect::<Result<_>>()?;
    let x = Tensor::normal([BATCH, WIDTH], 0.0, 1.0, DType::F32)?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tape = GradientTape::new();
    let loss = tape.record(|| {
        let mut y = x;
        for (w, b) in weights.iter().zip(&biases) {
            y = layer(&probed(&y, device, &seen)?, w, b)?;
        }
        y.sum(..)
    })?;
    let (after_forward, own) = (saved(device), tape.saved().own_bytes());
    let [gradient] = tape.gradient(&loss, [&weights[0]])?;
    let gradient = if device.is_ghost() { None } else { Some(gradient.sum(..)?.item()?) };
    let during_backward = std::mem::take(&mut *seen.lock().unwrap());
    Ok(Held { after_forward, own, during_backward, gradient })
}

#[test]
fn a_chain_keeps_one_activation_per_layer() {
    let device = Device::separate_cpu();
    for layer in [fused as Layer, plain as Layer] {
        set_seed(7);
        let real = measure(&device, layer).unwrap();
        // The inputs of all layers, and the output of the last.
        let all = (LAYERS + 1) * ACTIVATION;
        assert_eq!((real.after_forward, real.own), (all as u64, all));
        // The first layer's input is not watched, so no gradient arrives there. When one arrives at another layer's
        // input, that layer and the later ones have given up their outputs.
        let expected: Vec<u64> = (1..LAYERS).rev().map(|layers| ((layers + 1) * ACTIVATION) as u64).collect();
        assert_eq!(real.during_backward, expected);
        assert!(real.gradient.is_some_and(f32::is_finite));
        let ghost = measure(&Device::ghost_cpu(), layer).unwrap();
        assert_eq!(ghost, Held { gradient: None, ..real });
    }
    assert_eq!(device.snapshot().in_use(), 0);
}
