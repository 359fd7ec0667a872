//! What `--limit` takes: bytes in the ways people write them, a share of the device, or no limit.

use std::fmt;
use std::str::FromStr;

use plimsoll::Bytes;
use serde::Serialize;

/// A size on the command line: `512MiB`, `8GB`, `4000000`, `80%`, `none`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// So many bytes.
    Bytes(Bytes),
    /// A part of the device's memory, from 0 to 1.
    Share(f64),
    /// No limit.
    None,
}

/// Where a run's limit comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitFrom {
    /// An option.
    User,
    /// What the device had free when the run began.
    Device,
    /// There is none.
    None,
}

/// The limit of a run, and who set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The most bytes that may be committed.
    pub bytes: Option<u64>,
    /// Who set it.
    pub from: LimitFrom,
}

impl Limit {
    /// This limit, where it is what the device has free and several processes share that.
    pub fn shared(self, n_sharing: Option<usize>) -> Limit {
        match (self.from, n_sharing) {
            (LimitFrom::Device, Some(n)) => {
                Limit { bytes: self.bytes.map(|free| free / n.max(1) as u64), ..self }
            }
            _ => self,
        }
    }

    /// The limit of an option, on a device with so much memory, of which so much is free.
    pub fn resolve(asked: Option<Size>, total: u64, free: u64) -> Limit {
        match asked {
            Some(Size::Bytes(bytes)) => Limit { bytes: Some(bytes.get()), from: LimitFrom::User },
            Some(Size::Share(share)) => {
                Limit { bytes: Some((total as f64 * share) as u64), from: LimitFrom::User }
            }
            Some(Size::None) => Limit { bytes: None, from: LimitFrom::None },
            None => Limit { bytes: Some(free), from: LimitFrom::Device },
        }
    }
}

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseSizeError(String);

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseSizeError {}

impl FromStr for Size {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Size, ParseSizeError> {
        if text.eq_ignore_ascii_case("none") {
            return Ok(Size::None);
        }
        if let Some(percent) = text.strip_suffix('%') {
            return match percent.trim().parse::<f64>() {
                Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Size::Share(percent / 100.0)),
                _ => Err(ParseSizeError(format!(
                    "`{text}` is no share of the device; write for example 80%, above 0% and up to 100%"
                ))),
            };
        }
        let bytes: Bytes = text
            .parse()
            .map_err(|error| ParseSizeError(format!("{error}; or a share such as 80%, or `none`")))?;
        Ok(Size::Bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let cases = [
            ("512MiB", Size::Bytes(Bytes::mib(512))),
            ("8GiB", Size::Bytes(Bytes::gib(8))),
            ("8GB", Size::Bytes(Bytes::new(8_000_000_000))),
            ("123456", Size::Bytes(Bytes::new(123_456))),
            ("80%", Size::Share(0.8)),
            ("100%", Size::Share(1.0)),
            ("none", Size::None),
        ];
        for (text, size) in cases {
            assert_eq!(text.parse(), Ok(size), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_what_would_work() {
        for text in ["", "8G", "-1%", "0%", "101%", "NaN%", "%", "nothing", "80 %%"] {
            let error = text.parse::<Size>().expect_err(text).to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("80%"), "{error}");
        }
    }

    #[test]
    fn a_limit_knows_who_set_it() {
        let limit = |asked| Limit::resolve(asked, 1000, 700);
        assert_eq!(limit(None), Limit { bytes: Some(700), from: LimitFrom::Device });
        assert_eq!(limit(Some(Size::None)), Limit { bytes: None, from: LimitFrom::None });
        assert_eq!(limit(Some(Size::Share(0.8))), Limit { bytes: Some(800), from: LimitFrom::User });
        let bytes = Some(Size::Bytes(Bytes::new(5)));
        assert_eq!(limit(bytes), Limit { bytes: Some(5), from: LimitFrom::User });
    }
}
