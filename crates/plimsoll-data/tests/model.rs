//! Every combinator against a few lines over `Vec`, in random chains, from a source of each kind, with any number of
//! workers, and entered in the middle.

mod common;

use common::{contents, drained, integers, numbers};
use plimsoll_data::{Dataset, ExampleMut, Field, Padding, Spec};
use plimsoll_tensor::{Bytes, DType};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Take(usize),
    Skip(usize),
    Repeat(usize),
    Shard(usize, usize),
    Add(i64),
    DropMultiplesOf(i64),
    Cache,
    Check,
    AssumeLen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..30usize).prop_map(Step::Take),
        (0..10usize).prop_map(Step::Skip),
        (0..4usize).prop_map(Step::Repeat),
        (1..4usize).prop_flat_map(|n| (Just(n), 0..n)).prop_map(|(n, idx)| Step::Shard(n, idx)),
        (1..5i64).prop_map(Step::Add),
        (2..5i64).prop_map(Step::DropMultiplesOf),
        Just(Step::Cache),
        Just(Step::Check),
        Just(Step::AssumeLen),
    ]
}

fn single() -> Spec {
    Spec::new([Field::new("x", DType::I64, ()).unwrap()]).unwrap()
}

/// The numbers below `n`, each readable at any time or coming one after the other.
fn source(n: usize, is_stream: bool) -> Dataset {
    match is_stream {
        true => Dataset::from_iterator(single(), move || 0..n as i64).assume_len(n),
        false => numbers(n),
    }
}

fn apply(step: Step, dataset: &Dataset, model: &[i64]) -> (Dataset, Vec<i64>) {
    let items = model.iter().copied();
    match step {
        Step::Take(n) => (dataset.take(n), items.take(n).collect()),
        Step::Skip(n) => (dataset.skip(n), items.skip(n).collect()),
        Step::Repeat(n) => (dataset.repeat(n), model.repeat(n)),
        Step::Shard(n, idx) => (dataset.shard(n, idx).unwrap(), items.skip(idx).step_by(n).collect()),
        Step::Add(k) => {
            let dataset = dataset.map(single(), move |from, to| to.set(0, &[from.value::<i64>(0)? + k]));
            (dataset, items.map(|x| x + k).collect())
        }
        Step::DropMultiplesOf(k) => (
            dataset.filter(move |x| Ok(x.value::<i64>("x")? % k != 0)),
            items.filter(|x| x % k != 0).collect(),
        ),
        Step::Cache => (dataset.cache().unwrap(), model.to_vec()),
        Step::Check => (dataset.check_finite(), model.to_vec()),
        Step::AssumeLen => (dataset.assume_len(model.len()), model.to_vec()),
    }
}

fn flat(batches: &[Vec<i64>]) -> Vec<i64> {
    batches.concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn chains_agree_with_vectors(
        n in 0..40usize,
        is_stream: bool,
        steps in prop::collection::vec(step(), 0..6),
        size in 1..6usize,
        exactly: bool,
        (depth, n_workers) in (0..3usize, 1..4usize),
        from in 0..12u64,
    ) {
        let (mut dataset, mut model) = (source(n, is_stream), (0..n as i64).collect::<Vec<_>>());
        for step in steps {
            (dataset, model) = apply(step, &dataset, &model);
            if let Some(len) = dataset.len() {
                prop_assert_eq!(len, model.len());
            }
        }
        let batched = if exactly { dataset.batch_exactly(size) } else { dataset.batch(size) };
        let dataset = batched.unwrap().prefetch(depth).workers(n_workers);
        let mut expected: Vec<Vec<i64>> = model.chunks(size).map(<[i64]>::to_vec).collect();
        expected.retain(|batch| !exactly || batch.len() == size);
        if let Some(len) = dataset.len() {
            prop_assert_eq!(len, expected.len());
        }
        for epoch in 0..2 {
            prop_assert_eq!(dataset.next_epoch(), epoch);
            prop_assert_eq!(&integers(&dataset), &expected);
        }
        let rest: Vec<_> = dataset.iterate_from(1, from).map(|batch| {
            let batch = batch.unwrap();
            (batch.number(), batch[0].to_vec::<i64>().unwrap())
        }).collect();
        let expected: Vec<_> = (0..).zip(expected).skip(from as usize).collect();
        prop_assert_eq!(rest, expected);
        prop_assert_eq!(dataset.next_epoch(), 2);
    }

    #[test]
    fn shuffled_chains_have_the_same_elements_and_can_be_entered_anywhere(
        n in 0..60usize,
        is_stream: bool,
        seed: u64,
        buffer in 1..80usize,
        (drops, repeats, once) in (any::<bool>(), 1..3usize, any::<bool>()),
        (depth, n_workers) in (0..3usize, 1..4usize),
        (epoch, from) in (0..3u64, 0..20u64),
    ) {
        let (mut dataset, mut model) = (source(n, is_stream), (0..n as i64).collect::<Vec<_>>());
        if drops {
            (dataset, model) = apply(Step::DropMultiplesOf(3), &dataset, &model);
        }
        dataset = if once { dataset.shuffle_once(buffer, seed) } else { dataset.shuffle(buffer, seed) };
        (dataset, model) = apply(Step::Repeat(repeats), &dataset, &model);
        let plain = dataset.batch(4).unwrap();
        let epochs: Vec<Vec<Vec<i64>>> = (0..3).map(|_| integers(&plain)).collect();
        model.sort_unstable();
        for batches in &epochs {
            let mut all = flat(batches);
            all.sort_unstable();
            prop_assert_eq!(&all, &model);
        }
        if once {
            prop_assert_eq!(&epochs[0], &epochs[1]);
        }
        let other = plain.prefetch(depth).workers(n_workers);
        let rest: Vec<Vec<i64>> =
            other.iterate_from(epoch, from).map(|batch| batch.unwrap()[0].to_vec().unwrap()).collect();
        let expected: Vec<Vec<i64>> = epochs[epoch as usize].iter().skip(from as usize).cloned().collect();
        prop_assert_eq!(rest, expected);
    }

    #[test]
    fn a_buffer_lets_nothing_come_too_early(n in 1..100usize, buffer in 1..20usize, seed: u64, in_bytes: bool) {
        let dataset = source(n, true);
        let shuffled = match in_bytes {
            true => dataset.shuffle(Bytes::new(8 * buffer as u64 + 7), seed),
            false => dataset.shuffle(buffer, seed),
        };
        let order = flat(&integers(&shuffled));
        for (place, &x) in order.iter().enumerate() {
            prop_assert!((x as usize) < place + buffer, "{x} at {place} with a buffer of {buffer}: {order:?}");
        }
    }

    #[test]
    fn padded_batches_agree_with_vectors(
        rows in prop::collection::vec(prop::collection::vec(-9..9i32, 0..8), 0..20),
        size in 1..6usize,
        to_full: bool,
        n_workers in 1..4usize,
    ) {
        let dataset = ragged(rows.clone());
        let padding = Padding::zeros().value(7.0).field("twice", -1.0);
        let padding = if to_full { padding.to_full() } else { padding };
        let dataset = dataset.padded_batch(size, padding).unwrap().workers(n_workers);
        let expected: Vec<_> = rows.chunks(size).map(|rows| padded(rows, to_full.then_some(8))).collect();
        prop_assert_eq!(drained(&dataset), expected);
    }

    #[test]
    fn buckets_agree_with_vectors(
        rows in prop::collection::vec(prop::collection::vec(-9..9i32, 0..8), 0..30),
        n_workers in 1..4usize,
    ) {
        let buckets = [(2, 5), (4, 3), (8, 2)];
        let padding = Padding::zeros().value(7.0).field("twice", -1.0);
        let length = |example: &plimsoll_data::Example<'_>| Ok(example.shape("x")?[0]);
        let dataset = ragged(rows.clone()).bucket_by_length(&buckets, padding, length).unwrap();
        let dataset = dataset.workers(n_workers);
        let mut waiting: [Vec<Vec<i32>>; 3] = Default::default();
        let mut expected = Vec::new();
        for row in rows {
            let bucket = buckets.iter().position(|&(most, _)| row.len() <= most).unwrap();
            waiting[bucket].push(row);
            if waiting[bucket].len() == buckets[bucket].1 {
                expected.push(padded(&std::mem::take(&mut waiting[bucket]), None));
            }
        }
        expected.extend(waiting.iter().filter(|rows| !rows.is_empty()).map(|rows| padded(rows, None)));
        prop_assert_eq!(drained(&dataset), expected);
    }
}

/// Elements of up to eight numbers, the same twice as pairs, and their length.
fn ragged(rows: Vec<Vec<i32>>) -> Dataset {
    let field = |name, shape: &[usize]| Field::new(name, DType::I32, shape).unwrap().varying().unwrap();
    let length = Field::new("length", DType::U8, ()).unwrap();
    let spec = Spec::new([field("x", &[8]), length, field("twice", &[8, 2])]).unwrap();
    Dataset::from_generator(spec, move |_| {
        let mut rows = rows.clone().into_iter();
        move |to: &mut ExampleMut<'_>| {
            let Some(row) = rows.next() else { return Ok(false) };
            let twice: Vec<i32> = row.iter().flat_map(|&x| [x, 2 * x]).collect();
            to.set("x", &row)?;
            to.set("length", &[row.len() as u8])?;
            to.set("twice", &twice)?;
            Ok(true)
        }
    })
}

/// What a batch of such elements is.
fn padded(rows: &[Vec<i32>], to: Option<usize>) -> Vec<(Vec<usize>, Vec<f64>)> {
    let longest = to.unwrap_or_else(|| rows.iter().map(Vec::len).max().unwrap_or(0));
    let at = |row: &Vec<i32>, k: usize, pad: f64| row.get(k).map_or(pad, |&x| f64::from(x));
    let x = rows.iter().flat_map(|row| (0..longest).map(move |k| at(row, k, 7.0))).collect();
    let lengths = rows.iter().map(|row| row.len() as f64).collect();
    let pair = |row, k| match at(row, k, f64::NAN) {
        x if x.is_nan() => [-1.0, -1.0],
        x => [x, 2.0 * x],
    };
    let twice = rows.iter().flat_map(|row| (0..longest).flat_map(move |k| pair(row, k))).collect();
    vec![(vec![rows.len(), longest], x), (vec![rows.len()], lengths), (vec![rows.len(), longest, 2], twice)]
}

#[test]
fn zip_ends_with_the_shorter_and_enumerate_counts() {
    for is_stream in [false, true] {
        let letters = source(5, is_stream);
        let spec = Spec::new([Field::new("y", DType::F32, [2]).unwrap()]).unwrap();
        let floats = source(9, is_stream).skip(1).map(spec, |from, to| {
            let x = from.value::<i64>(0)? as f32;
            to.set("y", &[x, x / 2.0])
        });
        let zipped = letters.zip(&floats).unwrap().enumerate().unwrap().skip(2).batch(2).unwrap();
        assert_eq!(zipped.len(), Some(2));
        let expected = vec![
            vec![
                (vec![2], vec![2.0, 3.0]),
                (vec![2], vec![2.0, 3.0]),
                (vec![2, 2], vec![3.0, 1.5, 4.0, 2.0]),
            ],
            vec![(vec![1], vec![4.0]), (vec![1], vec![4.0]), (vec![1, 2], vec![5.0, 2.5])],
        ];
        assert_eq!(drained(&zipped), expected);
        assert!(letters.zip(&letters).unwrap_err().to_string().contains("\"x\""));
    }
}

#[test]
fn an_endless_dataset_goes_on_and_each_pass_is_shuffled_anew() {
    for is_stream in [false, true] {
        let dataset = source(10, is_stream).shuffle(10, 3).repeat_forever().batch(10).unwrap().prefetch(2);
        assert_eq!(dataset.len(), None);
        let passes: Vec<Vec<i64>> =
            dataset.iter().take(20).map(|batch| batch.unwrap()[0].to_vec().unwrap()).collect();
        assert_eq!(passes.len(), 20);
        assert_ne!(passes[0], passes[1]);
        for mut pass in passes {
            pass.sort_unstable();
            assert_eq!(pass, (0..10).collect::<Vec<_>>());
        }
        let nothing = source(0, is_stream).repeat_forever().batch(3).unwrap();
        assert_eq!(nothing.iter().count(), 0, "nothing, repeated for ever, ends");
    }
}

#[test]
fn a_cache_keeps_the_first_pass() {
    for is_stream in [false, true] {
        let dataset = source(50, is_stream).shuffle(50, 3).cache().unwrap().batch(7).unwrap();
        let first = integers(&dataset);
        assert_eq!(integers(&dataset), first);
        // Entered in the middle, with nothing kept yet, it is as if the first pass had been made.
        let fresh = source(50, is_stream).shuffle(50, 3).cache().unwrap().batch(7).unwrap();
        let rest: Vec<Vec<i64>> =
            fresh.iterate_from(5, 3).map(|batch| batch.unwrap()[0].to_vec().unwrap()).collect();
        assert_eq!(rest, first[3..]);
        assert_eq!(integers(&fresh), first);
    }
    let unbounded = Dataset::from_iterator(single(), || 0..3i64);
    assert!(unbounded.cache().unwrap_err().to_string().contains("assume_len"));
    assert_eq!(flat(&integers(&unbounded.take(5).cache().unwrap())), [0, 1, 2]);
    let varying = ragged(vec![vec![1], vec![], vec![2, 3]]).take(9);
    let cached = varying.cache().unwrap();
    assert_eq!(drained(&cached), drained(&varying));
    assert_eq!(drained(&cached), drained(&varying));
}

#[test]
fn batches_of_batches_stack() {
    let twice = numbers(13).batch_exactly(3).unwrap().batch(2).unwrap();
    let shapes: Vec<_> = twice.iter().map(|batch| batch.unwrap()[0].shape().to_vec()).collect();
    assert_eq!(shapes, [[2, 3], [2, 3]]);
    let error = numbers(13).batch(3).unwrap().batch(2).unwrap_err().to_string();
    assert!(error.contains("batch_exactly") && error.contains("padded_batch"), "{error}");
    assert!(numbers(12).batch(3).unwrap().batch(2).is_ok(), "nothing remains");
}

#[test]
fn bad_arguments_are_refused_with_what_would_work() {
    assert!(numbers(3).batch(0).unwrap_err().to_string().contains("at least 1"));
    assert!(numbers(3).shard(2, 2).is_err());
    let varying = ragged(Vec::new());
    assert!(varying.batch(2).unwrap_err().to_string().contains("padded_batch"));
    assert!(varying.padded_batch(2, Padding::zeros().field("z", 1.0)).is_err());
    let buckets = |buckets: &[(usize, usize)]| varying.bucket_by_length(buckets, Padding::zeros(), |_| Ok(1));
    assert!(buckets(&[]).is_err() && buckets(&[(4, 1), (4, 1)]).is_err() && buckets(&[(4, 0)]).is_err());
    let too_long = ragged(vec![vec![1; 8]]).bucket_by_length(&[(4, 2)], Padding::zeros(), |_| Ok(5)).unwrap();
    let error = too_long.iter().next().unwrap().unwrap_err().to_string();
    assert!(error.contains("length 5") && error.contains("ends at 4"), "{error}");
    let wrong = ragged(vec![vec![1; 8]]).bucket_by_length(&[(4, 2)], Padding::zeros(), |_| Ok(1)).unwrap();
    let error = wrong.iter().next().unwrap().unwrap_err().to_string();
    assert!(error.contains("[8]") && error.contains("ends at 4"), "{error}");
}

#[test]
fn what_a_function_does_wrong_is_named() {
    let fails = |f: fn(&plimsoll_data::Example<'_>, &mut ExampleMut<'_>) -> plimsoll_tensor::Result<()>| {
        let spec = Spec::new([
            Field::new("y", DType::F32, [2]).unwrap(),
            Field::new("z", DType::F32, [3]).unwrap().varying().unwrap(),
        ]);
        numbers(1).map(spec.unwrap(), f).iter().next().unwrap().unwrap_err().to_string()
    };
    assert!(fails(|from, _| from.value::<f32>("x").map(|_| ())).contains("\"x\" is int64, not float32"));
    assert!(fails(|from, _| from.value::<f32>("w").map(|_| ())).contains("the fields are [\"x\"]"));
    assert!(fails(|_, to| to.set("y", &[1f32])).contains("\"y\" has 2 values, and 1 were given"));
    assert!(fails(|_, to| to.set("z", &[1f32; 4])).contains("up to [3]"));
    assert!(fails(|_, to| to.set_len("y", 1)).contains("exactly [2]"));
    assert!(fails(|from, to| to.copy("y", from, "x")).contains("\"x\" is int64 []"));
}

#[test]
fn numbers_that_are_none_are_named_with_their_place() {
    let mut values = vec![0.5f32; 60];
    (values[37], values[38]) = (f32::NAN, f32::INFINITY);
    let x = plimsoll_tensor::Tensor::from_slice(&values, [20, 3]).unwrap();
    let y = plimsoll_tensor::Tensor::from_vec((0..20i64).collect()).unwrap();
    let dataset = Dataset::from_tensor_slices([("image", x), ("label", y)]).unwrap();
    for n_workers in [1, 3] {
        let batches = dataset.batch(5).unwrap().check_finite().workers(n_workers).iter();
        let results: Vec<_> = batches.collect();
        assert_eq!(results.len(), 3);
        assert!(results[..2].iter().all(Result::is_ok));
        let error = results[2].as_ref().unwrap_err().to_string();
        assert_eq!(
            error,
            "batch 2 of epoch 0: check_finite: field \"image\" has NaN at [2, 1] of shape [5, 3]"
        );
    }
}

#[test]
fn an_empty_dataset_says_so() {
    let empty = numbers(3).filter(|_| Ok(false)).batch(2).unwrap();
    assert_eq!(
        (empty.is_empty(), numbers(0).is_empty(), numbers(1).is_empty()),
        (None, Some(true), Some(false))
    );
    assert!(empty.first().unwrap_err().to_string().contains("it is empty"));
    assert!(drained(&empty).is_empty());
    let dataset = numbers(5).shuffle(5, 1).batch(5).unwrap();
    let first = contents(&dataset.first().unwrap());
    assert_eq!(
        contents(&dataset.iter().next().unwrap().unwrap()),
        first,
        "looking does not count as an epoch"
    );
}

#[test]
fn fields_are_found_by_name_and_number() {
    let x = plimsoll_tensor::Tensor::zeros([4, 2]).unwrap();
    let y = plimsoll_tensor::Tensor::zeros([4]).unwrap();
    let batch =
        Dataset::from_tensor_slices((x.clone(), y.clone())).unwrap().batch(4).unwrap().first().unwrap();
    assert_eq!((batch[0].rank(), batch["1"].rank()), (2, 1));
    assert!(batch.get("label").unwrap_err().to_string().contains("[\"0\", \"1\"]"));
    assert!(batch.tensors::<3>().unwrap_err().to_string().contains("there are 2"));
    let error = Dataset::from_tensor_slices((x.clone(), plimsoll_tensor::Tensor::zeros([5]).unwrap()));
    assert!(error.unwrap_err().to_string().contains("4 slices"));
    let error = Dataset::from_tensor_slices(x.permute([1, 0]).unwrap()).unwrap_err().to_string();
    assert!(error.contains("contiguous"), "{error}");
    let scalar = plimsoll_tensor::Tensor::from(1f32).unwrap();
    assert!(Dataset::from_tensor_slices(scalar).is_err());
}

#[test]
fn an_assumed_length_is_checked() {
    for (n, text) in [(4, "more than that"), (6, "only 5")] {
        let dataset = Dataset::from_iterator(single(), || 0..5i64).assume_len(n);
        assert_eq!(dataset.len(), Some(n));
        let error = dataset.iter().find_map(Result::err).unwrap().to_string();
        assert!(error.contains(text), "{error}");
    }
}
