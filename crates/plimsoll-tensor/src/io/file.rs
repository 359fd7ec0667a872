//! Files as errors of this crate name them; [`plimsoll_file`] says how they are written.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use crate::base::error::{Error, Result};

/// Writes a file that appears whole or not at all, whatever happens meanwhile. One that is replaced keeps its mode.
///
/// # Errors
/// What the operating system says; a path that is a symbolic link, or no regular file.
pub fn write_whole(
    path: &Path,
    contents: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<()> {
    plimsoll_file::write_whole(path, contents).map_err(|error| Error::io(path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = write_whole(Path::new("no-such-folder/x"), |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("no-such-folder/x"));
    }
}
