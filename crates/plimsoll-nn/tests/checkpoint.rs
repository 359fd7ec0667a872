//! What saving and loading promise: the same bits come back, a file that is not whole is refused with its name and
//! what is wrong, and then nothing has changed.

use std::fs;
use std::path::Path;

use plimsoll_nn::checkpoint::{self, FILE_NAME, NameMap, RunState};
use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::{Layer, Model, Policy, with_policy};
use plimsoll_tensor::{DType, Device, ErrorKind, Owner, Result, Tensor, Variable, set_seed, with_owner};
use plimsoll_testkit::Folder;

/// A small model and what an optimizer might keep for it.
struct Run {
    model: Model,
    optimizer: Vec<Variable>,
}

impl Run {
    fn new(seed: u64, policy: Policy) -> Result<Run> {
        set_seed(seed);
        let layers = Sequential::new().add(Dense::new(3)).add(Dense::new(2).named("head"));
        let model = with_policy(policy, || layers.build([4]))?;
        let optimizer = with_owner(Owner::Optimizer, || {
            let average = Variable::new(Tensor::randn([4, 3])?).named("optimizer.m.dense.kernel");
            let control = Variable::new(Tensor::from_vec(vec![seed as f32, 0.5])?).named("optimizer.control");
            let codes = Variable::new(Tensor::from_vec(vec![1u8, 2, 3])?).named("optimizer.codes");
            Ok::<_, plimsoll_tensor::Error>(vec![average, control, codes])
        })?;
        Ok(Run { model, optimizer })
    }

    fn save(&self, folder: &Path, step: u64) -> Result<()> {
        let state = RunState { step, ..RunState::start(self.model.policy()) };
        checkpoint::save(folder, &self.model, &self.optimizer, &state)
    }

    fn load(&self, folder: &Path) -> Result<RunState> {
        checkpoint::load(folder, &self.model, &self.optimizer)
    }

    /// The bits of all variables, masters and copies.
    fn bits(&self) -> Result<Vec<Vec<u64>>> {
        let variables = self.model.variables();
        let masters = variables.iter().filter_map(|variable| variable.master());
        let all = variables.iter().chain(masters).chain(&self.optimizer);
        all.map(|variable| Ok(variable.to_f64_vec()?.into_iter().map(f64::to_bits).collect())).collect()
    }
}

#[test]
fn what_is_saved_comes_back_bit_for_bit() -> Result<()> {
    for policy in Policy::ALL {
        let folder = Folder::new(&format!("round-{policy}"));
        let (saved, fresh) = (Run::new(1, policy)?, Run::new(2, policy)?);
        saved.save(folder.path(), 77)?;
        assert_ne!(fresh.bits()?, saved.bits()?);
        let state = fresh.load(folder.path())?;
        assert_eq!(fresh.bits()?, saved.bits()?, "{policy}");
        assert_eq!((state.step, state.policy.as_str()), (77, policy.name()));
        assert_eq!(checkpoint::peek(folder.path())?, state);
    }
    Ok(())
}

#[test]
fn equal_runs_make_equal_files_and_a_save_replaces_the_one_before() -> Result<()> {
    let (one, two) = (Folder::new("equal-1"), Folder::new("equal-2"));
    let run = Run::new(1, Policy::MixedBfloat16)?;
    run.save(one.path(), 1)?;
    run.save(one.path(), 2)?;
    run.save(two.path(), 2)?;
    assert_eq!(
        fs::read(one.path().join(FILE_NAME)).expect("read"),
        fs::read(two.path().join(FILE_NAME)).expect("read")
    );
    assert_eq!(fs::read_dir(one.path()).expect("list").count(), 1);
    Ok(())
}

#[test]
fn loading_takes_no_memory_beside_the_variables() -> Result<()> {
    let folder = Folder::new("memory");
    let device = Device::separate_cpu();
    let _on = device.enter();
    let run = Run::new(1, Policy::MixedFloat16)?;
    let before = device.stats().in_use;
    device.pool().reset_peaks();
    run.save(folder.path(), 1)?;
    run.load(folder.path())?;
    assert_eq!((device.stats().in_use, device.stats().peak_in_use), (before, before));
    Ok(())
}

#[test]
fn a_value_that_somebody_holds_stays_as_it_was() -> Result<()> {
    let folder = Folder::new("held");
    let (saved, fresh) = (Run::new(1, Policy::Float32)?, Run::new(2, Policy::Float32)?);
    saved.save(folder.path(), 1)?;
    let held = fresh.model.variables()[0].value();
    let values = held.to_vec::<f32>()?;
    fresh.load(folder.path())?;
    assert_eq!(held.to_vec::<f32>()?, values);
    assert_eq!(fresh.bits()?, saved.bits()?);
    Ok(())
}

#[test]
fn a_file_cut_off_anywhere_is_refused_and_changes_nothing() -> Result<()> {
    let folder = Folder::new("cut");
    let run = Run::new(1, Policy::Float32)?;
    run.save(folder.path(), 1)?;
    let whole = fs::read(folder.path().join(FILE_NAME)).expect("read");
    let other = Run::new(2, Policy::Float32)?;
    let before = other.bits()?;
    for len in 0..whole.len() {
        fs::write(folder.path().join(FILE_NAME), &whole[..len]).expect("write");
        let error = other.load(folder.path()).expect_err("a part of a file");
        assert!(matches!(error.kind(), ErrorKind::Format { .. }), "{error}");
        assert!(error.to_string().contains(FILE_NAME), "{error}");
    }
    fs::write(folder.path().join(FILE_NAME), [&whole[..], b"more"].concat()).expect("write");
    let error = other.load(folder.path()).expect_err("more than a file").to_string();
    assert!(error.contains("followed by something else"), "{error}");
    assert_eq!(other.bits()?, before);
    Ok(())
}

#[test]
fn a_flipped_bit_anywhere_is_found_and_changes_nothing() -> Result<()> {
    let folder = Folder::new("flip");
    let run = Run::new(1, Policy::Float32)?;
    run.save(folder.path(), 1)?;
    let whole = fs::read(folder.path().join(FILE_NAME)).expect("read");
    let other = Run::new(2, Policy::Float32)?;
    let before = other.bits()?;
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(folder.path().join(FILE_NAME), &damaged).expect("write");
        let error = other.load(folder.path()).expect_err("a damaged file");
        assert!(matches!(error.kind(), ErrorKind::Format { .. }), "byte {at}: {error}");
    }
    assert_eq!(other.bits()?, before);
    fs::write(folder.path().join(FILE_NAME), &whole).expect("write");
    other.load(folder.path())?;
    assert_eq!(other.bits()?, run.bits()?);
    Ok(())
}

/// A file with a header of one's own.
fn hostile(folder: &Folder, header: &str, values: &[u8]) -> String {
    let path = folder.path().join("hostile.safetensors");
    fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), values].concat())
        .expect("write");
    let model = Sequential::new().add(Dense::new(1).no_bias()).build([2]).expect("a model");
    let before = model.variables()[0].to_vec::<f32>().expect("values");
    let error = model.load_weights(&path).expect_err("a hostile file").to_string();
    assert_eq!(model.variables()[0].to_vec::<f32>().expect("values"), before);
    assert!(error.contains("hostile.safetensors"), "{error}");
    error
}

#[test]
fn hostile_files_are_refused_in_words() {
    let folder = Folder::new("hostile");
    let says = |header: &str, values: &[u8], what: &str| {
        let error = hostile(&folder, header, values);
        assert!(error.contains(what), "{header}: {error}");
    };
    says("", b"", "damaged");
    says("[]", b"", "damaged");
    says("{", b"", "damaged");
    says(&"[".repeat(100_000), b"", "damaged");
    says("{}", b"", "it lacks something for \"dense.kernel\"");
    let kernel = |shape: &str, offsets: &str| {
        format!(r#"{{"dense.kernel":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    says(&kernel("[2,1]", "[0,8]"), &[0; 7], "cut off");
    says(&kernel("[2,1]", "[0,9]"), &[0; 9], "damaged");
    says(&kernel("[2,1]", "[4,12]"), &[0; 12], "damaged");
    says(&kernel("[2,1]", "[8,0]"), &[0; 8], "damaged");
    says(&kernel("[2,1]", "[0,18446744073709551615]"), &[0; 8], "damaged");
    says(&kernel("[4294967296,4294967296,2]", "[0,8]"), &[0; 8], "damaged");
    says(&kernel("[0,18446744073709551615,18446744073709551615]", "[0,0]"), &[], "more elements than can be");
    says(&kernel("[1,1,1,1,1,1,1,1,1,2]", "[0,8]"), &[0; 8], "dense.kernel");
    says(&kernel("[1,2]", "[0,8]"), &[0; 8], "is [1, 2] there");
    says(&kernel("[2,1]", "[0,8]").replace("F32", "U64"), &[0; 16], "damaged");
    says(&kernel("[2,1]", "[0,16]").replace("F32", "U64"), &[0; 16], "is U64");
    says(&kernel("[2,1]", "[0,8]").replace("F32", "I32"), &[0; 8], "int32");
    let two = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#;
    says(two, &[0; 12], "damaged");
    let twice = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}"#;
    says(twice, &[0; 4], "is there twice");
    let noted = r#"{"__metadata__":{"plimsoll":"{}"},"dense.kernel":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}"#;
    says(noted, &[0; 8], "no checksum");
}

#[test]
fn a_header_of_any_length_is_written_read_and_checked() -> Result<()> {
    let folder = Folder::new("long-header");
    fs::create_dir_all(folder.path()).expect("a folder");
    let path = folder.path().join("many.safetensors");
    let named = |number: usize| (format!("a.rather.long.name.of.a.tensor.{number}"), number);
    let tensors = (0..2000).map(named).map(|(name, n)| Ok((name, Tensor::from_vec(vec![n as i32; n % 4])?)));
    checkpoint::write_tensors(&path, tensors.collect::<Result<_>>()?)?;
    let whole = fs::read(&path).expect("the file");
    let header = u64::from_le_bytes(whole[..8].try_into().expect("eight bytes")) as usize;
    assert!(header > 2 << 16, "several pieces of what is read at a time, not {header} bytes");
    let read = checkpoint::read_tensors(&path)?;
    assert_eq!(read.len(), 2000);
    assert_eq!(read["a.rather.long.name.of.a.tensor.1003"].to_vec::<i32>()?, [1003; 3]);
    // A letter of the last name: the header stays in order, and only the checksum tells.
    let mut damaged = whole.clone();
    let at = 8 + whole[8..8 + header].windows(6).rposition(|part| part == b"tensor").expect("a name");
    damaged[at] = b'T';
    fs::write(&path, &damaged).expect("write");
    let error = checkpoint::read_tensors(&path).expect_err("a damaged file").to_string();
    assert!(error.contains("checksum"), "{error}");
    let notes = std::iter::once(("__metadata__".to_owned(), Tensor::ones([1])?)).collect();
    let error = checkpoint::write_tensors(&path, notes).expect_err("no name for a tensor").to_string();
    assert!(error.contains("__metadata__"), "{error}");
    Ok(())
}

#[test]
fn an_announced_header_is_not_believed() {
    let folder = Folder::new("announced");
    let path = folder.path().join("x.safetensors");
    for announced in [9u64, 100_000_001, u64::MAX] {
        fs::write(&path, [&announced.to_le_bytes()[..], b"{}"].concat()).expect("write");
        let model = Sequential::new().add(Dense::new(1)).build([2]).expect("a model");
        let error = model.load_weights(&path).expect_err("a hostile file").to_string();
        assert!(error.contains(&announced.to_string()), "{error}");
    }
}

#[test]
fn differences_are_listed() -> Result<()> {
    let folder = Folder::new("differences");
    Run::new(1, Policy::Float32)?.save(folder.path(), 1)?;
    let layers = Sequential::new().add(Dense::new(5)).add(Dense::new(2).named("tail"));
    let other = Run { model: layers.build([4])?, ..Run::new(1, Policy::Float32)? };
    let before = other.bits()?;
    let error = other.load(folder.path()).unwrap_err().to_string();
    for part in [
        "it lacks model.tail.bias, model.tail.kernel",
        "nothing here takes its model.head.bias, model.head.kernel",
        "\"model.dense.kernel\" is float32 [4, 3] there and float32 [4, 5] here",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let error = Run::new(1, Policy::MixedFloat16)?.load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("saved under the policy float32") && error.contains("mixed_float16"), "{error}");
    assert_eq!(other.bits()?, before);
    Ok(())
}

#[test]
fn two_variables_of_one_name_are_refused() -> Result<()> {
    let folder = Folder::new("twice");
    let mut run = Run::new(1, Policy::Float32)?;
    run.optimizer.push(Variable::new(Tensor::zeros([1])?).named("optimizer.control"));
    let error = run.save(folder.path(), 1).unwrap_err().to_string();
    assert!(error.contains("two variables are named \"optimizer.control\""), "{error}");
    assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 0);
    Ok(())
}

#[test]
fn no_checkpoint_is_an_error_that_names_the_file() -> Result<()> {
    let folder = Folder::new("none");
    let error = Run::new(1, Policy::Float32)?.load(folder.path()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io { .. }) && error.to_string().contains(FILE_NAME), "{error}");
    Ok(())
}

#[test]
fn weights_go_between_precisions() -> Result<()> {
    let folder = Folder::new("weights");
    let path = folder.path().join("weights.safetensors");
    let saved = Run::new(1, Policy::MixedBfloat16)?.model;
    saved.save_weights(&path)?;
    let wide = Run::new(2, Policy::Float64)?.model;
    wide.load_weights(&path)?;
    for (saved, wide) in saved.variables().iter().zip(wide.variables()) {
        let master = saved.master().expect("a master").cast(DType::F64)?;
        assert_eq!(master.to_vec::<f64>()?, wide.to_vec::<f64>()?);
    }
    let error = checkpoint::load(folder.path(), &saved, &[]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io { .. }));
    fs::rename(&path, folder.path().join(FILE_NAME)).expect("rename");
    let error = checkpoint::load(folder.path(), &saved, &[]).unwrap_err().to_string();
    assert!(error.contains("no checkpoint"), "{error}");
    Ok(())
}

#[test]
fn a_name_map_renames_sums_ignores_and_keeps() -> Result<()> {
    let folder = Folder::new("names");
    let path = folder.path().join("weights.safetensors");
    let dense = |name: &str| Dense::new(2).named(name);
    set_seed(3);
    let from = Sequential::new().add(dense("a.0.x")).add(dense("a.1.x")).add(dense("extra")).build([2])?;
    from.save_weights(&path)?;
    let to = Sequential::new().add(dense("block_0")).add(dense("block_1")).add(dense("new")).build([2])?;
    let kept = to.variables()[4].to_vec::<f32>()?;
    let map = NameMap::new().rule("a.{n}.x.{what}", "block_{n}.{what}", checkpoint::Change::Nothing);
    let error = map.load(&to, &path).unwrap_err().to_string();
    assert!(error.contains("it lacks something for \"new.bias\", something for \"new.kernel\""), "{error}");
    assert!(error.contains("nothing here takes its \"extra.bias\", \"extra.kernel\""), "{error}");
    map.clone().ignore("extra.{rest..}").keep("new.{rest..}").load(&to, &path)?;
    let values = |model: &Model, idx: usize| model.variables()[idx].to_vec::<f32>();
    for idx in 0..4 {
        assert_eq!(values(&to, idx)?, values(&from, idx)?);
    }
    assert_eq!(values(&to, 4)?, kept);

    let sum = NameMap::new().sum(&["a.0.x.{w}", "a.1.x.{w}"], "sum.{w}", checkpoint::Change::Nothing);
    let one = Sequential::new().add(dense("sum")).build([2])?;
    sum.clone().ignore("extra.{rest..}").load(&one, &path)?;
    let (first, second) = (values(&from, 0)?, values(&from, 2)?);
    let expected: Vec<f32> = first.iter().zip(&second).map(|(a, b)| a + b).collect();
    assert_eq!(values(&one, 0)?, expected);
    let error = sum.ignore("extra.{rest..}").ignore("a.1.x.bias").load(&one, &path).unwrap_err().to_string();
    assert!(
        error.contains("\"sum.bias\" would be made of a.0.x.bias, and needs a.0.x.bias, a.1.x.bias"),
        "{error}"
    );
    Ok(())
}
