//! The SHA-256 of a model's parameters, by which two runs are seen to be equal to the bit.

use plimsoll::nn::train::Trainer;
use plimsoll::{Result, Variable};
use sha2::{Digest, Sha256};

/// Over the parameters sorted by name, as little-endian bytes of their master dtype, straight from where they are. Ranks that have
/// shards of them all call this.
pub fn parameters_sha256(trainer: &Trainer) -> Result<String> {
    let mut variables = trainer.model().variables();
    variables.sort_by_key(Variable::name);
    let mut sum = Sha256::new();
    for variable in &variables {
        trainer.with_bytes_of(variable, |bytes| sum.update(bytes))?;
    }
    Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use plimsoll::Tensor;
    use plimsoll::nn::Layer;
    use plimsoll::nn::layers::{Dense, Sequential};
    use plimsoll::nn::losses::MeanSquaredError;
    use plimsoll::nn::optimizers::{OptimizerConfig, SGD};

    use super::*;

    #[test]
    fn it_depends_on_values_and_not_on_the_order_of_layers_made() -> Result<()> {
        let model =
            Sequential::new().add(Dense::new(1).named("b")).add(Dense::new(1).named("a")).build([1])?;
        for (number, variable) in model.variables().iter().enumerate() {
            variable.assign(&Tensor::full(*variable.shape(), number as f64)?)?;
        }
        // By name: a.bias = 3, a.kernel = 2, b.bias = 1, b.kernel = 0.
        let bytes: Vec<u8> = [3f32, 2.0, 1.0, 0.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let expected: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let trainer = Trainer::new(model, SGD::new(0.1).build(), MeanSquaredError);
        assert_eq!(parameters_sha256(&trainer)?, expected);
        Ok(())
    }
}
