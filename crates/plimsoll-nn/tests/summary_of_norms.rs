//! A summary tries a model on a ghost: what the model assigns there, such as running statistics, changes nothing.

use plimsoll_nn::Layer;
use plimsoll_nn::layers::{BatchNormalization, Conv2D, Dense, Flatten, Sequential};
use plimsoll_tensor::Result;

#[test]
fn running_statistics_stay_as_they_are() -> Result<()> {
    let model = Sequential::new()
        .add(Conv2D::new(4, 3))
        .add(BatchNormalization::new())
        .add(Flatten::new())
        .add(Dense::new(3))
        .build([8, 8, 2])?;
    let values = || -> Result<Vec<Vec<f64>>> { model.variables().iter().map(|v| v.to_f64_vec()).collect() };
    let before = values()?;
    let summary = model.summary(16)?.to_string();
    assert!(summary.contains("batch_norm"), "{summary}");
    assert_eq!(values()?, before);
    Ok(())
}
