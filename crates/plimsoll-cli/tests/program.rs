//! The program from outside: exit codes, messages, JSON lines, saving and resuming, as CONTRACTS promises them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A folder of its own for one test, gone when the test ends.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder for temporary files"))
    }

    fn file(&self, name: &str, contents: &[u8]) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, contents).expect("the folder is there");
        path.display().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    command
}

fn run(arguments: &str) -> Output {
    command(arguments).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Runs the program, which must fail with that code and one message that holds all of the words.
#[track_caller]
fn refused(arguments: &str, code: i32, words: &[&str]) {
    let output = run(arguments);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments}\n{stderr}");
    assert_eq!(stdout, "", "{arguments}: results of a run that did not happen");
    assert_eq!(stderr.matches("error:").count(), 1, "{arguments}: one message\n{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{arguments}: no {word:?} in\n{stderr}");
    }
}

/// Runs the program, which must succeed, and reads the lines that it wrote.
#[track_caller]
fn lines(arguments: &str) -> Vec<Value> {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments}\n{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[track_caller]
fn end(arguments: &str) -> Value {
    let last = lines(arguments).pop().expect("at least one line");
    assert_eq!(last["event"], "end");
    last
}

#[test]
fn bad_options_are_refused_with_2() {
    refused("train digits --no-such-option", 2, &["--no-such-option"]);
    refused("train", 2, &["RECIPE"]);
    refused("train nothing", 2, &["`nothing`", "digits", "gpt2-355m", "resnet50"]);
    refused("train digits --batch 0", 2, &["--batch"]);
    refused("train digits --limit 8G", 2, &["`8G`", "512MiB"]);
    refused("train digits --limit 101%", 2, &["`101%`"]);
    refused("train digits --precision half", 2, &["\"half\"", "mixed_float16"]);
    refused("train digits --optimizer adma", 2, &["`adma`", "adamw"]);
    refused("train digits --device gpu:x", 2, &["--device", "cuda:N"]);
    refused("train digits --device cuda:15", 2, &["cuda:15", "cpu"]);
    refused("train digits --epochs 1 --steps 1", 2, &["--epochs", "--steps"]);
    refused("train digits --data somewhere", 2, &["digits", "somewhere"]);
    refused("train digits --batch 4 --accumulate 5", 2, &["--accumulate", "5", "4"]);
    for batch in ["18446744073709551615", "9223372036854775807", "4611686018427387904", "1000000000000000"] {
        for command in
            ["train digits", "plan digits", "train resnet50 --data random", "bench dense", "plan gpt2-124m"]
        {
            refused(&format!("{command} --batch {batch}"), 2, &["--batch", batch, "addresses"]);
        }
    }
    refused("bench nothing", 2, &["`nothing`", "--list"]);
    refused("bench w7_eager --epochs 1 --steps 1", 2, &["--epochs", "--steps"]);
    refused("bench w7_eager --epochs 0", 2, &["--epochs"]);
}

#[test]
fn options_of_features_to_come_are_refused_with_2() {
    refused("train digits --report r.html", 2, &["--report"]);
    refused("explain no-such-file --html page.html", 2, &["--html"]);
}

#[test]
fn files_that_cannot_be_used_are_refused_with_4() {
    let folder = Folder::new();
    refused("train fashion --data no-such-folder", 4, &["no-such-folder", "dataset-fashion-mnist", "--data"]);
    refused("train chars --data no-such-file", 4, &["no-such-file"]);
    refused(&format!("train chars --data {}", folder.file("short", b"too short")), 4, &["short", "at least"]);
    refused("train digits --resume no-such-folder", 4, &["no-such-folder"]);
    refused("train digits --spill no-such-folder", 4, &["--spill", "no-such-folder"]);
    if Path::new("/dev/shm").is_dir() {
        refused("train digits --spill /dev/shm", 4, &["--spill", "/dev/shm", "tmpfs"]);
    }
    refused(
        &format!("train digits --steps 1 --json --save {}", folder.file("taken", b"")),
        4,
        &["--save", "taken"],
    );
    let damaged = folder.path("damaged");
    fs::create_dir(&damaged).expect("a folder");
    folder.file("damaged/checkpoint.safetensors", b"no checkpoint at all");
    refused(&format!("train digits --resume {damaged}"), 4, &["checkpoint.safetensors"]);
    for name in ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"] {
        folder.file(&format!("{name}-ubyte.gz"), b"not compressed");
    }
    refused(
        &format!("train fashion --data {}", folder.0.path().display()),
        4,
        &["train-images-idx3-ubyte.gz"],
    );
}

/// A file in the format of Fashion-MNIST.
fn idx(dims: &[u32], value: u8) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dims.len() as u8];
    dims.iter().for_each(|dim| bytes.extend(dim.to_be_bytes()));
    bytes.resize(bytes.len() + dims.iter().product::<u32>() as usize, value);
    bytes
}

#[test]
fn data_of_another_shape_than_the_recipes_are_refused_with_4() {
    let folder = Folder::new();
    let data = folder.0.path().display();
    let good: [&[u32]; 4] = [&[64, 28, 28], &[64], &[20, 28, 28], &[20]];
    let names = ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"];
    let write =
        |number: usize, dims: &[u32]| folder.file(&format!("{}-ubyte.gz", names[number]), &idx(dims, 3));
    let write_all = || good.iter().enumerate().for_each(|(number, dims)| drop(write(number, dims)));
    write_all();
    end(&format!("train fashion --steps 2 --batch 8 --json --data {data}"));
    let wrong: [(usize, &[u32], &str); 8] = [
        (0, &[64, 28, 27], "[28, 28]"),
        (0, &[64, 784], "[28, 28]"),
        (0, &[64], "[28, 28]"),
        (1, &[64, 1], "[]"),
        (1, &[63], "63"),
        (0, &[65, 28, 28], "65"),
        (2, &[20, 14, 56], "[28, 28]"),
        (3, &[21], "21"),
    ];
    for (number, dims, word) in wrong {
        write_all();
        write(number, dims);
        for command in ["train", "plan"] {
            refused(&format!("{command} fashion --batch 8 --steps 1 --device cpu --data {data}"), 4, &[word]);
        }
    }
    write_all();
    folder.file("train-labels-idx1-ubyte.gz", &idx(&[64], 200));
    let output = run(&format!("train fashion --batch 8 --steps 1 --json --data {data}"));
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    assert!(
        stderr.contains("label 200") && stderr.contains(&folder.0.path().display().to_string()),
        "{stderr}"
    );
}

#[test]
fn a_run_that_is_resumed_otherwise_than_it_began_is_refused_with_4() {
    let folder = Folder::new();
    let saved = folder.path("run");
    end(&format!("train digits --steps 3 --json --optimizer adam --save {saved}"));
    let resumed = format!("train digits --steps 5 --resume {saved} --optimizer adam");
    for (option, before) in
        [("--batch 16", "--batch 32"), ("--seed 1", "--seed 0"), ("--accumulate 2", "--accumulate 1")]
    {
        let (name, here) = option.split_once(' ').expect("a name and a number");
        refused(&format!("{resumed} {option}"), 4, &[before, &format!("this one has {here}"), name]);
    }
    refused(&format!("train digits --steps 5 --resume {saved}"), 4, &["--optimizer adam"]);
    end(&format!("{resumed} --json --threads 1 --limit 64MiB"));
}

/// The least limit, in MiB, that the message of a run names that was refused for its limit.
#[track_caller]
fn least_limit(arguments: &str) -> u64 {
    let output = run(&format!("{arguments} --json --limit 2MiB"));
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    let named = stderr.trim_end().rsplit_once("--limit ").and_then(|(_, limit)| limit.strip_suffix("MiB"));
    named.and_then(|limit| limit.parse().ok()).expect(&stderr)
}

#[test]
fn a_limit_that_cannot_be_kept_is_refused_with_3_and_the_least_that_can_be_is_named() {
    refused("train digits --limit 0", 3, &["2MiB"]);
    // Two whole epochs of the digits: with a short last batch, evaluations and saving.
    let folder = Folder::new();
    let digits = format!("train digits --epochs 2 --batch 500 --save {}", folder.path("run"));
    for arguments in [&digits, "train dense --steps 5", "train fashion --data random --steps 5 --batch 20"] {
        let least = least_limit(arguments);
        end(&format!("{arguments} --json --limit {least}MiB"));
        let output = run(&format!("{arguments} --json --limit {}MiB", least - 2));
        assert_eq!(output.status.code(), Some(3), "{arguments}: {}", text(&output.stderr));
    }
}

#[test]
fn json_lines_are_those_of_the_contract() {
    let lines = lines("train digits --steps 46 --json --seed 3 --limit 64MiB");
    let keys =
        |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>().join(" ");
    let of = |event: &str| lines.iter().filter(|line| line["event"] == event).collect::<Vec<_>>();
    let (steps, epochs, ends) = (of("step"), of("epoch"), of("end"));
    assert_eq!((steps.len(), ends.len(), lines.len()), (46, 1, 46 + epochs.len() + 1));
    assert!(steps.iter().zip(1..).all(|(line, number)| line["step"] == number));
    let names = "committed_bytes event in_use_bytes loss ms peak_bytes step";
    assert!(steps.iter().all(|line| keys(line) == names));
    // 1,437 examples are 45 batches: one whole epoch, and one that was begun.
    assert_eq!(epochs.iter().map(|line| &line["epoch"]).collect::<Vec<_>>(), [1, 2]);
    assert!(
        epochs.iter().all(|line| line["accuracy"].as_f64().is_some_and(|part| (0.0..=1.0).contains(&part)))
    );
    let end = ends[0];
    let names = "batch committed_bytes data device event limit_bytes limit_from loss loss_bits median_step_ms \
        offloaded_bytes outside_bytes parameters_sha256 peak_bytes precision predicted_committed_bytes \
        predicted_peak_bytes recipe recomputed_flops recomputed_ops released_bytes seed steps version";
    assert_eq!(keys(end), names);
    let loss = end["loss"].as_f64().expect("a loss");
    assert_eq!(end["loss_bits"], format!("{:08x}", (loss as f32).to_bits()));
    assert_eq!((&end["limit_bytes"], &end["limit_from"]), (&Value::from(64 << 20), &Value::from("user")));
    assert_eq!((&end["data"], &end["batch"], &end["seed"]), (&"shipped".into(), &32.into(), &3.into()));
    assert!(end["peak_bytes"].as_u64() <= end["committed_bytes"].as_u64());
    assert_eq!(end["released_bytes"].as_u64().map(|bytes| bytes > 0), Some(true));
    assert_eq!(end["predicted_peak_bytes"], end["peak_bytes"]);
    assert_eq!(end["predicted_committed_bytes"], end["committed_bytes"]);
    for none in ["recomputed_ops", "recomputed_flops", "offloaded_bytes"] {
        assert_eq!(end[none], 0, "{none}");
    }
    // Nothing is left over from a step.
    let in_use: Vec<&Value> = steps[1..45].iter().map(|line| &line["in_use_bytes"]).collect();
    assert!(in_use.iter().all(|bytes| *bytes == in_use[0]), "{in_use:?}");
}

/// What can be seen in a folder.
fn n_entries(folder: &Folder) -> usize {
    fs::read_dir(folder.0.path()).expect("the folder is there").count()
}

#[test]
fn a_run_that_spills_needs_less_memory_and_has_the_same_bits() {
    let (run, folder) = ("train gpt-nano --batch 8 --steps 2 --data random", Folder::new());
    let spilling = format!("{run} --spill {}", folder.0.path().display());
    let least = least_limit(&spilling);
    assert!(least < least_limit(run), "{least}");
    let (natural, spilled) =
        (end(&format!("{run} --json --limit none")), end(&format!("{spilling} --json --limit {least}MiB")));
    assert_eq!(natural["offloaded_bytes"], 0);
    assert!(spilled["offloaded_bytes"].as_u64() > Some(0), "{spilled}");
    assert!(spilled["committed_bytes"].as_u64() <= Some(least << 20), "{spilled}");
    for same in ["loss_bits", "parameters_sha256"] {
        assert_eq!(natural[same], spilled[same], "{same}");
    }
    assert_eq!(n_entries(&folder), 0);

    let mut killed = command(&format!("{spilling} --json --limit {least}MiB"));
    let mut killed = killed.stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut first = String::new();
    BufReader::new(killed.stdout.take().expect("piped")).read_line(&mut first).expect("a line");
    killed.kill().expect("the program runs");
    killed.wait().expect("the program has ended");
    assert!(first.contains("\"step\""), "{first}");
    assert_eq!(n_entries(&folder), 0);

    // A file that may not grow stands for a disk that is full.
    let program = env!("CARGO_BIN_EXE_plimsoll");
    let script = format!("trap '' XFSZ; ulimit -f 200; exec {program} {spilling} --limit {least}MiB");
    let output = Command::new("sh").args(["-c", &script]).output().expect("the shell starts");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    assert!(stderr.contains("could not be written"), "{stderr}");
}

#[test]
fn the_same_run_has_the_same_bits_for_every_number_of_threads() {
    let sums = [1, 2, 3].map(|n| end(&format!("train digits --steps 6 --json --threads {n}")));
    assert_eq!(sums[0]["parameters_sha256"], sums[1]["parameters_sha256"]);
    assert_eq!(sums[0]["parameters_sha256"], sums[2]["parameters_sha256"]);
    assert_eq!(sums[0]["loss_bits"], sums[2]["loss_bits"]);
    let other = end("train digits --steps 6 --json --seed 1");
    assert_ne!(sums[0]["parameters_sha256"], other["parameters_sha256"]);
}

#[test]
fn a_batch_in_parts_gives_the_same_losses_up_to_rounding() {
    let losses = |arguments: &str| -> Vec<f64> {
        let lines = lines(&format!("train dense --steps 3 --batch 30 --json {arguments}"));
        lines.iter().filter(|line| line["event"] == "step").filter_map(|line| line["loss"].as_f64()).collect()
    };
    let (whole, parts) = (losses(""), losses("--accumulate 4"));
    assert_eq!((whole.len(), parts.len()), (3, 3));
    // A loss is a mean of 30 numbers around 2.5 in f32; a thousand roundings are far more than the parts make.
    assert!(
        whole.iter().zip(&parts).all(|(a, b)| (a - b).abs() <= 1000.0 * f64::from(f32::EPSILON)),
        "{whole:?} {parts:?}"
    );
}

#[test]
fn every_precision_and_optimizer_trains() {
    for precision in ["float64", "mixed_bfloat16", "mixed_float16"] {
        let end = end(&format!("train digits --steps 3 --json --precision {precision}"));
        assert_eq!(end["precision"], precision);
    }
    for optimizer in ["sgd", "momentum", "nesterov", "adamw", "adam8bit", "rmsprop", "adagrad", "adafactor"] {
        end(&format!("train digits --steps 2 --json --optimizer {optimizer}"));
    }
}

#[test]
fn a_resumed_run_equals_one_that_was_not_interrupted() {
    let folder = Folder::new();
    let saved = folder.path("run");
    // The recipe's own rate falls over the whole run, so that runs of different length differ; Adam's stays.
    for arguments in [" --optimizer adam", " --optimizer adam --precision mixed_float16 --accumulate 3"] {
        let whole = end(&format!("train digits --steps 50 --json{arguments}"));
        end(&format!("train digits --steps 20 --json --save {saved}{arguments}"));
        let resumed = end(&format!("train digits --steps 50 --json --resume {saved}{arguments}"));
        for field in ["parameters_sha256", "loss_bits", "steps"] {
            assert_eq!(whole[field], resumed[field], "{field}{arguments}");
        }
    }
}

#[test]
fn an_interrupted_run_ends_after_its_step_saves_and_says_130() {
    let folder = Folder::new();
    let saved = folder.path("run");
    let mut child = command(&format!("train dense --batch 8 --steps 100000000 --json --save {saved}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    let mut first = String::new();
    stdout.read_line(&mut first).expect("a line");
    assert!(first.contains("\"step\":1"), "{first}");
    let kill =
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("`kill` is there");
    assert!(kill.success());
    let rest: Vec<String> = stdout.lines().map(|line| line.expect("a line")).collect();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let end: Value = serde_json::from_str(rest.last().expect("a last line")).expect("JSON");
    assert_eq!(end["event"], "end");
    let steps = end["steps"].as_u64().expect("a number");
    let resumed = lines(&format!("train dense --batch 8 --steps {} --json --resume {saved}", steps + 1));
    assert_eq!(resumed[0]["step"], steps + 1);
}

#[test]
fn people_get_lines_for_epochs_and_a_summary_of_the_memory_without_a_bar() {
    let output = run("train digits --epochs 2");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "stderr is no terminal, so there is no bar");
    assert_eq!(stdout.lines().filter(|line| line.starts_with("epoch")).count(), 2, "{stdout}");
    for words in ["accuracy", "parameters", "the model's weights", "given back at the end"] {
        assert!(stdout.contains(words), "{stdout}");
    }
}

#[test]
fn random_data_are_said_to_be_random() {
    let output = run("train dense --steps 1 --batch 2");
    assert!(text(&output.stdout).contains("random"), "{}", text(&output.stdout));
    assert_eq!(end("train digits --data random --steps 1 --json")["data"], "random");
    assert_eq!(end("train fashion --data random --steps 1 --batch 2 --json")["data"], "random");
}

#[test]
fn workloads_are_listed_and_measured() {
    let list = text(&run("bench --list").stdout);
    for name in [
        "w1_mlp_b32",
        "w1_mlp_b128",
        "w1_mlp_b512",
        "w2_deep_mlp",
        "w3_cnn",
        "w4_lstm",
        "w5_gpt",
        "w6_matmul1024",
        "w6_matmul2048",
        "w6_add16m",
        "w7_eager",
        "mlp-784-1024-10-b512",
        "mlp-deep-b4096",
        "resnet50-b128",
        "lstm-b256",
        "eager-ops",
    ] {
        assert!(
            list.lines().any(|line| line.split_whitespace().next() == Some(name)),
            "no {name} in\n{list}"
        );
    }
    for name in ["w1_mlp_b32", "w4_lstm", "w6_matmul1024", "w7_eager", "digits"] {
        let line = &lines(&format!("bench {name} --steps 1 --json --threads 2"))[0];
        assert_eq!(
            (&line["event"], &line["workload"], &line["threads"], &line["deterministic"]),
            (&"bench".into(), &name.into(), &2.into(), &true.into())
        );
        for field in ["median_ms", "min_ms"] {
            assert!(line[field].as_f64().is_some_and(|ms| ms > 0.0), "{line}");
        }
        let bytes = |field: &str| line[field].as_u64().expect(field);
        assert!(0 < bytes("peak_bytes") && bytes("peak_bytes") <= bytes("committed_bytes"), "{line}");
        // What the pool has taken is the process's, too.
        assert!(bytes("peak_anon_over_base_bytes") >= bytes("peak_bytes"), "{line}");
    }
}

#[test]
fn an_epoch_of_a_benchmark_has_the_steps_of_one_in_training() {
    // Warm-up and each of five repeats are an epoch, after one first step: 4 batches of random data, 3 of the digits.
    for (arguments, steps) in [("bench w1_mlp_b32 --epochs 2", 8), ("bench digits --batch 500 --epochs 1", 3)]
    {
        let text = text(&run(arguments).stdout);
        assert!(text.contains(&format!("; {} steps", 1 + 6 * steps)), "{text}");
    }
    // A call has no data and is an epoch of its own.
    let text = text(&run("bench w7_eager --epochs 2").stdout);
    assert!(text.contains("; 13 steps"), "{text}");
}

#[test]
fn devices_tell_what_there_is() {
    let device = &lines("devices --json")[0];
    assert_eq!(device["device"], "cpu");
    assert!(device["memory_bytes"].as_u64() >= device["free_bytes"].as_u64());
    assert!(text(&run("devices").stdout).starts_with("cpu"));
}
