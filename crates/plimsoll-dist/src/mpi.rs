//! Ranks that MPI has started, as processes on one machine or on many.
//!
//! MPI 5 has a standard binary interface, `libmpi_abi.so`; the library is looked for when the first run wants it, as CUDA's are, so
//! nothing of MPI is needed to build or to run on one device. It is used for messages alone: nothing is ever added up by it.

use std::env;
use std::ffi::{OsStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};
use plimsoll_tensor::{Error, Result};

use crate::agreements::Agreements;
use crate::communicator::Communicator;
use crate::launcher::launched;

/// The library's file, searched first.
const LIBRARY: &str = "PLIMSOLL_MPI_LIBRARY";
const FILES: [&str; 2] = ["libmpi_abi.so.1", "libmpi_abi.so"];

// Values of the standard interface.
const COMM_WORLD: usize = 0x101;
const BYTE: usize = 0x247;
const ERRORS_RETURN: usize = 0x143;
const THREAD_SERIALIZED: c_int = 2048;
const SUCCESS: c_int = 0;
const MAX_ERROR_STRING: usize = 512;

/// All messages are of one kind; MPI keeps those of two ranks in order.
const TAG: c_int = 17;
/// The bytes of one call at most: they are counted by an int.
const MOST_BYTES: usize = 1 << 30;
/// How often a message is looked for before the processor is left to others, and how long then.
const LOOKS: u32 = 2000;
const PAUSE: Duration = Duration::from_micros(20);

/// A handle: a pointer to nothing that can be looked at, or one of the constants.
type Handle = usize;

#[repr(C)]
#[derive(Default)]
struct Status {
    source: c_int,
    tag: c_int,
    error: c_int,
    private: [c_int; 5],
}

type Send = unsafe extern "C" fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
type Recv = unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
type InitThread = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;

/// The functions that are used.
struct Functions {
    initialized: Symbol<unsafe extern "C" fn(*mut c_int) -> c_int>,
    init_thread: Symbol<InitThread>,
    finalize: Symbol<unsafe extern "C" fn() -> c_int>,
    abort: Symbol<unsafe extern "C" fn(Handle, c_int) -> c_int>,
    set_errhandler: Symbol<unsafe extern "C" fn(Handle, Handle) -> c_int>,
    rank: Symbol<unsafe extern "C" fn(Handle, *mut c_int) -> c_int>,
    size: Symbol<unsafe extern "C" fn(Handle, *mut c_int) -> c_int>,
    isend: Symbol<Send>,
    irecv: Symbol<Recv>,
    test: Symbol<unsafe extern "C" fn(*mut Handle, *mut c_int, *mut Status) -> c_int>,
    get_count: Symbol<unsafe extern "C" fn(*const Status, Handle, *mut c_int) -> c_int>,
    error_string: Symbol<unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int>,
    /// What the functions are part of; it is never closed.
    _library: Library,
}

/// This process among those that MPI started. There is one in a process; dropping it ends MPI, for which all ranks wait.
pub struct Mpi {
    functions: Functions,
    rank: usize,
    size: usize,
    /// One thread at a time may call MPI.
    calling: Mutex<()>,
    agreements: Agreements,
}

impl std::fmt::Debug for Mpi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mpi(rank {} of {})", self.rank, self.size)
    }
}

impl Mpi {
    /// Opens MPI's library and joins the others.
    ///
    /// # Errors
    /// No library with the standard interface; a library of another MPI than the launcher's; an MPI that does not start, or was
    /// started before.
    pub fn open() -> Result<Mpi> {
        let functions = Functions::load()?;
        functions.start()?;
        let rank = functions.number("rank", &functions.rank)?;
        let size = functions.number("size", &functions.size)?;
        let mpi = Mpi { functions, rank, size, calling: Mutex::new(()), agreements: Agreements::default() };
        match launched() {
            Some(launch) if (launch.rank, launch.size) != (rank, size) => Err(Error::device(
                "mpi",
                format!(
                    "{} started this process as rank {} of {}, and the MPI library takes it for rank {rank} of {size}: it belongs \
                     to another MPI; {LIBRARY} names the file to open",
                    launch.by, launch.rank, launch.size
                ),
            )),
            _ => Ok(mpi),
        }
    }

    /// Waits for a message that is under way, and leaves the processor to others when it takes long: ranks may be more than
    /// processors.
    fn finish(&self, what: &str, request: &mut Handle) -> Result<Status> {
        let mut status = Status::default();
        for look in 0u32.. {
            let mut is_done = 0;
            let code = {
                let _calling = self.lock();
                // SAFETY: the request is under way, and its buffer is borrowed by the caller until this returns.
                unsafe { (self.functions.test)(request, &mut is_done, &mut status) }
            };
            self.functions.check(what, code)?;
            if is_done != 0 {
                break;
            }
            match look {
                0..LOOKS => std::hint::spin_loop(),
                _ => std::thread::sleep(PAUSE),
            }
        }
        Ok(status)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.calling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Communicator for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn agreements(&self) -> &Agreements {
        &self.agreements
    }

    fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        let what = format!("sending {} bytes from rank {} to rank {to}", bytes.len(), self.rank);
        for piece in bytes.chunks(MOST_BYTES) {
            let mut request = 0;
            let code = {
                let _calling = self.lock();
                let (start, n) = (piece.as_ptr().cast(), piece.len() as c_int);
                // SAFETY: the bytes are borrowed until `finish` has seen the message go.
                unsafe { (self.functions.isend)(start, n, BYTE, to as c_int, TAG, COMM_WORLD, &mut request) }
            };
            self.functions.check(&what, code)?;
            self.finish(&what, &mut request)?;
        }
        Ok(())
    }

    fn recv(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        let what = format!("receiving {} bytes from rank {from} on rank {}", bytes.len(), self.rank);
        for piece in bytes.chunks_mut(MOST_BYTES) {
            let mut request = 0;
            let code = {
                let _calling = self.lock();
                let (start, n) = (piece.as_mut_ptr().cast(), piece.len() as c_int);
                // SAFETY: the bytes are borrowed, and nobody else's, until `finish` has seen the message come.
                unsafe {
                    (self.functions.irecv)(start, n, BYTE, from as c_int, TAG, COMM_WORLD, &mut request)
                }
            };
            self.functions.check(&what, code)?;
            let status = self.finish(&what, &mut request)?;
            let mut n_received = 0;
            // SAFETY: the status is that of the message that came.
            let code = unsafe { (self.functions.get_count)(&status, BYTE, &mut n_received) };
            self.functions.check(&what, code)?;
            if n_received as usize != piece.len() {
                let detail = format!("{what}: rank {from} sent {n_received}; it does something else");
                return Err(Error::device("mpi", detail));
            }
        }
        Ok(())
    }

    fn abort(&self, status: i32) {
        let _calling = self.lock();
        // SAFETY: MPI has been started; this ends all ranks, this one too.
        unsafe { (self.functions.abort)(COMM_WORLD, status) };
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        let _calling = self.lock();
        // SAFETY: MPI has been started and not been ended, and nobody can call it any more.
        unsafe { (self.functions.finalize)() };
    }
}

impl Functions {
    fn load() -> Result<Functions> {
        let mut tried = Vec::new();
        for path in places() {
            // SAFETY: the file is MPI's, by its name or because the user says so; opening it runs what it has to set itself up.
            match unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) } {
                Ok(library) => return Functions::of(library),
                Err(error) => tried.push(format!("{}: {error}", path.to_string_lossy())),
            }
        }
        Err(Error::device(
            "mpi",
            format!(
                "no MPI with the standard interface was found: install one (`pip install mpich` has it), or name its file in \
                 {LIBRARY}; tried {}",
                tried.join("; ")
            ),
        ))
    }

    fn of(library: Library) -> Result<Functions> {
        macro_rules! find {
            ($name:literal) => {
                // SAFETY: the standard interface says which type the function of that name has.
                unsafe { library.get(concat!($name, "\0").as_bytes()) }
                    .map_err(|error| Error::device("mpi", format!("the library lacks {}: {error}", $name)))?
            };
        }
        Ok(Functions {
            initialized: find!("MPI_Initialized"),
            init_thread: find!("MPI_Init_thread"),
            finalize: find!("MPI_Finalize"),
            abort: find!("MPI_Abort"),
            set_errhandler: find!("MPI_Comm_set_errhandler"),
            rank: find!("MPI_Comm_rank"),
            size: find!("MPI_Comm_size"),
            isend: find!("MPI_Isend"),
            irecv: find!("MPI_Irecv"),
            test: find!("MPI_Test"),
            get_count: find!("MPI_Get_count"),
            error_string: find!("MPI_Error_string"),
            _library: library,
        })
    }

    fn start(&self) -> Result<()> {
        let (mut is_started, mut provided) = (0, 0);
        // SAFETY: it may be called at any time.
        unsafe { (self.initialized)(&mut is_started) };
        if is_started != 0 {
            return Err(Error::device(
                "mpi",
                "it has been started in this process already; use that communicator",
            ));
        }
        let (argc, argv) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: MPI has not been started; it needs no arguments.
        let code = unsafe { (self.init_thread)(argc, argv, THREAD_SERIALIZED, &mut provided) };
        self.check("starting", code)?;
        if provided < THREAD_SERIALIZED {
            let detail = "the library may only be called by the thread that started it; it must allow one thread at a time";
            return Err(Error::device("mpi", detail));
        }
        // SAFETY: MPI has been started, and both handles are constants of it.
        self.check("starting", unsafe { (self.set_errhandler)(COMM_WORLD, ERRORS_RETURN) })
    }

    fn number(
        &self,
        what: &str,
        function: &Symbol<unsafe extern "C" fn(Handle, *mut c_int) -> c_int>,
    ) -> Result<usize> {
        let mut number = 0;
        // SAFETY: MPI has been started, and the handle is a constant of it.
        self.check(what, unsafe { function(COMM_WORLD, &mut number) })?;
        usize::try_from(number).map_err(|_| Error::device("mpi", format!("its {what} is {number}")))
    }

    /// Turns what MPI returns into an error with its text.
    fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let (mut text, mut length) = ([0u8; MAX_ERROR_STRING], 0);
        // SAFETY: the text is as long as the standard says that texts are at most.
        unsafe { (self.error_string)(code, text.as_mut_ptr().cast(), &mut length) };
        let text =
            String::from_utf8_lossy(&text[..usize::try_from(length).unwrap_or(0).min(MAX_ERROR_STRING)])
                .into_owned();
        Err(Error::device("mpi", format!("{what}: {text} (code {code})")))
    }
}

/// Where the library is looked for: where the user says, where the system's loader does, and beside `mpirun`.
fn places() -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = env::var_os(LIBRARY).map(PathBuf::from).into_iter().collect();
    if places.is_empty() {
        places.extend(FILES.map(PathBuf::from));
        let folders = env::var_os("PATH").unwrap_or_default();
        let launchers = env::split_paths(&folders).map(|folder| folder.join("mpirun"));
        let beside = |launcher: PathBuf| Some(launcher.canonicalize().ok()?.parent()?.parent()?.join("lib"));
        for folder in launchers.filter_map(beside) {
            places.extend(
                FILES.map(|file| folder.join(OsStr::new(file))).into_iter().filter(|path| path.exists()),
            );
        }
    }
    places
}
