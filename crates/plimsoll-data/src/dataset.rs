//! `Dataset`: what a pipeline reads and does, as a value.
//!
//! A dataset is a plan. It is cheap to clone, and nothing runs before it is iterated; each iteration is an epoch with
//! a number of its own, on which shuffling depends. The methods are those of `tf.data` where it has them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_tensor::{Bytes, Device, Error, Nested, Result, at_line, callers_place};

use crate::batch::{Batch as BatchNode, Padding};
use crate::bucket::Buckets;
use crate::cache::Cache;
use crate::combine::{Arranged, Enumerate, Zip};
use crate::example::{Example, ExampleMut, WriteExample};
use crate::map::{CheckFinite, Filter, Map};
use crate::node::{Count, Node, NodeRef};
use crate::order::{Order, Ordered};
use crate::pipeline::{Batch, Batches, Held, Options, Prefetch, Threads};
use crate::shuffle::{Buffer, Shuffle};
use crate::source::Indexed;
use crate::source::generator::{AssumeLen, Generator};
use crate::source::idx::IdxRows;
use crate::source::lines::Lines;
use crate::source::rows::FileRows;
use crate::source::slices::{IntoSlices, Slices};
use crate::source::tokens::{Tokens, Windows};
use crate::spec::Spec;

/// Elements, and what is done with them on the way to the training loop.
///
/// ```
/// use plimsoll_data::Dataset;
/// use plimsoll_tensor::Tensor;
///
/// let x = Tensor::from_vec((0..20).map(|i| i as f32).collect())?.reshape([10, 2])?;
/// let y = Tensor::from_vec((0..10i64).collect())?;
/// let dataset = Dataset::from_tensor_slices((x, y))?.shuffle(10, 7).batch(4)?.prefetch(2);
/// for batch in &dataset {
///     let [x, y] = batch?.tensors()?;
///     assert_eq!(x.shape()[0], y.shape()[0]);
/// }
/// assert_eq!(dataset.len(), Some(3));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub struct Dataset {
    node: NodeRef,
    options: Options,
    next_epoch: AtomicU64,
    /// The threads of its iterations, while somebody holds them.
    held: Arc<Held>,
}

/// Runs `f` with the bytes that it takes labelled with the caller's line.
#[track_caller]
pub(crate) fn at_caller<R>(f: impl FnOnce() -> R) -> R {
    let caller = callers_place();
    at_line(caller.file(), caller.line(), f)
}

/// Where elements come from.
impl Dataset {
    fn with(node: NodeRef, options: Options) -> Dataset {
        Dataset { node, options, next_epoch: AtomicU64::new(0), held: Arc::default() }
    }

    fn source(node: impl Node + 'static) -> Dataset {
        Dataset::with(Arc::new(node), Options::default())
    }

    /// The slices of tensors along their first axis: a tensor, a tuple of tensors, a list of names and tensors, or these
    /// inside each other, such as `((image, text), label)`. They are read where they lie; the tensors are counted as data
    /// from here on.
    ///
    /// # Errors
    /// Tensors of different length; a single number; a view whose elements do not lie one after the other.
    pub fn from_tensor_slices(tensors: impl IntoSlices) -> Result<Dataset> {
        Ok(Dataset::source(Slices::new(tensors.into_slices())?))
    }

    /// The elements of an iterator, which `begin` makes anew for every pass: numbers, arrays or `Vec`s of numbers, or
    /// tuples of these, one for each field of `spec`.
    pub fn from_iterator<I>(spec: Spec, begin: impl Fn() -> I + Send + Sync + 'static) -> Dataset
    where
        I: Iterator<Item: WriteExample> + Send + 'static,
    {
        let n_fields = spec.fields().len();
        Dataset::from_generator(spec, move |_| {
            let mut elements = begin();
            move |to: &mut ExampleMut<'_>| {
                let Some(element) = elements.next() else { return Ok(false) };
                let n = element.write_fields(to, 0)?;
                match n == n_fields {
                    true => Ok(true),
                    false => Err(Error::argument(
                        "from_iterator",
                        format!("an element has {n} parts, and the spec has {n_fields} fields"),
                    )),
                }
            }
        })
    }

    /// The elements that a function writes one after the other; `begin` makes it anew for every pass, of which it is
    /// told the number. It returns `false` when there are no more.
    pub fn from_generator<F>(spec: Spec, begin: impl Fn(u64) -> F + Send + Sync + 'static) -> Dataset
    where
        F: FnMut(&mut ExampleMut<'_>) -> Result<bool> + Send + 'static,
    {
        Dataset::source(Generator::new(spec, Arc::new(move |pass| Box::new(begin(pass)))))
    }

    /// The rows of the array in an NPY file, as a field `name`, read through a memory map.
    ///
    /// # Errors
    /// A file that cannot be read, is damaged, or holds no rows.
    pub fn npy(path: impl AsRef<Path>, name: &str) -> Result<Dataset> {
        Ok(Dataset::source(Indexed(FileRows::npy(path.as_ref(), name)?)))
    }

    /// The rows of the array in an IDX file, as a field `name`: read through a memory map, or, if it is compressed by
    /// gzip, whole.
    ///
    /// # Errors
    /// A file that cannot be read or is damaged; memory that is full.
    #[track_caller]
    pub fn idx(path: impl AsRef<Path>, name: &str) -> Result<Dataset> {
        at_caller(|| match IdxRows::open(path.as_ref(), name)? {
            IdxRows::Mapped(rows) => Ok(Dataset::source(Indexed(rows))),
            IdxRows::Inflated(tensor) => Dataset::from_tensor_slices([(name, tensor)]),
        })
    }

    /// The lines of a text file without their ending, as a field `line` of bytes that varies in length.
    ///
    /// # Errors
    /// A file that cannot be read; memory that is full.
    #[track_caller]
    pub fn lines(path: impl AsRef<Path>) -> Result<Dataset> {
        at_caller(|| Ok(Dataset::source(Indexed(Lines::open(path.as_ref())?))))
    }

    /// Windows of `length` tokens, `stride` apart, as the fields `inputs` and `targets`, which are one token further on.
    ///
    /// # Errors
    /// A length or stride of zero.
    pub fn windows(tokens: Tokens, length: usize, stride: usize) -> Result<Dataset> {
        Ok(Dataset::source(Indexed(Windows::new(tokens, length, stride)?)))
    }
}

/// What is done with them.
impl Dataset {
    fn then(&self, node: impl Node + 'static) -> Dataset {
        Dataset::with(Arc::new(node), self.options)
    }

    /// Batches, with the line that asked for them.
    #[track_caller]
    fn batched(&self, node: impl Node + 'static) -> Dataset {
        let mut batches = self.then(node);
        batches.options.batched_at = Some(callers_place());
        batches
    }

    fn ordered(&self, order: Order) -> Dataset {
        self.then(Ordered { upstream: self.node.clone(), order })
    }

    /// Every element, changed by `f`, which reads one and writes another that looks as `spec` says. It runs on the
    /// workers, in any order, whenever the element is wanted; elements come out in order.
    pub fn map(
        &self,
        spec: Spec,
        f: impl Fn(&Example<'_>, &mut ExampleMut<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Dataset {
        self.then(Map { upstream: self.node.clone(), spec, f: Box::new(f) })
    }

    /// The elements that `f` likes. One element at a time is asked about, and what `map` did before is done again for
    /// those that pass, so put it before `map` where you can.
    pub fn filter(&self, f: impl Fn(&Example<'_>) -> Result<bool> + Send + Sync + 'static) -> Dataset {
        self.then(Filter { upstream: self.node.clone(), f: Arc::new(f) })
    }

    /// The elements in an order that depends on seed and epoch: another one in every epoch.
    ///
    /// All elements are shuffled, without a buffer, if each can be read at any time, as in tensors and files. Those of
    /// an iterator, or after `filter` or `bucket_by_length`, are drawn from a buffer, given in elements or [`Bytes`].
    pub fn shuffle(&self, buffer: impl Into<Buffer>, seed: u64) -> Dataset {
        self.then(Shuffle { upstream: self.node.clone(), buffer: buffer.into(), seed, anew: true })
    }

    /// As [`Dataset::shuffle`], in the same order in every epoch.
    pub fn shuffle_once(&self, buffer: impl Into<Buffer>, seed: u64) -> Dataset {
        self.then(Shuffle { upstream: self.node.clone(), buffer: buffer.into(), seed, anew: false })
    }

    /// Batches of `size` elements; the last may be smaller.
    ///
    /// # Errors
    /// A size of zero; elements of varying size.
    #[track_caller]
    pub fn batch(&self, size: usize) -> Result<Dataset> {
        Ok(self.batched(BatchNode::new(&self.node, size, false, None)?))
    }

    /// Batches of exactly `size` elements; what is left at the end is dropped.
    ///
    /// # Errors
    /// As for [`Dataset::batch`].
    #[track_caller]
    pub fn batch_exactly(&self, size: usize) -> Result<Dataset> {
        Ok(self.batched(BatchNode::new(&self.node, size, true, None)?))
    }

    /// Batches of `size` elements whose varying fields are filled up to one length; the last may be smaller.
    ///
    /// # Errors
    /// A size of zero; elements that vary in more than their first extent; padding for a field that is not there.
    #[track_caller]
    pub fn padded_batch(&self, size: usize, padding: Padding) -> Result<Dataset> {
        Ok(self.batched(BatchNode::new(&self.node, size, false, Some(padding))?))
    }

    /// Padded batches of elements of similar length. Each bucket is a greatest length and a batch size; elements go to
    /// the first bucket that is long enough, and a batch comes when a bucket is full. With [`Padding::to_full`] the
    /// batches of a bucket have its length.
    ///
    /// # Errors
    /// Buckets whose lengths do not rise, or of size zero; as for [`Dataset::padded_batch`].
    #[track_caller]
    pub fn bucket_by_length(
        &self,
        buckets: &[(usize, usize)],
        padding: Padding,
        length: impl Fn(&Example<'_>) -> Result<usize> + Send + Sync + 'static,
    ) -> Result<Dataset> {
        Ok(self.batched(Buckets::new(&self.node, buckets, padding, Arc::new(length))?))
    }

    /// All elements `n` times. Shuffling before it gives another order each time.
    pub fn repeat(&self, n: usize) -> Dataset {
        self.ordered(Order::Repeat(Some(n as u64)))
    }

    /// All elements again and again, for ever, within one epoch.
    pub fn repeat_forever(&self) -> Dataset {
        self.ordered(Order::Repeat(None))
    }

    /// The first `n` elements.
    pub fn take(&self, n: usize) -> Dataset {
        self.ordered(Order::Take(n as u64))
    }

    /// All but the first `n` elements.
    pub fn skip(&self, n: usize) -> Dataset {
        self.ordered(Order::Skip(n as u64))
    }

    /// Every `n`-th element, beginning with number `idx`: one worker's share of the data.
    ///
    /// # Errors
    /// `idx` is not less than `n`.
    pub fn shard(&self, n: usize, idx: usize) -> Result<Dataset> {
        if idx >= n {
            return Err(Error::argument("shard", format!("shard {idx} of {n}; shards are numbered from 0")));
        }
        Ok(self.ordered(Order::Shard { n: n as u64, first: idx as u64 }))
    }

    /// Elements of this dataset and another side by side, until one of them ends.
    ///
    /// # Errors
    /// Both have a field of the same name.
    pub fn zip(&self, other: &Dataset) -> Result<Dataset> {
        Ok(self.then(Zip::new(&self.node, &other.node)?))
    }

    /// As [`Dataset::zip`], for datasets whose elements belong together one by one, such as images and their labels.
    ///
    /// # Errors
    /// Both have a field of the same name; one is known to have more elements than the other.
    pub fn zip_strict(&self, other: &Dataset) -> Result<Dataset> {
        match (self.len(), other.len()) {
            (Some(here), Some(there)) if here != there => Err(Error::argument(
                "zip_strict",
                format!(
                    "{here} elements of {} and {there} of {}; there must be as many of one as of the other",
                    self.spec(),
                    other.spec()
                ),
            )),
            _ => self.zip(other),
        }
    }

    /// The elements with their fields in another arrangement, by name: `arrange((("image", "text"), "label"))` makes two
    /// inputs and a label of three fields that a file had side by side. Fields that are not named are not given out.
    ///
    /// # Errors
    /// A name that no field has.
    pub fn arrange(&self, names: impl Into<Nested<String>>) -> Result<Dataset> {
        let structure = names.into().try_map(&mut |name| self.spec().find(name.as_str()))?;
        Ok(self.then(Arranged { upstream: self.node.clone(), spec: self.spec().arranged(structure) }))
    }

    /// The elements with their number as a first field, `index`.
    ///
    /// # Errors
    /// There is a field of that name already.
    pub fn enumerate(&self) -> Result<Dataset> {
        Ok(self.then(Enumerate::new(&self.node)?))
    }

    /// The elements, kept in the pool from the first time that they are made. What comes before is done as in epoch 0,
    /// ever after: a shuffle before it keeps its first order.
    ///
    /// # Errors
    /// Nobody can say how many elements there are at most.
    pub fn cache(&self) -> Result<Dataset> {
        Ok(self.then(Cache::new(&self.node)?))
    }

    /// The elements, of which the caller knows that there are `n`; more or fewer are an error when they come.
    pub fn assume_len(&self, n: usize) -> Dataset {
        match self.node.is_indexed() && self.node.count() == Count::Exactly(n as u64) {
            true => self.clone(),
            false => self.then(AssumeLen { upstream: self.node.clone(), n: n as u64 }),
        }
    }

    /// The elements, each checked: NaN or an infinity in any of them is an error that says where.
    pub fn check_finite(&self) -> Dataset {
        self.then(CheckFinite { upstream: self.node.clone() })
    }
}

/// How it is done. These say nothing about the elements and hold for the whole pipeline, wherever they stand in it.
impl Dataset {
    /// So many batches are made ahead while the loop works on one, by a thread of their own: the memory is that of one
    /// more. [`AUTOTUNE`](crate::AUTOTUNE) chooses, within the allowance.
    pub fn prefetch(mut self, depth: impl Into<Prefetch>) -> Dataset {
        self.options.prefetch = depth.into();
        self
    }

    /// So many threads make batches, each some of the rows. The elements are the same for any number.
    pub fn workers(mut self, n: usize) -> Dataset {
        self.options.n_workers = n.max(1);
        self
    }

    /// The most bytes that the pipeline may take for batches and whatever waits on the way.
    pub fn allowance(mut self, bytes: Bytes) -> Dataset {
        self.options.allowance = Some(bytes);
        self
    }
}

/// What comes out.
impl Dataset {
    /// What the elements, or batches, look like: the largest of them where they vary.
    pub fn spec(&self) -> &Spec {
        self.node.spec()
    }

    /// How many elements, or batches, an epoch has, if that can be known.
    pub fn len(&self) -> Option<usize> {
        match self.node.count() {
            Count::Exactly(n) => usize::try_from(n).ok(),
            _ => None,
        }
    }

    /// How many elements, or batches, at the beginning of an epoch are sure to have the shapes that [`Dataset::spec`]
    /// says: all whole batches of elements of one size. What comes after them, such as a short batch, and whatever
    /// nobody can be sure of does not count.
    pub fn n_alike(&self) -> u64 {
        self.node.n_alike()
    }

    /// Whether an epoch has no elements, if that can be known.
    pub fn is_empty(&self) -> Option<bool> {
        self.len().map(|n| n == 0)
    }

    /// The first batch of the next epoch, which does not count as one.
    ///
    /// # Errors
    /// There is none: the dataset is empty. What making it meets with.
    #[track_caller]
    pub fn first(&self) -> Result<Batch> {
        let epoch = self.next_epoch.load(Ordering::Relaxed);
        let mut inline = self.clone();
        (inline.options.prefetch, inline.options.n_workers) = (Prefetch::Depth(0), 1);
        let mut batches =
            Batches::begin(&inline.node, (&inline.options, &inline.held), (epoch, 0), callers_place());
        batches.next().unwrap_or_else(|| Err(self.no_batch()))
    }

    /// The error of a loop that needs a batch and gets none.
    pub fn no_batch(&self) -> Error {
        Error::argument(
            "dataset",
            format!(
                "it is empty: there is not one element of {}; look at what fills it, and at `filter`, `take`, \
                     `skip` and `batch_exactly`",
                self.spec()
            ),
        )
    }

    /// Goes through an epoch from a batch on, exactly as if the ones before had been taken. How a resumed run continues;
    /// iterations after it are the epochs after `epoch`. What it takes is labelled with the line that made the batches, because
    /// whoever calls this is a train loop, whose line tells nobody anything.
    #[track_caller]
    pub fn iterate_from(&self, epoch: u64, batch: u64) -> Batches {
        self.next_epoch.store(epoch.wrapping_add(1), Ordering::Relaxed);
        let line = self.options.batched_at.unwrap_or(callers_place());
        Batches::begin(&self.node, (&self.options, &self.held), (epoch, batch), line)
    }

    /// Starts the threads that make the batches, and keeps them until what this returns is dropped. Without it each
    /// iteration starts its own and ends them.
    ///
    /// # Errors
    /// A system that does not start them.
    pub fn start_threads(&self) -> Result<Threads> {
        self.options.check()?;
        self.held.hold(if Device::current().is_ghost() { 0 } else { self.options.n_threads() })
    }

    /// Goes through the next epoch.
    #[track_caller]
    pub fn iter(&self) -> Batches {
        let epoch = self.next_epoch.fetch_add(1, Ordering::Relaxed);
        Batches::begin(&self.node, (&self.options, &self.held), (epoch, 0), callers_place())
    }

    /// The number of the next epoch.
    pub fn next_epoch(&self) -> u64 {
        self.next_epoch.load(Ordering::Relaxed)
    }
}

impl IntoIterator for &Dataset {
    type Item = Result<Batch>;
    type IntoIter = Batches;

    #[track_caller]
    fn into_iter(self) -> Batches {
        self.iter()
    }
}

impl Clone for Dataset {
    fn clone(&self) -> Dataset {
        Dataset {
            node: self.node.clone(),
            options: self.options,
            next_epoch: AtomicU64::new(self.next_epoch.load(Ordering::Relaxed)),
            held: self.held.clone(),
        }
    }
}

impl std::fmt::Debug for Dataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dataset({:?} of {})", self.node.count(), self.spec())
    }
}
