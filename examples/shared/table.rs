//! A small table: what was measured, beside what the post says and what TensorFlow does.

use plimsoll::Bytes;

/// One measured figure.
pub struct Figure {
    pub what: &'static str,
    pub measured: String,
}

/// A figure in bytes.
pub fn bytes(what: &'static str, bytes: u64) -> Figure {
    Figure { what, measured: format!("{} B", Bytes::new(bytes).grouped()) }
}

/// A figure in words.
#[allow(dead_code, reason = "some examples have bytes only")]
pub fn words(what: &'static str, measured: impl Into<String>) -> Figure {
    Figure { what, measured: measured.into() }
}

/// Prints the post's claim, TensorFlow's behaviour and what was measured here.
pub fn print(title: &str, claim: &str, tensorflow: &str, figures: &[Figure]) {
    println!("{title}");
    println!("  the post:    {claim}");
    println!("  TensorFlow:  {tensorflow}");
    println!("  Plimsoll:");
    let width = figures.iter().map(|figure| figure.what.len()).max().unwrap_or(0);
    for figure in figures {
        println!("    {:<width$}  {:>16}", figure.what, figure.measured);
    }
}
