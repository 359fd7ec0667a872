//! What recipes learn from: data that the program ships, files that people have, and random numbers.
//!
//! Bytes go from their compressed form straight into the pool. Grey values and letters stay bytes there, and become
//! numbers batch by batch inside the model: a quarter of the memory, or an eighth.

mod digits;
mod fashion;
mod random;
mod text;

pub use digits::digits;
pub use fashion::fashion;
pub use random::Feature;
pub use text::text_windows;

use plimsoll::data::Dataset;

use crate::failure::Failure;

/// The examples of a recipe: pairs of inputs and labels, one by one.
#[derive(Clone, Debug)]
pub struct Data {
    /// What is learnt from.
    pub train: Dataset,
    /// What is kept apart to see what has been learnt.
    pub held_out: Option<Dataset>,
    /// Where they come from: `shipped`, `random`, or a path.
    pub source: String,
}

impl Data {
    /// Examples to learn from, and none kept apart.
    pub fn new(train: Dataset, source: impl Into<String>) -> Data {
        Data { train, held_out: None, source: source.into() }
    }

    /// Refuses examples of another shape than the recipe's inputs and labels, before its model sees them.
    pub(crate) fn check(&self, inputs: &Feature, labels: &Feature) -> Result<(), Failure> {
        let refused = |detail: String| Err(Failure::file(format!("{}: {detail}", self.source)));
        for dataset in [Some(&self.train), self.held_out.as_ref()].into_iter().flatten() {
            let [first, second] = dataset.spec().fields() else {
                return refused(format!("there are {}, where inputs and labels are wanted", dataset.spec()));
            };
            for (field, feature) in [(first, inputs), (second, labels)] {
                if let Some(why) = feature.refuses(field) {
                    return refused(format!("{:?} is {why}", field.name()));
                }
            }
        }
        Ok(())
    }

    /// These examples with others kept apart.
    pub fn held_out(self, held_out: Dataset) -> Data {
        Data { held_out: Some(held_out), ..self }
    }
}
