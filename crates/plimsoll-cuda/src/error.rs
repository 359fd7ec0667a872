//! Errors of a GPU, written for people.

use std::fmt;

/// What the functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Something that could not be done on a GPU, and why: one sentence without a final period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    op: Option<&'static str>,
    message: String,
}

impl Error {
    /// An error with this text.
    pub fn new(message: impl Into<String>) -> Error {
        Error { op: None, message: message.into() }
    }

    /// An error of an op.
    pub fn of(op: &'static str, message: impl Into<String>) -> Error {
        Error { op: Some(op), message: message.into() }
    }

    /// The op that failed, if it is known.
    pub fn op(&self) -> Option<&'static str> {
        self.op
    }

    /// The text without the op.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.op {
            Some(op) => write!(f, "{op}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Error {}
