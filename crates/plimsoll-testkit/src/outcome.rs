//! What a check says: nothing, or why it failed.

use std::any::Any;
use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a check failed, in words for the person who broke it.
///
/// It is no `Display`, so that everything that is can become one with `?`.
pub struct Failure(String);

/// What a check returns.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// The words.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The same failure with the place where it happened put in front.
    #[must_use]
    pub fn at(self, place: impl Display) -> Failure {
        Failure(format!("{place}: {}", self.0))
    }
}

impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure(error.to_string())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Runs a part of a check; a panic in it is a failure like any other and does not hide the other parts.
pub fn guarded<T>(part: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(part)).unwrap_or_else(|payload| Err(Failure(panic_text(&*payload))))
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    format!("it panicked: {}", text.unwrap_or("without a text"))
}

/// Runs all parts and joins what failed, so that one run shows everything that is wrong.
pub fn all(parts: impl IntoIterator<Item = Outcome>) -> Outcome {
    let failed: Vec<String> = parts.into_iter().filter_map(Result::err).map(|failure| failure.0).collect();
    if failed.is_empty() { Ok(()) } else { Err(Failure(failed.join("\n"))) }
}
