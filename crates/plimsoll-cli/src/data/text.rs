//! Text as bytes: the shipped one, or a file, in windows that follow one another.
//!
//! An example is a window and the bytes that come next after each of its own: the same bytes, one further. Both are
//! views of the one text in the pool. The last tenth is held out.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::read::GzDecoder;
use plimsoll::data::Dataset;
use plimsoll::{DType, Error, Owner, Result, Tensor, with_owner};

use super::Data;

static SHIPPED: &[u8] = include_bytes!("../../data/austen.txt.gz");
/// The length of the shipped text.
const SHIPPED_BYTES: usize = 1_358_459;

/// Windows of a text file, or of the shipped text.
pub fn text_windows(path: Option<&Path>, window: usize) -> Result<Data> {
    let (text, source) = match path {
        None => {
            let fill = |bytes: &mut [u8]| GzDecoder::new(SHIPPED).read_exact(bytes);
            (read(Path::new("austen.txt.gz"), SHIPPED_BYTES, fill)?, "shipped".to_owned())
        }
        Some(path) => {
            let file = File::open(path).map_err(|error| Error::io(path, error))?;
            let n_bytes = file.metadata().map_err(|error| Error::io(path, error))?.len();
            let fill = |bytes: &mut [u8]| BufReader::new(file).read_exact(bytes);
            (read(path, n_bytes as usize, fill)?, path.display().to_string())
        }
    };
    let n = text.n_elems();
    let cut = n - n / 10;
    if n / 10 <= window {
        let detail = format!(
            "the text has {n} bytes, and its last tenth is held out; windows of {window} need at least {}",
            10 * (window + 1)
        );
        return Err(Error::argument("text", detail));
    }
    let part = |from, to| windows(&text.narrow(0, from, to - from)?, window);
    Ok(Data::new(part(0, cut)?, source).held_out(part(cut, n)?))
}

fn read(path: &Path, n_bytes: usize, fill: impl FnOnce(&mut [u8]) -> std::io::Result<()>) -> Result<Tensor> {
    with_owner(Owner::Data, || {
        Tensor::from_bytes([n_bytes], DType::U8, |bytes| {
            fill(bytes).map_err(|error| Error::io(path, error))
        })
    })
}

/// Pairs of a window and the bytes that come next.
fn windows(text: &Tensor, window: usize) -> Result<Dataset> {
    let n = (text.n_elems() - 1) / window;
    let from = |start: usize| text.narrow(0, start, n * window)?.reshape([n, window]);
    Dataset::from_tensors((from(0)?, from(1)?))
}
