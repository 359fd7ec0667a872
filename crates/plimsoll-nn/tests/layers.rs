//! Layers against values recorded from PyTorch (`recorded/layers.py`): outputs, gradients, inference, and what a step of
//! training leaves behind.

use plimsoll_nn::layers::{
    ActivationLayer, AveragePooling2D, BatchNormalization, Conv1D, Conv1DTranspose, Conv2D, Conv2DTranspose,
    Dense, DepthwiseConv2D, GlobalAveragePooling1D, GlobalAveragePooling2D, GroupNormalization,
    LayerNormalization, MaxPooling2D, RMSNormalization, Reshape, Sequential,
};
use plimsoll_nn::{BuiltLayer, Layer, Mode, Model, Policy, adopt_variable, with_policy};
use plimsoll_tensor::{Activation, GradientTape, Result, Shape, Tensor, Variable, set_seed};
use serde_json::Value;

/// Recorded values have 15 digits after the point, and both sides compute in float64: what is left is the order of sums.
const TOLERANCE: f64 = 1e-12;

fn recorded(case: &str) -> Value {
    let all: Value = serde_json::from_str(include_str!("recorded/layers.json")).expect("the file is sound");
    all[case].clone()
}

fn numbers(array: &Value) -> (Vec<usize>, Vec<f64>) {
    let list = |key: &str| array[key].as_array().expect("a list").clone();
    let shape = list("shape").iter().map(|n| n.as_u64().expect("an extent") as usize).collect();
    (shape, list("values").iter().map(|x| x.as_f64().expect("a number")).collect())
}

fn tensor(array: &Value) -> Result<Tensor> {
    let (shape, values) = numbers(array);
    Tensor::from_vec(values)?.reshape(shape)
}

fn assert_close(what: &str, found: &Tensor, expected: &Value) -> Result<()> {
    let (shape, expected) = numbers(expected);
    let n_elems: usize = found.shape().iter().product();
    assert_eq!(n_elems, expected.len(), "{what} has the shape {}, not {shape:?}", found.shape());
    for (idx, (found, expected)) in found.to_vec::<f64>()?.into_iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(error <= TOLERANCE * (1.0 + expected.abs()), "{what}, number {idx}: {found}, not {expected}");
    }
    Ok(())
}

/// Builds a layer with the recorded variables and compares all that was recorded; `name` is the case.
fn check(name: &str, layer: impl Layer) -> Result<()> {
    let case = recorded(name);
    let x = tensor(&case["input"])?;
    let model = with_policy(Policy::Float64, || layer.build(&x.shape()[1..]))?;
    for variable in model.variables() {
        variable.assign(&tensor(&case["variables"][variable.name()])?)?;
    }
    assert_eq!(model.variables().len(), case["variables"].as_object().expect("an object").len(), "{name}");
    let tape = GradientTape::new();
    tape.watch(&x)?;
    let y = tape.record(|| model.forward(&x, Mode::Train))?;
    assert_eq!(&y.shape()[1..], model.output_shape().dims(), "{name}: the shape that was promised");
    assert_close(&format!("{name}, output"), &y, &case["output"])?;
    let weights = tensor(&case["grad_output"])?.reshape(*y.shape())?;
    let loss = tape.record(|| y.mul(&weights)?.sum(..))?;
    let [gradient] = tape.gradient(&loss, [&x])?;
    assert_close(&format!("{name}, gradient"), &gradient, &case["grad_input"])?;
    for (variable, expected) in case["after"].as_object().expect("an object") {
        let found = model.variables().into_iter().find(|found| found.name() == *variable);
        let found = found.unwrap_or_else(|| panic!("{name} has no {variable}"));
        assert_close(&format!("{name}, {variable} after a step"), &found, expected)?;
    }
    assert_close(&format!("{name}, inference"), &model.forward(&x, Mode::Infer)?, &case["infer"])
}

#[test]
fn convolutions() -> Result<()> {
    check("conv1d", Conv1D::new(4, 3).stride(2).padding(1).dilation(2))?;
    check("conv2d", Conv2D::new(4, [3, 2]).stride([2, 1]).padding([1, 0]))?;
    check("conv2d same", Conv2D::new(3, [3, 2]).same())?;
    check("conv2d groups", Conv2D::new(6, 3).groups(2))?;
    check("depthwise_conv2d", DepthwiseConv2D::new(3).padding(1).depth_multiplier(2))
}

#[test]
fn transposed_convolutions() -> Result<()> {
    check("conv1d_transpose", Conv1DTranspose::new(2, 4).stride(3).padding(1).output_padding(2))?;
    check("conv2d_transpose", Conv2DTranspose::new(2, 3).stride(2).padding(1).output_padding(1))
}

#[test]
fn pools() -> Result<()> {
    check("max_pool", MaxPooling2D::new(3).stride(2).padding(1))?;
    check("average_pool", AveragePooling2D::new(2))?;
    check("global_average_pool", GlobalAveragePooling2D::new())
}

#[test]
fn norms() -> Result<()> {
    check("batch_norm", BatchNormalization::new())?;
    check("group_norm", GroupNormalization::new(2))?;
    check("layer_norm", LayerNormalization::new())?;
    check("rms_norm", RMSNormalization::new())
}

#[test]
fn same_padding_keeps_extents_or_divides_them() -> Result<()> {
    let extents =
        |model: Result<Model>| Ok::<_, plimsoll_tensor::Error>(model?.output_shape().dims().to_vec());
    assert_eq!(extents(Conv2D::new(8, [3, 4]).same().build([7, 6, 3]))?, [7, 6, 8]);
    assert_eq!(extents(Conv2D::new(8, 3).same().stride(2).build([7, 6, 3]))?, [4, 3, 8]);
    assert_eq!(extents(Conv1D::new(5, 3).same().dilation(2).build([9, 2]))?, [9, 5]);
    assert_eq!(extents(Conv2DTranspose::new(8, 3).same().stride(2).build([7, 6, 3]))?, [14, 12, 8]);
    assert_eq!(extents(Conv1DTranspose::new(8, 2).same().stride(3).build([5, 3]))?, [15, 8]);
    Ok(())
}

#[test]
fn a_fused_activation_keeps_the_output_and_a_pool_one_byte_for_each_of_its_own() -> Result<()> {
    let conv = Conv2D::new(8, 3).same().activation(Activation::Relu);
    let model = Sequential::new().add(conv).add(MaxPooling2D::new(2)).build([6, 6, 4])?;
    // The convolution's input, its output, from which relu's gradient is read, and the positions of the greatest.
    assert_eq!(model.summary(2)?.saved_bytes, 2 * (6 * 6 * (4 + 8) * 4 + 3 * 3 * 8));
    Ok(())
}

#[test]
fn a_relu_inside_batch_norm_keeps_nothing_and_changes_no_bit() -> Result<()> {
    let around = |middle: Sequential| middle.add(Conv2D::new(4, 1)).build([16, 16, 8]);
    let inside = |activation| around(Sequential::new().add(BatchNormalization::new().activation(activation)));
    let behind = |activation| {
        around(Sequential::new().add(BatchNormalization::new()).add(ActivationLayer::new(activation)))
    };
    let x = Tensor::randn([3, 16, 16, 8])?;
    let kept = |model: Result<Model>| -> Result<usize> {
        let (model, tape) = (model?, GradientTape::new());
        let _y = tape.record(|| model.forward(&x, Mode::Train))?;
        Ok(tape.saved().bytes())
    };
    // Beta has eight numbers more.
    assert_eq!(kept(inside(Activation::Relu))?, kept(inside(Activation::None))? + 8 * 4);
    assert_eq!(kept(behind(Activation::Relu))?, kept(inside(Activation::None))? + 3 * 16 * 16 * 8 * 4);
    for activation in [Activation::Relu, Activation::Tanh, Activation::Gelu] {
        set_seed(3);
        let inside = inside(activation)?;
        set_seed(3);
        let behind = behind(activation)?;
        let names = |model: &Model| -> Vec<String> {
            model.variables().iter().map(|variable| variable.name().to_owned()).collect()
        };
        assert_eq!(names(&inside), names(&behind));
        for mode in [Mode::Train, Mode::Infer] {
            let [inside, behind] = [&inside, &behind].map(|model| model.forward(&x, mode)?.to_vec::<f32>());
            assert_eq!(inside?, behind?, "{activation:?}");
        }
    }
    Ok(())
}

#[test]
fn layers_say_what_they_take() {
    let text = |model: Result<Model>| model.expect_err("refused").to_string();
    let error = text(Conv2D::new(8, 3).build([28, 28]));
    assert!(error.contains("the layer takes [height, width, channels]"), "{error}");
    let error = text(Conv2D::new(8, 5).build([3, 9, 1]));
    assert!(error.contains("does not fit an input of 3 by 9"), "{error}");
    let error = text(Conv2D::new(8, 3).groups(3).build([9, 9, 4]));
    assert!(error.contains("with 3 groups"), "{error}");
    let error = text(MaxPooling2D::new(4).build([3, 3, 1]));
    assert!(error.contains("do not fit into images"), "{error}");
    let error = text(GroupNormalization::new(3).build([5, 4]));
    assert!(error.contains("4 channels do not make 3 equal groups"), "{error}");
    let error = text(GlobalAveragePooling2D::new().build([4, 3]));
    assert!(error.contains("[4, 3]; the layer takes [height, width, channels]"), "{error}");
    let error = text(GlobalAveragePooling1D::new().build([4]));
    assert!(error.contains("[4]; the layer takes [length, channels]"), "{error}");
    let error = text(Reshape::new([5, -1]).build([4, 3]));
    assert!(error.contains("shape [4, 3] to [5, -1]: 12 elements are no multiple of 5"), "{error}");
}

#[test]
fn an_example_is_reshaped_and_a_sequence_averaged() -> Result<()> {
    let reshaped = Reshape::new((2, -1)).build([4, 3])?;
    assert_eq!(reshaped.output_shape().dims(), [2, 6]);
    let x = Tensor::arange(24)?.reshape([2, 4, 3])?;
    let y = reshaped.call(&x)?;
    assert_eq!((y.shape().dims(), y.to_vec::<f32>()?), (&[2, 2, 6][..], x.to_vec::<f32>()?));
    let means = GlobalAveragePooling1D::new().build([4, 3])?.call(&x)?;
    assert_eq!(means.to_vec::<f32>()?, [4.5, 5.5, 6.5, 16.5, 17.5, 18.5]);
    Ok(())
}

/// A dense layer without bias, whose last function is left to whoever reads it, with a softmax after it.
struct Probabilities;

impl Layer for Probabilities {
    fn name(&self) -> &str {
        "probabilities"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        Ok(Dense::new(5).no_bias().make(input)?.then(|logits| logits.softmax(-1)))
    }
}

#[test]
fn a_function_after_a_layer_sees_its_values() -> Result<()> {
    set_seed(1);
    let model = Probabilities.build([3])?;
    let x = Tensor::randn([4, 3])?;
    let expected = x.matmul(&model.variables()[0])?.softmax(-1)?.to_vec::<f32>()?;
    assert_eq!(model.infer(&x)?.to_vec::<f32>()?, expected);
    let prediction = model.prediction(&x, Mode::Train)?.values()?;
    assert_eq!(prediction.to_vec::<f32>()?, expected);
    Ok(())
}

/// A scale and a count, which somebody else has made.
struct Scale {
    scale: Variable,
    count: Variable,
}

impl Layer for Scale {
    fn name(&self) -> &str {
        "scale"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        adopt_variable("scale", &self.scale);
        adopt_variable("count", &self.count);
        let scale = self.scale.clone();
        BuiltLayer::new(input, move |x, _| x.mul(&scale))
    }
}

#[test]
fn a_variable_that_is_there_becomes_the_layers() -> Result<()> {
    let scale = Variable::new(Tensor::full(3, 2.0)?);
    let count = Variable::new(Tensor::zeros(1)?).trainable(false);
    let layer = Scale { scale: scale.clone(), count: count.clone() };
    let model = Sequential::new().add(Dense::new(3)).add(layer).build([4])?;
    let names: Vec<String> = model.named_variables().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["dense.kernel", "dense.bias", "scale.scale", "scale.count"]);
    assert_eq!((scale.name(), count.name()), ("scale.scale".to_owned(), "scale.count".to_owned()));
    assert!(model.trainable_variables().contains(&scale) && !model.trainable_variables().contains(&count));
    model.set_trainable(false);
    model.set_trainable(true);
    assert!(scale.is_trainable() && !count.is_trainable());
    Ok(())
}
