//! From CUDA C to machine code, by NVRTC. Needs no GPU.

use std::ffi::{CString, c_char};

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

use super::cache::{self, Cache};
use super::libraries::Library;
use crate::error::{Error, Result};

/// Compiles a complete source with an entry of that name for an architecture, such as 90 for compute capability 9.0, and
/// returns the machine code. Nothing is read from or written to the disk; no GPU is needed.
///
/// # Errors
/// NVRTC is missing, or refuses the source; the text has its log.
pub fn compile(source: &str, entry: &str, architecture: u32) -> Result<Vec<u8>> {
    compile_with(&options(architecture), source, entry, architecture)
}

fn compile_with(options: &[String], source: &str, entry: &str, architecture: u32) -> Result<Vec<u8>> {
    let [major, minor, _] = Library::Compiler.require()?.version;
    let program = Program::new(source, entry)?;
    program.compile(options).map_err(|status| {
        let log = program.log();
        let log = if log.trim().is_empty() { format!("{status:?}") } else { marked(&log, source) };
        Error::new(format!(
            "NVRTC {major}.{minor} did not compile the kernel `{entry}` for sm_{architecture}: {}",
            log.trim_end()
        ))
    })?;
    program.machine_code()
}

/// As [`compile`], from the cache if the same was compiled before.
pub(crate) fn compile_cached(cache: &Cache, source: &str, entry: &str, architecture: u32) -> Result<Vec<u8>> {
    cached(&options(architecture), cache, source, entry, architecture)
}

/// Whether a source compiles, found out with the least effort: what comes of it is slow, and nobody runs it.
///
/// # Errors
/// As for [`compile`].
#[cfg(feature = "emulated")]
pub(crate) fn compiles(cache: &Cache, source: &str, entry: &str, architecture: u32) -> Result<()> {
    const QUICKLY: [&str; 3] = ["--Ofast-compile=max", "--minimal", "--ptxas-options=-O0"];
    let options: Vec<String> = options(architecture).into_iter().chain(QUICKLY.map(str::to_owned)).collect();
    cached(&options, cache, source, entry, architecture).map(drop)
}

fn cached(
    options: &[String],
    cache: &Cache,
    source: &str,
    entry: &str,
    architecture: u32,
) -> Result<Vec<u8>> {
    let [major, minor, _] = Library::Compiler.require()?.version;
    let compiler = format!("NVRTC {major}.{minor}");
    let key = cache::key(&[env!("CARGO_PKG_VERSION"), &compiler, &options.join(" "), source]);
    cache.get_or(&key, || compile_with(options, source, entry, architecture))
}

/// What NVRTC is told. Divisions and roots are exact and denormal numbers are kept, which is its default. A product is rounded before
/// something is added to it, as on the host, unless a kernel says `m::fma`: what the compiler joins by itself would depend on what
/// else a kernel does, and then a chain of ops in one kernel would have other bits than the ops one by one.
fn options(architecture: u32) -> [String; 4] {
    // Hopper's tensor cores take whole tiles only in code that is for this architecture and no later one.
    let suffix = if architecture == 90 { "a" } else { "" };
    // The prelude has more functions than a kernel uses, and each would be warned of.
    let target = format!("--gpu-architecture=sm_{architecture}{suffix}");
    [target, "--std=c++17".to_owned(), "--fmad=false".to_owned(), "-w".to_owned()]
}

/// The log, with the source's text below the first error that names a line.
fn marked(log: &str, source: &str) -> String {
    let number = log.lines().filter(|line| line.contains("error")).find_map(|line| {
        let (_, rest) = line.split_once('(')?;
        rest.split_once(')')?.0.parse::<usize>().ok()
    });
    match number.and_then(|number| Some((number, source.lines().nth(number.checked_sub(1)?)?))) {
        Some((number, line)) => format!("{}\nline {number} is: {}", log.trim_end(), line.trim()),
        None => log.to_owned(),
    }
}

/// A program of NVRTC's.
struct Program(nvrtcProgram);

impl Program {
    fn new(source: &str, entry: &str) -> Result<Program> {
        let text = |text: &str| {
            CString::new(text)
                .map_err(|_| Error::new(format!("the kernel `{entry}` has a zero byte in its source")))
        };
        let (source, name) = (text(source)?, text(&format!("{entry}.cu"))?);
        let mut program = std::ptr::null_mut();
        // SAFETY: both strings end in zero and outlive the call; there are no headers.
        let status = unsafe {
            sys::nvrtcCreateProgram(
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        check(status, "nvrtcCreateProgram")?;
        Ok(Program(program))
    }

    fn compile(&self, options: &[String]) -> std::result::Result<(), nvrtcResult> {
        let options: Vec<CString> =
            options.iter().filter_map(|option| CString::new(option.as_str()).ok()).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive, and so are the options for the time of the call.
        let status = unsafe { sys::nvrtcCompileProgram(self.0, pointers.len() as i32, pointers.as_ptr()) };
        match status {
            nvrtcResult::NVRTC_SUCCESS => Ok(()),
            other => Err(other),
        }
    }

    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program is alive.
        if unsafe { sys::nvrtcGetProgramLogSize(self.0, &raw mut size) } != nvrtcResult::NVRTC_SUCCESS {
            return String::new();
        }
        let mut log = vec![0u8; size];
        // SAFETY: there is room for as many bytes as the library said.
        let status = unsafe { sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast()) };
        match status {
            nvrtcResult::NVRTC_SUCCESS => String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned(),
            _ => String::new(),
        }
    }

    fn machine_code(&self) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program is alive and was compiled.
        check(unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut size) }, "nvrtcGetCUBINSize")?;
        let mut code = vec![0u8; size];
        // SAFETY: there is room for as many bytes as the library said.
        check(unsafe { sys::nvrtcGetCUBIN(self.0, code.as_mut_ptr().cast()) }, "nvrtcGetCUBIN")?;
        Ok(code)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is alive and nobody else has it. What is left of it if this fails is lost memory only.
        let _ = unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

fn check(status: nvrtcResult, call: &str) -> Result<()> {
    match status {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(Error::new(format!("{call} failed with {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::PRELUDE;

    const SCALE: &str = "
KERNEL scale(const bf16* x, bf16* y, float factor, u64 n) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = narrow<bf16>(factor * m::exp(widen(x[i])));
}
";

    #[test]
    fn the_prelude_and_a_kernel_compile_for_every_architecture() {
        let source = format!("{PRELUDE}\n{SCALE}");
        for architecture in [80, 90] {
            match Library::Compiler.find() {
                Ok(_) => {
                    let code = compile(&source, "scale", architecture).unwrap();
                    assert!(code.starts_with(b"\x7fELF"), "{} bytes are no machine code", code.len());
                }
                Err(missing) => assert_eq!(compile(&source, "scale", architecture).as_ref(), Err(missing)),
            }
        }
    }

    #[test]
    fn what_is_refused_is_shown() {
        let source = format!("{PRELUDE}\nKERNEL broken(float* x) {{ x[0] = nonsense; }}");
        let text = compile(&source, "broken", 90).unwrap_err().to_string();
        match Library::Compiler.find() {
            Ok(_) => {
                assert!(
                    text.contains("`broken` for sm_90") && text.contains("\"nonsense\" is undefined"),
                    "{text}"
                );
                let line = source.lines().count();
                assert!(text.contains(&format!("line {line} is: KERNEL broken")), "{text}");
            }
            Err(_) => assert!(text.contains("libnvrtc.so.13"), "{text}"),
        }
    }
}
