//! What surrounds the program and is not what it should be: limits of the system, other users, and names in folders that
//! stand for something else than files. Whatever it is, the program goes on or ends with one message and its code: no
//! panic, no signal, no wait.
//!
//! Where the tests run as root, each is made as root and as a user without rights. A program that waits for ever is ended
//! by `timeout`, so that it fails a test and does not stop all of them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// The user and group that own nothing.
const NOBODY: u32 = 65534;
/// Seconds after which a program counts as waiting for ever.
const FOR_EVER: &str = "300";

/// A folder that every user can use, with a copy of the program in it, because users need not see where it was built.
struct Place {
    folder: TempDir,
    user: Option<u32>,
}

impl Place {
    /// The folder for each user that the tests can run as.
    fn for_each_user(name: &str) -> Vec<Place> {
        let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
        let users: &[Option<u32>] = if is_root { &[None, Some(NOBODY)] } else { &[None] };
        users.iter().map(|&user| Place::new(name, user)).collect()
    }

    fn new(name: &str, user: Option<u32>) -> Place {
        let folder = tempfile::Builder::new().prefix(&format!("plimsoll-{name}-")).tempdir();
        let folder = folder.expect("a temporary folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        fs::copy(env!("CARGO_BIN_EXE_plimsoll"), folder.path().join("plimsoll"))
            .expect("the program is there");
        chown(folder.path(), user, user).expect("root may give it away");
        Place { folder, user }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A folder that belongs to the user.
    fn make_folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).expect("the folder is there");
        chown(&path, self.user, self.user).expect("root may give it away");
        path
    }

    /// The program under a limit of `prlimit`'s, if there is one.
    fn command(&self, limit: &str, arguments: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args([FOR_EVER, "prlimit"]).args(limit.split_whitespace()).arg(self.path("plimsoll"));
        command.args(arguments.split_whitespace()).stdin(Stdio::null()).current_dir(&self.folder);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// Runs the program; it must end by itself, without a panic.
    #[track_caller]
    fn run(&self, limit: &str, arguments: &str) -> (Output, String) {
        let output = self.command(limit, arguments).output().expect("`timeout` is there");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let context = format!("{arguments} as {:?} under `{limit}`: {}\n{stderr}", self.user, output.status);
        assert!(!stderr.contains("panicked"), "{context}");
        // 124 is what `timeout` says of a program that waits, more than 128 what it says of a signal.
        assert!(output.status.code().is_some_and(|code| code < 124), "{context}");
        if !output.status.success() {
            let n_errors = stderr.lines().filter(|line| line.starts_with("error:")).count();
            assert_eq!(n_errors, 1, "{context}");
        }
        (output, context)
    }

    /// Runs the program, which must be refused with 4 and a message that holds the words.
    #[track_caller]
    fn refused(&self, arguments: &str, words: &[&str]) {
        let (output, context) = self.run("", arguments);
        assert_eq!(output.status.code(), Some(4), "{context}");
        for word in words {
            assert!(context.contains(word), "no {word:?} in {context}");
        }
    }
}

fn make_fifo(path: &Path) {
    assert!(
        Command::new("mkfifo").args(["-m", "666"]).arg(path).status().expect("`mkfifo` is there").success()
    );
}

#[test]
fn few_addresses_are_used_or_refused() {
    for place in Place::for_each_user("addresses") {
        let mut n_trained = 0;
        // From less than the program itself takes to more than it wants.
        for step in 0..11 {
            let mib = (24.0 * 1.8_f64.powi(step)) as u64;
            let limit = format!("--as={}", mib << 20);
            let starts = place.command(&limit, "--version").output().expect("`timeout` is there");
            if !starts.status.success() {
                continue;
            }
            let (output, context) = place.run(&limit, "train digits --epochs 2 --threads 2 --json");
            match output.status.success() {
                true => n_trained += 1,
                false => {
                    assert!(context.contains("ulimit -v"), "{context}");
                    assert!(mib < 1024, "a gibibyte of addresses is enough: {context}");
                }
            }
        }
        assert!(n_trained >= 4, "{n_trained} runs found room");
    }
}

#[test]
fn threads_that_cannot_start_are_an_error_that_says_what_helps() {
    for place in Place::for_each_user("threads") {
        let mut n_refused = 0;
        for most in 1..8 {
            let arguments = "train digits --steps 2 --threads 4 --json";
            let (output, context) = place.run(&format!("--nproc={most}"), arguments);
            n_refused += usize::from(!output.status.success());
            assert!(output.status.success() || context.contains("ulimit -u"), "{context}");
        }
        // Root may have as many processes as it likes.
        assert!(place.user.is_none() || n_refused > 0);
    }
}

/// What a name can stand for that is no regular file.
const KINDS: [&str; 4] = ["fifo", "folder", "device", "link to a device"];

fn plant(kind: &str, path: &Path) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_dir(path);
    match kind {
        "fifo" => make_fifo(path),
        "folder" => fs::create_dir(path).expect("a folder"),
        "device" => symlink("/dev/zero", path).expect("a link"),
        _ => symlink("/dev/tty", path).expect("a link"),
    }
}

#[test]
fn nothing_but_a_regular_file_is_read_or_replaced_and_nobody_waits() {
    for place in Place::for_each_user("kinds") {
        let saved = place.make_folder("run");
        let checkpoint = saved.join("checkpoint.safetensors");
        let shown = saved.display();
        for kind in KINDS {
            plant(kind, &checkpoint);
            let named = ["checkpoint.safetensors"];
            place.refused(&format!("train digits --steps 1 --resume {shown}"), &named);
            place.refused(&format!("train digits --steps 1 --save {shown}"), &named);
            let text = place.path("text");
            plant(kind, &text);
            place.refused(&format!("train chars --steps 1 --data {}", text.display()), &["text"]);
            if kind != "folder" {
                place.refused(&format!("train digits --steps 1 --spill {}", text.display()), &["text"]);
            }
            place.refused(&format!("explain {}", text.display()), &["text"]);
            let images = place.make_folder("images");
            plant(kind, &images.join("train-images-idx3-ubyte.gz"));
            let arguments = format!("train fashion --steps 1 --data {}", images.display());
            place.refused(&arguments, &["train-images-idx3-ubyte.gz"]);
            let (output, context) = place.run("", &format!("plan digits --as {}", text.display()));
            assert_eq!(output.status.code(), Some(2), "{context}");
        }
    }
}

#[test]
fn what_is_planted_beside_a_checkpoint_is_left_alone() {
    for place in Place::for_each_user("planted") {
        let saved = place.make_folder("run");
        let victim = place.path("victim");
        fs::write(&victim, b"precious").expect("the folder is there");
        chown(&victim, place.user, place.user).expect("root may give it away");
        for name in ["a", "b", "1-0"] {
            make_fifo(&saved.join(format!(".checkpoint.safetensors.{name}.tmp")));
        }
        // Names made of the number that the next processes will have.
        let next = std::process::id();
        for number in next..next + 2000 {
            for name in [format!(".probe-{number}"), format!(".checkpoint.safetensors.{number}-0.tmp")] {
                symlink(&victim, saved.join(name)).expect("a link");
            }
        }
        let (output, context) = place.run("", &format!("train digits --steps 3 --save {}", saved.display()));
        assert!(output.status.success(), "{context}");
        assert_eq!(fs::read(&victim).expect("it is there"), b"precious");
        assert!(saved.join("checkpoint.safetensors").is_file());
    }
}

#[test]
fn a_checkpoint_keeps_its_mode_and_a_linked_one_is_refused() {
    for place in Place::for_each_user("modes") {
        let saved = place.make_folder("run");
        let (shown, checkpoint) = (saved.display(), saved.join("checkpoint.safetensors"));
        let arguments = format!("train digits --steps 2 --save {shown}");
        for mode in [0o600, 0o640, 0o604] {
            let (output, context) = place.run("", &arguments);
            assert!(output.status.success(), "{context}");
            fs::set_permissions(&checkpoint, fs::Permissions::from_mode(mode)).expect("it was saved");
            let (output, context) = place.run("", &arguments);
            assert!(output.status.success(), "{context}");
            assert_eq!(fs::metadata(&checkpoint).expect("it was saved").mode() & 0o777, mode);
        }
        let elsewhere = place.path("elsewhere");
        fs::rename(&checkpoint, &elsewhere).expect("it was saved");
        let before = fs::read(&elsewhere).expect("it was moved");
        symlink(&elsewhere, &checkpoint).expect("a link");
        place.refused(&arguments, &["symbolic link", "elsewhere"]);
        assert!(checkpoint.is_symlink());
        assert_eq!(fs::read(&elsewhere).expect("it was moved"), before);
        // Reading follows the link: it changes nothing.
        let (output, context) = place.run("", &format!("train digits --steps 3 --resume {shown}"));
        assert!(output.status.success(), "{context}");
    }
}

#[test]
fn a_signal_before_the_first_step_ends_the_program() {
    let place = Place::new("signal", None);
    // Planning this run takes far longer than it takes to send a signal.
    let mut child = Command::new(place.path("plimsoll"))
        .args(
            "train gpt2-355m --data random --batch 64 --precision mixed_bfloat16 --limit 8GiB --json"
                .split(' '),
        )
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let status = format!("/proc/{}/status", child.id());
    // Bit 14 of what is caught is SIGTERM, whose number is 15.
    let is_caught = || {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .is_some_and(|mask| mask & 1 << 14 != 0)
    };
    while !is_caught() && child.try_wait().expect("it is ours").is_none() {
        std::thread::yield_now();
    }
    let kill = Command::new("kill").arg(child.id().to_string()).status().expect("`kill` is there");
    assert!(kill.success());
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted") && output.stdout.is_empty(), "{stderr}");
}
