//! What is fed, and what it is fed with when nothing is wrong.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};
use plimsoll::data::{Csv, Dataset, TokenType, Tokens};
use plimsoll::hardware::Profile;
use plimsoll::nn::checkpoint::{self, Change, NameMap, RunState};
use plimsoll::nn::layers::Dense;
use plimsoll::nn::{Layer, Model, Policy};
use plimsoll::report::{Explanation, Page, Profile as Recording, Profiler};
use plimsoll::{DType, Device, Result, Tensor};

/// Something that reads what people give it.
pub struct Parser {
    pub name: &'static str,
    /// Good contents; the path may be used to write them.
    pub corpus: fn(&Path) -> Vec<Vec<u8>>,
    /// Whether it reads the file, or the text.
    pub reads_file: bool,
    /// Reads all there is to read, and says whether it was accepted.
    pub parse: fn(&Path, &str) -> bool,
}

pub const PARSERS: [Parser; 12] = [
    Parser { name: "csv", corpus: csv_corpus, reads_file: true, parse: |path, _| all(Csv::new(path).read()) },
    Parser {
        name: "csv-fields",
        corpus: csv_corpus,
        reads_file: true,
        parse: |path, _| all(csv_fields(path)),
    },
    Parser {
        name: "idx",
        corpus: idx_corpus,
        reads_file: true,
        parse: |path, _| all(Dataset::idx(path, "x")),
    },
    Parser { name: "npy", corpus: npy_corpus, reads_file: true, parse: |path, _| npy(path) },
    Parser { name: "lines", corpus: text_corpus, reads_file: true, parse: |path, _| lines(path) },
    Parser { name: "tokens", corpus: text_corpus, reads_file: true, parse: |path, _| tokens(path) },
    Parser { name: "safetensors", corpus: tensors_corpus, reads_file: true, parse: |path, _| tensors(path) },
    Parser { name: "foreign", corpus: foreign_corpus, reads_file: true, parse: |path, _| tensors(path) },
    Parser { name: "name-map", corpus: names_corpus, reads_file: false, parse: |_, text| names(text) },
    Parser {
        name: "profile",
        corpus: profile_corpus,
        reads_file: false,
        parse: |_, text| Profile::parse(text).is_ok(),
    },
    Parser {
        name: "recording",
        corpus: recording_corpus,
        reads_file: true,
        parse: |path, _| recording(path),
    },
    Parser { name: "run-state", corpus: state_corpus, reads_file: false, parse: |_, text| state(text) },
];

/// Goes through all elements of a dataset.
fn all(dataset: Result<Dataset>) -> bool {
    dataset.is_ok_and(|dataset| dataset.iter().all(|element| element.is_ok()))
}

fn csv_corpus(_: &Path) -> Vec<Vec<u8>> {
    let wide: String = (0..200).map(|n| format!("column {n},")).collect();
    let numbers = "1.5,".repeat(200);
    vec![
        b"a,b,label\n1,2.5,0\n-3e2,4,1\r\n5,6,2\n".to_vec(),
        b"\xEF\xBB\xBFa,b,label\n\"1\",\" 2\",\"3\"\n\n4,5,6".to_vec(),
        b"b,a,label\n".to_vec(),
        format!("{wide}a\n{numbers}1\n{numbers}2\n").into_bytes(),
    ]
}

fn csv_fields(path: &Path) -> Result<Dataset> {
    Csv::new(path).field("x", ["b", "a"], DType::F32).column("label", DType::I64).read()
}

fn idx_corpus(_: &Path) -> Vec<Vec<u8>> {
    let idx = |kind, dims: &[u32], values: &[u8]| {
        let mut bytes = vec![0, 0, kind, dims.len() as u8];
        dims.iter().for_each(|dim| bytes.extend(dim.to_be_bytes()));
        bytes.extend(values);
        bytes
    };
    let plain =
        [idx(8, &[3, 2], &[1, 2, 3, 4, 5, 6]), idx(13, &[2], &[0; 8]), idx(14, &[1, 1, 1, 1], &[0; 8])];
    let packed = plain.iter().map(|bytes| {
        let mut packer = GzEncoder::new(Vec::new(), Compression::default());
        packer.write_all(bytes).and_then(|()| packer.finish()).expect("memory takes everything")
    });
    plain.iter().cloned().chain(packed).collect()
}

fn npy_corpus(path: &Path) -> Vec<Vec<u8>> {
    let tensors = [
        Tensor::from_slice(&[1i32, 2, 3, 4, 5, 6], [3, 2]),
        Tensor::from_vec(vec![true, false, true]),
        Tensor::from_vec(vec![1.5f64]),
    ];
    let written = tensors.into_iter().map(|tensor| {
        tensor.and_then(|tensor| tensor.write_npy(path)).expect("the folder can be written");
        fs::read(path).expect("it was written")
    });
    let mut all: Vec<Vec<u8>> = written.collect();
    let fortran = String::from_utf8_lossy(&all[0]).contains("False").then(|| {
        let at = all[0].windows(5).position(|part| part == b"False").unwrap_or_default();
        let mut bytes = all[0].clone();
        bytes[at..at + 5].copy_from_slice(b"True ");
        bytes
    });
    all.extend(fortran);
    all
}

fn npy(path: &Path) -> bool {
    let (whole, rows) = (Tensor::read_npy(path).is_ok(), all(Dataset::npy(path, "x")));
    whole || rows
}

fn text_corpus(_: &Path) -> Vec<Vec<u8>> {
    vec![b"one\n\nthree\r\nfour".to_vec(), (0..64).collect(), vec![0; 48]]
}

fn lines(path: &Path) -> bool {
    all(Dataset::lines(path))
}

fn tokens(path: &Path) -> bool {
    [TokenType::U8, TokenType::U16, TokenType::U32]
        .into_iter()
        .any(|kind| all(Tokens::open(path, kind).and_then(|tokens| Dataset::windows(tokens, 3, 2))))
}

fn tensors_corpus(path: &Path) -> Vec<Vec<u8>> {
    let model = Dense::new(2).build([3]).expect("a small model");
    let weights = || model.save_weights(path).expect("the folder can be written");
    let none = || checkpoint::write_tensors(path, BTreeMap::new()).expect("the folder can be written");
    let written = |write: &dyn Fn()| {
        write();
        fs::read(path).expect("it was written")
    };
    vec![written(&weights), written(&none)]
}

/// Files without our checksum, of which more than the header is looked at whatever has been changed.
fn foreign_corpus(_: &Path) -> Vec<Vec<u8>> {
    let headers = [
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"I64","shape":[],"data_offsets":[8,16]}}"#,
        r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[4,2],"data_offsets":[0,16]}}"#,
    ];
    let file = |header: &&str| {
        let header = header.as_bytes();
        [&(header.len() as u64).to_le_bytes(), header, &[0; 16]].concat()
    };
    headers.iter().map(file).collect()
}

fn tensors(path: &Path) -> bool {
    let folder = path.parent().expect("a file lies in a folder");
    let peeked = checkpoint::peek(folder).is_ok();
    checkpoint::read_tensors(path).is_ok() || peeked
}

fn names_corpus(_: &Path) -> Vec<Vec<u8>> {
    ["fc.{kind}|{kind}", "{rest..}.{kind}|{kind}", "fc.weight|kernel", "{a..}{b..}{c..}|{c..}"]
        .map(|rule| rule.as_bytes().to_vec())
        .to_vec()
}

/// A rule from the text, applied to names that are long and alike.
fn names(text: &str) -> bool {
    let (from, to) = text.split_once('|').unwrap_or((text, ""));
    let map = NameMap::new().rule(from, to, Change::Nothing).ignore(from).keep(to);
    thread_local! {
        static FILE: (tempfile::TempDir, Model) = {
            // On a device of its own, because nothing may be left on the one that is watched.
            let device = Device::separate_cpu();
            let _on = device.enter();
            let folder = tempfile::tempdir().expect("a folder");
            let one = || Tensor::ones([2]).expect("a small tensor");
            let names = (0..6).map(|n| (format!("{}fc.weight", "layer.".repeat(n)), one()));
            let path = folder.path().join("weights");
            checkpoint::write_tensors(path, names.collect()).expect("the folder can be written");
            (folder, Dense::new(2).build([3]).expect("a small model"))
        };
    }
    // No map of one rule suits this model, so that each is tried on every name and then refused.
    let is_refused = FILE.with(|(folder, model)| map.load(model, folder.path().join("weights")).is_err());
    is_refused && text.contains('|')
}

fn profile_corpus(_: &Path) -> Vec<Vec<u8>> {
    Profile::names()
        .filter_map(Profile::named)
        .map(|profile| serde_json::to_vec(&profile).expect("plain data"))
        .collect()
}

/// A short recording of memory.
fn recording_corpus(path: &Path) -> Vec<Vec<u8>> {
    let device = Device::separate_cpu();
    let profiler = Profiler::start(device.pool(), path, &serde_json::json!({ "recipe": "x" }))
        .expect("it can be written");
    let _on = device.enter();
    for step in 1..6 {
        device.mark(":step", step);
        let x = Tensor::ones([100]).and_then(|x| x.exp()).expect("there is memory");
        drop(x);
    }
    profiler.finish().expect("it can be written");
    let long = long_recording();
    vec![fs::read(path).expect("it was written"), with_frames(&long, packed), long]
}

/// A recording of which steps are left out, in numbers below 128, which are a byte each. Nothing in it is packed.
fn long_recording() -> Vec<u8> {
    // A text, the name of steps, and a site.
    let defined = [3, 0, 1, b'a', 0, 5, b':', b's', b't', b'e', b'p', 1, 0, 1, 0, 0, 0, 0];
    // A step begins, eight bytes are taken and counted, an op writes them, and they are freed.
    let events = [3, 1, 0, 1, 3, 0, 8, 0, 10, 3, 8, 7, 2, 5, 0, 9, 1, 1];
    let pattern = |step: u8| [&defined[..], &[events.len() as u8], &events, &[step, 5]].concat();
    // Seven steps in the moments from 3 to 30, in the nanoseconds from 5 to 75; nothing in use.
    let stretch = [&[1, 3, 27, 5, 70, 9, 7, 2, 7, 0, 0, 0, 0, 0][..], &[0; 9]].concat();
    // The next block, what is committed, moment, time, work and step; no block.
    let chapter = [&[0][..], &[9, 0, 30, 75, 16, 8], &[0]].concat();
    let mut file = b"plimprof".to_vec();
    file.extend(3u32.to_le_bytes());
    for (kind, payload) in
        [(1, b"{}".to_vec()), (2, vec![0; 8]), (3, pattern(1)), (6, stretch), (2, chapter), (3, pattern(9))]
    {
        file.extend(frame(kind, &payload));
    }
    file
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let head = [(payload.len() as u32).to_le_bytes(), crc32fast::hash(payload).to_le_bytes()];
    [&[kind][..], &head.concat(), payload].concat()
}

/// A file with other frames in the places of its own, as far as these are whole.
fn with_frames(file: &[u8], change: fn(u8, &[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut rest = &file[12.min(file.len())..];
    let mut changed = file[..file.len() - rest.len()].to_vec();
    while let Some((head, after)) = rest.split_first_chunk::<9>() {
        let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let Some((payload, after)) = after.split_at_checked(len) else { break };
        changed.extend(change(head[0], payload));
        rest = after;
    }
    changed.extend(rest);
    changed
}

/// As a recorder packs it, with a checksum that is right.
fn packed(kind: u8, payload: &[u8]) -> Vec<u8> {
    if !matches!(kind, 2 | 3) {
        return frame(kind, payload);
    }
    let mut packer = DeflateEncoder::new(Vec::new(), Compression::fast());
    let packed = packer.write_all(payload).and_then(|()| packer.finish());
    frame(kind, &packed.expect("memory takes everything"))
}

/// Reads a recording as it is, once more with checksums that are right, so that what they guard is looked at, too, and packed once
/// more, so that what was not packed before is looked at event by event.
fn recording(path: &Path) -> bool {
    let explained = |path: &Path| {
        let read = Recording::read(path).and_then(|recording| {
            Page::of(&recording)?;
            Explanation::of(&recording)
        });
        read.is_ok()
    };
    let as_it_is = explained(path);
    let file = fs::read(path).expect("it was written just now");
    let changed = [frame as fn(u8, &[u8]) -> Vec<u8>, packed].map(|change| {
        fs::write(path, with_frames(&file, change)).expect("the folder for temporary files can be written");
        explained(path)
    });
    as_it_is || changed.contains(&true)
}

fn state_corpus(_: &Path) -> Vec<Vec<u8>> {
    let mut state = RunState::start(Policy::Float32);
    state.callbacks.insert("0 early stop".to_owned(), "[1.5,3]".to_owned());
    state.settings.insert("--batch".to_owned(), "32".to_owned());
    vec![serde_json::to_vec(&state).expect("plain data")]
}

fn state(text: &str) -> bool {
    let state: std::result::Result<RunState, _> = serde_json::from_str(text);
    state.is_ok_and(|state| state.generator().seed() == state.seed)
}
