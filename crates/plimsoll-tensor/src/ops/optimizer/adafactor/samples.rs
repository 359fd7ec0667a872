//! What the registry knows of the op.

use super::Adafactor;
use crate::ops::optimizer::samples::{parameters_and_targets, steps, torch_steps};
use crate::ops::optimizer::{Common, Decay};
use crate::ops::registry::{Array, OpInfo, Sample};

/// The registry's entry of the op.
pub const INFO: OpInfo = OpInfo {
    name: Adafactor::NAME,
    doc: "Updates parameters by Adafactor, with second moments of matrices kept by rows and columns.",
    samples: registry_samples,
};

fn registry_samples() -> Vec<Sample> {
    let rule = Adafactor { beta_2_decay: -0.8, epsilon_1: Some(1e-2), epsilon_2: 1e-3, clip_threshold: 1.0 };
    let common = Common { decay: Decay::Decoupled(0.3), clip_value: None };
    let torch = "torch.optim.Adafactor(parameters, lr=0.1, eps=(1e-2, 1e-3), weight_decay=0.3)";
    let sample = |name: &str, shapes| {
        Sample::many(name, parameters_and_targets(shapes), steps(rule, common, 10))
            .references(move |x| x[..2].iter().zip(&x[2..]).map(|(p, t)| reference(&rule, p, t)).collect())
            .torch(torch_steps(torch, 10))
    };
    vec![sample("a vector and a matrix", [&[7], &[4, 9]]), sample("matrices and a number", [&[2, 3, 5], &[]])]
}

/// Ten steps of one parameter towards a target, with every matrix whole.
fn reference(rule: &Adafactor, parameter: &Array, target: &Array) -> Array {
    let root_mean = |x: &[f64]| (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64).sqrt();
    let (n_rows, n_cols) = match parameter.shape[..] {
        [.., n_rows, n_cols] => (n_rows, n_cols),
        _ => (0, 0),
    };
    let mut p = parameter.values.clone();
    let mut v = vec![0.0; p.len()];
    // The means of rows and columns, written out for every element.
    let (mut rows, mut cols) = (v.clone(), v.clone());
    for step in 1..=10 {
        let g: Vec<f64> = p.iter().zip(&target.values).map(|(p, t)| p - t).collect();
        let new = f64::from(step).powf(rule.beta_2_decay);
        let size = rule.epsilon_2.max(root_mean(&p)) * f64::min(0.1, 1.0 / f64::from(step).sqrt());
        let mixed = |old: f64, mean: f64| old + new * (mean - old);
        let squares: Vec<f64> = g.iter().map(|g| g * g).collect();
        for at in 0..p.len() {
            if n_cols == 0 {
                v[at] = mixed(v[at], squares[at]);
                continue;
            }
            let (matrix, row, col) =
                (at / (n_rows * n_cols) * n_rows * n_cols, at / n_cols % n_rows, at % n_cols);
            let row_sum: f64 = (0..n_cols).map(|col| squares[matrix + row * n_cols + col]).sum();
            let col_sum: f64 = (0..n_rows).map(|row| squares[matrix + row * n_cols + col]).sum();
            rows[at] = mixed(rows[at], row_sum / n_cols as f64);
            cols[at] = mixed(cols[at], col_sum / n_rows as f64);
        }
        if n_cols > 0 {
            for at in 0..p.len() {
                let matrix = at / (n_rows * n_cols) * n_rows * n_cols;
                let sum: f64 = (0..n_rows).map(|row| rows[matrix + row * n_cols]).sum();
                v[at] = rows[at] * cols[at] / (sum / n_rows as f64).max(rule.epsilon_1.unwrap_or(0.0));
            }
        }
        let least = rule.epsilon_1.unwrap_or(0.0).powi(2);
        let updates: Vec<f64> = g.iter().zip(&v).map(|(g, v)| g / v.max(least).sqrt()).collect();
        let excess = (root_mean(&updates) / rule.clip_threshold).max(1.0);
        p.iter_mut().zip(&updates).for_each(|(p, u)| *p = *p * (1.0 - 0.1 * 0.3) - size / excess * u);
    }
    Array::new(&parameter.shape, p)
}
