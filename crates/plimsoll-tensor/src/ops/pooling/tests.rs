use super::Pool2d;
use crate::autograd::GradientTape;
use crate::device::Device;
use crate::eager::op::Form;
use crate::eager::tensor::Tensor;

#[test]
fn max_pooling_keeps_one_byte_for_each_output() {
    let device = Device::separate_cpu();
    let _here = device.enter();
    let x = Tensor::randn([2, 8, 8, 16]).unwrap();
    let tape = GradientTape::new();
    tape.watch(&x).unwrap();
    let y = tape.record(|| x.mul(&x)?.max_pool2d(2)).unwrap();
    let saved = tape.saved();
    let of_pool = saved.values().iter().find(|value| value.op == "max_pool2d").unwrap();
    assert_eq!((of_pool.form, of_pool.bytes), (Form::Indices, y.n_elems()));
    assert!(saved.values().iter().all(|value| value.op != "max_pool2d" || value.form == Form::Indices));
}

#[test]
fn average_pooling_keeps_nothing() {
    let x = Tensor::randn([1, 4, 4, 2]).unwrap();
    let tape = GradientTape::new();
    tape.watch(&x).unwrap();
    let y = tape.record(|| x.avg_pool2d(2)).unwrap();
    assert!(tape.saved().values().is_empty());
    let [gradient] = tape.gradient(&y, [&x]).unwrap();
    assert_eq!(gradient.to_vec::<f32>().unwrap(), [0.25; 32]);
}

#[test]
fn ties_go_to_the_first_and_nan_wins() {
    let x = Tensor::from_slice(&[1.0f32, 1.0, 1.0, 1.0], [1, 2, 2, 1]).unwrap();
    let tape = GradientTape::new();
    tape.watch(&x).unwrap();
    let y = tape.record(|| x.max_pool2d(2)).unwrap();
    let [gradient] = tape.gradient(&y, [&x]).unwrap();
    assert_eq!(gradient.to_vec::<f32>().unwrap(), [1.0, 0.0, 0.0, 0.0]);
    let x = Tensor::from_slice(&[5.0, f32::NAN, 7.0, 6.0], [1, 2, 2, 1]).unwrap();
    assert!(x.max_pool2d(2).unwrap().item::<f32>().unwrap().is_nan());
}

#[test]
fn padding_is_never_the_greatest() {
    let x = Tensor::full([1, 2, 2, 1], f64::NEG_INFINITY).unwrap();
    let pool = Pool2d::new([2, 2]).stride([1, 1]).padding([1, 1]);
    let tape = GradientTape::new();
    tape.watch(&x).unwrap();
    let y = tape.record(|| x.max_pool2d(pool)).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [f32::NEG_INFINITY; 9]);
    // Every window names one of its own elements, although all are as small as can be.
    let [gradient] = tape.gradient(&y, [&x]).unwrap();
    assert_eq!(gradient.to_vec::<f32>().unwrap().iter().sum::<f32>(), 9.0);
}

#[test]
fn windows_that_make_no_sense_are_refused() {
    let x = Tensor::zeros([1, 40, 40, 1]).unwrap();
    let text = |pool: Pool2d| x.max_pool2d(pool).err().map_or_else(String::new, |error| error.to_string());
    assert!(text(Pool2d::new([2, 0])).contains("all must be at least 1"));
    assert!(text(Pool2d::new([2, 2]).stride([0, 1])).contains("all must be at least 1"));
    assert!(text(Pool2d::new([2, 2]).padding([2, 0])).contains("half a window at most"));
    assert!(text(Pool2d::new([17, 16])).contains("more than 256 pixels"));
    assert!(text(Pool2d::new([16, 16])).is_empty());
}
