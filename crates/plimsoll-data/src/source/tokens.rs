//! Windows of a long sequence of tokens: inputs and, one further on, targets.
//!
//! The tokens lie in a file, read where they are asked for, or in the program itself. A window is widened to int32 in its
//! row of the batch; nothing else is copied.

use std::ops::Range;
use std::path::{Path, PathBuf};

use plimsoll_tensor::{DType, Error, FileBytes, Result};

use crate::example::ExampleMut;
use crate::source::Source;
use crate::spec::{Field, Spec};

/// How a token is stored; numbers begin with their least byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// One byte, such as text itself.
    U8,
    /// Two bytes.
    U16,
    /// Four bytes, of which the greatest token that an int32 holds is the last that can be used.
    U32,
}

impl TokenType {
    fn size(self) -> usize {
        match self {
            TokenType::U8 => 1,
            TokenType::U16 => 2,
            TokenType::U32 => 4,
        }
    }
}

/// Where tokens lie.
#[derive(Debug)]
enum Place {
    File(PathBuf, FileBytes),
    Program(&'static [u8]),
}

/// A sequence of tokens, and which part of it is used.
#[derive(Debug)]
pub struct Tokens {
    place: Place,
    kind: TokenType,
    /// In tokens.
    range: Range<usize>,
}

impl Tokens {
    /// The tokens of a file.
    ///
    /// # Errors
    /// A file that cannot be read, or that is no whole number of tokens.
    pub fn open(path: impl AsRef<Path>, kind: TokenType) -> Result<Tokens> {
        let path = path.as_ref();
        let file = FileBytes::open(path).map_err(|error| Error::io(path, error))?;
        let n_bytes = file.n_bytes();
        if !n_bytes.is_multiple_of(kind.size()) {
            let detail = format!("{n_bytes} bytes are no whole number of tokens of {} bytes", kind.size());
            return Err(Error::format(path, detail));
        }
        Ok(Tokens { place: Place::File(path.to_owned(), file), kind, range: 0..n_bytes / kind.size() })
    }

    /// Bytes of the program itself, such as a text that it includes, one token each.
    pub fn of_bytes(bytes: &'static [u8]) -> Tokens {
        Tokens { place: Place::Program(bytes), kind: TokenType::U8, range: 0..bytes.len() }
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// These tokens without those outside `range`: to hold some out.
    ///
    /// # Errors
    /// A range that goes beyond the end.
    pub fn part(mut self, range: Range<usize>) -> Result<Tokens> {
        if range.start > range.end || range.end > self.len() {
            let detail = format!("tokens {range:?} of {}", self.len());
            return Err(Error::argument("tokens", detail));
        }
        self.range = self.range.start + range.start..self.range.start + range.end;
        Ok(self)
    }

    /// Reads `to.len() / 4` tokens from `first` on as int32.
    fn read(&self, first: usize, to: &mut [u8]) -> Result<()> {
        let n = to.len() / 4;
        let size = self.kind.size();
        // The tokens come to lie at the end of the room for the widened ones, which then overtake them only as the last
        // one is read.
        let unwidened = to.len() - n * size;
        let start = (self.range.start + first) * size;
        match &self.place {
            Place::File(path, file) => {
                file.copy_to(start, &mut to[unwidened..]).map_err(|error| Error::io(path, error))?;
            }
            Place::Program(bytes) => to[unwidened..].copy_from_slice(&bytes[start..start + n * size]),
        }
        for k in 0..n {
            let mut token = [0; 4];
            token[..size].copy_from_slice(&to[unwidened + k * size..][..size]);
            if token[3] > 0x7F {
                let detail = format!("token {} is {}", first + k, u32::from_le_bytes(token));
                return Err(Error::argument("tokens", format!("{detail}, which an int32 cannot hold")));
            }
            to[4 * k..][..4].copy_from_slice(&token);
        }
        Ok(())
    }
}

/// Windows of tokens.
pub(crate) struct Windows {
    tokens: Tokens,
    stride: usize,
    n: u64,
    spec: Spec,
}

impl Windows {
    pub fn new(tokens: Tokens, length: usize, stride: usize) -> Result<Windows> {
        if length == 0 || stride == 0 {
            let detail = format!("windows of {length} tokens, {stride} apart; both are at least 1");
            return Err(Error::argument("windows", detail));
        }
        // A window needs one token more than its length, for the last target.
        let last = length.checked_add(1).and_then(|n_tokens| tokens.len().checked_sub(n_tokens));
        let n = last.map_or(0, |last| last / stride + 1) as u64;
        let field = |name| Field::new(name, DType::I32, length);
        let spec = Spec::new([field("inputs")?, field("targets")?])?;
        Ok(Windows { tokens, stride, n, spec })
    }
}

impl Source for Windows {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn n(&self) -> u64 {
        self.n
    }

    fn write(&self, idx: u64, to: &mut ExampleMut<'_>) -> Result<()> {
        let first = idx as usize * self.stride;
        self.tokens.read(first, to.part_mut(0).0)?;
        self.tokens.read(first + 1, to.part_mut(1).0)
    }
}
