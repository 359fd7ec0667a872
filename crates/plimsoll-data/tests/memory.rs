//! The bytes of the pipeline: what it takes, what it gives back, and what a ghost says of it.

mod common;

use common::{contents, device, drained, numbers};
use plimsoll_data::{AUTOTUNE, Dataset, Field, Padding, Spec};
use plimsoll_tensor::{Bytes, DType, Device, Owner, Tensor};

fn data_bytes(device: &Device) -> u64 {
    device.stats().rows().get(Owner::Data)
}

/// Example 002-3: 50,000 images of 784 numbers would be 157 MB; these are a tenth.
#[test]
fn prefetching_takes_the_source_and_depth_plus_one_batches_to_the_byte() {
    let (device, _on) = device();
    let (n, size, depth) = (5_000, 32, 2);
    let source = (n * 784 * 4 + n * 4) as u64;
    let batch = (size * 784 * 4 + size * 4) as u64;
    let x = Tensor::ones([n, 784]).unwrap();
    let y = Tensor::zeros_of(n, DType::I32).unwrap();
    let dataset = Dataset::from_tensor_slices((x, y)).unwrap().shuffle(1000, 1).batch(size).unwrap();
    assert_eq!(data_bytes(&device), source);
    let dataset = dataset.prefetch(depth);
    let mut n_batches = 0;
    for batch_of_images in &dataset {
        let [x, y] = batch_of_images.unwrap().tensors().unwrap();
        assert_eq!(data_bytes(&device), source + (depth as u64 + 1) * batch);
        assert_eq!((x.owner(), y.owner()), (Owner::Data, Owner::Data));
        n_batches += 1;
    }
    assert_eq!(n_batches, n.div_ceil(size));
    assert_eq!(data_bytes(&device), source);
    // Nothing but data was ever there, and rounding: a dataset runs no ops.
    assert_eq!(device.stats().in_use, source + device.stats().rows().rounding());
    drop(dataset);
    assert_eq!(device.stats().in_use, 0);
}

#[test]
fn odd_sizes_of_mixed_dtypes_leave_no_gap_between_batches() {
    let (device, _on) = device();
    let fields = [
        ("a", Tensor::zeros_of([9, 3], DType::U8)),
        ("b", Tensor::zeros_of([9, 5], DType::F64)),
        ("c", Tensor::zeros_of([9], DType::Bool)),
        ("d", Tensor::zeros_of([9, 7], DType::F16)),
        ("e", Tensor::zeros_of([9], DType::I32)),
    ];
    let fields = fields.map(|(name, tensor)| (name, tensor.unwrap()));
    let dataset = Dataset::from_tensor_slices(fields).unwrap();
    let before = data_bytes(&device);
    let row = 3 + 40 + 1 + 14 + 4;
    for depth in [0, 1, 4] {
        let dataset = dataset.batch(3).unwrap().prefetch(depth);
        let mut batches = dataset.iter();
        let batch = batches.next().unwrap().unwrap();
        assert_eq!(data_bytes(&device) - before, (depth as u64 + 1) * 3 * row);
        assert_eq!(batch["d"].shape().dims(), [3, 7]);
    }
}

#[test]
fn without_prefetching_one_batch_is_alive() {
    let (device, _on) = device();
    let dataset = numbers(100).batch(10).unwrap();
    for batch in &dataset {
        batch.unwrap();
        assert_eq!(data_bytes(&device), 800 + 80);
    }
    assert_eq!(data_bytes(&device), 800);
}

#[test]
fn held_batches_stay_as_they_are_and_the_ones_beyond_the_allowance_are_counted() {
    for depth in [0, 1, 3] {
        let (device, _on) = device();
        let dataset = numbers(60).batch(6).unwrap().prefetch(depth).workers(2);
        let mut held = Vec::new();
        for (number, batch) in dataset.iter().enumerate() {
            held.push(batch.unwrap());
            let n_slots = (number + 1).max(depth + 1) as u64;
            assert_eq!(data_bytes(&device), 480 + n_slots * 48, "batch {number} at depth {depth}");
        }
        for (number, batch) in held.iter().enumerate() {
            let expected: Vec<f64> = (6 * number..6 * (number + 1)).map(|x| x as f64).collect();
            assert_eq!(contents(batch), [(vec![6], expected)]);
        }
        // The iteration is over; what is held keeps its block, and nothing else.
        held.truncate(1);
        assert_eq!(data_bytes(&device), 480 + (depth as u64 + 1) * 48);
        held.clear();
        assert_eq!(data_bytes(&device), 480);
    }
}

#[test]
fn a_batch_that_is_held_once_too_often_costs_one_block_and_only_for_as_long() {
    let (device, _on) = device();
    let dataset = numbers(100).batch(1).unwrap().prefetch(1);
    let mut previous = None;
    for batch in &dataset {
        // Two are held while the next is asked for: at most one beyond the allowance of two.
        let batch = batch.unwrap();
        assert!(data_bytes(&device) <= 800 + 3 * 8);
        previous = Some((batch, previous.take().map(|(batch, _)| batch)));
    }
    drop(previous);
    assert_eq!(data_bytes(&device), 800);
}

#[test]
fn memory_that_is_full_is_an_error_and_the_iteration_goes_on_when_there_is_some() {
    let (device, _on) = device();
    let row = 1 << 20;
    let x = Tensor::zeros_of([4, row], DType::U8).unwrap();
    let dataset = Dataset::from_tensor_slices(x).unwrap();
    device.set_limit(Some(Bytes::mib(6))).unwrap();
    let mut batches = dataset.iter();
    let first = batches.next().unwrap().unwrap();
    let second = batches.next().unwrap().unwrap();
    let error = batches.next().unwrap().unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    drop(first);
    assert_eq!(batches.next().unwrap().unwrap().number(), 2);
    drop((second, batches));

    device.set_limit(Some(Bytes::mib(4))).unwrap();
    let mut refused = dataset.iter();
    assert!(refused.next().unwrap().unwrap_err().is_out_of_memory());
    assert!(refused.next().is_none());
    assert_eq!(data_bytes(&device), 4 << 20);
}

#[test]
fn the_allowance_bounds_what_is_taken() {
    let (device, _on) = device();
    let dataset = numbers(1000).batch(10).unwrap();
    let error = dataset.clone().prefetch(3).allowance(Bytes::new(319)).iter().next().unwrap().unwrap_err();
    assert!(error.to_string().contains("320"), "{error}");
    dataset.clone().prefetch(3).allowance(Bytes::new(320)).iter().next().unwrap().unwrap();
    // Left to choose, it takes what there is, but for a few bytes, and gives the same batches.
    let tuned = dataset.clone().prefetch(AUTOTUNE).allowance(Bytes::new(1000));
    let mut batches = tuned.iter();
    batches.next().unwrap().unwrap();
    assert_eq!(data_bytes(&device), 8000 + 12 * 80);
    drop(batches);
    assert_eq!(drained(&tuned), drained(&dataset));
    let error = dataset.prefetch(AUTOTUNE).allowance(Bytes::new(100)).iter().next().unwrap().unwrap_err();
    assert!(error.to_string().contains("allowance is 100"), "{error}");
}

/// The elements of a stream wait in cells: those of the buffer, and those of the batch that is being put together.
#[test]
fn shuffling_a_stream_takes_its_buffer_and_a_batch_and_shuffling_tensors_takes_nothing() {
    let (device, _on) = device();
    let spec = Spec::new([Field::new("x", DType::F32, [4]).unwrap()]).unwrap();
    let stream = Dataset::from_iterator(spec, || (0..100).map(|k| [k as f32; 4]));
    for (shuffled, n_waiting) in [
        (stream.clone(), 0),
        (stream.shuffle(10, 1), 10),
        (stream.shuffle(Bytes::new(16 * 20 + 15), 1), 20),
        (stream.take(7).shuffle(10, 1), 7),
    ] {
        let dataset = shuffled.batch(2).unwrap();
        let _batch = dataset.first().unwrap();
        assert_eq!(data_bytes(&device), 2 * 16 + (n_waiting + 2) * 16);
    }
    let dataset = numbers(100).shuffle(100, 1).batch(2).unwrap();
    let _batch = dataset.first().unwrap();
    assert_eq!(data_bytes(&device), 800 + 2 * 8);
}

#[test]
fn a_cache_is_in_the_pool_and_is_filled_once() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let (device, _on) = device();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let spec = Spec::new([Field::new("y", DType::F32, [2]).unwrap()]).unwrap();
    let cached = numbers(100)
        .map(spec, move |from, to| {
            counted.fetch_add(1, Ordering::Relaxed);
            let x = from.value::<i64>(0)? as f32;
            to.set(0, &[x, -x])
        })
        .cache()
        .unwrap();
    let dataset = cached.shuffle(100, 3).batch(9).unwrap().workers(3).prefetch(1);
    let first = drained(&dataset);
    assert_eq!(calls.load(Ordering::Relaxed), 100);
    assert_eq!(data_bytes(&device), 800 + 100 * 8);
    let second = drained(&dataset);
    assert_eq!(calls.load(Ordering::Relaxed), 100);
    assert_ne!(first, second, "the shuffle after the cache goes on");
    drop((cached, dataset));
    assert_eq!(device.stats().in_use, 0);
}

/// Every dataset here takes the same from a ghost as from the device, and its batches have the same shapes.
#[test]
fn a_ghost_takes_the_same_blocks_and_gives_the_same_shapes() {
    let spec = || Spec::new([Field::new("y", DType::F32, [3]).unwrap()]).unwrap();
    let map = |dataset: Dataset| dataset.map(spec(), |_, to| to.set(0, &[1f32, 2.0, 3.0]));
    let generated = || {
        let begin = || (0..23).map(|k| [k as f32; 3]);
        Dataset::from_iterator(spec(), begin).assume_len(23)
    };
    let makers: [fn(Dataset) -> Dataset; 4] =
        [|x| x, |x| x.shuffle(5, 1).take(17), |x| x.repeat(2).skip(3), |x| x.cache().unwrap()];
    for depth in [0, 2] {
        for (case, order) in makers.iter().enumerate() {
            for source in [0, 1, 2] {
                let make = || {
                    let source = match source {
                        0 => numbers(23),
                        1 => map(map(numbers(23))),
                        _ => generated(),
                    };
                    order(source).batch(4).unwrap().prefetch(depth).workers(2)
                };
                let name = format!("source {source}, order {case}, depth {depth}");
                let run = |device: &Device, dataset: Dataset| {
                    let _on = device.enter();
                    let mut seen = Vec::new();
                    let mut held = Vec::new();
                    for batch in &dataset {
                        let batch = batch.unwrap();
                        seen.push((batch[0].shape().to_vec(), batch[0].dtype(), device.stats().in_use));
                        if batch.number() == 2 {
                            held.push(batch);
                        }
                    }
                    (seen, device.stats().in_use, device.stats().committed)
                };
                let (device, _on) = device();
                let dataset = make();
                let ghost = device.ghost();
                let (predicted, real) = (run(&ghost, dataset.clone()), run(&device, dataset));
                assert_eq!(predicted, real, "{name}");
                assert!(!real.0.is_empty(), "{name}");
            }
        }
    }
}

#[test]
fn ghosts_see_the_largest_run_and_never_call_the_user() {
    let ghost = Device::ghost_cpu();
    let _on = ghost.enter();
    let x = Tensor::zeros_of([1 << 20, 1 << 10], DType::F32).unwrap();
    let dataset = Dataset::from_tensor_slices(x).unwrap();
    fn never<R>() -> R {
        panic!("a ghost has no values")
    }
    let filtered = dataset.filter(move |_| never()).batch(1 << 10).unwrap().take(3);
    assert_eq!(filtered.iter().map(|batch| batch.unwrap()[0].shape()[0]).collect::<Vec<_>>(), [1 << 10; 3]);

    let line = Field::new("line", DType::U8, 100).unwrap().varying().unwrap();
    let spec = Spec::new([line]).unwrap();
    let mapped = dataset.map(spec, move |_, _| never());
    let padded = mapped.padded_batch(8, Padding::zeros()).unwrap().take(1);
    assert_eq!(padded.first().unwrap()[0].shape().dims(), [8, 100]);
    let buckets = [(10, 64), (100, 8)];
    let bucketed = mapped.bucket_by_length(&buckets, Padding::zeros(), move |_| never()).unwrap().take(1);
    assert_eq!(bucketed.first().unwrap()[0].shape().dims(), [8, 100]);
    assert_eq!(bucketed.spec().n_bytes(), 800, "the largest product, not the product of the largest");

    let unknown = Dataset::from_iterator(dataset.spec().clone(), std::iter::empty::<f32>);
    let error = unknown.iter().next().unwrap().unwrap_err();
    assert!(error.to_string().contains("assume_len"), "{error}");
    drop(_on);
    let (_device, _on) = device();
    let error = dataset.iter().next().unwrap().unwrap_err();
    assert!(error.to_string().contains("ghost"), "{error}");
}

#[test]
fn blocks_are_labelled_with_the_line_that_iterates() {
    let (device, _on) = device();
    let dataset = numbers(10).batch(5).unwrap();
    let mut held = Vec::new();
    let line = line!() + 1;
    for batch in &dataset {
        held.push(batch.unwrap());
    }
    let blocks = device.snapshot();
    let sites: Vec<String> = blocks.blocks().iter().map(|block| block.site.to_string()).collect();
    let here = format!("memory.rs:{line} dataset");
    assert_eq!(sites.iter().filter(|site| site.ends_with(&here)).count(), 2, "{sites:?}");
}

/// A binding from another language says which line iterates, and which made the batches.
#[test]
fn blocks_are_labelled_with_the_line_that_was_entered() {
    let (device, _on) = device();
    let dataset = plimsoll_tensor::at_line("program.py", 3, || numbers(10).batch(5)).unwrap();
    let iterated = plimsoll_tensor::at_line("program.py", 7, || dataset.iter());
    let trained = dataset.iterate_from(0, 0);
    let held: Vec<_> = iterated.chain(trained).map(Result::unwrap).collect();
    let blocks = device.snapshot();
    let sites: Vec<String> = blocks.blocks().iter().map(|block| block.site.to_string()).collect();
    for (line, n) in [(7, 2), (3, 2)] {
        let here = format!("program.py:{line} dataset");
        assert_eq!(sites.iter().filter(|site| site.ends_with(&here)).count(), n, "{sites:?}");
    }
    drop(held);
}

/// A train loop begins epochs by number, on a line of its own.
#[test]
fn blocks_of_a_train_loop_are_labelled_with_the_line_that_made_the_batches() {
    let (device, _on) = device();
    let line = line!() + 1;
    let dataset = numbers(10).batch(5).unwrap().prefetch(0);
    let held: Vec<_> = dataset.iterate_from(0, 0).map(Result::unwrap).collect();
    let blocks = device.snapshot();
    let here = format!("memory.rs:{line} dataset");
    let sites: Vec<String> = blocks.blocks().iter().map(|block| block.site.to_string()).collect();
    assert_eq!(sites.iter().filter(|site| site.ends_with(&here)).count(), held.len(), "{sites:?}");
}

#[test]
fn batches_that_are_passed_over_are_brought_nowhere() {
    let dataset = numbers(23).batch(5).unwrap();
    assert_eq!((dataset.len(), dataset.n_alike()), (Some(5), 4));
    let whole = drained(&dataset);
    let mut batches = dataset.iterate_from(0, 0);
    assert_eq!(contents(&batches.nth(2).unwrap().unwrap()), whole[2]);
    assert_eq!(contents(&batches.nth(1).unwrap().unwrap()), whole[4]);
    assert!(batches.next().is_none());
    assert!(dataset.iter().nth(5).is_none());

    // The ghost of a GPU gets its batches from its host; those that are left out are none of its business.
    let device = Device::ghost_cuda(plimsoll_cuda::Profile::h200());
    let _on = device.enter();
    let dataset = numbers(23).batch(5).unwrap();
    let before = device.stats().n_acquired;
    let batch = dataset.iterate_from(0, 0).nth(3).unwrap().unwrap();
    assert_eq!(device.stats().n_acquired - before, batch.spec().fields().len() as u64);
}

#[test]
fn alike_are_the_batches_that_are_sure_to_be_whole() {
    let numbers = numbers(20);
    assert_eq!(numbers.n_alike(), 20);
    assert_eq!(numbers.batch(5).unwrap().n_alike(), 4);
    assert_eq!(numbers.batch(6).unwrap().n_alike(), 3);
    assert_eq!(numbers.batch_exactly(6).unwrap().n_alike(), 3);
    assert_eq!(numbers.repeat_forever().batch(3).unwrap().n_alike(), u64::MAX);
    // Where the short one is, or how many there are, is not known.
    assert_eq!(numbers.batch(6).unwrap().shuffle(4, 0).n_alike(), 0);
    assert_eq!(numbers.filter(|_| Ok(true)).batch(5).unwrap().n_alike(), 0);
}
