//! What holds of structures, graphs, nested models, losses, metrics and callbacks, one thing at a time.

use plimsoll_data::Dataset;
use plimsoll_nn::layers::{
    Add, Concatenate, Dense, Functional, LayerNormalization, MultiHeadAttention, Multiply, Node, Residual,
    Sequential,
};
use plimsoll_nn::losses::{Loss, Losses, MeanAbsoluteError, MeanSquaredError, SparseCategoricalCrossentropy};
use plimsoll_nn::metrics::{self, OnOutput, Weighted};
use plimsoll_nn::optimizers::{Adam, OptimizerConfig, SGD};
use plimsoll_nn::train::callbacks::{EarlyStopping, LambdaCallback, ReduceLROnPlateau};
use plimsoll_nn::train::{Batch, Trainer, Until};
use plimsoll_nn::{BuiltLayer, Initializer, Layer, Mode, Model};
use plimsoll_tensor::{
    DType, Device, Error, GradientTape, Nested, Result, Shape, Tensor, Unconnected, set_seed,
};

fn names(model: &Model) -> Vec<String> {
    model.named_variables().into_iter().map(|(name, _)| name).collect()
}

fn error_of<T>(result: Result<T>) -> String {
    result.map(drop).expect_err("it is refused").to_string()
}

/// A layer whose function does what it is told, and promises `[3]`.
struct Promises(fn(&Tensor) -> Result<Tensor>);

impl Layer for Promises {
    fn name(&self) -> &str {
        "promises"
    }

    fn make(&self, _input: &Shape) -> Result<BuiltLayer> {
        let function = self.0;
        BuiltLayer::new([3], move |x, _| function(x))
    }
}

/// Two dense layers that nobody has named.
struct Twice;

impl Layer for Twice {
    fn name(&self) -> &str {
        "twice"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let (first, second) = (Dense::new(2).build(input)?, Dense::new(2).build(input)?);
        BuiltLayer::new([2], move |x, mode| first.forward(x, mode)?.add(&second.forward(x, mode)?))
    }
}

#[test]
fn unnamed_layers_get_names_that_differ() -> Result<()> {
    let model = Twice.build([3])?;
    assert_eq!(names(&model), ["dense.kernel", "dense.bias", "dense_1.kernel", "dense_1.bias"]);
    Ok(())
}

#[test]
fn a_promise_that_is_not_kept_names_its_layer() -> Result<()> {
    let kept = Sequential::new().add(Promises(|x| x.narrow(1, 0, 3))).build([5])?;
    assert_eq!(kept.infer(&Tensor::zeros([2, 5])?)?.shape().dims(), [2, 3]);
    let broken = Sequential::new().add(Promises(|x| x.narrow(1, 0, 4))).build([5])?;
    let error = error_of(broken.infer(&Tensor::zeros([2, 5])?));
    assert!(error.contains("`promises`") && error.contains("[3]") && error.contains("[2, 4]"), "{error}");
    let dense = Sequential::new().add(Dense::new(2)).build([5])?;
    let error = error_of(dense.infer(&Tensor::zeros([5])?));
    assert!(error.contains("`dense`") && error.contains("[5]") && error.contains("2 axes"), "{error}");
    Ok(())
}

#[test]
fn a_sequence_may_be_shorter_than_those_a_model_was_built_for() -> Result<()> {
    let block = || Residual::new(Sequential::new().add(LayerNormalization::new()).add(Dense::new(4)));
    let model = Sequential::new().add(block()).add(block()).add(LayerNormalization::new()).build([8, 4])?;
    for (length, mode) in [(8, Mode::Train), (5, Mode::Train), (5, Mode::Infer)] {
        let y = model.forward(&Tensor::zeros([2, length, 4])?, mode)?;
        assert_eq!(y.shape().dims(), [2, length, 4]);
    }
    Ok(())
}

#[test]
fn layers_say_how_many_tensors_they_take() -> Result<()> {
    let error = error_of(Dense::new(3).build(([2], [4])));
    assert!(error.contains("takes one tensor") && error.contains("([2], [4])"), "{error}");
    let error = error_of(Add::new().build(([2], [4])));
    assert!(error.contains("([2], [4])"), "{error}");
    let error = error_of(Concatenate::new(0).build(([2, 3], [4, 5])));
    assert!(error.contains("all axes but 0"), "{error}");
    let model = Multiply::new().build(([2], [2], [1]))?;
    let two = Tensor::full([3, 2], 2.0)?;
    let product = model.infer((&two, &two, &Tensor::full([3, 1], 3.0)?))?;
    assert_eq!(product.to_vec::<f32>()?, [12.0; 6]);
    let error = error_of(model.infer(&two));
    assert!(error.contains("built for examples of ([2], [2], [1])") && error.contains("[3, 2]"), "{error}");
    Ok(())
}

#[test]
fn a_shared_model_is_one_part_and_its_variables_count_once() -> Result<()> {
    let shared = Dense::new(4).build([4])?;
    let inner = shared.clone();
    let model = Functional::new(move |(a, b): (Node, Node)| {
        let tower = inner.clone().named("tower");
        Add::new().apply((&tower.apply(&a)?, &tower.apply(&b)?, &Dense::new(4).apply(&a)?))
    })
    .build(([4], [4]))?;
    assert_eq!(names(&model), ["tower.kernel", "tower.bias", "dense.kernel", "dense.bias"]);
    assert_eq!(model.n_parameters(), 2 * 20);
    // By itself it has its own names, and the same variables.
    assert_eq!(names(&shared), ["kernel", "bias"]);
    assert_eq!(shared.variables()[0], model.variables()[0]);
    assert_eq!(shared.variables()[0].name(), "tower.kernel");
    let (x, y) = (Tensor::randn([2, 4])?, Tensor::randn([2, 4])?);
    let tape = GradientTape::new();
    let loss = tape.record(|| model.call((&x, &y))?.sum(..))?;
    let gradients = tape.variable_gradients(&loss, &model.variables())?;
    // The bias of the tower is added once for each of both places.
    assert_eq!(gradients[1].to_vec::<f32>()?, [4.0; 4]);
    let summary = model.summary(8)?;
    let rows: Vec<&str> = summary.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!((rows, summary.n_parameters), (vec!["tower", "dense", "add"], 40));
    let error = error_of(Sequential::new().add(shared).build([5]));
    assert!(error.contains("was built for examples of [4]") && error.contains("[5]"), "{error}");
    Ok(())
}

#[test]
fn a_model_inside_models_has_its_whole_path() -> Result<()> {
    let inner = Sequential::new().add(Dense::new(3)).add(Dense::new(3)).build([3])?;
    let middle = Sequential::new().add(inner.named("inner")).build([3])?;
    let outer = Sequential::new().add(middle.clone().named("middle")).add(Dense::new(2)).build([3])?;
    assert_eq!(names(&outer)[2], "middle.inner.dense_1.kernel");
    assert_eq!(names(&middle)[2], "inner.dense_1.kernel");
    assert_eq!(outer.variables()[2].name(), "middle.inner.dense_1.kernel");
    assert_eq!(outer.layer("middle.inner.dense_1")?.n_parameters(), 12);
    assert!(error_of(outer.layer("middle.dense")).contains("there are inner"));
    let error = error_of(outer.infer(&Tensor::zeros([2, 4])?));
    assert!(error.contains("`middle.inner.dense`"), "{error}");
    outer.layer("middle")?.set_trainable(false);
    assert_eq!(outer.trainable_variables().len(), 2);
    Ok(())
}

/// An own layer around a model that was built before: as a part, or just called.
struct Around(Model, bool);

impl Layer for Around {
    fn name(&self) -> &str {
        "around"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let inner = if self.1 { self.0.build(input)? } else { self.0.clone() };
        BuiltLayer::new(*inner.output_shape(), move |x, mode| inner.forward(x, mode))
    }
}

/// An own layer that hands its whole business to another one.
struct Made(Model);

impl Layer for Made {
    fn name(&self) -> &str {
        "made"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        Sequential::new().add(self.0.clone()).make(input)
    }
}

#[test]
fn a_model_that_nobody_would_train_is_refused() -> Result<()> {
    let (inner, x) = (Dense::new(2).build([3])?, Tensor::zeros([4, 3])?);
    let called = Around(inner.clone(), false).build([3])?;
    let error = error_of(called.forward(&x, Mode::Train));
    assert!(error.contains("\"kernel\"") && error.contains("`build`"), "{error}");
    called.infer(&x)?;
    let part = Around(inner.clone(), true).build([3])?;
    part.forward(&x, Mode::Train)?;
    assert_eq!(names(&part), ["dense.kernel", "dense.bias"]);
    // A layer may also be made of what another one makes.
    let made = Sequential::new().add(Made(inner.clone())).build([3])?;
    made.forward(&x, Mode::Train)?;
    assert_eq!(names(&made), ["made.dense.kernel", "made.dense.bias"]);
    // A teacher is not to be trained.
    inner.set_trainable(false);
    called.forward(&x, Mode::Train)?;
    Ok(())
}

#[test]
fn a_graph_runs_only_what_its_outputs_need_and_refuses_foreign_nodes() -> Result<()> {
    let model = Functional::new(|(a, b): (Node, Node)| {
        let _unused = Dense::new(7).apply(&b)?;
        Ok((Dense::new(2).apply(&a)?, a))
    })
    .build(([3], [4]))?;
    assert_eq!(model.output_shapes().to_string(), "([2], [3])");
    let outputs = model.forward_nested((&Tensor::zeros([5, 3])?, &Tensor::zeros([5, 4])?), Mode::Infer)?;
    assert_eq!(outputs.map(|tensor| *tensor.shape()).to_string(), "([5, 2], [5, 3])");
    let error = error_of(model.infer((&Tensor::zeros([5, 3])?, &Tensor::zeros([5, 4])?)));
    assert!(error.contains("one tensor is taken"), "{error}");
    let predicted = model.predict_nested((&Tensor::zeros([5, 3])?, &Tensor::zeros([5, 4])?), 2)?;
    assert_eq!(predicted.map(|tensor| *tensor.shape()).to_string(), "([5, 2], [5, 3])");
    let error = error_of(model.predict_nested((&Tensor::zeros([5, 3])?, &Tensor::zeros([4, 4])?), 2));
    assert!(error.contains("as many of each input"), "{error}");
    Ok(())
}

#[test]
fn unused_parameters_are_named_before_the_first_step_or_have_zeros() -> Result<()> {
    let model = || {
        Functional::new(|(a, b): (Node, Node)| {
            let _unused = Dense::new(7).named("unused").apply(&b)?;
            Dense::new(1).apply(&a)
        })
        .build(([3], [4]))
    };
    let data = vec![Batch::new((Tensor::randn([5, 3])?, Tensor::randn([5, 4])?), Tensor::ones([5, 1])?)];
    let mut trainer = Trainer::new(model()?, SGD::new(0.1).build(), MeanSquaredError);
    let error = error_of(trainer.fit(&data, Until::Steps(1)));
    assert!(error.contains("\"unused.kernel\"") && error.contains("\"unused.bias\""), "{error}");
    assert_eq!((trainer.state().step, trainer.optimizer().steps()?), (0, 0));
    let mut trainer = Trainer::new(model()?, SGD::new(0.1).build(), MeanSquaredError)
        .unconnected_gradients(Unconnected::Zeros);
    trainer.fit(&data, Until::Steps(1))?;
    Ok(())
}

#[test]
fn losses_have_weights_masks_and_names_in_their_errors() -> Result<()> {
    let (labels, predictions) = (
        Tensor::from_slice(&[0f32, 0.0, 0.0, 0.0], [2, 2])?,
        Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0], [2, 2])?,
    );
    let of = |weights: &Tensor| {
        MeanAbsoluteError
            .weighted(&labels.reshape([2, 2, 1])?, &predictions.reshape([2, 2, 1])?, weights)?
            .item::<f32>()
    };
    // One weight for each example, for each of its parts, and a mask.
    assert_eq!(of(&Tensor::from_slice(&[1f32, 0.0], 2)?)?, 0.75);
    assert_eq!(of(&Tensor::from_slice(&[1f32, 0.0, 0.0, 2.0], [2, 2])?)?, 2.25);
    assert_eq!(of(&Tensor::from_slice(&[true, false, false, true], [2, 2])?)?, 2.5);
    assert!(error_of(of(&Tensor::zeros([3])?)).contains("[3]"));

    let model = Functional::new(|x: Node| {
        Ok(Nested::named([("a", Dense::new(1).apply(&x)?), ("b", Dense::new(1).apply(&x)?)]))
    })
    .build([2])?;
    let batch = |labels: Nested<Tensor>| Ok::<_, Error>(vec![Batch::new(Tensor::ones([2, 2])?, labels)]);
    let two = Nested::named([("a", Tensor::ones([2, 1])?), ("b", Tensor::ones([2, 1])?)]);
    let fit = |loss: Losses, labels: Nested<Tensor>| {
        Trainer::new(model.clone(), SGD::new(0.1).build(), loss).fit(&batch(labels)?, Until::Steps(1))
    };
    let losses =
        |second: &str| Losses::new().output("a", 1.0, MeanSquaredError).output(second, 0.5, MeanSquaredError);
    fit(losses("b"), two.clone())?;
    let error = error_of(fit(losses("c"), two.clone()));
    assert!(error.contains("output \"c\"") && error.contains("there are a, b"), "{error}");
    let one = Trainer::new(model.clone(), SGD::new(0.1).build(), MeanSquaredError)
        .fit(&batch(two)?, Until::Steps(1));
    assert!(error_of(one).contains("Losses"));
    Ok(())
}

#[test]
fn metrics_are_told_of_steps_epochs_and_outputs() -> Result<()> {
    set_seed(3);
    let (x, y) = (Tensor::randn([8, 2])?, Tensor::randint([8], 0, 2, DType::I64)?);
    let weights = Tensor::from_slice(&[1f32, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0], 8)?;
    let model = Functional::new(|x: Node| Ok((Dense::new(2).apply(&x)?, Dense::new(2).no_bias().apply(&x)?)))
        .build([2])?;
    let cross = || SparseCategoricalCrossentropy::new().from_logits(true);
    let loss = Losses::new().output("0", 1.0, cross()).output("1", 1.0, cross());
    let data = Dataset::from_tensor_slices((x.clone(), (y.clone(), y.clone()), weights.clone()))?.batch(4)?;
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let kept = told.clone();
    let mut trainer = Trainer::new(model, SGD::new(0.0).build(), loss)
        .training_metric(OnOutput::new("0", metrics::SparseCategoricalAccuracy::new()))
        .training_metric(Weighted(OnOutput::new("1", metrics::SparseCategoricalAccuracy::new())))
        .metric(OnOutput::new("0", metrics::SparseCategoricalAccuracy::new()))
        .held_out(data.clone())
        .callback(LambdaCallback::new().steps(move |event, _| {
            kept.lock().expect("nobody panics").push(event.metrics.clone());
            Ok(())
        }));
    let history = trainer.fit(&data, Until::Epochs(2))?;
    let epoch = history.epochs.last().expect("there were two");
    // With a rate of zero, training and evaluation see the same model.
    let name = "0_sparse_categorical_accuracy";
    assert_eq!(epoch.value(name), epoch.value(&format!("val_{name}")));
    let told = told.lock().expect("nobody panics");
    assert_eq!((told.len(), &told[1], &told[3]), (4, &epoch.metrics, &epoch.metrics));
    let by_hand = |output: usize| -> Result<Vec<f64>> {
        let outputs = trainer.model().forward_nested(&x, Mode::Infer)?;
        outputs.leaves()[output].argmax(-1)?.eq(&y)?.cast(DType::F64)?.to_f64_vec()
    };
    assert_eq!(epoch.metrics[0].1, by_hand(0)?.iter().sum::<f64>() / 8.0);
    assert_eq!(epoch.metrics[1].1, by_hand(1)?.iter().step_by(2).sum::<f64>() / 4.0);
    Ok(())
}

#[test]
fn callbacks_watch_any_number_and_say_which_there_are() -> Result<()> {
    let data = vec![Batch::new(Tensor::ones([4, 2])?, Tensor::ones([4, 1])?)];
    let trainer = || {
        let model = Dense::new(1).kernel_initializer(Initializer::Zeros).build([2])?;
        let trainer = Trainer::new(model, SGD::new(0.0).build(), MeanSquaredError);
        Ok::<_, Error>(trainer.training_metric(metrics::MeanAbsoluteError::new()))
    };
    let stop = EarlyStopping::new(2).monitor("mean_absolute_error");
    let history = trainer()?.callback(stop).fit(&data, Until::Epochs(9))?;
    assert_eq!((history.epochs.len(), history.stopped.is_some()), (3, true));
    let error =
        error_of(trainer()?.callback(EarlyStopping::new(1).monitor("val_loss")).fit(&data, Until::Epochs(1)));
    assert!(error.contains("\"val_loss\"") && error.contains("loss, mean_absolute_error"), "{error}");

    let reduce = ReduceLROnPlateau::new(1).factor(0.5).min_lr(0.2);
    let model = Dense::new(1).frozen().build([2])?;
    model.set_trainable(true);
    let mut trainer = Trainer::new(model, SGD::new(1e-30).build(), MeanSquaredError).callback(reduce);
    trainer.fit(&data, Until::Epochs(3))?;
    assert_eq!(trainer.optimizer().learning_rate()?, 1e-30, "it is below the least already");
    let reduce = ReduceLROnPlateau::new(1).factor(0.5).monitor("loss").maximize();
    let mut trainer =
        Trainer::new(Dense::new(1).build([2])?, SGD::new(0.125).build(), MeanSquaredError).callback(reduce);
    trainer.fit(&data, Until::Epochs(3))?;
    assert_eq!(trainer.optimizer().learning_rate()?, 0.125 / 4.0, "the loss falls, which is worse here");
    Ok(())
}

#[test]
fn frozen_layers_have_no_gradient_and_their_moments_survive_a_checkpoint() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let make = || {
        let encoder = Dense::new(3).build([2])?.named("encoder");
        let model = Sequential::new().add(encoder).add(Dense::new(1)).build([2])?;
        Ok::<_, Error>(Trainer::new(model, Adam::new(0.1).build(), MeanSquaredError))
    };
    let data = vec![Batch::new(Tensor::randn([4, 2])?, Tensor::ones([4, 1])?)];
    let mut trainer = make()?;
    trainer.fit(&data, Until::Steps(2))?;
    let encoder = trainer.model().layer("encoder")?.clone();
    let bits = |trainer: &Trainer| {
        let kept = trainer.optimizer().variables();
        let moment = kept.iter().find(|variable| variable.name() == "optimizer.m.encoder.kernel");
        moment.expect("it is kept").to_f64_vec()
    };
    let (moments, kernel) = (bits(&trainer)?, encoder.variables()[0].to_f64_vec()?);
    encoder.set_trainable(false);
    trainer.fit(&data, Until::Steps(4))?;
    assert_eq!((bits(&trainer)?, encoder.variables()[0].to_f64_vec()?), (moments.clone(), kernel));

    let folder = std::env::temp_dir().join(format!("plimsoll-frozen-{}", std::process::id()));
    trainer.save(&folder)?;
    let mut resumed = make()?;
    resumed.model().layer("encoder")?.set_trainable(false);
    resumed.resume(&folder)?;
    assert_eq!(bits(&resumed)?, moments);
    for trainer in [&mut trainer, &mut resumed] {
        trainer.model().layer("encoder")?.set_trainable(true);
        trainer.fit(&data, Until::Steps(6))?;
    }
    assert_ne!(bits(&trainer)?, moments);
    assert_eq!(bits(&resumed)?, bits(&trainer)?);
    std::fs::remove_dir_all(&folder).expect("the folder is there");
    Ok(())
}

#[test]
fn attention_hides_what_its_mask_hides() -> Result<()> {
    set_seed(5);
    let model = MultiHeadAttention::new(2).build(([3, 4], [5, 6], [5]))?;
    let expected = ["q.kernel", "q.bias", "kv.kernel", "kv.bias", "output.kernel", "output.bias"];
    assert_eq!(names(&model), expected);
    let (query, value) = (Tensor::randn([2, 3, 4])?, Tensor::randn([2, 5, 6])?);
    let mask = Tensor::from_slice(&[1u8, 1, 1, 0, 0, 1, 1, 1, 0, 0], [2, 5])?;
    let masked = model.infer((&query, &value, &mask))?;
    // What is hidden may be anything.
    let other = Tensor::concat(&[&value.narrow(1, 0, 3)?, &Tensor::randn([2, 2, 6])?], 1)?;
    assert_eq!(model.infer((&query, &other, &mask))?.to_vec::<f32>()?, masked.to_vec::<f32>()?);
    let all = Tensor::full_of([2, 5], 1.0, DType::U8)?;
    assert_ne!(model.infer((&query, &other, &all))?.to_vec::<f32>()?, masked.to_vec::<f32>()?);
    let error = error_of(MultiHeadAttention::new(2).build([("query", vec![3, 4]), ("key", vec![3, 4])]));
    assert!(error.contains("(query, value, mask)"), "{error}");
    Ok(())
}

#[test]
fn datasets_of_other_parts_are_refused_with_their_fields() -> Result<()> {
    let tensor = || Tensor::zeros([4, 2]);
    let mut trainer = Trainer::new(Dense::new(1).build([2])?, SGD::new(0.1).build(), MeanSquaredError);
    let four = Dataset::from_tensor_slices([
        ("a", tensor()?),
        ("b", tensor()?),
        ("c", tensor()?),
        ("d", tensor()?),
    ])?;
    let error = error_of(trainer.fit(&four.batch(2)?, Until::Epochs(1)));
    assert!(error.contains("a: float32 [2, 2]") && error.contains("arrange"), "{error}");
    let arranged = four.arrange((("a", "c"), "d"))?.batch(2)?;
    let error = error_of(trainer.fit(&arranged, Until::Epochs(1)));
    assert!(error.contains("\"a\" is float32 [2, 2], \"c\" is float32 [2, 2], \"d\""), "{error}");
    assert!(error_of(four.arrange(("a", "x"))).contains("\"x\""));
    Ok(())
}
