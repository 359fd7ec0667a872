//! `cargo xtask kernels`: the kernels that the shipped recipes ask of GPUs, those that are made for their programs included, compiled by
//! NVIDIA's own compiler. It needs no GPU, and comes as a package of Python's into a folder below the target folder.

use std::path::Path;

use crate::Outcome;
use crate::step::Step;

/// Compiles the kernels of the recipes of these names, or of all.
pub fn run(root: &Path, recipes: &[&str]) -> Outcome {
    let Some(folder) = nvrtc(root) else {
        return Err("NVRTC is missing and could not be installed (pip install nvidia-cuda-nvrtc)".to_owned());
    };
    // The same features as the tests, so that nothing is built twice.
    let program =
        ["--workspace", "--exclude", "plimsoll-python", "--all-features", "--example", "recipe_kernels"];
    Step::cargo(root, &[&["build"][..], &program].concat()).run()?;
    let own = std::env::current_exe().map_err(|error| format!("cannot tell where programs are: {error}"))?;
    let program = own.with_file_name("examples").join("recipe_kernels");
    Step::new(root, &program.to_string_lossy(), recipes).env("PLIMSOLL_CUDA_LIBRARIES", &folder).run()
}

/// The folder of NVIDIA's run-time compiler, installed below the target folder if it is not there yet.
pub fn nvrtc(root: &Path) -> Option<String> {
    const PACKAGE: &str = "nvidia-cuda-nvrtc==13.0.88";
    let home = root.join("target/nvrtc");
    let folder = home.join("nvidia/cu13/lib");
    if !folder.join("libnvrtc.so.13").exists() {
        let home = home.to_string_lossy().into_owned();
        let arguments = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", &home, PACKAGE];
        if let Err(problem) = Step::new(root, "python3", &arguments).run() {
            println!("  {problem}");
        }
    }
    folder.join("libnvrtc.so.13").exists().then(|| folder.to_string_lossy().into_owned())
}
