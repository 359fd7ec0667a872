//! The Python package: its tests, its wheel, and test suites that others wrote for TensorFlow.
//!
//! Everything runs in one environment below the target folder, which is made when it is first wanted. The tests build the package as
//! the other tests are built, in the same target folder, so that most crates are there already. The wheel is a release build with a
//! linker of its own and takes minutes, so it is a command of its own and no part of the tests; so are the suites, whose files the
//! user brings along.

use std::path::{Path, PathBuf};

use crate::Outcome;
use crate::step::Step;
use crate::test::has_valgrind;

/// What the tests need, and how it is told whether it is there.
const PACKAGES: [&str; 4] = ["maturin>=1.16,<2", "mypy>=2.4", "numpy>=2.0", "pytest>=9"];
const ARE_THERE: &str = "import maturin, mypy, numpy, pytest";
/// What the wheel needs besides: a C compiler that links against the system libraries of old distributions, and who checks it.
const FOR_WHEELS: [&str; 3] = ["auditwheel>=6.8", "packaging", "ziglang>=0.15"];
/// What test files of others import besides.
const FOR_SUITES: [&str; 5] = ["absl-py", "hypothesis>=6.151", "ndindex>=1.8", "pytest-json-report", "scipy"];

/// The environment with its programs.
struct Environment {
    root: PathBuf,
    home: PathBuf,
}

impl Environment {
    /// Makes the environment if it is not there.
    fn new(root: &Path) -> Result<Environment, String> {
        let environment = Environment { root: root.to_owned(), home: root.join("target/python") };
        if !Step::new(root, &environment.program("python"), &["-c", ARE_THERE]).works() {
            Step::new(root, "python3", &["-m", "venv", "--clear", &environment.home.to_string_lossy()])
                .run()?;
            environment.install(&PACKAGES)?;
        }
        Ok(environment)
    }

    fn program(&self, name: &str) -> String {
        self.home.join("bin").join(name).to_string_lossy().into_owned()
    }

    fn install(&self, packages: &[&str]) -> Outcome {
        Step::new(
            &self.root,
            &self.program("python"),
            &[&["-m", "pip", "install", "--quiet"], packages].concat(),
        )
        .run()
    }

    /// A step of Python's in the package's folder.
    fn python(&self, arguments: &[&str]) -> Step {
        Step::new(&self.root.join("python"), &self.program("python"), arguments)
    }

    /// A step of maturin's there, which finds the environment's Python before others: that has the linker for wheels.
    fn maturin(&self, arguments: &[&str], target: &Path) -> Step {
        let path = std::env::var("PATH").unwrap_or_default();
        Step::new(&self.root.join("python"), &self.program("maturin"), arguments)
            .env("PATH", &format!("{}:{path}", self.home.join("bin").display()))
            .env("VIRTUAL_ENV", &self.home.to_string_lossy())
            .env("CARGO_TARGET_DIR", &target.to_string_lossy())
    }

    /// Builds the package into the environment, as the tests are built: with a GPU that the host plays.
    fn develop(&self) -> Outcome {
        self.maturin(&["develop", "--quiet", "--features", "emulated"], &self.root.join("target")).run()
    }
}

/// Builds the package and runs its tests, and holds its stubs against it.
pub fn test(root: &Path) -> Outcome {
    let environment = Environment::new(root)?;
    environment.develop()?;
    environment.python(&["-X", "faulthandler", "-m", "pytest", "-q", "-p", "no:cacheprovider"]).run()?;
    environment.python(&["-m", "mypy.stubtest", "plimsoll", "--concise"]).run()
}

/// Builds the package and runs the tests that are marked for it under valgrind, with Python's memory taken from the system block by block.
///
/// Watched is whether memory is read, written and freed as it may be. Of values that nobody has written CPython is full, as valgrind sees
/// it, so those are looked for in Rust's tests alone; and what Python leaves at its end is its own. That ours leave nothing, each
/// test asserts.
pub fn valgrind(root: &Path) -> Outcome {
    let environment = Environment::new(root)?;
    environment.develop()?;
    if !has_valgrind(root) {
        return Err(
            "valgrind is missing and could not be installed (Debian: apt-get install valgrind)".to_owned()
        );
    }
    let python = environment.program("python");
    let arguments = [
        "--quiet",
        "--error-exitcode=1",
        "--undef-value-errors=no",
        "--suppressions=tests/valgrind.supp",
        &python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "valgrind",
    ];
    Step::new(&environment.root.join("python"), "valgrind", &arguments).env("PYTHONMALLOC", "malloc").run()
}

/// Builds the package and runs the tests of memory that is shared with PyTorch and JAX, in a Python of the user's that has them and pytest.
pub fn peers(root: &Path, python: &str) -> Outcome {
    let environment = Environment::new(root)?;
    environment.develop()?;
    let folder = root.join("python");
    Step::new(&folder, python, &["-m", "pytest", "-q", "-p", "no:cacheprovider", "peers"])
        .env("PYTHONPATH", &folder.to_string_lossy())
        .run()
}

/// Builds the wheel that is published, and checks it: its tag, its size, what is in it, and what an import does.
pub fn wheel(root: &Path) -> Outcome {
    let environment = Environment::new(root)?;
    environment.install(&FOR_WHEELS)?;
    let folder = root.join("target/wheels");
    let _none_yet = std::fs::remove_dir_all(&folder);
    // Where sources lie is nobody's business: messages name them from here on.
    let cargo = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))
        .map_err(|error| format!("cargo's folder is not known: {error}"))?;
    let remapped =
        format!("--remap-path-prefix={}=plimsoll --remap-path-prefix={cargo}=cargo", root.display());
    let out = folder.to_string_lossy().into_owned();
    let build =
        ["build", "--release", "--strip", "--zig", "--compatibility", "manylinux_2_28", "--out", &out];
    environment
        .maturin(&build, &root.join("target/wheel"))
        .env("RUSTFLAGS", &remapped)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "none")
        .run()?;
    environment.python(&["check_wheel.py", &out, &root.to_string_lossy(), &cargo]).run()
}

/// Runs test files that others wrote, from a folder of the user's: TensorFlow's, the array API's or Keras's, as the program in
/// `python/suites` says.
pub fn suites(root: &Path, program: &str, folder: &str, rest: &[&str]) -> Outcome {
    let folder = std::path::absolute(folder).map_err(|error| format!("{folder}: {error}"))?;
    if !folder.is_dir() {
        return Err(format!("there is no folder {}", folder.display()));
    }
    let environment = Environment::new(root)?;
    environment.install(&FOR_SUITES)?;
    environment.develop()?;
    let folder = folder.to_string_lossy();
    let program = format!("suites/{program}");
    environment.python(&[&[program.as_str(), &folder], rest].concat()).run()
}
