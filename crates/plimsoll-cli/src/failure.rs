//! How a run ends when it cannot go on: one message for a person, one number for a program.

use std::fmt;

use plimsoll::nn::plan::RunError;
use plimsoll::{Error, ErrorKind};

/// The exit codes of the program, which scripts rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Anything that has no number of its own.
    Other = 1,
    /// An option that is unknown, malformed or at odds with another one.
    Options = 2,
    /// A limit that cannot be kept.
    Limit = 3,
    /// A file that is missing, damaged or of another shape than the recipe needs.
    File = 4,
    /// Ctrl-C, after the step that was under way.
    Interrupted = 130,
}

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    /// The number that the program ends with.
    pub exit: Exit,
    /// What is wrong, and what would work.
    pub message: String,
    /// The limit that would have been enough, if that is known.
    pub enough: Option<u64>,
}

impl Failure {
    /// A failure with that number.
    pub fn with(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: message.into(), enough: None }
    }

    /// Something without a number of its own.
    pub fn other(message: impl Into<String>) -> Failure {
        Failure::with(Exit::Other, message)
    }

    /// A bad option.
    pub fn options(message: impl Into<String>) -> Failure {
        Failure::with(Exit::Options, message)
    }

    /// A file that cannot be used.
    pub fn file(message: impl Into<String>) -> Failure {
        Failure::with(Exit::File, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl RunError for Failure {
    fn is_over_limit(&self) -> bool {
        self.exit == Exit::Limit
    }

    fn enough(&self) -> Option<u64> {
        self.enough
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { enough: error.enough(), ..Failure::with(exit_of(&error), error.to_string()) }
    }
}

/// The number for an error, or for the one that it came from.
fn exit_of(error: &Error) -> Exit {
    match error.kind() {
        ErrorKind::OutOfMemory(_) | ErrorKind::Limit { .. } => Exit::Limit,
        ErrorKind::Interrupted { .. } => Exit::Interrupted,
        ErrorKind::Io { .. } | ErrorKind::Format { .. } => Exit::File,
        ErrorKind::Within { source, .. } => source.downcast_ref().map_or(Exit::Other, exit_of),
        _ => Exit::Other,
    }
}

#[cfg(test)]
mod tests {
    use plimsoll::{Bytes, Device, Tensor};

    use super::*;

    #[test]
    fn the_number_tells_the_kind() -> plimsoll::Result<()> {
        let exit = |error: Error| Failure::from(error).exit;
        assert_eq!(exit(Error::format("a.npy".as_ref(), "cut off")), Exit::File);
        assert_eq!(exit(Error::argument("batch", "zero")), Exit::Other);
        assert_eq!(exit(Error::within("batch 3", Error::format("a.csv".as_ref(), "line 7"))), Exit::File);
        let device = Device::separate_cpu().limit(Bytes::mib(2))?;
        let _on = device.enter();
        let full = Tensor::zeros([4 << 20]).expect_err("16 MiB do not fit into 2");
        let failure = Failure::from(full);
        assert_eq!(failure.exit, Exit::Limit);
        assert!(failure.message.contains("a limit of at least"), "{failure}");
        Ok(())
    }
}
