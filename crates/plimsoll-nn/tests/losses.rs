//! Losses against values and gradients recorded from PyTorch 2.15 in float64, and what they refuse. Keras's treatment of
//! predictions that are no probabilities was recorded as its formula in PyTorch: divided by the sum, clipped at 1e-7.

use std::sync::Mutex;

use plimsoll_nn::losses::{
    BinaryCrossentropy, CategoricalCrossentropy, Huber, Loss, MeanAbsoluteError, MeanSquaredError,
    SparseCategoricalCrossentropy,
};
use plimsoll_tensor::{DType, GradientTape, Result, Tensor};
use plimsoll_testkit::assert_close;

const LOGITS: [f64; 12] = [1.0, -0.5, 2.0, 0.25, -1.5, 0.75, 0.5, -2.0, 3.0, 0.0, -0.25, 1.0];
const SOFT: [f64; 12] = [0.1, 0.2, 0.3, 0.4, 0.0, 1.0, 0.0, 0.0, 0.25, 0.25, 0.25, 0.25];
const TRUTHS: [f64; 12] = [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0];
const TARGETS: [f64; 12] = [1.5, -0.5, -1.0, 0.0, 0.0, 0.5, 0.5, -3.5, 1.0, 2.0, 0.0, 1.25];
const CLASSES: [i64; 3] = [2, 0, 3];

fn rows(values: &[f64; 12]) -> Result<Tensor> {
    Tensor::from_slice(values, [3, 4])
}

/// The losses of the rows, and the gradient of their mean.
fn check(loss: &dyn Loss, labels: &Tensor, losses: [f64; 3], gradient: &[f64; 12]) -> Result<()> {
    let predictions = rows(&LOGITS)?;
    assert_close(&loss.losses(labels, &predictions)?, &losses);
    let tape = GradientTape::new();
    tape.watch(&predictions)?;
    let mean = tape.record(|| loss.call(labels, &predictions))?;
    assert_close(&mean, &[losses.iter().sum::<f64>() / 3.0]);
    let [actual] = tape.gradient(&mean, [&predictions])?;
    assert_close(&actual, gradient);
    Ok(())
}

#[test]
fn categorical() -> Result<()> {
    let loss = CategoricalCrossentropy::new().from_logits(true);
    let gradient = [
        0.04218774916109874,
        -0.04981563543510126,
        0.10528758621017124,
        -0.09765969993616866,
        0.01803427558113778,
        -0.16222889061940693,
        0.1332562739726022,
        0.010938341065666934,
        0.18902083807383768,
        -0.06977361758121157,
        -0.07277301608735524,
        -0.04647420440527087,
    ];
    check(&loss, &rows(&SOFT)?, [1.7847311347019679, 0.6668688441543451, 2.264539670254397], &gradient)?;
    let gradient = [
        0.03718774916109874,
        -0.05148230210176792,
        0.1069542528768379,
        -0.09265969993616868,
        0.009700942247804453,
        -0.1372288906194069,
        0.12492294063926893,
        0.0026050077323336042,
        0.18902083807383768,
        -0.06977361758121157,
        -0.07277301608735524,
        -0.04647420440527087,
    ];
    let smooth = loss.label_smoothing(0.1);
    check(&smooth, &rows(&SOFT)?, [1.7859811347019678, 0.7981188441543451, 2.264539670254397], &gradient)
}

#[test]
fn categorical_of_what_is_no_distribution() -> Result<()> {
    let gradient = [
        0.06363636363636363,
        0.09696969696969697,
        0.046969696969696974,
        -0.43636363636363634,
        0.0,
        0.0,
        0.0,
        0.0,
        0.01666666666666667,
        0.044444444444444446,
        0.044444444444444446,
        -0.03888888888888888,
    ];
    let losses = [4.379473449814421, 16.11809565095832, 8.445272673303291];
    check(&CategoricalCrossentropy::new(), &rows(&SOFT)?, losses, &gradient)?;
    // Labels may be any numbers: the loss is linear in them.
    let loss = CategoricalCrossentropy::new().from_logits(true);
    let labels = rows(&LOGITS)?;
    let double = loss.call(&labels.affine(2.0, 0.0)?, &rows(&SOFT)?)?;
    assert_close(&double, &[2.0 * loss.call(&labels, &rows(&SOFT)?)?.item::<f64>()?]);
    Ok(())
}

#[test]
fn sparse() -> Result<()> {
    let gradient = [
        0.07552108249443207,
        0.016851031231565408,
        -0.1280457471231621,
        0.03567363339716467,
        -0.3152990577521955,
        0.17110444271392639,
        0.1332562739726022,
        0.010938341065666934,
        0.272354171407171,
        0.01355971575212176,
        0.010560317245978092,
        -0.29647420440527084,
    ];
    let losses = [0.4847311347019678, 2.916868844154345, 2.202039670254397];
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    check(&loss, &Tensor::from_slice(&CLASSES, 3)?, losses, &gradient)?;
    check(&loss, &Tensor::from_slice(&[2u8, 0, 3], [3, 1])?, losses, &gradient)?;
    let gradient = [
        0.12121212121212122,
        0.12121212121212122,
        -0.04545454545454544,
        0.12121212121212122,
        0.07407407407407407,
        -0.14814814814814814,
        -0.14814814814814814,
        -0.14814814814814814,
        0.08888888888888889,
        0.08888888888888889,
        0.08888888888888889,
        -0.2444444444444444,
    ];
    let losses = [0.3184537311185346, 0.40546510810816444, 1.3217558399823195];
    check(&SparseCategoricalCrossentropy::new(), &Tensor::from_slice(&CLASSES, 3)?, losses, &gradient)
}

#[test]
fn binary() -> Result<()> {
    let gradient = [
        -0.022411785114166256,
        0.031461722399845446,
        -0.009933576835176473,
        0.04684804174048317,
        0.015202126983863029,
        0.05659822493128275,
        -0.031461722399845446,
        -0.07339975649815686,
        -0.003952156098130552,
        -0.041666666666666664,
        0.03648529159285016,
        0.06092154821916707,
    ];
    let losses = [0.43505152565503635, 0.9848223198301829, 0.6577339098826884];
    let loss = BinaryCrossentropy::new().from_logits(true);
    check(&loss, &rows(&TRUTHS)?, losses, &gradient)?;
    let probabilities = rows(&LOGITS)?.sigmoid()?;
    assert_close(&BinaryCrossentropy::new().losses(&rows(&TRUTHS)?, &probabilities)?, &losses);
    let gradient = [
        -0.014078451780832927,
        0.023128389066512118,
        -0.0016002435018431422,
        0.038514708407149836,
        0.006868793650529695,
        0.048264891597949416,
        -0.023128389066512118,
        -0.06506642316482353,
        0.004381177235202778,
        -0.03333333333333333,
        0.02815195825951683,
        0.05258821488583374,
    ];
    let smooth = loss.label_smoothing(0.2);
    check(&smooth, &rows(&TRUTHS)?, [0.5163015256550364, 0.9660723198301829, 0.7139839098826885], &gradient)
}

#[test]
fn differences() -> Result<()> {
    let labels = rows(&TARGETS)?;
    let (twelfth, sixth) = (1.0 / 12.0, 1.0 / 6.0);
    let gradient = [
        -twelfth,
        0.0,
        0.5,
        0.5 * twelfth,
        -0.25,
        0.5 * twelfth,
        0.0,
        0.25,
        2.0 * sixth,
        -2.0 * sixth,
        -0.5 * twelfth,
        -0.5 * twelfth,
    ];
    check(&MeanSquaredError, &labels, [2.328125, 1.140625, 2.03125], &gradient)?;
    let gradient = [
        -twelfth, 0.0, twelfth, twelfth, -twelfth, twelfth, 0.0, twelfth, twelfth, -twelfth, -twelfth,
        -twelfth,
    ];
    check(&MeanAbsoluteError, &labels, [0.9375, 0.8125, 1.125], &gradient)?;
    let half = 0.5 * twelfth;
    let gradient = [
        -half,
        0.0,
        twelfth,
        0.5 * half,
        -twelfth,
        0.5 * half,
        0.0,
        twelfth,
        twelfth,
        -twelfth,
        -0.5 * half,
        -0.5 * half,
    ];
    check(&Huber::new(1.0), &labels, [0.6640625, 0.5078125, 0.765625], &gradient)?;
    let losses = [0.3828125, 0.3203125, 0.453125];
    assert_close(&Huber::new(0.5).losses(&labels, &rows(&LOGITS)?)?, &losses);
    Ok(())
}

#[test]
fn weights_count_examples() -> Result<()> {
    let loss = MeanAbsoluteError;
    let (labels, predictions) = (rows(&TARGETS)?, rows(&LOGITS)?);
    let weighted = loss.weighted(&labels, &predictions, &Tensor::from_slice(&[2.0f64, 0.0, 1.0], 3)?)?;
    assert_close(&weighted, &[(2.0 * 0.9375 + 1.125) / 3.0]);
    let error = loss.weighted(&labels, &predictions, &Tensor::zeros(4)?).unwrap_err().to_string();
    assert!(error.contains("weights of shape [4] for losses of shape [3]"), "{error}");
    Ok(())
}

#[test]
fn narrow_predictions_have_a_loss_in_f32() -> Result<()> {
    let (labels, predictions) = (Tensor::from_slice(&CLASSES, 3)?, rows(&LOGITS)?.cast(DType::BF16)?);
    let loss = SparseCategoricalCrossentropy::new().from_logits(true).call(&labels, &predictions)?;
    assert_eq!(loss.dtype(), DType::F32);
    // These logits are numbers that bfloat16 holds.
    assert_close(&loss, &[1.867879883036903]);
    Ok(())
}

/// Hears what is logged.
struct Heard(Mutex<Vec<String>>);

impl log::Log for Heard {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

#[test]
fn one_warning_for_predictions_that_are_no_probabilities() -> Result<()> {
    static HEARD: Heard = Heard(Mutex::new(Vec::new()));
    log::set_logger(&HEARD).expect("no other test sets a logger");
    log::set_max_level(log::LevelFilter::Warn);
    // Logits that occur in no other test, because the log is the process's.
    let logits = Tensor::from_slice(&[5.0, 2.5], [1, 2])?;
    let loss = SparseCategoricalCrossentropy::new();
    let label = Tensor::from_slice(&[0i64], 1)?;
    for _ in 0..3 {
        loss.call(&label, &logits)?;
    }
    SparseCategoricalCrossentropy::new().call(&label, &logits.softmax(-1)?)?;
    let heard = HEARD.0.lock().unwrap();
    let about = |text: &&String| text.contains("sum up to 7.5000 are no probabilities");
    assert_eq!(heard.iter().filter(about).count(), 1);
    assert!(!heard.iter().any(|text| text.contains("sum up to 1.0")));
    Ok(())
}

#[test]
fn sparse_with_smoothing_and_a_class_that_does_not_count() -> Result<()> {
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    let classes = Tensor::from_slice(&CLASSES, 3)?;
    let smoothed = [
        0.06718774916109874,
        0.008517697898232077,
        -0.10304574712316211,
        0.027340300063831344,
        -0.29029905775219556,
        0.1627711093805931,
        0.12492294063926893,
        0.0026050077323336042,
        0.26402083807383775,
        0.005226382418788429,
        0.0022269839126447598,
        -0.27147420440527087,
    ];
    let smooth = loss.clone().label_smoothing(0.1);
    check(&smooth, &classes, [0.6159811347019678, 2.823118844154345, 2.208289670254397], &smoothed)?;

    let others = |loss: &dyn Loss, labels: [i64; 3], losses: [f64; 3], gradient: [f64; 12]| {
        let (labels, predictions) = (Tensor::from_slice(&labels, 3)?, rows(&LOGITS)?);
        assert_close(&loss.losses(&labels, &predictions)?, &losses);
        let tape = GradientTape::new();
        tape.watch(&predictions)?;
        let mean = tape.record(|| loss.call(&labels, &predictions))?;
        assert_close(&mean, &[losses.iter().sum::<f64>() / 2.0]);
        let [actual] = tape.gradient(&mean, [&predictions])?;
        assert_close(&actual, &gradient);
        Ok::<_, plimsoll_tensor::Error>(())
    };
    let (zeros, no_class) = ([0.0; 4], loss.clone().ignore_class(-1));
    let first = [0.1132816237416481, 0.025276546847348112, -0.19206862068474317, 0.05351045009574701];
    let last = [0.40853125711075655, 0.02033957362818264, 0.015840475868967138, -0.4447113066079063];
    let gradient = [first, zeros, last].concat().try_into().expect("three rows");
    others(&no_class, [2, -1, 3], [0.4847311347019678, 0.0, 2.202039670254397], gradient)?;
    let first = [0.1007816237416481, 0.012776546847348112, -0.1545686206847432, 0.04101045009574701];
    let last = [0.39603125711075654, 0.00783957362818264, 0.003340475868967137, -0.40721130660790633];
    let gradient = [first, zeros, last].concat().try_into().expect("three rows");
    others(&smooth.ignore_class(0), [2, 0, 3], [0.6159811347019678, 0.0, 2.208289670254397], gradient)?;

    let loss = SparseCategoricalCrossentropy::new().label_smoothing(0.2).ignore_class(-1);
    let labels = Tensor::from_slice(&[2i64, 1, -1], 3)?;
    assert_close(&loss.losses(&labels, &rows(&SOFT)?)?, &[1.2647925705421608, 2.4177144326437525, 0.0]);
    let none = Tensor::from_slice(&[-1i64; 3], [3, 1])?;
    assert!(loss.call(&none, &rows(&SOFT)?)?.item::<f64>()?.is_nan());
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let predictions = rows(&LOGITS)?;
    let sparse = SparseCategoricalCrossentropy::new();
    let wrong = Tensor::from_slice(&[2i64, 7, 0], 3)?;
    for loss in [sparse.clone(), sparse.clone().from_logits(true)] {
        let error = loss.call(&wrong, &predictions).unwrap_err().to_string();
        assert!(error.contains("label 7 at [1] is not one of the 4 classes; they go from 0 to 3"), "{error}");
    }
    let one_hot = CategoricalCrossentropy::new();
    let error = one_hot.call(&wrong, &predictions).unwrap_err().to_string();
    assert!(error.contains("labels of shape [3] for predictions of shape [3, 4]"), "{error}");
    let error = one_hot.label_smoothing(2.0).call(&predictions, &predictions).unwrap_err().to_string();
    assert!(error.contains("a label smoothing of 2"), "{error}");
    // Labels [3] and predictions [3, 1] mean one another; anything else would be stretched without a word.
    let (column, row) = (Tensor::ones([3, 1])?, Tensor::zeros(3)?);
    assert_eq!(MeanSquaredError.losses(&row, &column)?.shape().dims(), [3]);
    let error = MeanSquaredError.call(&row, &Tensor::zeros([3, 3])?).unwrap_err().to_string();
    assert!(error.contains("labels of shape [3] for predictions of shape [3, 3]"), "{error}");
    let error = Huber::new(0.0).call(&row, &row).unwrap_err().to_string();
    assert!(error.contains("a delta of 0"), "{error}");
    Ok(())
}
