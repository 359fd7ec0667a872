//! Errors, written for people: each names the op, the values that clash, and what would work.
//!
//! [`Error`] is one pointer wide, so that a `Result` costs nothing on the way that succeeds. `Display` is one
//! sentence without a final period; an out-of-memory error is a short report. What a program wants to know of it is data: its
//! [kind](Error::kind), with the values that clash, and the [line and layer](Error::site) in which it arose.

use std::fmt;

use plimsoll_memory::{Bytes, OutOfMemory, Rows, Site};

use crate::base::dtype::DType;
use crate::base::labels;
use crate::base::shape::{MAX_ELEMS, Shape};

/// What the functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Something that could not be done, and why.
pub struct Error(Box<Arisen>);

/// What went wrong, and where.
struct Arisen {
    kind: ErrorKind,
    site: Site,
}

/// The kinds of errors, for programs that want to tell them apart.
#[non_exhaustive]
#[derive(Debug)]
pub enum ErrorKind {
    /// Shapes that do not fit an op or each other.
    Shape {
        /// The op.
        op: &'static str,
        /// The shapes that clash, and what would work.
        detail: String,
    },
    /// Dtypes that an op does not take, or that differ.
    DType {
        /// The op.
        op: &'static str,
        /// The dtypes that clash, and what would work.
        detail: String,
    },
    /// Tensors on different devices, or a device that is not there.
    Device {
        /// The op.
        op: &'static str,
        /// The devices that clash, and what would work.
        detail: String,
    },
    /// An argument out of its range.
    Argument {
        /// The op or function.
        op: &'static str,
        /// The argument, its value, and what would work.
        detail: String,
    },
    /// Memory is full, or the limit is reached.
    OutOfMemory(Box<OutOfMemory>),
    /// No plan keeps a step under its limit.
    Limit {
        /// The limit on committed bytes.
        limit: u64,
        /// The least limit under which the step can be made.
        least: u64,
        /// What it commits when everything is kept.
        natural: u64,
        /// Who holds the bytes at the peak of the leanest way to make it.
        rows: Rows,
    },
    /// A gradient was wanted through an op that has none.
    NotDifferentiable {
        /// The op.
        op: &'static str,
        /// Why it has none, and what would work.
        reason: String,
    },
    /// A tape was used in a way that it cannot serve.
    Tape {
        /// What was asked for, and what would work.
        detail: String,
    },
    /// A value of a ghost tensor was asked for; it has none.
    Ghost {
        /// What was asked for.
        op: &'static str,
    },
    /// A function that is being recorded read a value: what it does would depend on it.
    ReadsValue {
        /// What was asked for.
        op: &'static str,
        /// The user's line and layer.
        site: Site,
    },
    /// Something that failed while doing something else, such as making a batch.
    Within {
        /// What was being done.
        place: String,
        /// What went wrong there.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Somebody asked the program to stop while it waited.
    Interrupted {
        /// What was waited for.
        waiting_for: &'static str,
    },
    /// A file that could not be read or written.
    Io {
        /// The path.
        path: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file whose contents are not what its name promises.
    Format {
        /// The path.
        path: String,
        /// What is wrong with it.
        detail: String,
    },
}

impl From<plimsoll_cuda::Error> for Error {
    fn from(error: plimsoll_cuda::Error) -> Error {
        Error::device(error.op().unwrap_or("cuda"), error.message())
    }
}

impl Error {
    /// An error of that kind.
    pub fn new(kind: ErrorKind) -> Error {
        Error(Box::new(Arisen { kind, site: labels::site_of_error() }))
    }

    /// The kind of error.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The user's line, and the layer, in which it arose; unknown outside all calls.
    pub fn site(&self) -> Site {
        match &self.0.kind {
            ErrorKind::OutOfMemory(shortage) => shortage.label.site,
            ErrorKind::ReadsValue { site, .. } => *site,
            _ => self.0.site,
        }
    }

    /// Shapes that do not fit an op or each other.
    pub fn shape(op: &'static str, detail: impl Into<String>) -> Error {
        Error::new(ErrorKind::Shape { op, detail: detail.into() })
    }

    /// No plan keeps a step under its limit.
    pub fn limit(limit: u64, least: u64, natural: u64, rows: Rows) -> Error {
        Error::new(ErrorKind::Limit { limit, least, natural, rows })
    }

    /// A function that is being recorded asks for a value, which it does not have.
    pub(crate) fn reads_value(op: &'static str, site: Site) -> Error {
        Error::new(ErrorKind::ReadsValue { op, site })
    }

    /// Dtypes that an op does not take, or that differ.
    pub fn dtype(op: &'static str, detail: impl Into<String>) -> Error {
        Error::new(ErrorKind::DType { op, detail: detail.into() })
    }

    /// Tensors on different devices, or a device that is not there.
    pub fn device(op: &'static str, detail: impl Into<String>) -> Error {
        Error::new(ErrorKind::Device { op, detail: detail.into() })
    }

    /// An argument out of its range.
    pub fn argument(op: &'static str, detail: impl Into<String>) -> Error {
        Error::new(ErrorKind::Argument { op, detail: detail.into() })
    }

    /// A gradient through an op that has none.
    pub fn not_differentiable(op: &'static str, reason: impl Into<String>) -> Error {
        Error::new(ErrorKind::NotDifferentiable { op, reason: reason.into() })
    }

    /// A tape used in a way that it cannot serve.
    pub fn tape(detail: impl Into<String>) -> Error {
        Error::new(ErrorKind::Tape { detail: detail.into() })
    }

    /// An error, of any kind, that came up while doing something.
    pub fn within(
        place: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        Error::new(ErrorKind::Within { place: place.into(), source: source.into() })
    }

    /// Somebody asked the program to stop while it waited for something.
    pub fn interrupted(waiting_for: &'static str) -> Error {
        Error::new(ErrorKind::Interrupted { waiting_for })
    }

    /// A file that could not be read or written.
    pub fn io(path: &std::path::Path, source: std::io::Error) -> Error {
        Error::new(ErrorKind::Io { path: path.display().to_string(), source })
    }

    /// A file whose contents are not what its name promises.
    pub fn format(path: &std::path::Path, detail: impl Into<String>) -> Error {
        Error::new(ErrorKind::Format { path: path.display().to_string(), detail: detail.into() })
    }

    /// The two shapes of an elementwise op that do not broadcast.
    pub(crate) fn not_broadcastable(op: &'static str, lhs: &Shape, rhs: &Shape) -> Error {
        let agree = lhs.iter().rev().zip(rhs.iter().rev()).all(|(&a, &b)| a == b || a == 1 || b == 1);
        let detail = match agree && lhs.broadcast(rhs).is_none() {
            true => format!(
                "shapes {lhs} and {rhs} broadcast to more elements than can be counted; at most {MAX_ELEMS} are \
                 possible"
            ),
            false => format!(
                "shapes {lhs} and {rhs} do not broadcast; aligned at the right, each pair of extents must be \
                 equal or hold a 1"
            ),
        };
        Error::shape(op, detail)
    }

    /// Two dtypes that an op does not mix.
    pub(crate) fn mixed_dtypes(op: &'static str, lhs: DType, rhs: DType) -> Error {
        Error::dtype(op, format!("operands are {lhs} and {rhs}; convert one of them with `cast`"))
    }

    /// This error as it happened in a layer: the text names its path, and where it was described, if that is known. The
    /// innermost layer that was said stays.
    pub fn in_layer(mut self, path: &str, described: Option<(&str, u32)>) -> Error {
        if path.is_empty() {
            return self;
        }
        match &mut self.0.kind {
            ErrorKind::Shape { detail, .. }
            | ErrorKind::DType { detail, .. }
            | ErrorKind::Device { detail, .. }
            | ErrorKind::Argument { detail, .. }
                if !detail.starts_with("in layer `") =>
            {
                let place = described.map_or_else(String::new, |(file, line)| format!(" ({file}:{line})"));
                *detail = format!("in layer `{path}`{place}: {detail}");
            }
            _ => {}
        }
        self
    }

    /// Whether memory was full or the limit reached.
    pub fn is_out_of_memory(&self) -> bool {
        match &self.0.kind {
            ErrorKind::OutOfMemory(_) | ErrorKind::Limit { .. } => true,
            ErrorKind::Within { source, .. } => source.downcast_ref().is_some_and(Error::is_out_of_memory),
            _ => false,
        }
    }
}

impl From<OutOfMemory> for Error {
    fn from(error: OutOfMemory) -> Error {
        Error::new(ErrorKind::OutOfMemory(Box::new(error)))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.kind {
            ErrorKind::Shape { op, detail }
            | ErrorKind::DType { op, detail }
            | ErrorKind::Device { op, detail }
            | ErrorKind::Argument { op, detail } => write!(f, "{op}: {detail}"),
            ErrorKind::OutOfMemory(report) => report.fmt(f),
            ErrorKind::Limit { limit, least, natural, rows } => {
                write!(
                    f,
                    "a step cannot be kept under the limit of {}\n  with everything retained it commits {}; with all evicted that \
                     can be recomputed or offloaded, {}\n  held at the peak of that:",
                    Bytes::new(*limit),
                    Bytes::new(*natural),
                    Bytes::new(*least)
                )?;
                let mut rows: Vec<(&str, u64)> = rows.iter().filter(|(_, bytes)| *bytes > 0).collect();
                rows.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
                for (owner, bytes) in rows {
                    write!(f, "\n    {owner:<12} {:>20} B", Bytes::new(bytes).grouped())?;
                }
                write!(
                    f,
                    "\n  what would work: a limit of at least {}, or a smaller batch",
                    Bytes::new(*least)
                )
            }
            ErrorKind::NotDifferentiable { op, reason } => {
                write!(f, "{op}: no gradient flows through it, and an input is watched: {reason}")
            }
            ErrorKind::Tape { detail } => f.write_str(detail),
            ErrorKind::Ghost { op } => {
                write!(f, "{op}: a ghost tensor has a shape but no values; read them on a real device")
            }
            ErrorKind::ReadsValue { op, site } => write!(
                f,
                "{op} at {site}: a function that is being recorded has shapes but no values; return what is to be read as a \
                 result, or run the function eagerly"
            ),
            ErrorKind::Within { place, source } => write!(f, "{place}: {source}"),
            ErrorKind::Interrupted { waiting_for } => {
                write!(f, "interrupted while waiting for {waiting_for}")
            }
            ErrorKind::Io { path, source } => write!(f, "{path}: {source}"),
            ErrorKind::Format { path, detail } => write!(f, "{path}: {detail}"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.kind.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.kind {
            ErrorKind::OutOfMemory(report) => Some(&**report),
            ErrorKind::Within { source, .. } => Some(&**source),
            ErrorKind::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
