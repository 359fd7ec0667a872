//! NCCL: bytes between GPUs, by the library that is made for it.
//!
//! It is looked for when the first communicator is wanted, like the other libraries, by functions that it has had since 2.19. It moves
//! bytes and never adds anything up here, because the order of its sums follows from the machine. Its own memory grows with its
//! channels, so a communicator has few of them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::CUstream;
use libloading::os::unix::{Library as Loaded, Symbol};

use super::context::Context;
use super::libraries::{Library, Version};
use crate::backend::Collectives;
use crate::error::{Error, Result};

/// The channels of a communicator at most, each a block of threads with buffers of its own.
const MOST_CHANNELS: c_int = 4;

const SUCCESS: c_int = 0;
/// Bytes.
const UINT8: c_int = 1;
/// A setting that is left to the library.
const UNDEFINED: c_int = c_int::MIN;
const CONFIG_MAGIC: c_uint = 0xcafe_beef;
/// The version whose settings `Config` has.
const CONFIG_VERSION: c_uint = 21_900;

type Comm = *mut c_void;

/// What ranks find each other by.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

/// Settings of a communicator, as of version 2.19; later versions read no further than it says that it is long.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

type InitRank = unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> c_int;
type Broadcast =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
type AllGather = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, CUstream) -> c_int;
type Send = unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
type Recv = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;

/// The functions that are used.
struct Functions {
    unique_id: Symbol<unsafe extern "C" fn(*mut UniqueId) -> c_int>,
    init_rank: Symbol<InitRank>,
    destroy: Symbol<unsafe extern "C" fn(Comm) -> c_int>,
    broadcast: Symbol<Broadcast>,
    all_gather: Symbol<AllGather>,
    send: Symbol<Send>,
    recv: Symbol<Recv>,
    group_start: Symbol<unsafe extern "C" fn() -> c_int>,
    group_end: Symbol<unsafe extern "C" fn() -> c_int>,
    last_error: Symbol<unsafe extern "C" fn(Comm) -> *const c_char>,
    error_string: Symbol<unsafe extern "C" fn(c_int) -> *const c_char>,
}

/// The functions, found once.
fn functions() -> Result<&'static Functions> {
    static FOUND: OnceLock<Result<Functions>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            Library::Collectives.require()?;
            macro_rules! find {
                ($name:literal) => {
                    // SAFETY: the library was opened for all, and its documentation says which type the function has.
                    unsafe { Loaded::this().get(concat!($name, "\0").as_bytes()) }
                        .map_err(|error| Error::new(format!("NCCL lacks {}: {error}", $name)))?
                };
            }
            Ok(Functions {
                unique_id: find!("ncclGetUniqueId"),
                init_rank: find!("ncclCommInitRankConfig"),
                destroy: find!("ncclCommDestroy"),
                broadcast: find!("ncclBroadcast"),
                all_gather: find!("ncclAllGather"),
                send: find!("ncclSend"),
                recv: find!("ncclRecv"),
                group_start: find!("ncclGroupStart"),
                group_end: find!("ncclGroupEnd"),
                last_error: find!("ncclGetLastError"),
                error_string: find!("ncclGetErrorString"),
            })
        })
        .as_ref()
        .map_err(Clone::clone)
}

/// The version of the library, which has been opened.
pub(super) fn version() -> Option<Version> {
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
    let mut version = 0;
    // SAFETY: the function writes one number.
    let status = unsafe {
        let get: Symbol<GetVersion> = Loaded::this().get(b"ncclGetVersion\0").ok()?;
        get(&raw mut version)
    };
    let version = u32::try_from(version).ok().filter(|_| status == SUCCESS)?;
    Some([version / 10_000, version / 100 % 100, version % 100])
}

/// What the ranks of a new communicator find each other by; one of them makes it for all.
///
/// # Errors
/// No NCCL; what it says.
pub fn new_id() -> Result<[u8; 128]> {
    let (functions, mut id) = (functions()?, UniqueId([0; 128]));
    // SAFETY: the function writes as many bytes.
    let status = unsafe { (functions.unique_id)(&raw mut id) };
    functions.check(status, ptr::null_mut(), "ncclGetUniqueId")?;
    Ok(id.0)
}

impl Functions {
    /// Turns what a function returns into an error with its text.
    fn check(&self, status: c_int, comm: Comm, call: &str) -> Result<()> {
        if status == SUCCESS {
            return Ok(());
        }
        let text = |text: *const c_char| match text.is_null() {
            true => String::new(),
            // SAFETY: the library's texts end in zero and stay for as long as nothing else fails.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned(),
        };
        // SAFETY: any status may be asked about, and so may the last error of a communicator or of none.
        let (what, last) = unsafe { (text((self.error_string)(status)), text((self.last_error)(comm))) };
        let last = if last.is_empty() { last } else { format!("; {last}") };
        Err(Error::new(format!("{call} failed: {what}{last}")))
    }
}

/// A rank's communicator, whose work is part of the compute stream.
pub(super) struct Communicator {
    functions: &'static Functions,
    context: Arc<Context>,
    comm: Comm,
}

// SAFETY: a communicator may be used from any thread, by one at a time: callers hold the GPU's lock.
unsafe impl std::marker::Send for Communicator {}
// SAFETY: as above.
unsafe impl Sync for Communicator {}

impl Communicator {
    /// Joins the ranks that have the same id; waits until all have.
    pub fn join(
        context: &Arc<Context>,
        id: &[u8; 128],
        (rank, size): (usize, usize),
    ) -> Result<Communicator> {
        let functions = functions()?;
        context.enter()?;
        let mut config = Config {
            size: size_of::<Config>(),
            magic: CONFIG_MAGIC,
            version: CONFIG_VERSION,
            blocking: 1,
            cga_cluster_size: UNDEFINED,
            min_ctas: 1,
            max_ctas: MOST_CHANNELS,
            net_name: ptr::null(),
            split_share: UNDEFINED,
        };
        let mut comm = ptr::null_mut();
        let (n_ranks, number) = (size as c_int, rank as c_int);
        // SAFETY: the context is current, the settings say how long they are, and the call writes one handle.
        let status =
            unsafe { (functions.init_rank)(&raw mut comm, n_ranks, UniqueId(*id), number, &raw mut config) };
        functions.check(status, ptr::null_mut(), "ncclCommInitRankConfig")?;
        Ok(Communicator { functions, context: context.clone(), comm })
    }

    fn check(&self, status: c_int, call: &str) -> Result<()> {
        self.functions.check(status, self.comm, call)
    }
}

impl Collectives for Communicator {
    unsafe fn broadcast(&self, from: *const u8, to: *mut u8, n_bytes: usize, root: usize) -> Result<()> {
        self.context.enter()?;
        let (root, stream) = (root as c_int, self.context.target());
        // SAFETY: the caller vouches for both addresses.
        let status = unsafe {
            (self.functions.broadcast)(from.cast(), to.cast(), n_bytes, UINT8, root, self.comm, stream)
        };
        self.check(status, "ncclBroadcast")
    }

    unsafe fn all_gather(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()> {
        self.context.enter()?;
        let stream = self.context.target();
        // SAFETY: the caller vouches for both addresses.
        let status =
            unsafe { (self.functions.all_gather)(from.cast(), to.cast(), n_bytes, UINT8, self.comm, stream) };
        self.check(status, "ncclAllGather")
    }

    unsafe fn send(&self, from: *const u8, n_bytes: usize, to: usize) -> Result<()> {
        self.context.enter()?;
        let (peer, stream) = (to as c_int, self.context.target());
        // SAFETY: the caller vouches for the address.
        let status = unsafe { (self.functions.send)(from.cast(), n_bytes, UINT8, peer, self.comm, stream) };
        self.check(status, "ncclSend")
    }

    unsafe fn recv(&self, to: *mut u8, n_bytes: usize, from: usize) -> Result<()> {
        self.context.enter()?;
        let (peer, stream) = (from as c_int, self.context.target());
        // SAFETY: the caller vouches for the address.
        let status = unsafe { (self.functions.recv)(to.cast(), n_bytes, UINT8, peer, self.comm, stream) };
        self.check(status, "ncclRecv")
    }

    fn begin_group(&self) -> Result<()> {
        self.context.enter()?;
        // SAFETY: it may be called at any time; the thread's calls wait for the end of the group.
        self.check(unsafe { (self.functions.group_start)() }, "ncclGroupStart")
    }

    fn end_group(&self) -> Result<()> {
        // SAFETY: the group was begun by this thread.
        self.check(unsafe { (self.functions.group_end)() }, "ncclGroupEnd")
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // What it was given to do must be done before.
        let _ = self.context.synchronize();
        // SAFETY: nobody has the handle any more.
        let _ = unsafe { (self.functions.destroy)(self.comm) };
    }
}
