use super::*;
use crate::autograd::GradientTape;
use crate::device::Device;

/// The numbers from zero on, in that shape.
fn counted<const N: usize>(shape: [usize; N]) -> Tensor {
    let n = shape.iter().product();
    Tensor::arange(n).unwrap().reshape(shape).unwrap()
}

#[test]
fn views_share_memory_and_cost_no_bytes() {
    let device = Device::separate_cpu();
    let _here = device.enter();
    let x = counted([6, 8]);
    let before = device.stats().rows().total();
    let mut views = vec![
        x.narrow(0, 1, 3).unwrap(),
        x.slice((Slice::between(1, -1), Slice::from(..).step(-3))).unwrap(),
        x.select(1, -1).unwrap(),
        x.get(2).unwrap(),
        x.flip(..).unwrap(),
    ];
    views.extend(x.split(1, &[3, 0, 5]).unwrap());
    views.extend(x.chunk(0, 4).unwrap());
    assert_eq!(device.stats().rows().total(), before);
    assert!(views.iter().all(|view| view.shares_memory_with(&x)));
}

#[test]
fn ranges_follow_numpys_rules() {
    let x = Tensor::arange(5).unwrap();
    let range = |start: Option<isize>, end: Option<isize>, step: isize| {
        let slice = Slice::Range { start, end, step };
        x.slice((slice,)).unwrap().to_vec::<f32>().unwrap()
    };
    assert_eq!(range(Some(-2), None, 1), [3.0, 4.0]);
    assert_eq!(range(Some(-9), Some(9), 2), [0.0, 2.0, 4.0]);
    assert_eq!(range(Some(3), Some(1), 1), [0.0; 0]);
    assert_eq!(range(None, None, -1), [4.0, 3.0, 2.0, 1.0, 0.0]);
    assert_eq!(range(Some(9), Some(-9), -2), [4.0, 2.0, 0.0]);
    assert_eq!(range(Some(3), Some(0), -1), [3.0, 2.0, 1.0]);
    assert_eq!(range(Some(-9), None, -1), [0.0; 0]);
    assert_eq!(range(Some(1), None, isize::MAX), [1.0]);
    assert_eq!(range(None, Some(isize::MIN), isize::MIN), [4.0]);
    assert_eq!(x.slice((-1,)).unwrap().item::<f32>().unwrap(), 4.0);
    let text = x.slice((Slice::from(..).step(0),)).err().unwrap().to_string();
    assert!(text.contains("a step of 0 along axis 0"), "{text}");
}

#[test]
fn an_empty_axis_can_be_sliced_but_has_no_positions() {
    let x = Tensor::zeros([0, 3]).unwrap();
    assert_eq!(x.slice((1..4,)).unwrap().shape().dims(), [0, 3]);
    assert_eq!(x.flip(0).unwrap().shape().dims(), [0, 3]);
    assert_eq!(x.chunk(0, 2).unwrap().len(), 1);
    assert!(x.get(0).err().unwrap().to_string().contains("it has no positions"));
}

#[test]
fn a_split_gives_one_gradient_even_if_parts_are_unused() {
    let x = counted([2, 4]);
    let tape = GradientTape::new();
    tape.watch(&x).unwrap();
    let y = tape
        .record(|| {
            let parts = x.split(1, &[1, 2, 1])?;
            parts[1].mul(&parts[1])
        })
        .unwrap();
    let [gradient] = tape.gradient(&y, [&x]).unwrap();
    assert_eq!(gradient.to_vec::<f32>().unwrap(), [0.0, 2.0, 4.0, 0.0, 0.0, 10.0, 12.0, 0.0]);
}

#[test]
fn padding_fills_exactly_what_the_elements_leave() {
    let x = counted([2, 2]).cast(crate::base::dtype::DType::I32).unwrap();
    let padded = x.pad(&[(1, 0), (0, 2)], -7.0).unwrap();
    assert_eq!(padded.to_vec::<i32>().unwrap(), [-7, -7, -7, -7, 0, 1, -7, -7, 2, 3, -7, -7]);
    let empty = Tensor::zeros([0, 2]).unwrap().pad(&[(2, 1), (0, 1)], 3.0).unwrap();
    assert_eq!(empty.to_vec::<f32>().unwrap(), [3.0; 9]);
}
