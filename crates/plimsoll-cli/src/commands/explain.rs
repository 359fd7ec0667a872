//! `plimsoll explain`: a recorded profile, told in the terminal.

use plimsoll::report::{Explanation, Profile};

use crate::failure::Failure;
use crate::options::ExplainOptions;
use crate::terminal::Style;

/// Explains a profile.
///
/// # Errors
/// A file that is not there, is no profile or is damaged; a page, which cannot be made yet.
pub fn run(options: &ExplainOptions) -> Result<(), Failure> {
    if options.html.is_some() {
        return Err(Failure::options(
            "--html is not there yet; leave it out to read the profile in the terminal",
        ));
    }
    let failed = |error: std::io::Error| Failure::file(format!("{}: {error}", options.file.display()));
    let profile = Profile::read(&options.file).map_err(failed)?;
    let explanation = Explanation::of(&profile).map_err(failed)?;
    Style::Text.say(explanation.to_string().trim_end())
}
