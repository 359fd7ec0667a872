//! All-gather: what each rank has of some tensors becomes the tensors, on all ranks.
//!
//! There are two forms. [`gather_op`] is an ordinary op, whose results are new tensors. [`gather_update`] is the op of an update of
//! variables: it fills variables that each rank has whole from the pieces that ranks have, after an optimizer has changed these, in
//! place. Pieces of float32 may be of tensors of 16-bit floats: their owner rounds them, once. Otherwise only bytes are moved.

use std::fmt;
use std::sync::Arc;

use half::{bf16, f16};
use plimsoll_tensor::op::{AverageOutputs, Cost, Gradient, Meta, Op, Output, Outputs, Run};
use plimsoll_tensor::{DType, Error, OpRef, Owner, Result, Shape, Tensor, apply, with_owner};

use crate::bytes;
use crate::communicator::Communicator;
use crate::message::{MESSAGE_BYTES, Segment, messages, overlap, pieces, pieces_mut, push_segment};
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
    let device = rows.device();
    let rows = rows.to_device(&device.host())?.contiguous()?;
    // The other output was there for messages.
    let gathered = with_owner(Owner::Temporary, || apply(op, &[&rows]))?;
    gathered[0].to_device(&device)
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

    /// Brings the elements of all ranks to all ranks: this rank's own are those of `own`, one after the other.
    fn run(
        &self,
        (own, own_dtype): (&[&[u8]], DType),
        (all, dtype): (&mut [&mut [u8]], DType),
        message: &mut [u8],
    ) -> Result<()> {
        let (size, own_size) = (dtype.size(), own_dtype.size());
        for owner in 0..self.communicator.size() {
            let segments = || self.segments.iter().filter(move |segment| segment.rank == owner);
            let n_elems = segments().map(|segment| segment.range.len()).sum();
            for range in messages(0..n_elems, message.len() / size) {
                let message = &mut message[..range.len() * size];
                if owner == self.communicator.rank() {
                    let bytes = range.start * own_size..range.end * own_size;
                    pieces(own, &bytes, |of, piece, place| {
                        let place = place.start / own_size * size..place.end / own_size * size;
                        convert((&of[piece], own_dtype), (&mut message[place], dtype));
                    });
                }
                self.communicator.broadcast_from(owner, message)?;
                let mut start = 0;
                for Segment { range: segment, .. } in segments() {
                    if let Some((piece, place)) = overlap(start..start + segment.len(), &range) {
                        let first = segment.start + piece.start;
                        let message = &message[place.start * size..place.end * size];
                        let there = first * size..first * size + message.len();
                        pieces_mut(all, &there, |of, piece, place| {
                            of[piece].copy_from_slice(&message[place])
                        });
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

/// Elements as those of another dtype: the same bytes, or float32 rounded to 16 bits as optimizers do.
fn convert((from, from_dtype): (&[u8], DType), (to, to_dtype): (&mut [u8], DType)) {
    fn narrow(from: &[u8], to: &mut [u8], rounded: impl Fn(f32) -> [u8; 2]) {
        for (from, to) in from.chunks_exact(4).zip(to.chunks_exact_mut(2)) {
            to.copy_from_slice(&rounded(f32::from_ne_bytes([from[0], from[1], from[2], from[3]])));
        }
    }
    match to_dtype {
        DType::F16 if from_dtype == DType::F32 => narrow(from, to, |x| f16::from_f32(x).to_ne_bytes()),
        DType::BF16 if from_dtype == DType::F32 => narrow(from, to, |x| bf16::from_f32(x).to_ne_bytes()),
        _ => to.copy_from_slice(from),
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

    fn gradient(&self) -> Gradient {
        Gradient::None("it brings the parts of a value together that ranks have")
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let own_dtype = run.inputs()[0].dtype();
        let mut operands = bytes::operands(run, GATHER)?;
        let message = operands.outputs.pop().unwrap_or_default();
        self.gathering.run((&operands.inputs, own_dtype), (&mut operands.outputs, self.dtype), message)
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

    fn has_effect(&self) -> bool {
        true
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
        let own: Vec<&[u8]> = own.iter().map(|bytes| &**bytes).collect();
        self.gathering.run((&own, own_dtype), (whole, dtype), operands.workspace)
    }
}
