//! Numbers of bytes as people write and read them.
//!
//! Counters inside the pool are plain `u64`; `Bytes` is for what a person types (a limit) or reads (a report).

use std::fmt;
use std::str::FromStr;

/// A number of bytes that prints and parses the way people write it.
///
/// ```
/// use plimsoll_memory::Bytes;
/// assert_eq!("512MiB".parse::<Bytes>().unwrap(), Bytes::mib(512));
/// assert_eq!("8GB".parse::<Bytes>().unwrap().get(), 8_000_000_000);
/// assert_eq!(Bytes::new(4_000_000).to_string(), "3.81 MiB (4,000,000 B)");
/// assert_eq!(Bytes::new(12_000_004).grouped(), "12,000,004");
/// assert_eq!((Bytes::new(0).grouped(), Bytes::new(999).grouped()), ("0".to_owned(), "999".to_owned()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

/// Suffixes and their factors, longest units first within each family.
const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl Bytes {
    /// The number with a comma between groups of three digits, such as `4,000,000`.
    pub fn grouped(self) -> String {
        grouped(self.0)
    }

    /// `n` bytes.
    pub const fn new(n: u64) -> Self {
        Self(n)
    }

    /// `n` times 2^10 bytes; saturates.
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }

    /// `n` times 2^20 bytes; saturates.
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// `n` times 2^30 bytes; saturates.
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for Bytes {
    fn from(n: u64) -> Self {
        Self(n)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS[..4].iter().find(|(_, factor)| self.0 >= *factor) {
            Some((unit, factor)) => {
                let scaled = self.0 as f64 / *factor as f64;
                write!(f, "{scaled:.2} {unit} ({} B)", grouped(self.0))
            }
            None => write!(f, "{} B", self.0),
        }
    }
}

/// Writes a number with a comma between groups of three digits.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A text that does not name a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseBytesError {
    text: String,
}

impl fmt::Display for ParseBytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a number of bytes; write for example 512MiB, 1.5GiB, 8GB (10^9) or 4000000",
            self.text
        )
    }
}

impl std::error::Error for ParseBytesError {}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    /// Reads a whole or decimal number, then an optional unit in any case; a fraction of a byte is dropped.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text.trim()).map(Self).ok_or_else(|| ParseBytesError { text: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<u64> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let unit = unit.trim_start();
    let factor = match unit {
        "" => 1,
        _ => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?.1,
    };
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    if fraction.contains('.') || fraction.len() > 12 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let fraction_bytes = match fraction {
        "" => 0,
        _ => fraction.parse::<u128>().ok()? * u128::from(factor) / 10u128.pow(fraction.len() as u32),
    };
    whole.checked_mul(factor)?.checked_add(u64::try_from(fraction_bytes).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_the_scaled_and_the_exact_number() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB (1,024 B)"),
            (4_000_000, "3.81 MiB (4,000,000 B)"),
            (3 << 30, "3.00 GiB (3,221,225,472 B)"),
            (5 << 40, "5.00 TiB (5,497,558,138,880 B)"),
        ];
        for (n, text) in cases {
            assert_eq!(Bytes::new(n).to_string(), text);
        }
    }

    #[test]
    fn parses_what_people_write() {
        let cases = [
            ("123", 123),
            (" 4_000_000 ", 4_000_000),
            ("512MiB", 512 << 20),
            ("512 mib", 512 << 20),
            ("8GiB", 8 << 30),
            ("8GB", 8_000_000_000),
            ("1.5GiB", 3 << 29),
            ("64kb", 64_000),
            ("7B", 7),
            ("16777215.99TiB", 18446744062714435338),
        ];
        for (text, n) in cases {
            assert_eq!(text.parse::<Bytes>().map(Bytes::get), Ok(n), "{text}");
        }
    }

    #[test]
    fn refuses_what_it_cannot_read_and_says_what_works() {
        for text in ["", "GiB", "8G", "1.2.3MiB", "-5", "8 GiBs", "99999999TiB", ".", "1e9"] {
            let error = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("512MiB"), "{error}");
        }
    }
}
