//! Metrics, against counts made by hand and Keras's rules.

use plimsoll_memory::testing::Fail;
use plimsoll_nn::metrics::{
    AUC, Accuracy, BinaryAccuracy, CategoricalAccuracy, Curve, Mean, MeanAbsoluteError, MeanSquaredError,
    Metric, Precision, Recall, SparseCategoricalAccuracy, SparseTopKCategoricalAccuracy,
    TopKCategoricalAccuracy,
};
use plimsoll_tensor::{DType, Device, GradientTape, Result, Step, Tensor, Variable};

/// Scores of four examples for three classes.
fn scores() -> Result<Tensor> {
    let rows = [0.1f32, 0.7, 0.2, 0.5, 0.3, 0.2, 0.2, 0.3, 0.5, 0.4, 0.4, 0.2];
    Tensor::from_slice(&rows, [4, 3])
}

/// The metric of one batch.
fn of(mut metric: impl Metric, labels: &Tensor, predictions: &Tensor) -> Result<f64> {
    metric.update(labels, predictions)?;
    Ok(metric.result())
}

#[test]
fn accuracies_count_what_is_right() -> Result<()> {
    let classes = Tensor::from_slice(&[1i64, 2, 2, 1], 4)?;
    let one_hot = classes.one_hot(3, DType::F32)?;
    // Of the two equal scores of the last example the first is taken, so it is wrong.
    assert_eq!(of(SparseCategoricalAccuracy::new(), &classes, &scores()?)?, 0.5);
    assert_eq!(of(SparseCategoricalAccuracy::new(), &classes.unsqueeze(-1)?, &scores()?)?, 0.5);
    assert_eq!(of(CategoricalAccuracy::new(), &one_hot, &scores()?)?, 0.5);
    let said = Tensor::from_slice(&[1.0f32, 2.0, 0.0, 1.0], 4)?;
    assert_eq!(of(Accuracy::new(), &classes, &said)?, 0.75);
    let truths = Tensor::from_slice(&[1i64, 0, 1, 0], 4)?;
    let chances = Tensor::from_slice(&[0.9f32, 0.5, 0.4, 0.6], 4)?;
    assert_eq!(of(BinaryAccuracy::new(0.5), &truths, &chances)?, 0.5);
    assert_eq!(of(BinaryAccuracy::new(0.3), &truths, &chances)?, 0.5);
    Ok(())
}

#[test]
fn the_right_class_may_be_among_several() -> Result<()> {
    let classes = Tensor::from_slice(&[2i64, 2, 0, 1], 4)?;
    let at = |k: usize| of(SparseTopKCategoricalAccuracy::new(k), &classes, &scores()?);
    // Fewer than k are greater: 1 of the first, 2 of the second and the third, none of the last.
    assert_eq!([at(1)?, at(2)?, at(3)?], [0.25, 0.5, 1.0]);
    let one_hot = classes.one_hot(3, DType::F32)?;
    assert_eq!(of(TopKCategoricalAccuracy::new(2), &one_hot, &scores()?)?, 0.5);
    Ok(())
}

#[test]
fn precision_and_recall_are_ratios_of_counts() -> Result<()> {
    let truths = Tensor::from_slice(&[1i64, 0, 1, 0, 1], 5)?;
    let chances = Tensor::from_slice(&[0.9f32, 0.6, 0.4, 0.1, 0.7], 5)?;
    assert_eq!(of(Precision::new(0.5), &truths, &chances)?, 2.0 / 3.0);
    assert_eq!(of(Recall::new(0.3), &truths, &chances)?, 1.0);
    let weights = Tensor::from_slice(&[1.0f32, 3.0, 1.0, 1.0, 2.0], 5)?;
    let (mut precision, mut recall) = (Precision::new(0.5), Recall::new(0.5));
    // Of nothing they are zero, as in Keras.
    assert_eq!((precision.result(), recall.result()), (0.0, 0.0));
    precision.update(&truths, &chances.zeros_like()?)?;
    recall.update(&truths.zeros_like()?, &chances)?;
    let on_device = |metric: &dyn Metric| -> Result<f64> { metric.result_on_device()?.unwrap().item() };
    assert_eq!((precision.result(), recall.result()), (0.0, 0.0));
    assert_eq!((on_device(&precision)?, on_device(&recall)?), (0.0, 0.0));
    precision.update_weighted(&truths, &chances, &weights)?;
    recall.update_weighted(&truths, &chances, &weights)?;
    assert_eq!((precision.result(), recall.result()), (0.5, 0.75));
    assert_eq!((on_device(&precision)?, on_device(&recall)?), (0.5, 0.75));
    precision.reset();
    assert_eq!(precision.result(), 0.0);
    Ok(())
}

#[test]
fn the_area_under_a_curve_tells_how_well_two_kinds_are_told_apart() -> Result<()> {
    let truths = Tensor::from_slice(&[0i64, 0, 1, 1], 4)?;
    let area = |curve, chances: [f32; 4]| of(AUC::new(curve), &truths, &Tensor::from_slice(&chances, 4)?);
    for curve in [Curve::Roc, Curve::PrecisionRecall] {
        assert!((area(curve, [0.1, 0.2, 0.8, 0.9])? - 1.0).abs() < 1e-12, "{curve:?}");
    }
    assert_eq!(area(Curve::Roc, [0.8, 0.9, 0.1, 0.2])?, 0.0);
    // Three of the four pairs of one of each are in order.
    assert_eq!(area(Curve::Roc, [0.1, 0.6, 0.5, 0.9])?, 0.75);
    assert_eq!(AUC::new(Curve::Roc).result(), 0.0);
    let error = AUC::new(Curve::Roc).thresholds(1).unwrap_err().to_string();
    assert!(error.contains("a curve has two ends"), "{error}");
    Ok(())
}

#[test]
fn errors_are_averaged_over_batches_of_any_size() -> Result<()> {
    let (mut squared, mut absolute) = (MeanSquaredError::new(), MeanAbsoluteError::new());
    for errors in [&[1.0f32, 3.0][..], &[-2.0], &[0.0, 4.0, -1.0]] {
        let predictions = Tensor::from_slice(errors, errors.len())?;
        squared.update(&predictions.zeros_like()?, &predictions)?;
        absolute.update(&predictions.zeros_like()?, &predictions)?;
    }
    assert_eq!((squared.result(), absolute.result()), (31.0 / 6.0, 11.0 / 6.0));
    squared.reset();
    assert!(squared.result().is_nan());
    squared.update(&Tensor::zeros(1)?, &Tensor::ones(1)?)?;
    assert_eq!(squared.result(), 1.0);
    Ok(())
}

#[test]
fn a_metric_leaves_nothing_on_a_tape_and_little_on_the_device() -> Result<()> {
    let device = Device::separate_cpu();
    let _there = device.enter();
    let predictions = Variable::new(Tensor::ones([2, 3])?);
    let labels = Tensor::zeros([2, 3])?;
    let before = device.stats().n_live;
    let mut metric = MeanSquaredError::new();
    let tape = GradientTape::new();
    tape.record(|| {
        let output = predictions.affine(2.0, 0.0)?;
        metric.update(&labels, &output)
    })?;
    assert_eq!(tape.saved().bytes(), 0);
    assert_eq!((metric.variables().len(), device.stats().n_live - before), (1, 1));
    metric.reset();
    assert!(metric.result().is_nan());
    // Its two numbers stay where they are, so that a program that adds to them goes on doing so.
    assert_eq!(device.stats().n_live, before + 1);
    drop(metric);
    assert_eq!(device.stats().n_live, before);
    Ok(())
}

#[test]
fn a_step_that_fails_leaves_the_metric_as_it_was() -> Result<()> {
    let device = Device::separate_cpu();
    let _there = device.enter();
    let mut mean = Mean::new();
    mean.add(&Tensor::full(3, 2.0)?)?;
    let values = Tensor::full(5, 7.0)?;
    let before = device.stats().n_acquired;
    Step::run(&device, || mean.add(&values))?;
    let n_acquisitions = device.stats().n_acquired - before;
    let expected = mean.result();
    for k in 1..=n_acquisitions {
        device.pool().fail_acquisition(k);
        let failed = Step::run(&device, || mean.add(&values));
        device.pool().fail_acquisitions(Fail::Never);
        assert!(failed.unwrap_err().is_out_of_memory());
        assert_eq!(mean.result(), expected);
    }
    assert_eq!(expected, (3.0 * 2.0 + 5.0 * 7.0) / 8.0);
    Ok(())
}

#[test]
fn labels_that_do_not_fit_are_refused() -> Result<()> {
    let labels = Tensor::from_slice(&[1i64, 2], 2)?;
    let error = of(SparseCategoricalAccuracy::new(), &labels, &scores()?).unwrap_err().to_string();
    assert!(error.contains("labels of shape [2] for predictions of shape [4, 3]"), "{error}");
    let error = of(Accuracy::new(), &labels, &scores()?).unwrap_err().to_string();
    assert!(error.contains("they must agree"), "{error}");
    Ok(())
}

/// A metric of one's own: how many examples there were.
#[derive(Default)]
struct Examples(usize);

impl Metric for Examples {
    fn name(&self) -> &str {
        "examples"
    }

    fn update(&mut self, labels: &Tensor, _predictions: &Tensor) -> Result<()> {
        self.0 += labels.shape()[0];
        Ok(())
    }

    fn result(&self) -> f64 {
        self.0 as f64
    }

    fn reset(&mut self) {
        self.0 = 0;
    }
}

#[test]
fn a_metric_of_ones_own_stands_beside_the_others() -> Result<()> {
    let mut metrics: Vec<Box<dyn Metric>> = vec![Box::new(Examples::default()), Box::new(Accuracy::new())];
    let labels = Tensor::from_slice(&[1i64, 2], 2)?;
    for metric in &mut metrics {
        metric.update(&labels, &labels.cast(DType::F32)?)?;
    }
    let told: Vec<(&str, f64)> = metrics.iter().map(|metric| (metric.name(), metric.result())).collect();
    assert_eq!(told, [("examples", 2.0), ("accuracy", 1.0)]);
    Ok(())
}
