//! Pages: bounded, self-contained, and inert whatever a profile says.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io::Read;
use std::path::PathBuf;

use plimsoll_memory::{Block, GhostPages, Label, Owner, Pool, STEP, Site, Work};
use plimsoll_report::{Page, Profile, Profiler};
use serde_json::{Value, json};
use tempfile::TempDir;

fn recorded(about: &Value, f: impl FnOnce(&Pool)) -> Profile {
    let folder: TempDir = tempfile::tempdir().expect("a folder for temporary files");
    let path: PathBuf = folder.path().join("run.profile");
    let pool = Pool::new(GhostPages::new(1 << 40));
    let profiler = Profiler::start(&pool, &path, about).expect("it can be written");
    f(&pool);
    profiler.finish().expect("it can be written");
    Profile::read(&path).expect("it was written just now")
}

/// The data of a page, unpacked as a browser does it: the JSON object, and the columns.
fn unpacked(html: &str, id: &str) -> (Value, Vec<u8>) {
    let start = html.find(&format!("id=\"{id}\">")).expect("the element is there") + id.len() + 6;
    let text = &html[start..][..html[start..].find('<').expect("it ends")];
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|&byte| byte != b'=').map(digit).collect();
    let packed: Vec<u8> = digits
        .chunks(4)
        .flat_map(|group| {
            let bits = group.iter().fold(0u32, |bits, &digit| bits << 6 | u32::from(digit))
                << (6 * (4 - group.len()));
            bits.to_be_bytes()[1..group.len()].to_vec()
        })
        .collect();
    let mut raw = Vec::new();
    flate2::read::DeflateDecoder::new(&*packed).read_to_end(&mut raw).expect("it can be unpacked");
    let len = u32::from_le_bytes(raw[..4].try_into().expect("four bytes")) as usize;
    (serde_json::from_slice(&raw[4..4 + len]).expect("JSON"), raw[4 + len..].to_vec())
}

fn site(line: u32) -> Site {
    Site::intern("src/model.rs", line, &format!("encoder.block_{}.mlp", line % 24), "matmul")
}

fn work(pool: &Pool, line: u32, reads: &[u64], writes: &[u64]) {
    let nanoseconds = 1000 * u64::from(line);
    pool.mark_work(&Work { site: site(line), nanoseconds, repeats: true, reads, writes });
}

/// Steps whose lengths differ, so that no two are alike: about a million events.
fn long_run(pool: &Pool, n_events: usize) {
    let (mut seed, mut n) = (1u64, 0);
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for step in 1.. {
        if n >= n_events {
            return;
        }
        pool.mark(STEP, step);
        pool.mark("forward", 0);
        let length = 64 + random(900);
        let mut saved: VecDeque<Block> = VecDeque::new();
        for op in 0..400 {
            let bytes = (length * (1 + op % 7) * 768) as usize;
            let label = |owner| Label::new(owner, site(op as u32 % 200));
            let made = pool.acquire(bytes, label(Owner::Saved)).expect("a ghost has room");
            let scratch = pool.acquire(bytes * 2, label(Owner::Workspace)).expect("a ghost has room");
            let reads: Vec<u64> = saved.back().map(Block::serial).into_iter().collect();
            work(pool, op as u32 % 200, &reads, &[made.serial()]);
            drop(scratch);
            saved.push_back(made);
        }
        pool.mark("backward", 0);
        while let Some(block) = saved.pop_back() {
            work(pool, 300, &[block.serial()], &[]);
        }
        n += 1603;
    }
}

#[test]
fn a_million_events_are_six_megabytes_at_most() {
    let profile = recorded(&json!({ "recipe": "long", "device": "cpu" }), |pool| long_run(pool, 1_000_000));
    assert!(profile.n_events() >= 1_000_000, "{}", profile.n_events());
    let html = Page::of(&profile).expect("it is whole").to_html();
    assert!(html.len() <= 6_000_000, "{} bytes", html.len());
}

#[test]
fn a_page_without_data_is_small_and_asks_for_nothing() {
    let html = Page::of(&recorded(&json!({}), |_| {})).expect("it is whole").to_html();
    assert!(html.len() <= 300_000, "{} bytes", html.len());
    assert!(html.contains("default-src 'none'; script-src 'sha256-"));
    // Addresses stand in it as text alone: in the licence and in the names of XML's spaces.
    for part in ["src=\"http", "href=\"", "@import", "url(", "fetch(", "XMLHttpRequest", "innerHTML"] {
        assert!(!html.contains(part), "{part}");
    }
}

/// More events than a page has in full: it is bounded, and the peak is there with its blocks.
#[test]
fn a_very_long_run_keeps_its_peak() {
    let profile = recorded(&json!({}), |pool| {
        let spike = |bytes| pool.acquire(bytes, Label::new(Owner::Saved, site(1))).expect("a ghost has room");
        for step in 1..=6000 {
            pool.mark(STEP, step);
            (0..100).for_each(|nth| drop(spike(if step == 3777 && nth == 50 { 1 << 20 } else { 4096 })));
        }
    });
    let (meta, _) = unpacked(&Page::of(&profile).expect("it is whole").to_html(), "run");
    assert_eq!((meta["last"].as_u64(), meta["peak"]["in_use"].as_u64()), (Some(6000 * 201), Some(1 << 20)));
    let peak = meta["peak"]["moment"].as_u64().expect("a number");
    assert_eq!(peak, 3776 * 201 + 1 + 2 * 50 + 1);
    let kept: Vec<(u64, u64)> = serde_json::from_value(meta["kept"].clone()).expect("pairs");
    assert!(kept.iter().any(|&(from, to)| from < peak && peak < to), "{kept:?}");
    assert!(kept.iter().map(|(from, to)| to - from).sum::<u64>() <= 1 << 20);
    assert_eq!((kept[0].0, kept.last().expect("one").1), (0, 6000 * 201), "beginning and end are kept");
}

#[test]
fn rows_of_the_peak_add_up() {
    let profile = recorded(&json!({ "limit_bytes": 1 << 30 }), |pool| long_run(pool, 5000));
    let (meta, _) = unpacked(&Page::of(&profile).expect("it is whole").to_html(), "run");
    let rows: Vec<u64> = serde_json::from_value(meta["peak"]["rows"].clone()).expect("numbers");
    assert_eq!(Some(rows.iter().sum()), meta["peak"]["in_use"].as_u64());
    assert_eq!(meta["owners"].as_array().map(Vec::len), Some(rows.len() - 1));
}

/// Names that would be a script, break out of an attribute, turn the direction of the text or never end.
#[test]
fn hostile_labels_are_inert() {
    let hostile = [
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(2)>",
        "\" onmouseover=\"alert(3)",
        "a\u{202E}evil\u{2066}",
        "\0\u{7}\n\u{1b}[31m",
    ];
    let long = "x.".repeat(50_000);
    let about = json!({ "recipe": hostile[0], "device": hostile[1], "note": long });
    let profile = recorded(&about, |pool| {
        let mut held = Vec::new();
        for text in hostile.into_iter().chain([&*long]) {
            let label = Label::new(Owner::Saved, Site::intern(text, 1, text, text));
            held.push(pool.acquire(4096, label).expect("a ghost has room"));
            pool.mark(plimsoll_memory::Name::intern(text), 0);
        }
    });
    let html = Page::of(&profile).expect("it is whole").to_html();
    let page = Page::of(&recorded(&json!({}), |_| {})).expect("it is whole").to_html();
    assert_eq!(html.matches("<script").count(), page.matches("<script").count());
    assert_eq!(html.matches("alert").count(), page.matches("alert").count() + 2, "the title, as text");
    assert!(html.contains("<title>&lt;/script&gt;"), "the title is escaped");
    assert!(html.len() < page.len() + 10_000, "long names are cut");
    let (meta, _) = unpacked(&html, "run");
    let texts = meta.to_string();
    assert!(!texts.contains('\u{202E}') && !texts.contains('\u{2066}') && !texts.contains("\\u0000"));
}
