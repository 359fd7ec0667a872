//! Stacking elements: batch and padded batch, and the rows that `bucket.rs` stacks, too.
//!
//! A batch is written row by row straight into its buffer, by several workers if there are any. Rows of varying length
//! are first written at the places that the longest possible ones would take, because their lengths are not known
//! before; when all are there, they are moved together and padded. That needs no memory beside the buffer.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use plimsoll_tensor::{DType, Element, Error, Result};

use crate::example::ExampleMut;
use crate::limits;
use crate::node::{Count, Cursor, Item, Node, NodeRef, Plan, Session, Work, open, write_whole};
use crate::spec::{Field, Shapes, Spec};

/// How the shorter rows of a padded batch are filled up: with zeros to the longest of the batch, unless said otherwise.
#[derive(Clone, Debug, Default)]
pub struct Padding {
    value: f64,
    fields: Vec<(String, f64)>,
    to_full: bool,
}

impl Padding {
    /// Zeros, up to the longest row of the batch.
    pub fn zeros() -> Padding {
        Padding::default()
    }

    /// This padding with another value.
    pub fn value(mut self, value: f64) -> Padding {
        self.value = value;
        self
    }

    /// This padding with another value in one field, such as a label that losses pass over.
    pub fn field(mut self, name: impl Into<String>, value: f64) -> Padding {
        self.fields.push((name.into(), value));
        self
    }

    /// This padding up to the greatest length that the spec allows, so that all batches have one shape.
    pub fn to_full(mut self) -> Padding {
        self.to_full = true;
        self
    }

    fn of(&self, field: &Field) -> PadBytes {
        let by_name = self.fields.iter().find(|(name, _)| name == field.name());
        PadBytes::new(field.dtype(), by_name.map_or(self.value, |(_, value)| *value))
    }
}

/// A padding value as it lies in memory.
struct PadBytes {
    bytes: [u8; 8],
    size: usize,
}

impl PadBytes {
    fn new(dtype: DType, value: f64) -> PadBytes {
        let mut bytes = [0; 8];
        let mut put = |value: &[u8]| bytes[..value.len()].copy_from_slice(value);
        match dtype {
            DType::F64 => put(&value.to_le_bytes()),
            DType::F32 => put(&(value as f32).to_le_bytes()),
            DType::F16 => put(&f16::from_f64(value).to_le_bytes()),
            DType::BF16 => put(&bf16::from_f64(value).to_le_bytes()),
            DType::I64 => put(&(value as i64).to_le_bytes()),
            DType::I32 => put(&(value as i32).to_le_bytes()),
            DType::U8 => put(&[value as u8]),
            DType::Bool => put(&[u8::from(<bool as Element>::from_f64(value))]),
        }
        PadBytes { bytes, size: dtype.size() }
    }

    fn fill(&self, to: &mut [u8]) {
        to.chunks_exact_mut(self.size).for_each(|element| element.copy_from_slice(&self.bytes[..self.size]));
    }
}

/// How rows become a batch.
pub(crate) struct Rows {
    pub upstream: NodeRef,
    pub spec: Spec,
    padding: Option<Padding>,
}

/// Refuses batches of so many rows without bytes that going over them would not end.
fn check_empty_rows(op: &'static str, spec: &Spec) -> Result<()> {
    let n_rows = |field: &Field| {
        let extents = field.shape().iter().filter(|&&extent| extent > 0);
        extents.fold(1usize, |n, &extent| n.saturating_mul(extent))
    };
    let is_empty = |field: &Field| field.shape().n_elems() == 0;
    match spec.fields().iter().all(is_empty) {
        true => {
            let most = spec.fields().iter().map(n_rows).max().unwrap_or(0);
            limits::check(op, "rows without bytes in a batch", most, limits::EMPTY_ROWS)
        }
        false => Ok(()),
    }
}

impl Rows {
    /// Batches of up to `n_rows` rows, or of exactly as many.
    pub fn new(
        op: &'static str,
        upstream: &NodeRef,
        n_rows: usize,
        exactly: bool,
        padding: Option<Padding>,
    ) -> Result<Rows> {
        if n_rows == 0 {
            return Err(Error::argument(op, "a batch of no rows; the size is at least 1"));
        }
        limits::check(op, "rows in a batch", n_rows, limits::ROWS)?;
        for field in upstream.spec().fields() {
            match (field.n_varying(), &padding) {
                (0, _) | (1, Some(_)) => {}
                (1, None) => {
                    return Err(Error::shape(
                        op,
                        format!(
                            "field {:?} varies up to {}; rows of different length are stacked by `padded_batch` or \
                             `bucket_by_length`, and batches by making all of one size with `batch_exactly`",
                            field.name(),
                            field.shape()
                        ),
                    ));
                }
                _ => {
                    let detail =
                        format!("field {:?} of {} varies in two extents", field.name(), field.shape());
                    return Err(Error::shape(op, format!("{detail}; only the first can be padded")));
                }
            }
        }
        if let Some(padding) = &padding {
            padding
                .fields
                .iter()
                .try_for_each(|(name, _)| upstream.spec().find(name.as_str()).map(|_| ()))?;
        }
        let stack = |field: &Field| {
            let pads = field.n_varying() > 0 && padding.as_ref().is_some_and(|padding| !padding.to_full);
            field.stacked(n_rows, if pads { 2 } else { usize::from(!exactly) })
        };
        let spec = upstream
            .spec()
            .with_fields(upstream.spec().fields().iter().map(stack).collect::<Result<_>>()?)?;
        check_empty_rows(op, &spec)?;
        Ok(Rows { upstream: upstream.clone(), spec, padding })
    }

    fn outline(&self, n_rows: usize) -> Shapes {
        self.spec.fields().iter().map(|field| field.shape().at_most(0, n_rows)).collect()
    }

    /// Writes row `number` as the `k`-th of those that `to` has room for.
    fn write(
        &self,
        (k, number): (usize, usize),
        item: &Item,
        to: &mut ExampleMut<'_>,
        work: &mut Work<'_>,
    ) -> Result<()> {
        let mut row = to.row_mut(self.upstream.spec(), k);
        write_whole(&*self.upstream, item, &mut row, work.scratch)
            .map_err(|error| Error::within(format!("row {number}"), error))?;
        if self.padding.is_some() {
            work.lengths.extend(row.shapes().iter().map(|shape| shape.first().copied().unwrap_or(1)));
        }
        Ok(())
    }

    /// Moves rows together and pads them. `most` is the length that a row of a field has room for.
    pub fn finish(&self, to: &mut ExampleMut<'_>, lengths: &[usize], most: impl Fn(&Field) -> usize) {
        let Some(padding) = &self.padding else { return };
        let fields = self.upstream.spec().fields();
        for (idx, field) in fields.iter().enumerate().filter(|(_, field)| field.n_varying() > 0) {
            let lengths = lengths.iter().skip(idx).step_by(fields.len());
            let most = most(field);
            let padded = if padding.to_full { most } else { lengths.clone().copied().max().unwrap_or(0) };
            let entry = entry_bytes(field);
            let pad = padding.of(field);
            let (bytes, shape) = to.part_mut(idx);
            for (row, &length) in lengths.enumerate() {
                let (from, start) = (row * most * entry, row * padded * entry);
                bytes.copy_within(from..from + length * entry, start);
                pad.fill(&mut bytes[start + length * entry..start + padded * entry]);
            }
            *shape = shape.at_most(1, padded);
        }
    }
}

/// The bytes of one entry of a field that varies in its first extent.
pub(crate) fn entry_bytes(field: &Field) -> usize {
    field.shape()[1..].iter().product::<usize>() * field.dtype().size()
}

/// So many elements after each other become one.
pub(crate) struct Batch {
    rows: Rows,
    size: u64,
    drop_remainder: bool,
}

impl Batch {
    pub fn new(
        upstream: &NodeRef,
        size: usize,
        drop_remainder: bool,
        padding: Option<Padding>,
    ) -> Result<Batch> {
        let op = if padding.is_some() { "padded_batch" } else { "batch" };
        let divides = matches!(upstream.count(), Count::Exactly(n) if n.is_multiple_of((size as u64).max(1)));
        let exactly = drop_remainder || divides || upstream.count() == Count::Endless;
        let rows = Rows::new(op, upstream, size, exactly, padding)?;
        Ok(Batch { rows, size: size as u64, drop_remainder })
    }
}

impl Node for Batch {
    fn upstream(&self) -> &NodeRef {
        &self.rows.upstream
    }

    fn spec(&self) -> &Spec {
        &self.rows.spec
    }

    fn count(&self) -> Count {
        let size = self.size;
        match self.drop_remainder {
            true => self.rows.upstream.count().map(|n| n / size),
            false => self.rows.upstream.count().map(|n| n.div_ceil(size)),
        }
    }

    fn n_alike(&self) -> u64 {
        let rows_vary = self.rows.spec.fields().iter().any(|field| field.n_varying() > 1);
        match self.rows.upstream.count() {
            Count::Exactly(n) if !rows_vary => n / self.size,
            Count::Endless if !rows_vary => u64::MAX,
            _ => 0,
        }
    }

    fn at(&self, pass: u64, idx: u64) -> Item {
        Item::At { pass, idx }
    }

    fn stream(&self, pass: u64, session: &Arc<Session>) -> Box<dyn Cursor> {
        let cursor = open(&self.rows.upstream, pass, session);
        Box::new(Batching { cursor, size: self.size, drop_remainder: self.drop_remainder })
    }

    fn n_rows(&self, item: &Item) -> Option<usize> {
        Some(match item {
            Item::Group(items) => items.len(),
            item => {
                let left = self.rows.upstream.count().bound().map(|n| n - item.position().1 * self.size);
                left.unwrap_or(u64::MAX).min(self.size) as usize
            }
        })
    }

    fn row_bytes(&self, _item: &Item, field: usize) -> usize {
        self.rows.upstream.spec().fields()[field].n_bytes()
    }

    fn outline(&self, item: &Item) -> Shapes {
        self.rows.outline(self.n_rows(item).unwrap_or(0))
    }

    fn has_views(&self) -> bool {
        false
    }

    fn write(
        &self,
        item: &Item,
        rows: Range<usize>,
        to: &mut ExampleMut<'_>,
        work: &mut Work<'_>,
    ) -> Result<()> {
        for (k, row) in rows.enumerate() {
            match item {
                Item::Group(items) => self.rows.write((k, row), &items[row], to, work)?,
                item => {
                    let (pass, idx) = item.position();
                    let item =
                        self.rows.upstream.at(pass, idx.saturating_mul(self.size).saturating_add(row as u64));
                    self.rows.write((k, row), &item, to, work)?;
                }
            }
        }
        Ok(())
    }

    fn finish(&self, _item: &Item, to: &mut ExampleMut<'_>, lengths: &[usize]) -> Result<()> {
        self.rows.finish(to, lengths, |field| field.shape()[0]);
        Ok(())
    }

    fn reserve(&self, n_items: usize, plan: &mut Plan<'_>) -> Result<()> {
        self.rows.upstream.reserve(n_items.saturating_mul(self.size as usize), plan)
    }
}

struct Batching {
    cursor: Box<dyn Cursor>,
    size: u64,
    drop_remainder: bool,
}

impl Cursor for Batching {
    fn next(&mut self, scratch: &mut [u8]) -> Result<Option<Item>> {
        limits::check("batch", "elements that wait for their batch", self.size as usize, limits::WAITING)?;
        let mut items = Vec::with_capacity(self.size as usize);
        while (items.len() as u64) < self.size {
            match self.cursor.next(scratch)? {
                Some(item) => items.push(item),
                None => break,
            }
        }
        let is_whole = items.len() as u64 == self.size;
        let wanted = is_whole || (!items.is_empty() && !self.drop_remainder);
        Ok(wanted.then(|| Item::Group(items.into_boxed_slice())))
    }

    fn skip(&mut self, n: u64, scratch: &mut [u8]) -> Result<()> {
        self.cursor.skip(n.saturating_mul(self.size), scratch)
    }
}
