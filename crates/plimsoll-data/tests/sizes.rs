//! Sizes that nobody means well with: each is an error when the dataset is made or iterated, or leaves nothing to iterate, and
//! none fills the host's memory with notes about elements that have no bytes.

#![forbid(unsafe_code)]

use plimsoll_data::{AUTOTUNE, Dataset, Field, Spec, Tokens};
use plimsoll_tensor::{DType, Device, Result, Tensor};

const HUGE: [usize; 5] = [1 << 31, 1 << 40, 1 << 61, usize::MAX - 1, usize::MAX];

/// Elements without bytes, of which there can be any number.
fn empty_elements() -> Result<Dataset> {
    Dataset::from_tensor_slices([("x", Tensor::zeros([1 << 40, 0])?)])
}

/// A stream of three such elements.
fn stream() -> Result<Dataset> {
    let spec = Spec::new([Field::new("x", DType::F32, [0])?])?;
    Ok(Dataset::from_iterator(spec, || (0..3).map(|_| Vec::<f32>::new())))
}

fn refused(dataset: &Dataset) -> String {
    match dataset.iter().next() {
        Some(Err(error)) => error.to_string(),
        Some(Ok(_)) => panic!("a batch came"),
        None => panic!("nothing came"),
    }
}

#[test]
fn batches_workers_and_prefetching_have_bounds() -> Result<()> {
    for device in [Device::separate_cpu(), Device::ghost_cpu()] {
        let _on = device.enter();
        for n in HUGE {
            // No memory bounds elements without bytes, so fewer of them may be in a batch.
            let sooner_or_later = |batched: Result<Dataset>| match batched {
                Ok(batched) => refused(&batched),
                Err(error) => error.to_string(),
            };
            let padded = stream()?.padded_batch(n, plimsoll_data::Padding::zeros());
            for refusal in [sooner_or_later(stream()?.batch(n)), sooner_or_later(padded)] {
                let says = |part: &str| refusal.contains(part);
                assert!(says("rows in a batch") || says("rows without bytes in a batch"), "{n}: {refusal}");
            }
            assert!(empty_elements()?.batch(n).is_err());
            assert!(refused(&empty_elements()?.prefetch(n)).contains("batches ahead"));
            assert!(refused(&empty_elements()?.workers(n)).contains("threads that make batches"));
            assert!(empty_elements()?.prefetch(AUTOTUNE).workers(n).start_threads().is_err());
        }
    }
    Ok(())
}

#[test]
fn batches_of_batches_without_bytes_have_a_bound_together() -> Result<()> {
    let few = empty_elements()?.batch(1 << 12)?.batch(1 << 12)?;
    assert_eq!(few.spec().fields()[0].shape().dims(), [1 << 12, 1 << 12, 0]);
    let error = few.batch(2).unwrap_err().to_string();
    assert!(error.contains("33554432 rows without bytes in a batch; there are at most 16777216"), "{error}");
    Ok(())
}

#[test]
fn what_waits_on_the_way_has_a_bound() -> Result<()> {
    for device in [Device::separate_cpu(), Device::ghost_cpu()] {
        let _on = device.enter();
        for n in HUGE {
            assert!(refused(&stream()?.shuffle(n, 1)).contains("elements that wait"));
            assert!(refused(&stream()?.assume_len(n).cache()?).contains("elements; there are at most"));
        }
        assert!(refused(&empty_elements()?.cache()?).contains("elements; there are at most"));
    }
    Ok(())
}

#[test]
fn a_ghost_takes_somebodys_word_for_a_length_that_is_not_so() -> Result<()> {
    let _on = Device::ghost_cpu().enter();
    let few = Dataset::from_tensor_slices([("x", Tensor::zeros([5, 2])?)])?.batch(2)?;
    for n in HUGE {
        let assumed = few.assume_len(n);
        assert_eq!(assumed.iter().take(9).filter(Result::is_ok).count(), 9);
        // Going over as many as that takes no time.
        assert!(assumed.skip(n - 1).iter().next().is_some_and(|batch| batch.is_ok()), "{n}");
        assert!(assumed.skip(n).iter().next().is_none(), "{n}");
    }
    Ok(())
}

#[test]
fn windows_that_are_longer_than_can_be_counted_are_none() -> Result<()> {
    for n in HUGE {
        let windows = Dataset::windows(Tokens::of_bytes(b"some text"), n, 1);
        assert!(windows.is_err() || windows.is_ok_and(|dataset| dataset.len() == Some(0)), "{n}");
        assert_eq!(Dataset::windows(Tokens::of_bytes(b"some text"), 3, n)?.len(), Some(1));
    }
    Ok(())
}

#[test]
fn an_epoch_is_entered_anywhere_or_not_at_all() -> Result<()> {
    let few = Dataset::from_tensor_slices([("x", Tensor::zeros([5, 2])?)])?.batch(2)?;
    for n in HUGE {
        assert!(few.iterate_from(n as u64, 0).next().is_some_and(|batch| batch.is_ok()));
        let late = few.iterate_from(0, n as u64).next();
        assert!(late.is_none_or(|batch| batch.is_err()), "{n}");
        let endless = few.repeat_forever().skip(n).shard(n, n - 1)?;
        assert!(endless.iterate_from(n as u64, 3).next().is_none_or(|batch| batch.is_ok()), "{n}");
    }
    Ok(())
}

/// A place far within the passes of a stream is found at once, and is the one that going there one by one would find.
#[test]
fn far_places_of_repeated_streams_are_found() -> Result<()> {
    let five = Dataset::from_tensor_slices([("x", Tensor::from_vec(vec![0i64, 1, 2, 3, 4])?)])?;
    let values = |dataset: &Dataset| -> Result<Vec<i64>> {
        let mut values = Vec::new();
        for element in dataset.iter() {
            values.extend(element?[0].to_vec::<i64>()?);
        }
        Ok(values)
    };
    for stream in [five.shuffle(2, 7), five.shuffle(2, 7).cache()?] {
        let nine = stream.repeat(9);
        let all = values(&nine)?;
        assert_eq!(all.len(), 45);
        for skipped in 0..=46 {
            assert_eq!(values(&nine.skip(skipped))?, all[skipped.min(45)..]);
            assert_eq!(values(&nine.skip(1).skip(skipped))?, all[(skipped + 1).min(45)..]);
        }
        for passes in [1 << 40, 1 << 58] {
            assert_eq!(values(&stream.repeat(1 << 60).skip(passes * 5 + 3).take(7))?.len(), 7);
            assert_eq!(values(&stream.repeat_forever().skip(passes * 5 + 3).take(7))?.len(), 7);
        }
    }
    let cached = five.shuffle(2, 7).cache()?;
    let (once, far) = (values(&cached)?, cached.repeat(1 << 60).skip((5 << 50) + 3).take(2));
    assert_eq!(values(&far)?, once[3..]);
    Ok(())
}
