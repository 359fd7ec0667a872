//! Files: what is in them, and what happens when they are not what they should be.
//!
//! A hostile file gives an error or the right result, never a panic, and never takes memory that its own length does
//! not account for: every pool here has a limit, and an error must not be about memory.

mod common;

use std::io::Write;
use std::path::Path;

use common::{device, drained};
use flate2::Compression;
use flate2::write::GzEncoder;
use plimsoll_data::{Csv, Dataset, Padding, TokenType, Tokens};
use plimsoll_tensor::{Bytes, DType, Device, Owner, Result, Tensor};
use plimsoll_testkit::Folder;
use proptest::prelude::*;

type Contents = Vec<Vec<(Vec<usize>, Vec<f64>)>>;

/// Opens a file and reads all of it, or says why not.
fn read(open: impl FnOnce() -> Result<Dataset>) -> Result<Contents> {
    open()?.iter().map(|element| element.map(|element| common::contents(&element))).collect()
}

/// Checks that a file that should not be trusted does no harm.
fn is_harmless(path: &Path, open: impl FnOnce() -> Result<Dataset>) -> Option<Contents> {
    let device = Device::separate_cpu().limit(Bytes::mib(8)).unwrap();
    let _on = device.enter();
    let result = read(open);
    if let Err(error) = &result {
        assert!(!error.is_out_of_memory(), "{error}");
        assert!(error.to_string().contains(&*path.file_name().unwrap().to_string_lossy()), "{error}");
    }
    let contents = result.ok();
    assert_eq!(device.stats().in_use, 0, "nothing stays when the dataset is gone");
    contents
}

const CSV: &str = "a,b,label,\"the, last\"\n1,2.5,0, 7\n-3e2,4,1,\"8\"\r\n5,6,2,9\n";

fn csv(path: &Path) -> Result<Dataset> {
    Csv::new(path)
        .field("x", ["b", "a"], DType::F32)
        .column("label", DType::I64)
        .column("the, last", DType::U8)
        .read()
}

#[test]
fn csv_columns_become_fields() {
    let (device, _on) = device();
    let folder = Folder::new("csv");
    let path = folder.file("x.csv", CSV.as_bytes());
    let dataset = csv(&path).unwrap();
    assert_eq!(dataset.len(), Some(3));
    assert_eq!(device.stats().rows().get(Owner::Data), 3 * (8 + 8 + 1));
    let expected = vec![vec![
        (vec![3, 2], vec![2.5, 1.0, 4.0, -300.0, 6.0, 5.0]),
        (vec![3], vec![0.0, 1.0, 2.0]),
        (vec![3], vec![7.0, 8.0, 9.0]),
    ]];
    assert_eq!(drained(&dataset.batch(3).unwrap()), expected);

    let plain = folder.file("y.csv", b"1;2\n3;4\n");
    let dataset = Csv::new(&plain).no_header().delimiter(b';').read().unwrap();
    assert_eq!(drained(&dataset.batch(9).unwrap()), [[(vec![2, 2], vec![1.0, 2.0, 3.0, 4.0])]]);
    let second = Csv::new(&plain).no_header().delimiter(b';').column("1", DType::Bool).read().unwrap_err();
    assert!(second.to_string().contains("y.csv:1:2: column \"1\" has \"2\", which is no bool"), "{second}");
    let empty = folder.file("z.csv", b"a,b\n");
    assert_eq!(Csv::new(&empty).read().unwrap().is_empty(), Some(true));
}

#[test]
fn columns_of_one_name_are_told_apart_or_refused() {
    let (_device, _on) = device();
    let folder = Folder::new("csv-names");
    let path = folder.file("same.csv", b"a,b,a\n1,2,3\n4,5,6\n");
    // Without a choice columns are taken by their place.
    let all = drained(&Csv::new(&path).read().unwrap());
    assert_eq!(all, [[(vec![3], vec![1.0, 2.0, 3.0])], [(vec![3], vec![4.0, 5.0, 6.0])]]);
    let one = |name: &str| Csv::new(&path).column(name, DType::F32).read();
    assert_eq!(drained(&one("b").unwrap()), [[(vec![], vec![2.0])], [(vec![], vec![5.0])]]);
    let error = one("a").unwrap_err().to_string();
    assert!(error.contains("columns 1 and 3 are both named \"a\"") && error.contains("no_header"), "{error}");
    // One that is asked for twice is there twice.
    let twice = Csv::new(&path).field("x", ["b", "b"], DType::F32).read().unwrap();
    assert_eq!(drained(&twice)[0], [(vec![2], vec![2.0, 2.0])]);
    let many: String = (0..20).map(|n| format!("c{n},")).collect();
    let wide = folder.file("wide.csv", format!("{many}x\n").as_bytes());
    let error = Csv::new(&wide).column("y", DType::F32).read().unwrap_err().to_string();
    assert!(error.contains("\"c7\"] and 13 more"), "{error}");
}

proptest! {
    #[test]
    fn every_choice_of_columns_is_that_of_a_plain_table(
        names in prop::collection::vec(0..6usize, 1..8),
        chosen in prop::collection::vec(0..7usize, 1..6),
        n_rows in 0..4usize,
    ) {
        let (_device, _on) = device();
        let folder = Folder::new("csv-model");
        let row = |row: usize| (0..names.len()).map(|column| format!("{}", 100 * row + column)).collect::<Vec<_>>();
        let header: Vec<String> = names.iter().map(|name| format!("n{name}")).collect();
        let lines: Vec<String> =
            std::iter::once(header.join(",")).chain((0..n_rows).map(|n| row(n).join(","))).collect();
        let path = folder.file("t.csv", lines.join("\n").as_bytes());
        let read = Csv::new(&path).field("x", chosen.iter().map(|name| format!("n{name}")), DType::F64).read();
        let places = |name: &usize| (0..names.len()).filter(|&place| names[place] == *name).collect::<Vec<_>>();
        let is_plain = chosen.iter().all(|name| places(name).len() == 1);
        prop_assert_eq!(read.is_ok(), is_plain, "{:?}", read);
        if let Ok(dataset) = read {
            let expected: Contents = (0..n_rows)
                .map(|row| {
                    let numbers = chosen.iter().map(|name| (100 * row + places(name)[0]) as f64).collect();
                    vec![(vec![chosen.len()], numbers)]
                })
                .collect();
            prop_assert_eq!(drained(&dataset), expected);
        }
    }
}

#[test]
fn rows_without_a_value_are_refused() {
    let (_device, _on) = device();
    let folder = Folder::new("nothing");
    for dims in [&[1 << 24, 0][..], &[u32::MAX, 0, 7], &[1, 0]] {
        let idx = idx_bytes(13, dims, &[]);
        for (name, bytes) in [("plain", idx.clone()), ("packed", gzipped(&idx))] {
            let error = Dataset::idx(folder.file(name, &bytes), "x").unwrap_err().to_string();
            assert!(error.contains("rows without a value") && error.contains(name), "{error}");
        }
    }
    let npy = folder.path().join("x.npy");
    Tensor::zeros([5, 0]).unwrap().write_npy(&npy).unwrap();
    assert!(Dataset::npy(&npy, "x").unwrap_err().to_string().contains("rows without a value"));
    // None at all are just that.
    assert_eq!(Dataset::idx(folder.file("none", &idx_bytes(8, &[0, 3], &[])), "x").unwrap().len(), Some(0));
}

#[test]
fn datasets_that_belong_together_have_one_length() {
    let (_device, _on) = device();
    let folder = Folder::new("pairs");
    let labels = |n: u32| folder.file("labels", &idx_bytes(8, &[n], &vec![1; n as usize]));
    let images = folder.file("images", &idx_bytes(8, &[64, 2], &[7; 128]));
    let pairs = |n| Dataset::idx(&images, "image")?.zip_strict(&Dataset::idx(labels(n), "label")?);
    assert_eq!(pairs(64).unwrap().len(), Some(64));
    for n in [0, 63, 65] {
        let error = pairs(n).unwrap_err().to_string();
        assert!(error.contains("64 elements") && error.contains(&format!("and {n} of")), "{error}");
    }
}

#[test]
fn csv_errors_name_file_line_and_column() {
    let folder = Folder::new("csv-errors");
    let error = |contents: &str| csv(&folder.file("bad.csv", contents.as_bytes())).unwrap_err().to_string();
    let text = error(&CSV.replace("-3e2", "three"));
    assert!(text.ends_with("bad.csv:3:1: column \"a\" has \"three\", which is no float32"), "{text}");
    let text = error(&CSV.replace("5,6,2", "5,6,2.5"));
    assert!(text.ends_with("bad.csv:4:3: column \"label\" has \"2.5\", which is no int64"), "{text}");
    let text = error(&CSV.replace("5,6,2", "\r\n\n5,6,x").replace('\n', "\r\n"));
    assert!(text.ends_with("bad.csv:6:3: column \"label\" has \"x\", which is no int64"), "{text}");
    let text = error(&CSV.replace("5,6,2,9", "5,6,2"));
    assert!(text.ends_with("bad.csv:4:4: the record has 3 columns, and those before it have 4"), "{text}");
    let text = error("a,b\n1,2\n");
    assert!(text.contains("no column \"label\"") && text.contains("[\"a\", \"b\"]"), "{text}");
    assert!(csv(&folder.path().join("none.csv")).unwrap_err().to_string().contains("none.csv"));
    assert!(csv(folder.path()).is_err(), "a folder is no file");
}

/// An IDX file of the given type with these bytes.
fn idx_bytes(kind: u8, dims: &[u32], values: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, kind, dims.len() as u8];
    dims.iter().for_each(|dim| bytes.extend(dim.to_be_bytes()));
    bytes.extend(values);
    bytes
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn idx_files_are_read_plain_and_compressed() {
    let (device, _on) = device();
    let folder = Folder::new("idx");
    let images = idx_bytes(8, &[3, 2, 2], &(0..12).collect::<Vec<u8>>());
    let floats: Vec<u8> = [1.5f32, -2.0, 3.25].iter().flat_map(|x| x.to_be_bytes()).collect();
    let expected_images: Contents =
        (0..3).map(|k| vec![(vec![2, 2], (4 * k..4 * k + 4).map(f64::from).collect())]).collect();
    let expected_floats: Contents = [1.5, -2.0, 3.25].map(|x| vec![(vec![], vec![x])]).to_vec();
    for (name, bytes, expected) in
        [("images", images, expected_images), ("floats", idx_bytes(13, &[3], &floats), expected_floats)]
    {
        let plain = folder.file(name, &bytes);
        let dataset = Dataset::idx(&plain, name).unwrap();
        assert_eq!(device.stats().rows().get(Owner::Data), 0, "a map is no memory of the pool");
        assert_eq!(drained(&dataset), expected);
        let packed = folder.file(&format!("{name}.gz"), &gzipped(&bytes));
        let dataset = Dataset::idx(&packed, name).unwrap();
        assert_eq!(device.stats().rows().get(Owner::Data), (bytes.len() - 4 * bytes[3] as usize - 4) as u64);
        assert_eq!(drained(&dataset), expected);
    }
    for (bytes, text) in [
        (idx_bytes(9, &[1], &[0]), "type 9"),
        (idx_bytes(8, &[u32::MAX, u32::MAX, u32::MAX], &[]), "more elements than can be counted"),
        (idx_bytes(8, &[u32::MAX], &[]), "do not fill"),
        (gzipped(&idx_bytes(8, &[u32::MAX], &[])), "cannot come out of"),
        (gzipped(&idx_bytes(8, &[4], &[1])), "ends within the values"),
        (gzipped(&idx_bytes(8, &[1], &[1, 2])), "something follows"),
        (b"no".to_vec(), "ends within the header"),
        (b"none of that".to_vec(), "not an IDX file"),
        (idx_bytes(8, &[], &[1]), "single number"),
    ] {
        let error = Dataset::idx(folder.file("bad", &bytes), "x").unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn npy_rows_are_read_through_a_map() {
    let (device, _on) = device();
    let folder = Folder::new("npy");
    let path = folder.path().join("x.npy");
    let x = Tensor::from_slice(&(0..12).map(f64::from).collect::<Vec<_>>(), [4, 3]).unwrap();
    x.write_npy(&path).unwrap();
    drop(x);
    let dataset = Dataset::npy(&path, "x").unwrap();
    assert_eq!((dataset.len(), device.stats().in_use), (Some(4), 0));
    let expected: Contents =
        (0..4).map(|k| vec![(vec![3], (3 * k..3 * k + 3).map(f64::from).collect())]).collect();
    assert_eq!(drained(&dataset), expected);

    // A file that is cut short while it is open is an error at the row that is gone.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 8).unwrap();
    let results: Vec<_> = dataset.iter().collect();
    assert_eq!(results.len(), 4);
    assert!(results[..3].iter().all(Result::is_ok));
    assert!(results[3].as_ref().unwrap_err().to_string().contains("when it was opened"));

    Tensor::from(1.0f32).unwrap().write_npy(&path).unwrap();
    assert!(Dataset::npy(&path, "x").unwrap_err().to_string().contains("single number"));
    let truths = Tensor::from_vec(vec![true, false]).unwrap();
    truths.write_npy(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    assert_eq!(drained(&Dataset::npy(&path, "x").unwrap()).len(), 2);
    *bytes.last_mut().unwrap() = 2;
    let bad = folder.file("bad.npy", &bytes);
    let error = read(|| Dataset::npy(&bad, "x")).unwrap_err().to_string();
    assert!(error.contains("row 1 has bytes that are no truth values"), "{error}");
}

#[test]
fn lines_are_bytes_of_varying_length() {
    let (device, _on) = device();
    let folder = Folder::new("lines");
    for (text, expected) in [
        ("", vec![]),
        ("\n", vec![""]),
        ("one", vec!["one"]),
        ("one\n\nthree\r\nfour", vec!["one", "", "three", "four"]),
        ("a\r\n", vec!["a"]),
    ] {
        let path = folder.file("text", text.as_bytes());
        let dataset = Dataset::lines(&path).unwrap();
        assert_eq!(dataset.len(), Some(expected.len()));
        assert_eq!(device.stats().rows().get(Owner::Data), 8 * (expected.len() as u64 + 1));
        let lines: Vec<String> = dataset
            .iter()
            .map(|line| String::from_utf8(line.unwrap()["line"].to_vec().unwrap()).unwrap())
            .collect();
        assert_eq!(lines, expected);
        let padded = dataset.padded_batch(2, Padding::zeros()).unwrap();
        let longest: Vec<usize> =
            expected.chunks(2).map(|lines| lines.iter().map(|line| line.len()).max().unwrap()).collect();
        let shapes: Vec<usize> = padded.iter().map(|batch| batch.unwrap()[0].shape()[1]).collect();
        assert_eq!(shapes, longest);
    }
    assert!(Dataset::lines(folder.path().join("none")).is_err());
}

#[test]
fn windows_of_tokens_are_inputs_and_the_same_one_further_on() {
    let folder = Folder::new("tokens");
    let tokens: Vec<u32> = (0..11).map(|k| 250 + k).collect();
    let narrow =
        folder.file("u16", &tokens.iter().flat_map(|&t| (t as u16).to_le_bytes()).collect::<Vec<_>>());
    let wide = folder.file("u32", &tokens.iter().flat_map(|&t| t.to_le_bytes()).collect::<Vec<_>>());
    let window = |first: u32| (first..first + 4).map(f64::from).collect::<Vec<_>>();
    for (path, kind) in [(&narrow, TokenType::U16), (&wide, TokenType::U32)] {
        for (stride, n) in [(4, 2), (3, 3), (1, 7)] {
            let dataset = Dataset::windows(Tokens::open(path, kind).unwrap(), 4, stride).unwrap();
            let expected: Contents = (0..n)
                .map(|k| 250 + k * stride as u32)
                .map(|first| vec![(vec![4], window(first)), (vec![4], window(first + 1))])
                .collect();
            assert_eq!(drained(&dataset), expected);
        }
    }
    let text = Dataset::windows(Tokens::of_bytes(b"hello").part(1..5).unwrap(), 3, 3).unwrap();
    let bytes = |text: &str| text.bytes().map(f64::from).collect::<Vec<_>>();
    assert_eq!(drained(&text), [[(vec![3], bytes("ell")), (vec![3], bytes("llo"))]]);
    assert_eq!(
        Dataset::windows(Tokens::of_bytes(b"abc"), 3, 1).unwrap().len(),
        Some(0),
        "no target for the last"
    );

    assert!(Tokens::open(&narrow, TokenType::U32).unwrap_err().to_string().contains("no whole number"));
    assert!(Tokens::of_bytes(b"abc").part(1..4).is_err());
    assert!(Dataset::windows(Tokens::of_bytes(b"abc"), 0, 1).is_err());
    let huge = folder.file("huge", &[1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
    let dataset = Dataset::windows(Tokens::open(&huge, TokenType::U32).unwrap(), 1, 1).unwrap();
    let error = dataset.iter().next().unwrap().unwrap_err().to_string();
    assert!(error.contains("token 1 is 4294967295"), "{error}");
}

#[test]
fn a_file_cut_off_at_any_byte_is_refused_or_shorter() {
    let folder = Folder::new("cut");
    let x = Tensor::from_slice(&[1i32, 2, 3, 4, 5, 6], [3, 2]).unwrap();
    let npy = folder.path().join("whole.npy");
    x.write_npy(&npy).unwrap();
    let npy = std::fs::read(&npy).unwrap();
    let idx = idx_bytes(12, &[3, 2], &npy[npy.len() - 24..]);
    let packed = gzipped(&idx);
    for (bytes, kind) in [(&npy, "npy"), (&idx, "idx"), (&packed, "idx")] {
        for n in 0..bytes.len() {
            let path = folder.file("cut", &bytes[..n]);
            let contents = is_harmless(&path, || open_as(kind, &path));
            assert_eq!(contents, None, "{n} bytes of {} as {kind}", bytes.len());
        }
    }
    for n in 0..CSV.len() {
        let path = folder.file("cut", &CSV.as_bytes()[..n]);
        if let Some(contents) = is_harmless(&path, || csv(&path)) {
            assert!(contents.len() <= 3);
        }
    }
}

fn open_as(kind: &str, path: &Path) -> Result<Dataset> {
    match kind {
        "npy" => Dataset::npy(path, "x"),
        "idx" => Dataset::idx(path, "x"),
        "lines" => Dataset::lines(path),
        "tokens" => Dataset::windows(Tokens::open(path, TokenType::U16)?, 3, 2),
        _ => csv(path),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn flipped_bytes_do_no_harm(
        kind in prop::sample::select(vec!["npy", "idx", "gz", "csv"]),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let folder = Folder::new(&format!("flip-{kind}"));
        let x = Tensor::from_slice(&[1i32, 2, 3, 4, 5, 6], [3, 2]).unwrap();
        let path = folder.path().join("whole");
        x.write_npy(&path).unwrap();
        let npy = std::fs::read(&path).unwrap();
        let idx = idx_bytes(12, &[3, 2], &npy[npy.len() - 24..]);
        let mut bytes = match kind {
            "npy" => npy,
            "idx" => idx,
            "gz" => gzipped(&idx),
            _ => CSV.as_bytes().to_vec(),
        };
        for (place, byte) in flips {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let path = folder.file("flipped", &bytes);
        is_harmless(&path, || open_as(if kind == "gz" { "idx" } else { kind }, &path));
    }

    #[test]
    fn any_bytes_at_all_do_no_harm(
        kind in prop::sample::select(vec!["npy", "idx", "csv", "lines", "tokens"]),
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        prefix in 0..3usize,
    ) {
        let folder = Folder::new(&format!("any-{kind}"));
        let prefixes: [&[u8]; 3] = [b"", b"\x93NUMPY\x01\x00", &[0, 0, 8, 3]];
        let path = folder.file("any", &[prefixes[prefix], &bytes].concat());
        is_harmless(&path, || open_as(kind, &path));
    }
}
