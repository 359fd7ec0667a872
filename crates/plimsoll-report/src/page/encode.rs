//! How a page carries its data: columns of numbers and a JSON object, deflated, in base64.
//!
//! Everything that comes from a profile travels this way, so that no text of it is ever parsed as HTML or as a script, and
//! base64 has no character that means anything there. Texts are made harmless to the eye, too: without control characters, without
//! those that change the direction of what follows, and not longer than a person would read.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use plimsoll_memory::{Owner, Region};
use serde_json::{Map, Value, json};

use super::timeline::Timeline;
use crate::action::Action;
use crate::code::{N_ROWS, put};
use crate::explain::{Explanation, Shortage};
use crate::profile::{Profile, Site};

/// The longest text of a page, in characters.
const MOST_TEXT: usize = 300;
/// How many facts about a run a page has.
const MOST_FACTS: usize = 64;
/// How many actions a page lists.
const MOST_ACTIONS: usize = 100;
/// How many growing lines a page lists.
const MOST_GROWTH: usize = 100;

/// The data of a run, as a page has them: base64 of what JavaScript's `deflate-raw` reads.
pub(crate) fn encoded(profile: &Profile, role: &str) -> io::Result<String> {
    let timeline = Timeline::of(profile)?;
    let columns = Columns::of(&timeline);
    let about = facts(profile.about());
    let peak = &timeline.peak;
    // A profile without a single event has nothing to explain.
    let explained = (profile.n_events() > 0).then(|| Explanation::of(profile)).transpose()?;
    let actions = explained.as_ref().map_or(&[][..], |explained| &explained.actions);
    let meta = json!({
        "role": role,
        "about": about,
        "is_complete": profile.is_complete(),
        "last": timeline.last,
        "peak": {
            "moment": peak.moment,
            "in_use": peak.in_use,
            "rows": peak.rows,
            "step": peak.step,
            "phase": shown(&peak.phase),
            "site": peak.site,
        },
        "peak_committed": timeline.peak_committed,
        "bucket_size": timeline.bucket_size,
        "kept": timeline.kept,
        "left_out": timeline.left_out,
        "owners": Owner::ALL.map(Owner::name),
        "regions": Region::ALL.map(|region| format!("{region:?}").to_lowercase()),
        "growth": explained.iter().flat_map(growth).collect::<Vec<_>>(),
        "shortage": explained.as_ref().and_then(|explained| explained.shortage.as_ref()).map(shortage),
        "actions": actions.iter().take(MOST_ACTIONS).map(action).collect::<Vec<_>>(),
        "actions_of_trace": explained.as_ref().is_some_and(|explained| explained.is_of_trace),
        "sites": (0..profile.n_sites()).map(|site| site_row(profile.site(site))).collect::<Vec<_>>(),
        "names": names(profile, &timeline),
        "columns": columns.manifest,
    });
    let meta = meta.to_string();
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&(meta.len() as u32).to_le_bytes())?;
    encoder.write_all(meta.as_bytes())?;
    encoder.write_all(&columns.bytes)?;
    Ok(base64(&encoder.finish()?))
}

/// Columns of numbers, one after the other; names, counts and lengths in bytes beside them.
#[derive(Default)]
struct Columns {
    manifest: Vec<Value>,
    bytes: Vec<u8>,
}

impl Columns {
    fn add(&mut self, name: &str, numbers: impl Iterator<Item = u64>) {
        let (before, mut count) = (self.bytes.len(), 0u64);
        numbers.for_each(|number| {
            put(number, &mut self.bytes);
            count += 1;
        });
        self.manifest.push(json!([name, count, self.bytes.len() - before]));
    }

    fn of(timeline: &Timeline) -> Columns {
        let mut columns = Columns::default();
        let Timeline { lives, marks, buckets, .. } = timeline;
        columns.add("born", differences(lives.iter().map(|life| life.born)));
        // Zero is a block that is there at the end.
        columns.add("lasts", lives.iter().map(|life| life.until.map_or(0, |until| until - life.born)));
        columns.add("requested", lives.iter().map(|life| life.block.requested));
        columns.add("owner", lives.iter().map(|life| life.block.owner as u64));
        columns.add("site", lives.iter().map(|life| life.block.site.into()));
        columns.add("region", lives.iter().map(|life| life.block.region as u64));
        // Blocks are aligned to 512 bytes.
        columns.add("offset", lives.iter().map(|life| life.block.offset / 512));
        let mut before: HashMap<u64, usize> = HashMap::new();
        let links = lives.iter().enumerate().map(|(nth, life)| {
            let earlier = before.insert(life.serial, nth);
            earlier.map_or(0, |earlier| (nth - earlier) as u64)
        });
        columns.add("earlier", links);
        columns.add_works(timeline);
        columns.add("mark_moment", differences(marks.iter().map(|mark| mark.moment)));
        columns.add("mark_name", marks.iter().map(|mark| mark.name.into()));
        columns.add("mark_number", marks.iter().map(|mark| mark.number));
        columns.add("mark_ns", differences(marks.iter().map(|mark| mark.nanoseconds)));
        columns.add("commit_moment", differences(timeline.commits.iter().map(|commit| commit.0)));
        columns.add("commit_bytes", timeline.commits.iter().map(|commit| commit.1));
        let size = timeline.bucket_size;
        columns
            .add("bucket_at", buckets.iter().enumerate().map(|(nth, bucket)| bucket.at - nth as u64 * size));
        columns.add("bucket_least", buckets.iter().map(|bucket| bucket.least));
        columns.add("bucket_committed", buckets.iter().map(|bucket| bucket.committed));
        for row in 0..N_ROWS {
            columns.add(&format!("bucket_row_{row}"), buckets.iter().map(|bucket| bucket.rows[row]));
        }
        columns
    }
}

impl Columns {
    /// What ran, and who holds. Blocks are named by their first lives, counted back from the last that has begun by then; zero
    /// stands for one that the page does not have.
    fn add_works(&mut self, timeline: &Timeline) {
        let Timeline { lives, works, held, .. } = timeline;
        let mut first: HashMap<u64, usize> = HashMap::new();
        for (nth, life) in lives.iter().enumerate() {
            first.entry(life.serial).or_insert(nth);
        }
        let named = |serial: u64, moment: u64| {
            let n_begun = lives.partition_point(|life| life.born <= moment);
            first.get(&serial).map_or(0, |&nth| n_begun.saturating_sub(nth) as u64)
        };
        self.add("work_moment", differences(works.iter().map(|work| work.moment)));
        self.add("work_site", works.iter().map(|work| work.site.into()));
        self.add("work_ns", works.iter().map(|work| work.nanoseconds));
        self.add("work_repeats", works.iter().map(|work| work.repeats.into()));
        self.add("work_reads", works.iter().map(|work| work.n_reads.into()));
        self.add("work_writes", works.iter().map(|work| work.n_writes.into()));
        let moments = works
            .iter()
            .flat_map(|work| std::iter::repeat_n(work.moment, (work.n_reads + work.n_writes) as usize));
        self.add(
            "operand",
            timeline.operands.iter().zip(moments).map(|(&serial, moment)| named(serial, moment)),
        );
        self.add("held_moment", differences(held.iter().map(|held| held.moment)));
        self.add("held_life", held.iter().map(|held| named(held.serial, held.moment)));
        self.add("held_by", held.iter().map(|held| held.by.into()));
        self.add("held_frees", held.iter().map(|held| held.frees));
    }
}

fn differences(numbers: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    numbers.scan(0, |before, number| Some(number - std::mem::replace(before, number)))
}

/// What is known of the run, as far as it is plain.
fn facts(about: &Value) -> Map<String, Value> {
    let plain = |value: &Value| match value {
        Value::String(text) => Some(Value::String(shown(text))),
        Value::Number(_) | Value::Bool(_) => Some(value.clone()),
        _ => None,
    };
    let all = about.as_object().into_iter().flatten();
    all.filter_map(|(key, value)| Some((shown(key), plain(value)?))).take(MOST_FACTS).collect()
}

fn action(action: &Action) -> Value {
    json!({
        "advice": shown(action.advice.text()),
        "saved_bytes": action.saved_bytes,
        "peak_bytes": action.peak_bytes,
        "more_ms": action.more_ms,
    })
}

fn shortage(shortage: &Shortage) -> Value {
    let Shortage { bytes, in_use, step, phase } = shortage;
    json!({ "bytes": bytes, "in_use": in_use, "step": step, "phase": shown(phase) })
}

fn growth(explained: &Explanation) -> Vec<Value> {
    let row = |growth: &crate::growth::Growth| {
        json!({
            "owner": growth.owner.name(),
            "site": site_row(&growth.site),
            "bytes": growth.bytes,
            "per_step": growth.per_step,
            "added_blocks": growth.added_blocks,
        })
    };
    explained.growth.iter().take(MOST_GROWTH).map(row).collect()
}

fn site_row(site: &Site) -> Value {
    let (file, line) = site.described.as_ref().map_or(("", 0), |(file, line)| (file.as_str(), *line));
    json!([shown(&site.file), site.line, shown(&site.scope), shown(&site.op), shown(file), line])
}

/// The names of marks and of those that hold blocks, by their numbers in the profile.
fn names(profile: &Profile, timeline: &Timeline) -> Map<String, Value> {
    let numbers = timeline.marks.iter().map(|mark| mark.name);
    let numbers = numbers.chain(timeline.held.iter().map(|held| held.by));
    numbers.map(|name| (name.to_string(), Value::String(shown(profile.text(name))))).collect()
}

/// A text of a file as a page shows it.
pub(crate) fn shown(text: &str) -> String {
    let is_hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{61C}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FEFF}')
    };
    let mut all = text.chars().map(|c| if is_hidden(c) { '\u{FFFD}' } else { c });
    let mut start: String = all.by_ref().take(MOST_TEXT).collect();
    if all.next().is_some() {
        start.push('…');
    }
    start
}

/// As RFC 4648 has it.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |nth: usize| u32::from(group.get(nth).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let is_there = digit <= group.len();
            let value = (bits >> (18 - 6 * digit) & 63) as usize;
            text.push(if is_there { char::from(DIGITS[value]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let pairs = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ];
        for (plain, coded) in pairs {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
        assert_eq!(base64(&[0xFB, 0xFF, 0xFE]), "+//+");
    }

    #[test]
    fn texts_are_harmless() {
        assert_eq!(shown("a\u{202E}b\nc\u{2067}"), "a\u{FFFD}b\u{FFFD}c\u{FFFD}");
        assert_eq!(shown(&"x".repeat(100_000)).chars().count(), MOST_TEXT + 1);
        assert_eq!(shown("größe"), "größe");
    }
}
