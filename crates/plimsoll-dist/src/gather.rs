//! All-gather: what each rank has of some tensors becomes the tensors, on all ranks.
//!
//! There are two forms. [`gather_op`] is an ordinary op, whose results are new tensors. [`gather_update`] is the op of an update of
//! variables: it fills variables that each rank has whole from the pieces that ranks have, after an optimizer has changed these, in
//! place. Pieces of float32 may be of tensors of 16-bit floats: their owner rounds them, once. Otherwise only bytes are moved.

use std::fmt;
use std::sync::Arc;

use plimsoll_cuda::{Gpu, Profile};
use plimsoll_tensor::op::{AverageOutputs, Cost, Gradient, Meta, Op, Output, Outputs, Run, Transfer};
use plimsoll_tensor::{DType, Error, OpRef, Owner, Result, Shape, Tensor, apply, with_owner};

use crate::bytes::{self, DeviceBytes, DeviceBytesMut};
use crate::communicator::Communicator;
use crate::message::{MESSAGE_BYTES, Segment, messages, n_rounds, overlap, pieces, push_segment};
use crate::shards::Shards;

/// The op that makes a tensor of that shape and dtype from the pieces that ranks have of it, as shards cut the variable of that
/// number. It is given this rank's piece; its outputs are the tensor, and the memory of a message.
pub fn gather_op(
    communicator: &Arc<dyn Communicator>,
    (shards, variable): (&Shards, usize),
    (shape, dtype): (Shape, DType),
) -> OpRef {
    let gathering = Gathering::of(communicator, shards, &[variable]);
    OpRef::new(Gather { gathering, shape, dtype, may_repeat: true })
}

/// A matrix of rows, from those that ranks have of it: for each variable some rows, `n_rows` of as many of its elements.
///
/// # Errors
/// Rows that are not this rank's; a rank that fails; memory that is full.
pub fn gather_rows(
    communicator: &Arc<dyn Communicator>,
    rows: &Tensor,
    shards: &Shards,
    variables: &[usize],
    n_rows: impl Fn(usize) -> usize,
) -> Result<Tensor> {
    let width = rows.shape().dims().last().copied().unwrap_or(1);
    let (mut segments, mut start) = (Vec::new(), 0);
    for &variable in variables {
        for (rank, piece) in shards.pieces(variable) {
            let n_elems = n_rows(piece.len()) * width;
            push_segment(&mut segments, rank, start..start + n_elems);
            start += n_elems;
        }
    }
    let gathering = Gathering { communicator: communicator.clone(), segments };
    let shape = Shape::new(&[start / width.max(1), width])?;
    let op = OpRef::new(Gather { gathering, shape, dtype: rows.dtype(), may_repeat: false });
    // The other output was there for messages.
    let mut gathered = with_owner(Owner::Temporary, || apply(op, &[&rows.contiguous()?]))?;
    Ok(gathered.swap_remove(0))
}

/// The op of an update that fills variables from the pieces that ranks have of them. It updates the variables with these numbers,
/// and then this rank's pieces of them, which it leaves as they are.
pub fn gather_update(communicator: &Arc<dyn Communicator>, shards: &Shards, variables: &[usize]) -> OpRef {
    OpRef::new(GatherUpdate { gathering: Gathering::of(communicator, shards, variables) })
}

/// Who has what, and how it is brought to all.
struct Gathering {
    communicator: Arc<dyn Communicator>,
    /// Whose which elements are, counted over all tensors.
    segments: Vec<Segment>,
}

impl Gathering {
    /// The pieces of some variables.
    fn of(communicator: &Arc<dyn Communicator>, shards: &Shards, variables: &[usize]) -> Gathering {
        let (mut segments, mut start) = (Vec::new(), 0);
        for &variable in variables {
            let mut end = start;
            for (rank, piece) in shards.pieces(variable) {
                end = start + piece.end;
                push_segment(&mut segments, rank, start + piece.start..end);
            }
            start = end;
        }
        Gathering { communicator: communicator.clone(), segments }
    }

    /// What travels of so many bytes: those of each rank go to all.
    fn transfer(&self, n_bytes: usize) -> Transfer {
        let n_ranks = self.communicator.size();
        Transfer { n_bytes: (n_bytes as u64).saturating_mul(n_rounds(n_ranks)), n_ranks }
    }

    /// Brings the elements of all ranks to all ranks: this rank's own are those of `own`, one after the other.
    fn run(
        &self,
        (own, own_dtype): (&[DeviceBytes<'_>], DType),
        (all, dtype): (&mut [DeviceBytesMut<'_>], DType),
        mut message: DeviceBytesMut<'_>,
    ) -> Result<()> {
        let (size, own_size) = (dtype.size(), own_dtype.size());
        let sizes: Vec<usize> = all.iter().map(DeviceBytesMut::len).collect();
        for owner in 0..self.communicator.size() {
            let segments = || self.segments.iter().filter(move |segment| segment.rank == owner);
            let n_elems = segments().map(|segment| segment.range.len()).sum();
            for range in messages(0..n_elems, message.len() / size) {
                let mut message = message.range(0..range.len() * size);
                if owner == self.communicator.rank() {
                    let bytes = range.start * own_size..range.end * own_size;
                    for (number, piece, place) in pieces(own.iter().map(DeviceBytes::len), &bytes) {
                        let place = place.start / own_size * size..place.end / own_size * size;
                        message.range(place).convert_from(dtype, own[number].range(piece), own_dtype)?;
                    }
                }
                let n_bytes = message.len();
                self.communicator.broadcast_device(owner, message.range(0..n_bytes))?;
                let mut start = 0;
                for Segment { range: segment, .. } in segments() {
                    if let Some((piece, place)) = overlap(start..start + segment.len(), &range) {
                        let first = segment.start + piece.start;
                        let message = message.as_bytes().range(place.start * size..place.end * size);
                        let there = first * size..first * size + message.len();
                        for (number, piece, place) in pieces(sizes.iter().copied(), &there) {
                            all[number].range(piece).copy_from(message.range(place))?;
                        }
                    }
                    start += segment.len();
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Gathering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.segments.fmt(f)
    }
}

/// Refuses pieces that do not become tensors of a dtype.
fn check(op: &'static str, piece: DType, dtype: DType) -> Result<()> {
    match piece == dtype || (piece == DType::F32 && dtype.accumulator() == DType::F32) {
        true => Ok(()),
        false => Err(Error::dtype(op, format!("pieces are {piece}, and what they are of is {dtype}"))),
    }
}

/// A new tensor from the pieces that ranks have. Its outputs are the tensor, and the memory of a message.
#[derive(Debug)]
struct Gather {
    gathering: Gathering,
    shape: Shape,
    dtype: DType,
    /// Whether a plan may run it more than once.
    may_repeat: bool,
}

const GATHER: &str = "all_gather";

impl Op for Gather {
    fn name(&self) -> &'static str {
        GATHER
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check(GATHER, inputs[0].dtype, self.dtype)?;
        let rank = self.gathering.communicator.rank();
        let own = self.gathering.segments.iter().filter(|segment| segment.rank == rank);
        let n_own: usize = own.map(|segment| segment.range.len()).sum();
        if inputs[0].n_elems() != n_own {
            let detail = format!("{} elements are given, and {n_own} are this rank's", inputs[0].n_elems());
            return Err(Error::shape(GATHER, detail));
        }
        let longest = self.gathering.segments.iter().map(|segment| segment.range.len()).max();
        let n_message = longest.unwrap_or(0).min(MESSAGE_BYTES / self.dtype.size());
        let message = Shape::new(&[n_message])?;
        let new = |shape| Output::New { shape, dtype: self.dtype };
        Ok([new(self.shape), new(message)].into_iter().collect())
    }

    fn has_effect(&self) -> bool {
        true
    }

    fn may_repeat(&self) -> bool {
        self.may_repeat
    }

    /// They are whole on every rank.
    fn average_outputs(&self, inputs: &[&Meta]) -> Option<AverageOutputs> {
        let sizes = self.infer(inputs).ok()?.into_iter().map(|output| match output {
            Output::New { shape, dtype } => shape.n_elems() * dtype.size(),
            _ => 0,
        });
        Some(AverageOutputs { n_bytes: sizes.collect(), are_parts: false })
    }

    /// What travels is most of it: every rank gets the whole value.
    fn cost(&self, _: &[&Meta], outputs: &[&Meta]) -> Cost {
        let n_bytes = outputs.first().map_or(0, |whole| whole.n_bytes() as u64);
        Cost { flops: 0, bytes: n_bytes.saturating_mul(2) }
    }

    fn transfer(&self, _: &[&Meta]) -> Option<Transfer> {
        Some(self.gathering.transfer(self.shape.n_elems() * self.dtype.size()))
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it brings the parts of a value together that ranks have")
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let own_dtype = run.inputs()[0].dtype();
        let mut operands = bytes::operands(run, GATHER)?;
        let message = operands.outputs.pop().unwrap_or_else(|| DeviceBytesMut::from(&mut [][..]));
        self.gathering.run((&operands.inputs, own_dtype), (&mut operands.outputs, self.dtype), message)
    }

    fn run_cuda(&self, run: &mut Run<'_>, _: &Gpu) -> Result<()> {
        self.run(run)
    }
}

/// Fills variables from pieces. Half of the variables are those that are filled, the others are this rank's pieces of them.
#[derive(Debug)]
struct GatherUpdate {
    gathering: Gathering,
}

const UPDATE: &str = "all_gather";

impl Op for GatherUpdate {
    fn name(&self) -> &'static str {
        UPDATE
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let (whole, own) = inputs.split_at(inputs.len() / 2);
        for (whole, own) in whole.iter().zip(own) {
            check(UPDATE, own.dtype, whole.dtype)?;
            if (whole.dtype, own.dtype) != (inputs[0].dtype, inputs[inputs.len() / 2].dtype) {
                return Err(Error::dtype(UPDATE, "variables that are filled together are of one dtype"));
            }
        }
        Ok(inputs.iter().map(|meta| Output::New { shape: *meta.shape(), dtype: meta.dtype }).collect())
    }

    /// It refuses no value; a rank that fails ends the run.
    fn never_refuses(&self) -> bool {
        true
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        let n_bytes: usize = inputs[..inputs.len() / 2].iter().map(|meta| meta.n_bytes()).sum();
        n_bytes.min(MESSAGE_BYTES)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], _: &Profile) -> usize {
        self.workspace(inputs)
    }

    fn has_effect(&self) -> bool {
        true
    }

    fn transfer(&self, inputs: &[&Meta]) -> Option<Transfer> {
        let whole = inputs[..inputs.len() / 2].iter().map(|meta| meta.n_bytes());
        Some(self.gathering.transfer(whole.sum()))
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it updates variables")
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let n = run.inputs().len() / 2;
        let (dtype, own_dtype) = match run.inputs() {
            [] => return Ok(()),
            inputs => (inputs[0].dtype(), inputs[n].dtype()),
        };
        let mut operands = bytes::variables(run, UPDATE)?;
        let (whole, own) = operands.outputs.split_at_mut(n);
        let own: Vec<DeviceBytes<'_>> = own.iter().map(DeviceBytesMut::as_bytes).collect();
        self.gathering.run((&own, own_dtype), (whole, dtype), operands.workspace)
    }

    fn run_cuda(&self, run: &mut Run<'_>, _: &Gpu) -> Result<()> {
        self.run(run)
    }
}
