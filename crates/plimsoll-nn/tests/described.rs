//! A label knows where its layer was described, besides the line of the call.

use plimsoll_nn::layers::{Dense, Residual, Sequential};
use plimsoll_nn::{BuiltLayer, Layer, Mode, Model};
use plimsoll_tensor::{
    Activation, Bytes, Device, Error, GradientTape, Result, Shape, Site, Tensor, Unconnected, enter_line,
    log_placements,
};

/// The ops of this kind that `f` runs: the layer, the line of the call, and the line that described the layer.
fn ops(op: &str, f: impl FnOnce() -> Result<()>) -> Result<Vec<(&'static str, u32, Option<u32>)>> {
    let (done, log) = log_placements(f);
    done?;
    let described = |site: Site| {
        site.described().map(|(file, line)| {
            assert_eq!(file, file!());
            line
        })
    };
    let sites = log.iter().filter(|placement| placement.op == op).map(|placement| placement.site);
    Ok(sites.map(|site| (site.scope(), site.line(), described(site))).collect())
}

#[test]
fn a_layer_of_a_sequential_is_described_where_it_was_added() -> Result<()> {
    let first = line!() + 1;
    let layers = Sequential::new().add(Dense::new(3).activation(Activation::Relu));
    let model = layers.add(Residual::new(Dense::new(3))).build([2])?;
    let x = Tensor::ones([4, 2])?;
    let called = line!() + 1;
    let forward = ops("linear", || model.call(&x).map(drop))?;
    // The layer of a residual has the line of the sum.
    let expected = [("dense", called, Some(first)), ("residual.dense", called, Some(first + 1))];
    assert_eq!(forward, expected);
    assert_eq!(model.parts()[1].described(), Some((file!(), first + 1)));

    let tape = GradientTape::new();
    let y = tape.record(|| model.call(&x))?;
    let kernels: Vec<_> = model.trainable_variables();
    let sources: Vec<&Tensor> = kernels.iter().map(|kernel| &**kernel).collect();
    let (gradients, log) = log_placements(|| tape.gradients(&[&y], None, &sources, Unconnected::None));
    gradients?;
    let of_first = log.iter().filter(|placement| placement.site.scope() == "dense");
    let lines: Vec<_> = of_first.map(|placement| placement.site.described()).collect();
    assert!(!lines.is_empty() && lines.iter().all(|&line| line == Some((file!(), first))), "{lines:?}");
    Ok(())
}

/// A layer that builds one inside.
struct Gated;

/// The line of the inner layer.
const INNER: u32 = line!() + 8;

impl Layer for Gated {
    fn name(&self) -> &str {
        "gated"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let gate = Dense::new(2).named("gate").build(input)?;
        BuiltLayer::new(input, move |x, mode| gate.forward(x, mode)?.sigmoid()?.mul(x))
    }
}

#[test]
fn a_layer_inside_a_layer_is_described_where_it_is_built() -> Result<()> {
    let built = line!() + 1;
    let model = Gated.build([2])?;
    let x = Tensor::ones([4, 2])?;
    let forward = |op| Ok::<_, Error>(ops(op, || model.infer(&x).map(drop))?.remove(0));
    let (linear, sigmoid) = (forward("linear")?, forward("sigmoid")?);
    assert_eq!((linear.0, linear.2), ("gate", Some(INNER)));
    assert_eq!((sigmoid.0, sigmoid.2), ("", Some(built)), "the outermost layer has no name, but a line");
    assert_eq!(model.described(), Some((file!(), built)));
    Ok(())
}

#[test]
fn a_layer_that_is_recomputed_is_described_in_backward_too() -> Result<()> {
    let added = line!() + 1;
    let layers = Sequential::new().add(Dense::new(2).activation(Activation::Tanh).recompute());
    let model = layers.build([2])?;
    let x = Tensor::ones([4, 2])?;
    let tape = GradientTape::new();
    let y = tape.record(|| model.forward(&x, Mode::Train))?;
    let kernel = &model.variables()[0];
    let again = ops("linear", || tape.gradient(&y, [kernel]).map(drop))?;
    assert_eq!(again.iter().map(|op| (op.0, op.2)).collect::<Vec<_>>(), [("dense", Some(added))]);
    Ok(())
}

/// A binding says its own lines; what is described in the function that it calls has the function's.
#[test]
fn a_line_that_was_entered_describes_what_is_described_under_it() -> Result<()> {
    let layers = {
        let _line = enter_line("model.py", 5);
        Sequential::new().add(Gated)
    };
    let line = enter_line("train.py", 9);
    let model = layers.build([2])?;
    let described = |model: &Model| model.described().expect("it is known");
    let gated = &model.parts()[0];
    assert_eq!((described(&model), described(gated)), (("train.py", 9), ("model.py", 5)));
    assert_eq!(described(&gated.parts()[0]), (file!(), INNER));
    let (y, log) = log_placements(|| model.infer(&Tensor::ones([1, 2])?));
    y?;
    drop(line);
    let texts: Vec<String> = log.iter().map(|placement| format!("{:#}", placement.site)).collect();
    assert!(texts.contains(&"train.py:9 gated sigmoid, described at model.py:5".to_owned()), "{texts:?}");
    Ok(())
}

#[test]
fn reports_and_errors_say_where_a_layer_was_described() -> Result<()> {
    let device = Device::separate_cpu().limit(Bytes::mib(4))?;
    let _on = device.enter();
    let added = line!() + 1;
    let layers = Sequential::new().add(Dense::new(512));
    let model = layers.build([512])?;
    let place = format!("{}:{added}", file!());
    let report = device.report().to_string();
    assert!(report.contains(&format!("described at {place}")), "{report}");
    let wrong = model.infer(&Tensor::ones([2, 500])?).expect_err("the shape is another");
    assert!(wrong.to_string().contains(&format!("in layer `dense` ({place}): ")), "{wrong}");
    let full = model.infer(&Tensor::ones([1024, 512])?).expect_err("memory is full");
    assert!(full.is_out_of_memory() && full.to_string().contains(&place), "{full}");
    Ok(())
}
