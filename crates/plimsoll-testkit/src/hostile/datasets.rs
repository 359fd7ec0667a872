//! Datasets with sizes that nobody means well with: batches, windows, shuffles, shards, skips and repeats of any number of
//! elements, prefetched by any number of workers, entered at any place.

use plimsoll_data::{Buffer, Dataset, Field, Padding, Prefetch, Spec, TokenType, Tokens};
use plimsoll_tensor::{Bytes, Result, Tensor};

use super::draw::Hostile;
use super::methods::HostileCall;

/// All of them.
pub fn datasets() -> Vec<HostileCall> {
    vec![
        ("from_tensor_slices", |h| {
            let dataset = of_tensors(h)?;
            iterated(h, dataset, false)
        }),
        ("windows", |h| {
            let dataset = windows(h)?;
            iterated(h, dataset, false)
        }),
        ("from_iterator", |h| {
            let dataset = generated(h)?;
            iterated(h, dataset, true)
        }),
        ("zip", |h| {
            let (first, second) = (of_tensors(h)?, generated(h)?);
            let (first, second) = (changed(h, first, false)?, changed(h, second, true)?);
            let zipped = if h.chance(50) { first.zip(&second)? } else { first.zip_strict(&second)? };
            iterated(h, zipped, true)
        }),
        ("bucket_by_length", bucketed),
    ]
}

/// A few tensors, which have as many rows, mostly.
fn of_tensors(h: &mut Hostile) -> Result<Dataset> {
    let rows = h.count();
    let one = |h: &mut Hostile, name: &'static str| -> Result<(&'static str, Tensor)> {
        let rest = h.list(Hostile::count);
        let dims = if h.chance(95) { [&[rows], &rest[..]].concat() } else { h.dims() };
        let dtype = h.dtype();
        Ok((name, h.tensor_of(&dims, dtype)?))
    };
    let first = one(h, "x")?;
    if h.chance(50) {
        return Dataset::from_tensor_slices([first]);
    }
    let name = if h.chance(95) { "y" } else { "x" };
    Dataset::from_tensor_slices([first, one(h, name)?])
}

fn windows(h: &mut Hostile) -> Result<Dataset> {
    const TEXT: &[u8] = b"a text of a few words, long enough for windows of several lengths and strides";
    let length = if h.chance(70) { h.below(40) } else { h.count() };
    let tokens = Tokens::of_bytes(TEXT);
    let (start, end) = (h.below(90), if h.chance(80) { h.below(90) } else { h.count() });
    let tokens = if h.chance(40) { tokens.part(start..end)? } else { tokens };
    drop(Tokens::open("/dev/null", h.pick(&[TokenType::U8, TokenType::U16])));
    Dataset::windows(tokens, length, h.count())
}

/// Elements of a field whose extent varies, from a stream that cannot be entered in the middle.
fn generated(h: &mut Hostile) -> Result<Dataset> {
    let (most, n) = (h.count(), h.below(9));
    let lengths: Vec<usize> = (0..n).map(|_| if h.chance(95) { h.below(6) } else { h.count() }).collect();
    let field = Field::new("length", plimsoll_tensor::DType::F32, [most])?;
    let spec = Spec::new([if h.chance(70) { field.varying()? } else { field }])?;
    Ok(Dataset::from_iterator(spec, move || {
        lengths.clone().into_iter().map(|length| vec![1.0f32; length.min(1 << 10)])
    }))
}

/// A dataset with a few further steps. A stream cannot be entered in the middle, and going over 2⁶² elements of one takes as
/// long as that; so none is repeated often, and what is repeated often does not become one.
fn changed(h: &mut Hostile, mut dataset: Dataset, mut is_stream: bool) -> Result<Dataset> {
    let mut is_long = false;
    for _ in 0..h.below(4) {
        let padding =
            if h.chance(50) { Padding::zeros() } else { Padding::zeros().value(h.number()).to_full() };
        dataset = match h.below(15) {
            0 | 1 => dataset.batch(h.count())?,
            2 => dataset.batch_exactly(h.count())?,
            3 => dataset.padded_batch(h.count(), padding)?,
            4 => dataset.shuffle(h.count(), h.count() as u64),
            5 => dataset.shuffle_once(Buffer::Bytes(Bytes::from(h.count() as u64)), 1),
            6 if is_stream => dataset.repeat(h.below(4)),
            6 => {
                is_long = true;
                dataset.repeat(h.count())
            }
            7 => dataset.take(h.count()),
            8 => dataset.skip(h.count()),
            9 => dataset.shard(h.count(), h.count())?,
            10 => dataset.enumerate()?,
            11 => dataset.cache()?,
            12 => dataset.assume_len(h.count()),
            13 => dataset.check_finite(),
            _ if is_long => dataset.repeat_forever(),
            _ => {
                is_stream = true;
                dataset.filter(|example| Ok(example.index() % 2 == 0))
            }
        };
    }
    Ok(dataset)
}

/// The first batches of a dataset, from the beginning or from the middle.
fn iterated(h: &mut Hostile, dataset: Dataset, is_stream: bool) -> Result<Vec<Tensor>> {
    const MOST_BATCHES: usize = 3;
    let dataset = changed(h, dataset, is_stream)?;
    let dataset = if h.chance(60) { dataset.batch(h.count().max(1))? } else { dataset };
    let dataset = match h.below(4) {
        0 => dataset.prefetch(Prefetch::Depth(h.count())),
        1 => dataset.prefetch(Prefetch::Auto),
        _ => dataset,
    };
    let dataset = if h.chance(30) { dataset.workers(h.count()) } else { dataset };
    let dataset = if h.chance(20) { dataset.allowance(Bytes::from(h.count() as u64)) } else { dataset };
    let _ = (dataset.len(), dataset.is_empty(), dataset.n_alike());
    let place = (h.count() as u64, h.count() as u64);
    let batches = match h.below(4) {
        0 => vec![dataset.first()?],
        1 => dataset.iterate_from(place.0, place.1).take(MOST_BATCHES).collect::<Result<_>>()?,
        _ => dataset.iter().take(MOST_BATCHES).collect::<Result<_>>()?,
    };
    batches.iter().map(|batch| batch.get(0).cloned()).collect()
}

fn bucketed(h: &mut Hostile) -> Result<Vec<Tensor>> {
    let dataset = generated(h)?;
    let buckets = h.list(|h| (h.count(), h.count()));
    let padding = if h.chance(50) { Padding::zeros() } else { Padding::zeros().field("length", h.number()) };
    let wrong = h.maybe(Hostile::count);
    let dataset = dataset.bucket_by_length(&buckets, padding, move |example| {
        Ok(wrong.unwrap_or(example.shape("length")?.n_elems()))
    })?;
    iterated(h, dataset, true)
}
