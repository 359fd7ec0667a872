//! Text as bytes: the shipped one, or a file, in windows that follow one another.
//!
//! An example is a window and the bytes that come next after each of its own. The text stays where it is, in the
//! program or in its file; the last tenth is held out.

use std::path::Path;

use plimsoll::data::{Dataset, TokenType, Tokens};
use plimsoll::{Error, Result};

use super::Data;

static SHIPPED: &[u8] = include_bytes!("../../data/austen.txt");

/// Windows of a text file, or of the shipped text.
pub fn text_windows(path: Option<&Path>, window: usize) -> Result<Data> {
    let text = || match path {
        None => Ok(Tokens::of_bytes(SHIPPED)),
        Some(path) => Tokens::open(path, TokenType::U8),
    };
    let n = text()?.len();
    let cut = n - n / 10;
    if n / 10 <= window {
        let (name, least) = (path.unwrap_or(Path::new("austen.txt")), 10 * (window + 1));
        let detail = format!("it has {n} bytes, and its last tenth is held out; it needs at least {least}");
        return Err(Error::format(name, detail));
    }
    let windows = |range| Dataset::windows(text()?.part(range)?, window, window);
    let source = path.map_or("shipped".to_owned(), |path| path.display().to_string());
    Ok(Data::new(windows(0..cut)?, source).held_out(windows(cut..n)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_more_than_a_megabyte_of_ascii_and_its_last_tenth_is_held_out() -> Result<()> {
        assert!(SHIPPED.len() > 1_000_000 && SHIPPED.is_ascii());
        let data = text_windows(None, 128)?;
        let n = SHIPPED.len();
        assert_eq!(data.train.len(), Some((n - n / 10 - 1) / 128));
        let held_out = data.held_out.expect("a tenth");
        assert_eq!(held_out.len(), Some((n / 10 - 1) / 128));
        let [inputs, targets] = held_out.batch(1)?.first()?.tensors()?;
        let start = n - n / 10;
        let expect =
            |from: usize| SHIPPED[from..from + 128].iter().map(|&byte| i32::from(byte)).collect::<Vec<_>>();
        assert_eq!((inputs.to_vec::<i32>()?, targets.to_vec::<i32>()?), (expect(start), expect(start + 1)));
        Ok(())
    }
}
