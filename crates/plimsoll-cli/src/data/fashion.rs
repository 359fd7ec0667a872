//! Fashion-MNIST: 70,000 images of 28×28 grey values in IDX files, which the program does not ship.

use std::path::Path;

use plimsoll::data::Dataset;
use plimsoll::{Error, ErrorKind, Result};

use super::Data;

/// Where Debian's package puts the files.
const DEBIAN: &str = "/usr/share/datasets/fashion-mnist";

/// Fashion-MNIST from a folder, or from where Debian's package puts it: bytes `[28, 28]`, and their class.
pub fn fashion(folder: Option<&Path>) -> Result<Data> {
    let folder = folder.unwrap_or(Path::new(DEBIAN));
    let [train, held_out] = ["train", "t10k"].map(|part| pairs(folder, part));
    Ok(Data::new(train?, folder.display().to_string()).held_out(held_out?))
}

fn pairs(folder: &Path, part: &str) -> Result<Dataset> {
    let read = |kind: &str, name: &str| {
        let path = folder.join(format!("{part}-{kind}-ubyte.gz"));
        Dataset::idx(&path, name).map_err(|error| how_to_get(error, &path))
    };
    let (images, labels) = (read("images-idx3", "images")?, read("labels-idx1", "labels")?);
    images.zip_strict(&labels).map_err(|error| Error::format(folder, format!("{part}: {error}")))
}

/// An error about a file that is not there, with what can be done about it.
fn how_to_get(error: Error, path: &Path) -> Error {
    match error.kind() {
        ErrorKind::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Error::format(
            path,
            format!(
                "{source}; Fashion-MNIST is not shipped: `apt install dataset-fashion-mnist` puts it where it is \
                 looked for, `--data FOLDER` names a folder with its four files, and `--data random` goes without"
            ),
        ),
        _ => error,
    }
}
