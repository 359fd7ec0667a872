use half::bf16;

use crate::autograd::GradientTape;
use crate::base::dtype::DType;
use crate::device::Device;
use crate::eager::tensor::Tensor;

/// The numbers from zero on, in that shape.
fn counted<const N: usize>(shape: [usize; N]) -> Tensor {
    Tensor::arange(shape.iter().product()).unwrap().reshape(shape).unwrap()
}

#[test]
fn an_index_out_of_range_is_named_with_its_place_and_the_extent() {
    let x = counted([4, 2]);
    let error =
        |result: crate::Result<Tensor>| result.err().map_or_else(String::new, |error| error.to_string());
    let text = "index 4 at [1, 0] is out of range for axis 0 of extent 4; indices go from 0 to 3";
    let high = Tensor::from_slice(&[0i64, 3, 4, -1], [2, 2]).unwrap();
    assert_eq!(error(x.gather(0, &high)), format!("gather: {text}"));
    assert_eq!(error(x.embedding(&high)), format!("embedding: {text}"));
    assert_eq!(error(x.scatter_add(0, &high, &counted([2, 2]))), format!("scatter_add: {text}"));
    assert_eq!(error(x.index_add(0, &high, &counted([2, 2, 2]))), format!("index_add: {text}"));
    // Turned, the bad one that comes first is another.
    let turned = high.t().unwrap();
    let text = "gather: index 4 at [0, 1] is out of range for axis 0 of extent 4; indices go from 0 to 3";
    assert_eq!(error(x.gather(0, &turned)), text);
    let text = "one_hot: index -1 at [0] is out of range for axis 1 of extent 3; indices go from 0 to 2";
    assert_eq!(error(Tensor::from_vec(vec![-1i32]).unwrap().one_hot(3, DType::F32)), text);
}

#[test]
fn indices_of_both_widths_name_the_same_elements() {
    let x = counted([3, 4]);
    let wide = Tensor::from_slice(&[2i64, 0, 1, 2, 0, 0, 1, 1], [2, 4]).unwrap();
    let narrow = wide.cast(DType::I32).unwrap();
    for (a, b) in [
        (x.gather(0, &wide), x.gather(0, &narrow)),
        (x.embedding(&wide), x.embedding(&narrow)),
        (x.index_select(1, &wide), x.index_select(1, &narrow)),
        (wide.one_hot(3, DType::F32), narrow.one_hot(3, DType::F32)),
        (x.scatter_add(0, &wide, &counted([2, 4])), x.scatter_add(0, &narrow, &counted([2, 4]))),
    ] {
        assert_eq!(a.unwrap().to_vec::<f32>().unwrap(), b.unwrap().to_vec::<f32>().unwrap());
    }
}

#[test]
fn sums_of_half_width_floats_are_made_in_f32() {
    // In bfloat16 itself a sum of ones ends at 256, because 257 is not a bfloat16.
    let ones = Tensor::full_of([1000, 1], 1.0, DType::BF16).unwrap();
    let zeros = Tensor::zeros_of([2, 1], DType::BF16).unwrap();
    let ids = Tensor::zeros_of(1000, DType::I64).unwrap();
    let rows = zeros.index_add(0, &ids, &ones).unwrap();
    assert_eq!(rows.to_vec::<bf16>().unwrap(), [1000.0, 0.0].map(bf16::from_f32));
    let elements = zeros.scatter_add(0, &ids.reshape([1000, 1]).unwrap(), &ones).unwrap();
    assert_eq!(elements.to_vec::<bf16>().unwrap(), [1000.0, 0.0].map(bf16::from_f32));
}

#[test]
fn an_embedding_keeps_its_ids_alone() {
    let device = Device::separate_cpu();
    let _here = device.enter();
    let table = counted([100, 64]);
    let ids = Tensor::from_slice(&[3i64, 7, 3], 3).unwrap();
    let tape = GradientTape::new();
    tape.watch(&table).unwrap();
    let y = tape.record(|| table.embedding(&ids)).unwrap();
    let saved = tape.saved();
    let kept: Vec<(&str, usize)> = saved.values().iter().map(|value| (value.op, value.bytes)).collect();
    assert_eq!(kept, [("embedding", 24)]);
    let [gradient] = tape.gradient(&y, [&table]).unwrap();
    let sums = gradient.sum(1).unwrap().to_vec::<f32>().unwrap();
    assert_eq!((sums[3], sums[7], sums.iter().sum::<f32>()), (128.0, 64.0, 192.0));
}
