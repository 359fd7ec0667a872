//! Checks a real GPU from the outside: pages, copies, kernels, matrix products, convolutions. Prints a line for each check
//! and a summary, and exits with 1 if one failed.
//!
//! Needs a GPU with its driver and NVIDIA's libraries (`PLIMSOLL_CUDA_LIBRARIES=FOLDER:FOLDER` names folders to look in):
//!
//! ```sh
//! cargo run --release -p plimsoll-cuda --example gpu_check
//! ```
//!
//! With the feature `emulated` and the argument `--emulated` the checks themselves are checked, without rates.

#![allow(clippy::print_stdout, reason = "this is a program for the terminal")]

mod convolutions;
mod copies;
mod kernels;
mod nccl;
mod numbers;
mod pages;
mod products;

use std::process::ExitCode;
use std::sync::Arc;

use plimsoll_cuda::{Gpu, Profile, libraries};
use plimsoll_memory::{Block, Label, Owner, Pool, Site};

/// What a check returns: what it found, or what is wrong.
type Outcome = Result<String, Box<dyn std::error::Error>>;

/// A GPU with a pool, and the count of what went wrong.
struct Bench {
    gpu: Arc<Gpu>,
    pool: Pool,
    /// Without what takes long on a GPU that the host plays, and what breaks it.
    quick: bool,
    n_passed: usize,
    n_failed: usize,
}

impl Bench {
    /// Runs a check and prints its line.
    fn check(&mut self, name: &str, run: impl FnOnce(&Bench) -> Outcome) {
        let (word, text) = match run(self) {
            Ok(text) => {
                self.n_passed += 1;
                ("PASS", text)
            }
            Err(error) => {
                self.n_failed += 1;
                ("FAIL", error.to_string())
            }
        };
        println!("{word}  {name}: {text}");
    }

    /// The last line, and the status of the program.
    fn end(&self) -> ExitCode {
        println!("{} passed, {} failed", self.n_passed, self.n_failed);
        if self.n_failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// A block of the device.
    fn block(&self, n_bytes: usize) -> Result<Block, Box<dyn std::error::Error>> {
        let label = Label::new(Owner::Temporary, Site::intern(file!(), line!(), "", "gpu_check"));
        let block = self.pool.acquire(n_bytes, label)?;
        self.gpu.reuse(&block)?;
        Ok(block)
    }

    /// A block with these bytes.
    fn uploaded(&self, bytes: &[u8]) -> Result<Block, Box<dyn std::error::Error>> {
        let block = self.block(bytes.len())?;
        // SAFETY: the block has as many bytes.
        unsafe { self.gpu.upload(bytes, block.as_ptr()) }?;
        Ok(block)
    }

    /// The bytes of a block.
    fn downloaded(&self, block: &Block) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let mut bytes = vec![0; block.bytes()];
        // SAFETY: both have as many bytes.
        unsafe { self.gpu.download(block.as_ptr(), bytes.as_mut_ptr(), bytes.len()) }?;
        Ok(bytes)
    }
}

/// An error if something is not so.
fn ensure(holds: bool, text: impl Into<String>) -> Result<(), Box<dyn std::error::Error>> {
    if holds { Ok(()) } else { Err(text.into().into()) }
}

#[cfg(feature = "emulated")]
fn open(emulated: bool) -> plimsoll_cuda::Result<Arc<Gpu>> {
    if emulated { Gpu::emulated() } else { Gpu::open(0) }
}

#[cfg(not(feature = "emulated"))]
fn open(_: bool) -> plimsoll_cuda::Result<Arc<Gpu>> {
    Gpu::open(0)
}

fn main() -> ExitCode {
    for library in libraries() {
        match library.place {
            Ok(path) => {
                println!(
                    "      {} {} ({})",
                    library.name,
                    library.version.unwrap_or_default(),
                    path.display()
                );
            }
            Err(error) => println!("      {error}"),
        }
    }
    let quick = std::env::args().any(|argument| argument == "--emulated");
    let opened = open(quick).and_then(|gpu| Ok((Pool::new(gpu.pages()?), gpu)));
    let (pool, gpu) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            println!("FAIL  open: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut bench = Bench { gpu, pool, quick, n_passed: 0, n_failed: 0 };
    bench.check("profile", |bench| {
        let profile = bench.gpu.profile();
        let known = Profile::of_model(&profile.name);
        ensure(known.is_none_or(|known| known == *profile), "not that of its model")?;
        Ok(format!("{profile:?}, {:?}", bench.gpu.memory()?))
    });
    // `ranks` of a bundle's script asks for these alone.
    if std::env::args().any(|argument| argument == "nccl") {
        nccl::check(&mut bench);
        return bench.end();
    }
    pages::check(&mut bench);
    kernels::check(&mut bench);
    copies::check(&mut bench);
    products::check(&mut bench);
    convolutions::check(&mut bench);
    nccl::check(&mut bench);
    if !quick {
        bench.check("a stray write breaks the GPU for good", kernels::stray);
    }
    bench.end()
}
