//! Plans from outside: what `plan` says, and what `train` says of itself before it begins, is what the run takes.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use tempfile::TempDir;

/// A folder of its own for one test, gone when the test ends.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder for temporary files"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// A text of so many bytes.
    fn text(&self, n_bytes: usize) -> String {
        let text = "It is a truth universally acknowledged. ".repeat(n_bytes / 40 + 1);
        fs::write(self.path("text"), &text[..n_bytes]).expect("the folder is there");
        self.path("text")
    }

    /// Images and labels in the form of Fashion-MNIST: so many to train on, and so many held out.
    fn images(&self, n_train: usize, n_held_out: usize) -> String {
        for (part, n) in [("train", n_train), ("t10k", n_held_out)] {
            self.idx(&format!("{part}-images-idx3-ubyte.gz"), &[n, 28, 28]);
            self.idx(&format!("{part}-labels-idx1-ubyte.gz"), &[n]);
        }
        self.0.path().display().to_string()
    }

    fn idx(&self, name: &str, shape: &[usize]) {
        let mut bytes = vec![0, 0, 8, shape.len() as u8];
        shape.iter().for_each(|&extent| bytes.extend((extent as u32).to_be_bytes()));
        bytes.extend((0..shape.iter().product::<usize>()).map(|k| (k % 10) as u8));
        let file = fs::File::create(self.0.path().join(name)).expect("the folder is there");
        let mut file = GzEncoder::new(file, Compression::fast());
        file.write_all(&bytes).and_then(|()| file.finish()).expect("it can be written");
    }
}

fn run(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.env("PLIMSOLL_OOM_REPORT", "off");
    command.args(arguments.split_whitespace()).stdin(Stdio::null()).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Runs the program, which must succeed, and reads the last line that it wrote.
#[track_caller]
fn last(arguments: &str) -> Value {
    let output = run(&format!("{arguments} --json"));
    assert!(output.status.success(), "{arguments}\n{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    serde_json::from_str(stdout.lines().next_back().expect("at least one line")).expect(&stdout)
}

/// A number of an event.
#[track_caller]
fn number(event: &Value, name: &str) -> u64 {
    event[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {event}"))
}

/// Trains, and compares prediction and measurement: the difference is zero bytes.
#[track_caller]
fn is_exact(arguments: &str) -> (u64, u64) {
    let end = last(&format!("train {arguments} --device cpu"));
    let (peak, committed) = (number(&end, "peak_bytes"), number(&end, "committed_bytes"));
    let predicted = (number(&end, "predicted_peak_bytes"), number(&end, "predicted_committed_bytes"));
    assert_eq!(predicted, (peak, committed), "{arguments}");
    (peak, committed)
}

/// At three batch sizes, in two precisions, in one part and in four.
#[track_caller]
fn is_exact_throughout(recipe: &str, batches: [usize; 3], length: &str) {
    for batch in batches {
        for precision in ["float32", "mixed_bfloat16"] {
            for parts in [1, 4] {
                is_exact(&format!(
                    "{recipe} --batch {batch} --precision {precision} --accumulate {parts} {length}"
                ));
            }
        }
    }
}

#[test]
fn digits_are_as_planned() {
    // Two epochs with a short batch each, evaluations, and a save after each epoch.
    let folder = Folder::new();
    is_exact_throughout("digits", [32, 100, 499], &format!("--epochs 2 --save {}", folder.path("run")));
}

#[test]
fn dense_is_as_planned() {
    is_exact_throughout("dense", [4, 33, 128], "--steps 6");
}

#[test]
fn chars_are_as_planned() {
    let folder = Folder::new();
    // 42 windows to train on and 4 held out: every batch leaves a short one.
    is_exact_throughout("chars", [4, 8, 13], &format!("--epochs 2 --data {}", folder.text(3000)));
}

#[test]
fn fashion_is_as_planned() {
    let folder = Folder::new();
    is_exact_throughout("fashion", [4, 7, 16], &format!("--epochs 2 --data {}", folder.images(26, 9)));
}

#[test]
fn gpt_nano_is_as_planned() {
    let folder = Folder::new();
    // Eleven windows and one held out.
    is_exact_throughout("gpt-nano", [4, 5, 8], &format!("--epochs 1 --data {}", folder.text(1600)));
}

#[test]
fn the_large_recipes_are_as_planned_at_batch_1() {
    is_exact("resnet18 --batch 1 --steps 2");
    is_exact("resnet50 --batch 1 --steps 1");
    is_exact("gpt2-124m --batch 1 --steps 1");
}

#[test]
fn a_resumed_run_is_as_planned() {
    let folder = Folder::new();
    let saved = folder.path("run");
    is_exact(&format!("digits --steps 20 --save {saved}"));
    is_exact(&format!("digits --steps 60 --resume {saved} --save {saved}"));
}

#[test]
fn runs_under_a_limit_are_as_planned() {
    let run = "fashion --data random --batch 96 --steps 2";
    let plan = last(&format!("plan {run} --device cpu"));
    let (least, natural) = (number(&plan, "least_limit_bytes"), number(&plan, "committed_bytes"));
    assert!(least < natural, "{plan}");
    for limit in [least, least + (2 << 20), natural] {
        let end = last(&format!("train {run} --limit {limit} --device cpu"));
        let (peak, committed) = (number(&end, "peak_bytes"), number(&end, "committed_bytes"));
        assert!(committed <= limit);
        let plan = last(&format!("plan {run} --limit {limit} --device cpu"));
        assert_eq!((number(&plan, "peak_bytes"), number(&plan, "committed_bytes")), (peak, committed));
        assert_eq!(plan["recomputed_flops"], end["recomputed_flops"]);
        let recomputes = number(&plan, "recomputed_flops") > 0;
        assert!(if limit == least { recomputes } else { limit < natural || !recomputes }, "{plan}");
    }
}

#[test]
fn runs_that_may_spill_are_as_planned() {
    let folder = Folder::new();
    let run = "chars --data random --batch 32 --steps 9 --device cpu";
    let spilling = format!("{run} --spill {}", folder.0.path().display());
    let least = |run: &str| number(&last(&format!("plan {run}")), "least_limit_bytes");
    let (with, without) = (least(&spilling), least(run));
    assert!(with < without, "{with} and {without}");
    for limit in [with, without] {
        let end = last(&format!("train {spilling} --limit {limit}"));
        let plan = last(&format!("plan {spilling} --limit {limit}"));
        for same in ["peak_bytes", "committed_bytes", "recomputed_flops", "offloaded_bytes"] {
            assert_eq!(plan[same], end[same], "{same} under {limit}");
        }
        assert!(limit > with || number(&plan, "offloaded_bytes") > 0, "{plan}");
        let told = text(&self::run(&format!("plan {spilling} --limit {limit}")).stdout);
        assert_eq!(
            told.contains("keeping the limit offloads"),
            number(&plan, "offloaded_bytes") > 0,
            "{told}"
        );
    }
    assert_eq!(last(&format!("plan {spilling} --limit {}", with - 1))["fits"], false);
    assert_eq!(fs::read_dir(folder.0.path()).expect("the folder is there").count(), 0);

    let run = "chars --data random --steps 1 --device cpu --limit 40MiB";
    let spilling = format!("{run} --spill {}", folder.0.path().display());
    let batch = |run: &str| number(&last(&format!("plan {run} --max-batch")), "batch");
    let most = batch(&spilling);
    assert!(most > batch(run), "{most}");
    last(&format!("train {spilling} --batch {most}"));
    let refused = self::run(&format!("train {spilling} --batch {}", most + 1));
    assert_eq!(refused.status.code(), Some(3), "{most}\n{}", text(&refused.stderr));
}

#[test]
fn a_gpu_that_is_not_there_moves_values_to_a_host_that_the_options_describe() {
    let run = "gpt-nano --batch 8 --steps 3 --data random --as h200";
    let least = |host: &str| number(&last(&format!("plan {run} {host}")), "least_limit_bytes");
    let (with, without) = (least("--host-limit 4GiB"), least(""));
    assert!(with < without, "{with} and {without}");
    // Half of it would be too little to be worth while.
    assert_eq!(least("--host-limit 500MiB"), without);
    let plan = last(&format!("plan {run} --limit {with} --host-limit 4GiB"));
    assert_eq!(plan["fits"], true, "{plan}");
    assert!(number(&plan, "offloaded_bytes") > 0 && number(&plan, "committed_bytes") <= with, "{plan}");
    assert_eq!(last(&format!("plan {run} --limit {with}"))["fits"], false);
}

#[test]
fn the_event_is_that_of_the_contract() {
    let plan = last("plan digits --batch 100 --epochs 2 --limit 64MiB --device cpu");
    let names: Vec<&str> = plan.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = "batch cluster committed_bytes device device_profile event fits holders least_limit_bytes limit_bytes \
                    limit_from offloaded_bytes owners peak_at peak_bytes predicted_step_ms ranks recipe recomputed_flops zero";
    assert_eq!(names.join(" "), expected);
    // What is said of clusters is null for a single device.
    assert!(["cluster", "ranks", "zero"].iter().all(|name| plan[*name].is_null()), "{plan}");
    assert_eq!(
        (&plan["event"], &plan["recipe"], &plan["batch"]),
        (&"plan".into(), &"digits".into(), &100.into())
    );
    assert_eq!(
        (&plan["device"], &plan["fits"], &plan["limit_from"]),
        (&"cpu".into(), &true.into(), &"user".into())
    );
    let (peak, committed) = is_exact("digits --batch 100 --epochs 2 --limit 64MiB");
    assert_eq!((number(&plan, "peak_bytes"), number(&plan, "committed_bytes")), (peak, committed));
    let owners = plan["owners"].as_object().expect("an object");
    assert_eq!(owners.values().filter_map(Value::as_u64).sum::<u64>(), peak);
    assert_eq!((owners.len(), owners["parameters"].as_u64() > Some(0)), (9, true));
    let holders = plan["holders"].as_array().expect("a list");
    let bytes: Vec<u64> = holders.iter().map(|holder| number(holder, "bytes")).collect();
    assert!(bytes.is_sorted_by(|a, b| a >= b) && bytes.len() <= 20 && bytes.iter().sum::<u64>() <= peak);
    assert!(
        holders
            .iter()
            .all(|holder| ["owner", "layer", "op", "line"].iter().all(|name| holder[name].is_string()))
    );
    let at = &plan["peak_at"];
    assert!(at["step"].as_u64() > Some(0), "{at}");
    assert!(["forward", "backward", "update"].contains(&at["phase"].as_str().expect("a word")), "{at}");
}

#[test]
fn the_text_is_for_people() {
    let output = text(&run("plan digits --steps 5 --device cpu").stdout);
    for words in ["digits on cpu", "batch 32", "at most", "the peak is reached", "parameters", "by layer"] {
        assert!(output.contains(words), "{words}\n{output}");
    }
    for words in ["largest holders", "the step that needs most", "least limit", "ms per step"] {
        assert!(output.contains(words), "{words}\n{output}");
    }
}

#[test]
fn a_plan_that_does_not_fit_says_so_and_names_the_least_limit() {
    let plan = last("plan dense --limit 2MiB --device cpu");
    assert_eq!(plan["fits"], false);
    let least = number(&plan, "least_limit_bytes");
    assert_eq!(last(&format!("plan dense --limit {least} --device cpu"))["fits"], true);
    assert_eq!(last(&format!("plan dense --limit {} --device cpu", least - 1))["fits"], false);
}

#[test]
fn the_largest_batch_runs_and_the_next_is_refused() {
    for (recipe, limit) in [("dense --steps 3", "24MiB"), ("fashion --data random --steps 2", "40MiB")] {
        let options = format!("--limit {limit} --accumulate 2 --device cpu");
        let plan = last(&format!("plan {recipe} {options} --max-batch"));
        let batch = number(&plan, "batch");
        assert_eq!((&plan["fits"], batch > 2), (&true.into(), true), "{plan}");
        last(&format!("train {recipe} {options} --batch {batch}"));
        let refused = run(&format!("train {recipe} {options} --batch {}", batch + 1));
        assert_eq!(refused.status.code(), Some(3), "{recipe}: {batch}\n{}", text(&refused.stderr));
    }
    let none = run("plan dense --limit 2MiB --device cpu --max-batch --json");
    assert_eq!((none.status.code(), text(&none.stdout)), (Some(3), String::new()));
    assert!(text(&none.stderr).contains("the least limit"), "{}", text(&none.stderr));
    assert_eq!(run("plan dense --limit none --device cpu --max-batch").status.code(), Some(2));
    // There are no more digits than these.
    assert_eq!(last("plan digits --limit 1GiB --device cpu --max-batch")["batch"], 1437);
}

/// A sample of what `cargo xtask plans` goes through.
#[test]
fn plans_answer_as_text_and_as_json_however_far_beyond_the_device_they_are() {
    for arguments in [
        "gpt-nano --device cpu --limit 2GiB --batch 3000",
        "gpt2-124m --as t4 --batch 2000",
        "dense --as rtx4090 --batch 1000000000",
        "resnet18 --as a100-40 --batch 300000",
    ] {
        let planned = last(&format!("plan {arguments}"));
        assert_eq!(planned["fits"], false, "{arguments}: {planned}");
        let written = run(&format!("plan {arguments}"));
        assert!(written.status.success(), "{arguments}\n{}", text(&written.stderr));
        assert!(text(&written.stdout).contains("does not fit"), "{arguments}\n{}", text(&written.stdout));
    }
    for arguments in ["gpt-nano --as rtx4090 --limit 2GiB", "chars --as h200 --limit 1%", "dense --as t4"] {
        let batch = number(&last(&format!("plan {arguments} --max-batch")), "batch");
        let written = run(&format!("plan {arguments} --max-batch"));
        let text = text(&written.stdout);
        assert!(text.contains(&format!("batch {batch}, the largest that fits")), "{arguments}\n{text}");
        for (batch, fits) in [(batch, true), (batch + 1, false)] {
            assert_eq!(
                last(&format!("plan {arguments} --batch {batch}"))["fits"],
                fits,
                "{arguments} {batch}"
            );
        }
    }
}

#[test]
fn plans_for_gpus_that_are_not_there() {
    let of =
        |model: &str| last(&format!("plan gpt2-124m --precision mixed_bfloat16 --batch 16 --as {model}"));
    let h200 = of("h200");
    assert_eq!((&h200["device"], &h200["device_profile"]), (&"cuda:0".into(), &"NVIDIA H200".into()));
    assert_eq!((&h200["fits"], &h200["limit_from"]), (&true.into(), &"device".into()));
    let ms = |plan: &Value| plan["predicted_step_ms"].as_f64().expect("a number");
    for model in ["h100", "a100-80", "a100-40", "rtx4090", "t4"] {
        let plan = of(model);
        assert!(ms(&plan) >= ms(&h200), "{model}: {plan}");
        assert!(number(&plan, "limit_bytes") < number(&h200, "limit_bytes"));
    }
    let batch = |options: &str| {
        number(&last(&format!("plan resnet18 --precision mixed_float16 --max-batch {options}")), "batch")
    };
    let on_t4 = batch("--as t4 --limit 4GiB");
    let refused =
        last(&format!("plan resnet18 --precision mixed_float16 --as t4 --limit 4GiB --batch {}", on_t4 + 1));
    assert_eq!(refused["fits"], false);

    let folder = Folder::new();
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../plimsoll-cuda/profiles/t4.json");
    let mine = fs::read_to_string(shipped).expect("it is shipped").replace("Tesla T4", "My T4");
    fs::write(folder.path("mine.json"), mine).expect("the folder is there");
    assert_eq!(last(&format!("plan digits --as {}", folder.path("mine.json")))["device_profile"], "My T4");
}

#[test]
fn what_cannot_be_planned_is_refused_with_its_code() {
    let folder = Folder::new();
    fs::write(folder.path("empty.json"), "{}").expect("the folder is there");
    for (arguments, code, words) in [
        ("plan nothing".to_owned(), 2, "`nothing`"),
        ("plan digits --as h3".to_owned(), 2, "a100-80"),
        ("plan digits --as h200 --device cpu".to_owned(), 2, "--device cuda:0"),
        ("plan digits --device cuda:14".to_owned(), 2, "--as"),
        ("plan digits --device gpu:x".to_owned(), 2, "--device"),
        ("plan digits --batch 3 --max-batch".to_owned(), 2, "--max-batch"),
        ("plan digits --limit 0 --device cpu".to_owned(), 3, "2MiB"),
        ("plan chars --data no-such-file --device cpu".to_owned(), 4, "no-such-file"),
        ("plan digits --spill no-such-folder --device cpu".to_owned(), 4, "no-such-folder"),
        ("plan digits --spill . --as h200".to_owned(), 2, "--host-limit"),
        (format!("plan digits --as {}", folder.path("empty.json")), 4, "no device profile"),
    ] {
        let output = run(&arguments);
        let stderr = text(&output.stderr);
        assert_eq!(
            (output.status.code(), text(&output.stdout)),
            (Some(code), String::new()),
            "{arguments}: {stderr}"
        );
        assert!(stderr.contains(words), "{arguments}: {stderr}");
    }
}
