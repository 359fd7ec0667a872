//! The page: one HTML file that shows a profile in a browser, with everything it needs inside and no network.
//!
//! The view is written in plain JavaScript, in the files beside this one; nothing is built. The timeline is drawn by uPlot,
//! which lies in `vendor/` with its licence. The page's content security policy allows the one script and the one style sheet
//! that are in it, by their hashes, and nothing else: no request, no image, no frame. Data of a profile are never HTML
//! (see [`encode`]).
//!
//! What it refuses to do: it never talks to anybody, it keeps nothing in the browser, and it shows no number that the profile
//! does not have.

pub(crate) mod encode;
pub(crate) mod timeline;

use std::io::{self, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::profile::Profile;
use encode::{base64, encoded, shown};

/// The body, with gaps for what is put into it.
const TEMPLATE: &str = include_str!("page.html");
const GAP: &str = "{{}}";
const STYLES: [&str; 2] = [include_str!("../../vendor/uplot/uPlot.min.css"), include_str!("page.css")];
/// In this order, as one script: each file uses those before it.
const SCRIPTS: [&str; 10] = [
    include_str!("../../vendor/uplot/uPlot.iife.min.js"),
    include_str!("run.js"),
    include_str!("works.js"),
    include_str!("text.js"),
    include_str!("table.js"),
    include_str!("timeline.js"),
    include_str!("icicle.js"),
    include_str!("map.js"),
    include_str!("views.js"),
    include_str!("main.js"),
];
const UPLOT_LICENCE: &str = include_str!("../../vendor/uplot/LICENSE");

/// A page about a profile.
///
/// ```
/// use plimsoll_memory::{HostPages, Label, Owner, Pool, Site};
/// use plimsoll_report::{Page, Profile, Profiler};
///
/// let folder = tempfile::tempdir()?;
/// let (path, page) = (folder.path().join("run.profile"), folder.path().join("run.html"));
/// let pool = Pool::new(HostPages::new()?);
/// let profiler = Profiler::start(&pool, &path, &serde_json::json!({ "device": "cpu" }))?;
/// drop(pool.acquire(4000, Label::new(Owner::Saved, Site::intern("src/main.rs", 12, "encoder", "matmul")))?);
/// profiler.finish()?;
/// Page::of(&Profile::read(&path)?)?.write(&page)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Page {
    title: String,
    run: String,
    other: String,
    is_live: bool,
}

impl Page {
    /// A page about one profile.
    ///
    /// # Errors
    /// A damaged profile.
    pub fn of(profile: &Profile) -> io::Result<Page> {
        Ok(Page {
            title: title(profile),
            run: encoded(profile, "run")?,
            other: String::new(),
            is_live: false,
        })
    }

    /// The page with another run beside it, to compare both.
    ///
    /// # Errors
    /// A damaged profile.
    pub fn compared_with(self, other: &Profile) -> io::Result<Page> {
        Ok(Page { other: encoded(other, "other")?, ..self })
    }

    /// The page with the dry run of the same run beside it: what was predicted, laid over what happened.
    ///
    /// # Errors
    /// A damaged profile.
    pub fn predicted_by(self, plan: &Profile) -> io::Result<Page> {
        Ok(Page { other: encoded(plan, "prediction")?, ..self })
    }

    /// The page as it is served while the run goes on: it listens to whoever serves it.
    pub(crate) fn live(self) -> Page {
        Page { is_live: true, ..self }
    }

    /// The content security policy: the page's own script and style, and for a live one whoever serves it.
    pub(crate) fn policy(&self) -> String {
        let connect = if self.is_live { " connect-src 'self';" } else { "" };
        format!(
            "default-src 'none';{connect} script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
            hash(&script()),
            hash(&STYLES.concat())
        )
    }

    /// The HTML.
    pub fn to_html(&self) -> String {
        let live = if self.is_live { "live" } else { "" };
        let parts = [
            &*self.policy(),
            &escaped(&self.title),
            &STYLES.concat(),
            live,
            &self.run,
            &self.other,
            &script(),
        ];
        let mut html = String::new();
        let mut gaps = TEMPLATE.split(GAP);
        html.push_str(gaps.next().unwrap_or_default());
        for (part, after) in parts.into_iter().zip(gaps) {
            html.push_str(part);
            html.push_str(after);
        }
        html
    }

    /// Tells whether a page could be written there now, which is better known before a long run than after it.
    ///
    /// # Errors
    /// Why it could not.
    pub fn check_writable(path: &Path) -> io::Result<()> {
        plimsoll_file::check_writable(path)
    }

    /// Writes the page, whole or not at all.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        plimsoll_file::write_whole(path, |file| file.write_all(self.to_html().as_bytes()))
    }
}

fn title(profile: &Profile) -> String {
    let fact = |key: &str| profile.about().get(key).and_then(serde_json::Value::as_str).map(shown);
    match (fact("recipe"), fact("device")) {
        (Some(recipe), Some(device)) => format!("{recipe} on {device}: memory"),
        (Some(name), None) | (None, Some(name)) => format!("{name}: memory"),
        (None, None) => "memory".to_owned(),
    }
}

/// All scripts as one, with the licence of the one that is not ours.
fn script() -> String {
    let licence = UPLOT_LICENCE.replace("*/", "* /");
    format!("/* uPlot:\n{licence}\n*/\n{}", SCRIPTS.join("\n"))
}

fn hash(text: &str) -> String {
    base64(&Sha256::digest(text.as_bytes()))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_has_a_gap_for_each_part() {
        assert_eq!(TEMPLATE.matches(GAP).count(), 7);
        assert!(
            SCRIPTS
                .iter()
                .all(|script| !script.to_lowercase().contains("</script") && !script.contains("<!--"))
        );
        assert!(STYLES.iter().all(|style| !style.contains("</style")));
    }
}
