//! Profiles for other people's tools: PyTorch's memory viewer, Perfetto, Prometheus, TensorBoard.
//!
//! Each format is written by a few lines of our own, because what is needed of it is small: a subset of pickle's opcodes, of
//! protobuf's wire format, of TFRecord's framing. `cargo xtask exports` reads them with the tools' own readers.
//!
//! What this refuses to do: it reads none of these formats, and above all no pickle.

mod openmetrics;
mod perfetto;
mod pickle;
mod protobuf;
mod snapshot;
mod tensorboard;

pub use tensorboard::TensorBoardWriter;

use std::io::{self, Write};
use std::path::Path;

use crate::profile::Profile;

/// A format of somebody else's tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Export {
    /// The snapshot that PyTorch's `torch.cuda.memory._dump_snapshot` writes, for its memory viewer: the last 100,000 events.
    Pickle,
    /// A trace for Perfetto's viewer: counters of bytes by owner, slices of steps and phases.
    Perfetto,
    /// Gauges of the peak for Prometheus, in the text format of OpenMetrics.
    OpenMetrics,
}

impl Export {
    /// The format that the ending of a file's name stands for: `.pickle`, `.pftrace` or `.prom`.
    pub fn of_path(path: &Path) -> Option<Export> {
        match path.extension()?.to_str()? {
            "pickle" => Some(Export::Pickle),
            "pftrace" => Some(Export::Perfetto),
            "prom" => Some(Export::OpenMetrics),
            _ => None,
        }
    }

    /// A profile in this format.
    ///
    /// # Errors
    /// A damaged profile.
    pub fn bytes(self, profile: &Profile) -> io::Result<Vec<u8>> {
        match self {
            Export::Pickle => snapshot::pickled(profile),
            Export::Perfetto => perfetto::trace(profile),
            Export::OpenMetrics => openmetrics::text(profile).map(String::into_bytes),
        }
    }

    /// Writes a profile in this format, whole or not at all.
    ///
    /// # Errors
    /// A damaged profile; a file that cannot be written.
    pub fn write(self, profile: &Profile, path: &Path) -> io::Result<()> {
        let bytes = self.bytes(profile)?;
        plimsoll_file::write_whole(path, |file| file.write_all(&bytes))
    }
}
