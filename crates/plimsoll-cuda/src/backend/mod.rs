//! What a GPU must be able to do: the driver's and the emulated one's common face. It names neither of them.

mod launches;

use std::ffi::c_void;

use plimsoll_memory::Source;

use crate::convolution::{Convolution, ConvolutionOperands};
use crate::error::Result;
use crate::matmul::{Matmul, MatmulOperands};

pub(crate) use self::launches::{Launch, Launches, dispatch_all};

/// The most bytes that can be posted to the host.
pub(crate) const POST_BYTES: usize = 256;

/// What a device's memory is like, as the driver says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that are free.
    pub free: u64,
    /// Bytes that there are.
    pub total: u64,
}

/// The addresses of each of a pool's regions on a GPU, real or ghost: more than any GPU has memory.
pub const REGION_BYTES: u64 = 512 << 30;

/// How many threads work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks along x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block along x and y.
    pub threads: [u32; 2],
    /// Bytes of shared memory that a block takes beyond what the kernel declares.
    pub shared_bytes: u32,
}

impl Grid {
    /// So many blocks of so many threads in a row.
    pub fn of(blocks: usize, threads: u32) -> Grid {
        Grid { blocks: [blocks as u32, 1, 1], threads: [threads, 1], shared_bytes: 0 }
    }

    /// Enough blocks of `threads` threads for one thread per item.
    pub fn covering(n_items: usize, threads: u32) -> Grid {
        Grid::of(n_items.div_ceil(threads as usize), threads)
    }

    /// With this much shared memory beyond what the kernel declares.
    pub fn shared(self, bytes: usize) -> Grid {
        Grid { shared_bytes: bytes as u32, ..self }
    }
}

/// A loaded kernel, as its back end knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function(pub usize);

/// A queue of work of a GPU; what is in one is done in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Copies to the host that others need not wait for.
    Down,
    /// Copies from the host that others need not wait for.
    Up,
    /// Everything else.
    Compute,
}

/// A mark in a stream that others can wait for, as its back end knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event(pub usize);

/// What orders the work of several streams.
pub(crate) trait Streams: Send + Sync {
    /// A new event, which the back end keeps until it goes.
    fn event(&self) -> Result<Event>;

    /// Puts an event behind the work that a stream has so far, and nowhere else.
    fn record(&self, event: Event, stream: Stream) -> Result<()>;

    /// Makes the later work of a stream wait for an event as it was recorded last. The host does not wait.
    fn wait(&self, stream: Stream, event: Event) -> Result<()>;

    /// The host waits for an event.
    fn wait_on_host(&self, event: Event) -> Result<()>;

    /// Starts a copy between pinned memory of the host and the device.
    ///
    /// # Safety
    /// The addresses must be valid for as many bytes until the copy is done, the host's inside one piece that is pinned.
    unsafe fn copy_on(&self, stream: Stream, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()>;
}

/// The operations of a GPU. Everything but `download` and `synchronize` may return before the work is done. Whatever does not
/// name a stream is work of the compute stream.
///
/// # Safety
/// The pointers that the unsafe functions are given must be valid on the device for what they are used for until the work
/// is done; host memory only until the function returns.
pub(crate) trait Backend: Streams {
    /// Compiles a source with the one entry of that name, and loads it. The source is complete, the prelude included.
    fn build(&self, entry: &str, source: &str) -> Result<Function>;

    /// Whether what is compiled ahead is there when it is built.
    fn compiles_ahead(&self) -> bool;

    /// Compiles a kernel for when it is built. Several threads may do so.
    fn compile_ahead(&self, entry: &str, source: &str) -> Result<()>;

    /// Unloads a kernel, once all work is done.
    fn unload(&self, function: Function);

    /// Starts a kernel; `params` point to the values of its parameters.
    ///
    /// # Safety
    /// As the trait says; the parameters must be those of the kernel.
    unsafe fn launch(&self, function: Function, grid: Grid, params: &mut [*mut c_void]) -> Result<()>;

    /// Copies from the host; the host's bytes may change as soon as it returns.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn upload(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()>;

    /// Copies to the host, after all work before; the bytes are there when it returns.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn download(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()>;

    /// Starts a copy of a few bytes to the host, at most [`POST_BYTES`], and returns the slot
    /// where they will be; nothing if there is none, and the bytes have to be waited for with `download`.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn post(&self, _from: *const u8, _n_bytes: usize) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Waits until the bytes of a slot are there, and for nothing that was started later; the slot is free then.
    fn fetch(&self, _slot: u32, _to: &mut [u8]) -> Result<()> {
        Ok(())
    }

    /// Copies within the device; the ranges do not overlap.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn copy(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()>;

    /// Sets bytes.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn fill(&self, to: *mut u8, byte: u8, n_bytes: usize) -> Result<()>;

    /// A matrix product; false if there is no way to compute it, and nothing was started.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn matmul(&self, matmul: &Matmul, operands: &MatmulOperands) -> Result<bool>;

    /// A convolution or one of its gradients; false if there is no way to compute it, and nothing was started.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn convolve(&self, convolution: &Convolution, operands: &ConvolutionOperands) -> Result<bool>;

    /// Whether there is a way to compute a product, if that is known without trying: a call of `matmul` says the same.
    fn knows_matmul(&self, matmul: &Matmul, operands: &MatmulOperands) -> Option<bool>;

    /// Whether there is a way to compute a convolution, if that is known without trying: a call of `convolve` says the same.
    fn knows_convolution(&self, convolution: &Convolution, operands: &ConvolutionOperands) -> Option<bool>;

    /// Makes an executable of launches; none of them is started. The back end is as before if it fails.
    fn capture(&self, launches: &mut Launches) -> Result<Box<dyn Executable>>;

    /// Waits until all work of all streams is done.
    fn synchronize(&self) -> Result<()>;

    /// Waits until all work on the device is done, also that of other libraries of the process.
    fn synchronize_all(&self) -> Result<()>;

    /// The compute stream, as the driver and other libraries know it.
    fn compute_stream(&self) -> usize;

    /// Makes the later work of one stream wait for what another one has so far, both by their handles. The host does not wait.
    ///
    /// # Safety
    /// Both must be streams of the device's context that are there.
    unsafe fn order(&self, first: usize, then: usize) -> Result<()>;

    /// What the device has and what is free.
    fn memory(&self) -> Result<MemoryInfo>;

    /// A source of pages for a pool.
    fn pages(&self) -> Result<Box<dyn Source>>;

    /// Pins memory of the host, which copies can be about from then on.
    ///
    /// # Safety
    /// The memory must stay as it is until `unpin`.
    unsafe fn pin(&self, memory: *mut u8, n_bytes: usize) -> Result<()>;

    /// Undoes a `pin`.
    ///
    /// # Safety
    /// No copy may be about the memory any more.
    unsafe fn unpin(&self, memory: *mut u8) -> Result<()>;

    /// Joins the ranks that have the same id, each on a GPU of its own.
    fn collectives(&self, id: &[u8; 128], rank: usize, size: usize) -> Result<Box<dyn Collectives>>;

    /// Memory of the host that kernels can write to and that both see: `n_bytes` zero bytes, for as long as the process
    /// lives. Returns its address on the device and on the host.
    fn shared_cell(&self, n_bytes: usize) -> Result<(*mut u8, *mut u8)>;
}

/// A rank among others, whose transfers are work of the compute stream.
///
/// # Safety
/// The pointers that the unsafe functions are given must be valid on the device until the work is done.
pub(crate) trait Collectives: Send + Sync {
    /// Gives all ranks the bytes that one of them has at `from`.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn broadcast(&self, from: *const u8, to: *mut u8, n_bytes: usize, root: usize) -> Result<()>;

    /// Gives all ranks the bytes of all, in their order.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn all_gather(&self, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()>;

    /// Sends bytes to a rank.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn send(&self, from: *const u8, n_bytes: usize, to: usize) -> Result<()>;

    /// Receives bytes of a rank.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn recv(&self, to: *mut u8, n_bytes: usize, from: usize) -> Result<()>;

    /// What this thread asks for until `end_group` happens at the same time.
    fn begin_group(&self) -> Result<()>;

    /// Ends what was begun.
    fn end_group(&self) -> Result<()>;
}

/// A list of launches, ready to be started by one call.
pub(crate) trait Executable: Send {
    /// Gives the kernel of that number the parameters that it has in a list that is like the captured one.
    fn patch(&mut self, number: usize, launches: &mut Launches) -> Result<()>;

    /// Starts it on the compute stream.
    fn launch(&mut self, backend: &dyn Backend) -> Result<()>;
}
