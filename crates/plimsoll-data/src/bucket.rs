//! Batches of elements of similar length, so that little of them is padding.
//!
//! Every bucket has a greatest length and a batch size of its own; a batch buffer has room for the largest of their
//! products, not for the longest elements times the largest size. Elements wait in their bucket, as items of a few
//! bytes, until it is full; what is left at the end comes in the order of length.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use plimsoll_tensor::{Error, Result};

use crate::batch::{Padding, Rows, entry_bytes};
use crate::example::{Example, ExampleMut};
use crate::node::{
    Count, Cursor, Item, Node, NodeRef, Plan, Session, Work, example_scratch, open, with_example,
};
use crate::spec::{Field, Shapes, Spec};

/// Says how long an element is.
pub(crate) type LengthFn = dyn Fn(&Example<'_>) -> Result<usize> + Send + Sync;

/// Elements of similar length become batches. Their items are groups, numbered by bucket.
pub(crate) struct Buckets {
    rows: Rows,
    spec: Spec,
    length: Arc<LengthFn>,
    /// The greatest length and the batch size of each bucket, in the order of length.
    buckets: Arc<[(usize, usize)]>,
}

/// The length that a row has room for in a bucket that ends at `most`.
fn room(field: &Field, most: usize) -> usize {
    field.shape()[0].min(most)
}

impl Buckets {
    pub fn new(
        upstream: &NodeRef,
        buckets: &[(usize, usize)],
        padding: Padding,
        length: Arc<LengthFn>,
    ) -> Result<Buckets> {
        let op = "bucket_by_length";
        let rising = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if buckets.is_empty() || !rising || buckets.iter().any(|&(_, size)| size == 0) {
            let detail =
                format!("{buckets:?} are no buckets; give (greatest length, batch size), lengths rising");
            return Err(Error::argument(op, format!("{detail}, sizes at least 1")));
        }
        let most_rows = buckets.iter().map(|&(_, size)| size).max().unwrap_or(1);
        let rows = Rows::new(op, upstream, most_rows, false, Some(padding))?;
        let fields = rows.spec.fields().iter().zip(upstream.spec().fields()).map(|(stacked, field)| {
            let n_bytes = |&(most, size): &(usize, usize)| size * row_bytes(field, most);
            // The length differs from bucket to bucket even where each is filled up to its own.
            let n_varying = if field.n_varying() > 0 { 2 } else { 1 };
            Ok(field
                .stacked(stacked.shape()[0], n_varying)?
                .within(buckets.iter().map(n_bytes).max().unwrap_or(0)))
        });
        let spec = upstream.spec().with_fields(fields.collect::<Result<_>>()?)?;
        Ok(Buckets { rows, spec, length, buckets: buckets.into() })
    }

    fn group<'a>(&self, item: &'a Item) -> (usize, &'a [Item]) {
        if let Item::Numbered(bucket, group) = item
            && let Item::Group(items) = &**group
        {
            return (self.buckets[*bucket as usize].0, items);
        }
        unreachable!("{item:?} is no bucket's")
    }
}

/// The bytes that a row takes in a bucket that ends at `most`.
fn row_bytes(field: &Field, most: usize) -> usize {
    if field.n_varying() > 0 { room(field, most) * entry_bytes(field) } else { field.n_bytes() }
}

impl Node for Buckets {
    fn upstream(&self) -> &NodeRef {
        &self.rows.upstream
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn count(&self) -> Count {
        // Batches that are full have at least so many elements; one of each bucket may not be.
        let least = self.buckets.iter().map(|&(_, size)| size as u64).min().unwrap_or(1);
        let n_buckets = self.buckets.len() as u64;
        self.rows.upstream.count().map(|n| n.div_ceil(least).saturating_add(n_buckets).min(n)).or_less()
    }

    fn is_indexed(&self) -> bool {
        false
    }

    fn stream(&self, pass: u64, session: &Arc<Session>) -> Box<dyn Cursor> {
        Box::new(Bucketing {
            cursor: open(&self.rows.upstream, pass, session),
            upstream: self.rows.upstream.clone(),
            length: self.length.clone(),
            buckets: self.buckets.clone(),
            waiting: self.buckets.iter().map(|_| Vec::new()).collect(),
            left_over: None,
            is_ghost: session.is_ghost,
        })
    }

    fn n_rows(&self, item: &Item) -> Option<usize> {
        Some(self.group(item).1.len())
    }

    fn row_bytes(&self, item: &Item, field: usize) -> usize {
        row_bytes(&self.rows.upstream.spec().fields()[field], self.group(item).0)
    }

    fn outline(&self, item: &Item) -> Shapes {
        let (most, items) = self.group(item);
        let shape = |(stacked, field): (&Field, &Field)| {
            let shape = stacked.shape().at_most(0, items.len());
            if field.n_varying() > 0 { shape.at_most(1, room(field, most)) } else { shape }
        };
        self.spec.fields().iter().zip(self.rows.upstream.spec().fields()).map(shape).collect()
    }

    fn has_views(&self) -> bool {
        false
    }

    /// Rows have room for their bucket's length, which may be less than the spec's; so each is made elsewhere, unless it
    /// lies in memory already, and copied if it fits.
    fn write(
        &self,
        item: &Item,
        rows: Range<usize>,
        to: &mut ExampleMut<'_>,
        work: &mut Work<'_>,
    ) -> Result<()> {
        let (most, items) = self.group(item);
        let upstream = &*self.rows.upstream;
        for (k, row) in rows.enumerate() {
            let lengths = &mut *work.lengths;
            let put = |example: &Example<'_>, _: &mut [u8]| {
                for (idx, field) in upstream.spec().fields().iter().enumerate() {
                    let shape = example.shape(idx)?;
                    lengths.push(shape.first().copied().unwrap_or(1));
                    let (bytes, room) = (example.bytes(idx)?, row_bytes(field, most));
                    if bytes.len() > room {
                        let detail = format!("field {:?} has shape {shape}", field.name());
                        return Err(Error::shape(
                            "bucket_by_length",
                            format!(
                                "{detail} in a bucket that ends at {most}; give its first extent as the length"
                            ),
                        ));
                    }
                    to.part_mut(idx).0[k * room..][..bytes.len()].copy_from_slice(bytes);
                }
                Ok(())
            };
            with_example(upstream, &items[row], work.scratch, put)
                .map_err(|error| Error::within(format!("row {row}"), error))?;
        }
        Ok(())
    }

    fn finish(&self, item: &Item, to: &mut ExampleMut<'_>, lengths: &[usize]) -> Result<()> {
        let (most, _) = self.group(item);
        self.rows.finish(to, lengths, |field| room(field, most));
        Ok(())
    }

    fn scratch(&self) -> usize {
        example_scratch(&*self.rows.upstream, 0).max(self.rows.upstream.scratch())
    }

    fn reserve(&self, n_items: usize, plan: &mut Plan<'_>) -> Result<()> {
        let waiting: usize = self.buckets.iter().map(|&(_, size)| size).sum();
        let most = self.buckets.iter().map(|&(_, size)| size).max().unwrap_or(1);
        self.rows.upstream.reserve(n_items.saturating_mul(most).saturating_add(waiting), plan)
    }
}

struct Bucketing {
    cursor: Box<dyn Cursor>,
    upstream: NodeRef,
    length: Arc<LengthFn>,
    buckets: Arc<[(usize, usize)]>,
    waiting: Vec<Vec<Item>>,
    /// After the last element: the buckets that still have some, shortest first.
    left_over: Option<VecDeque<Item>>,
    is_ghost: bool,
}

fn group(bucket: usize, items: Vec<Item>) -> Item {
    Item::Numbered(bucket as u64, Box::new(Item::Group(items.into())))
}

impl Bucketing {
    fn bucket(&self, item: &Item, scratch: &mut [u8]) -> Result<usize> {
        // A ghost has no lengths; it sees the longest that can come.
        if self.is_ghost {
            return Ok(self.buckets.len() - 1);
        }
        let length = with_example(&*self.upstream, item, scratch, |example, _| (self.length)(example))?;
        self.buckets.iter().position(|&(most, _)| length <= most).ok_or_else(|| {
            let longest = self.buckets.last().map_or(0, |bucket| bucket.0);
            let detail = format!("an element has length {length}, and the last bucket ends at {longest}");
            Error::argument("bucket_by_length", format!("{detail}; add a bucket, or `filter` before"))
        })
    }
}

impl Cursor for Bucketing {
    fn next(&mut self, scratch: &mut [u8]) -> Result<Option<Item>> {
        while self.left_over.is_none() {
            let Some(item) = self.cursor.next(scratch)? else {
                let waiting = std::mem::take(&mut self.waiting).into_iter().enumerate();
                let left_over = waiting.filter(|(_, items)| !items.is_empty());
                self.left_over = Some(left_over.map(|(bucket, items)| group(bucket, items)).collect());
                break;
            };
            let bucket = self.bucket(&item, scratch)?;
            self.waiting[bucket].push(item);
            if self.waiting[bucket].len() == self.buckets[bucket].1 {
                return Ok(Some(group(bucket, std::mem::take(&mut self.waiting[bucket]))));
            }
        }
        Ok(self.left_over.as_mut().and_then(VecDeque::pop_front))
    }
}
