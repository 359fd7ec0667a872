//! The machine that runs a kernel: one block after the other, the threads of a block in turn.
//!
//! A thread runs until it ends or has to wait: at a barrier until all threads of its block that have not ended are there,
//! in an operation of its warp until all lanes that the operation names are there. Odd blocks let their threads run in
//! the opposite order, so that a missing barrier does not go unnoticed because of an order that happens to be kind.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_char, c_void};
use std::fmt::Write;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use super::fiber::{self, Context, Stacks};
use super::module::Module;
use super::status::{Answer, Meeting, Status};
use crate::backend::Grid;
use crate::error::{Error, Result};

/// The shared memory that a block may take, in bytes.
pub const SHARED_BYTES: usize = 227 << 10;

/// How much of it a kernel may declare; the rest must be asked for at the launch.
const STATIC_SHARED_BYTES: usize = 48 << 10;

/// The most threads that a block has.
const MAX_THREADS: usize = 1024;

/// The most blocks along y and z.
const MAX_BLOCKS_YZ: u32 = 65535;

/// The threads of a warp.
const LANES: usize = 32;

/// What a kernel sees of the machine. `prelude.hpp` has the same structure.
#[repr(C)]
pub struct State {
    thread: [u32; 3],
    block: [u32; 3],
    threads: [u32; 3],
    blocks: [u32; 3],
    dynamic_shared: *mut u8,
    /// A number that no other block has.
    run: u64,
    machine: *const Machine,
    barrier: extern "C" fn(&Machine, u32),
    refuse: extern "C" fn(&Machine, *const c_char, u32),
    meet: extern "C" fn(&Machine, *const c_char, Answer, u32, *mut c_void),
}

/// A thread of the block. Its fiber is kept from one block, and one kernel, to the next.
struct Thread {
    /// Null before it runs for the first time.
    context: Cell<Context>,
    status: Cell<Status>,
}

/// Lanes of a warp, a bit each.
#[derive(Default)]
struct Warp {
    live: Cell<u32>,
    meeting: Cell<u32>,
}

/// Shared memory that a launch asks for.
#[repr(align(128))]
struct Shared(#[expect(dead_code, reason = "only kernels read it")] [u8; SHARED_BYTES]);

/// A multiprocessor, so to speak. Each thread of the operating system that launches kernels has its own.
struct Machine {
    threads: Vec<Thread>,
    warps: Vec<Warp>,
    stacks: Stacks,
    shared: Box<UnsafeCell<Shared>>,
    scheduler: Cell<Context>,
    /// The thread that runs.
    current: Cell<usize>,
    /// How many threads blocks of the running kernel have.
    n_threads: Cell<usize>,
    kernel: Cell<Option<Run>>,
    params: Cell<*mut *mut c_void>,
}

/// A kernel's entry; the parameters are behind the addresses.
pub type Run = unsafe extern "C" fn(params: *mut *mut c_void);

/// Counts the blocks that were run, from one on.
static RUNS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static MACHINE: Machine = Machine::new();
}

/// Runs a kernel.
///
/// # Safety
/// The parameters are those of the kernel, and what it does with the addresses among them is allowed.
pub unsafe fn launch(module: &Module, grid: Grid, params: &mut [*mut c_void]) -> Result<()> {
    check(module, grid)?;
    let _alone = module.lock.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the caller promises it.
    MACHINE.with(|machine| unsafe { machine.run(module, grid, params) })
}

/// Refuses what the driver would refuse.
fn check(module: &Module, grid: Grid) -> Result<()> {
    let refuse = |text: String| Err(Error::new(format!("kernel `{}`: {text}", module.name)));
    let n_threads = grid.threads[0] as usize * grid.threads[1] as usize;
    if n_threads == 0 || n_threads > MAX_THREADS {
        return refuse(format!("blocks of {n_threads} threads; there must be 1 to {MAX_THREADS}"));
    }
    if grid.blocks[0] > i32::MAX as u32 || grid.blocks[1..].iter().any(|&n| n > MAX_BLOCKS_YZ) {
        return refuse(format!("{:?} blocks; at most {MAX_BLOCKS_YZ} along y and z", grid.blocks));
    }
    let declared = module.shared_bytes();
    if declared > STATIC_SHARED_BYTES {
        return refuse(format!("declares {declared} bytes of shared memory, at most {STATIC_SHARED_BYTES}"));
    }
    if declared + grid.shared_bytes as usize > SHARED_BYTES {
        let asked = grid.shared_bytes;
        return refuse(format!("{declared} + {asked} bytes of shared memory, at most {SHARED_BYTES}"));
    }
    Ok(())
}

impl Machine {
    fn new() -> Machine {
        let thread = || Thread { context: Cell::new(std::ptr::null_mut()), status: Cell::new(Status::Ended) };
        Machine {
            threads: std::iter::repeat_with(thread).take(MAX_THREADS).collect(),
            warps: std::iter::repeat_with(Warp::default).take(MAX_THREADS / LANES).collect(),
            stacks: Stacks::new(MAX_THREADS),
            shared: Box::new(UnsafeCell::new(Shared([0; SHARED_BYTES]))),
            scheduler: Cell::new(std::ptr::null_mut()),
            current: Cell::new(0),
            n_threads: Cell::new(0),
            kernel: Cell::new(None),
            params: Cell::new(std::ptr::null_mut()),
        }
    }

    /// Runs the blocks of a kernel.
    ///
    /// # Safety
    /// As for `launch`; the module's lock is held.
    unsafe fn run(&self, module: &Module, grid: Grid, params: &mut [*mut c_void]) -> Result<()> {
        self.kernel.set(Some(module.run));
        self.params.set(params.as_mut_ptr());
        self.n_threads.set(grid.threads[0] as usize * grid.threads[1] as usize);
        let dynamic_shared = self.shared.get().cast::<u8>();
        let [blocks_x, blocks_y, blocks_z] = grid.blocks;
        for number in 0..u64::from(blocks_x) * u64::from(blocks_y) * u64::from(blocks_z) {
            let yz = number / u64::from(blocks_x);
            let block = [number % u64::from(blocks_x), yz % u64::from(blocks_y), yz / u64::from(blocks_y)];
            // SAFETY: the state is the module's, which is ours alone; shared memory is as long as `check` allows, and
            // no thread runs.
            unsafe {
                module.state.write(State {
                    thread: [0; 3],
                    block: block.map(|x| x as u32),
                    threads: [grid.threads[0], grid.threads[1], 1],
                    blocks: grid.blocks,
                    dynamic_shared,
                    run: RUNS.fetch_add(1, Ordering::Relaxed),
                    machine: self,
                    barrier,
                    refuse,
                    meet,
                });
                module.shared_start.write_bytes(0xFF, module.shared_bytes());
                dynamic_shared.write_bytes(0xFF, grid.shared_bytes as usize);
            }
            // SAFETY: the caller promises it.
            if let Err(error) = unsafe { self.run_block(module, number % 2 == 1) } {
                // Whoever waits for ever is forgotten, with its stack.
                self.threads.iter().for_each(|thread| thread.context.set(std::ptr::null_mut()));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Runs the threads of a block.
    ///
    /// # Safety
    /// As for `launch`; the module's state is that of the block.
    unsafe fn run_block(&self, module: &Module, backward: bool) -> Result<()> {
        let threads = &self.threads[..self.n_threads.get()];
        threads.iter().for_each(|thread| thread.status.set(Status::Ready));
        for (warp, lanes) in self.warps.iter().zip(threads.chunks(LANES)) {
            warp.live.set(u32::MAX >> (LANES - lanes.len()));
            warp.meeting.set(0);
        }
        loop {
            let mut resumed = false;
            for step in 0..threads.len() {
                let idx = if backward { threads.len() - 1 - step } else { step };
                if let Status::Ready = threads[idx].status.get() {
                    // SAFETY: the caller promises it; the thread is ready.
                    unsafe { self.resume(module, idx) };
                    if let Status::Refused(..) = threads[idx].status.get() {
                        return Err(self.refused(module, idx));
                    }
                    resumed = true;
                }
            }
            if resumed {
                continue;
            }
            if threads.iter().all(|thread| thread.status.get().ended()) {
                return Ok(());
            }
            if !self.hold_late_meeting() && !self.open_barrier() {
                return Err(self.stuck(module));
            }
        }
    }

    /// Lets a thread run until it waits or ends.
    ///
    /// # Safety
    /// As for `run_block`; the thread is ready.
    unsafe fn resume(&self, module: &Module, idx: usize) {
        let thread = &self.threads[idx];
        if thread.context.get().is_null() {
            // SAFETY: there is a stack per thread; `thread_main` never returns.
            let context =
                unsafe { self.stacks.fiber(idx, thread_main, std::ptr::from_ref(self).expose_provenance()) };
            thread.context.set(context);
        }
        self.current.set(idx);
        // SAFETY: the state is the module's, which is ours alone.
        unsafe {
            let width = (*module.state).threads[0];
            (*module.state).thread = [idx as u32 % width, idx as u32 / width, 0];
        }
        // SAFETY: the context was made above or saved by `pause`; nobody has gone on with it since.
        unsafe { fiber::switch(self.scheduler.as_ptr(), thread.context.get()) };
    }

    /// Goes back to the scheduler; returns when the thread is resumed.
    fn pause(&self) {
        let context = self.threads[self.current.get()].context.as_ptr();
        // SAFETY: the scheduler's context was saved by the `resume` that let this thread run.
        unsafe { fiber::switch(context, self.scheduler.get()) };
    }

    /// Holds the meeting for which that thread waits, if all that it names are there or have ended.
    fn hold_meeting(&self, idx: usize) -> bool {
        let Status::Meeting(meeting) = self.threads[idx].status.get() else { return false };
        let warp = &self.warps[idx / LANES];
        if meeting.lanes & warp.live.get() & !warp.meeting.get() != 0 {
            return false;
        }
        let mut requests = [std::ptr::null_mut(); LANES];
        let first = idx / LANES * LANES;
        let taking_part = meeting.lanes & warp.live.get();
        for (lane, request) in
            requests.iter_mut().enumerate().filter(|(lane, _)| taking_part >> lane & 1 == 1)
        {
            match self.threads[first + lane].status.get() {
                Status::Meeting(other) if other.is(&meeting) => *request = other.request,
                _ => return false,
            }
        }
        if requests[idx % LANES].is_null() {
            return false;
        }
        // SAFETY: the requests are those of the same operation; their threads wait, so that their frames stay.
        if !unsafe { (meeting.answer)(requests.as_mut_ptr()) } {
            return false;
        }
        warp.meeting.set(warp.meeting.get() & !taking_part);
        for lane in (0..LANES).filter(|lane| taking_part >> lane & 1 == 1) {
            self.threads[first + lane].status.set(Status::Ready);
        }
        true
    }

    /// Holds a meeting that can be held since other lanes have ended; whether there was one.
    fn hold_late_meeting(&self) -> bool {
        (0..self.n_threads.get()).any(|idx| self.hold_meeting(idx))
    }

    /// Lets all threads go on if all that have not ended are at one barrier.
    fn open_barrier(&self) -> bool {
        let waiting =
            || self.threads[..self.n_threads.get()].iter().filter(|thread| !thread.status.get().ended());
        let Some(Status::AtBarrier(line)) = waiting().next().map(|thread| thread.status.get()) else {
            return false;
        };
        let all =
            waiting().all(|thread| matches!(thread.status.get(), Status::AtBarrier(other) if other == line));
        if all {
            waiting().for_each(|thread| thread.status.set(Status::Ready));
        }
        all
    }

    /// Says what a thread did that it must not.
    fn refused(&self, module: &Module, idx: usize) -> Error {
        let (name, what, text) = (&module.name, self.threads[idx].status.get(), module.text.display());
        Error::new(format!("kernel `{name}`: thread {idx} {what} of {text}"))
    }

    /// Says who waits where.
    fn stuck(&self, module: &Module) -> Error {
        let mut groups: Vec<(String, usize, usize)> = Vec::new();
        for (idx, thread) in self.threads[..self.n_threads.get()].iter().enumerate() {
            let what = thread.status.get().to_string();
            match groups.iter_mut().find(|group| group.0 == what) {
                Some(group) => group.2 += 1,
                None => groups.push((what, idx, 1)),
            }
        }
        let mut text = format!("kernel `{}` does not meet its own threads: ", module.name);
        for (what, first, n_threads) in groups {
            // Writing to a string does not fail.
            let _ = match n_threads {
                1 => write!(text, "thread {first} {what}; "),
                _ => write!(text, "{n_threads} threads from {first} on {what}; "),
            };
        }
        Error::new(text + &format!("lines are those of {}", module.text.display()))
    }
}

/// What a thread's fiber does: the kernel, once for every block.
extern "C" fn thread_main(machine: usize) -> ! {
    // SAFETY: `resume` passes the machine, which outlives its fibers.
    let machine = unsafe { &*std::ptr::with_exposed_provenance::<Machine>(machine) };
    loop {
        if let Some(kernel) = machine.kernel.get() {
            // SAFETY: `launch` was promised that the parameters are those of the kernel.
            unsafe { kernel(machine.params.get()) };
        }
        let idx = machine.current.get();
        machine.threads[idx].status.set(Status::Ended);
        let warp = &machine.warps[idx / LANES];
        warp.live.set(warp.live.get() & !(1 << (idx % LANES)));
        machine.pause();
    }
}

/// `__syncthreads` of the running thread.
extern "C" fn barrier(machine: &Machine, line: u32) {
    machine.threads[machine.current.get()].status.set(Status::AtBarrier(line));
    machine.pause();
}

/// The running thread did what it must not; it does not go on.
extern "C" fn refuse(machine: &Machine, what: *const c_char, line: u32) {
    machine.threads[machine.current.get()].status.set(Status::Refused(what, line));
    machine.pause();
}

/// An operation of the running thread's warp.
extern "C" fn meet(machine: &Machine, name: *const c_char, answer: Answer, lanes: u32, request: *mut c_void) {
    let idx = machine.current.get();
    let warp = &machine.warps[idx / LANES];
    warp.meeting.set(warp.meeting.get() | 1 << (idx % LANES));
    machine.threads[idx].status.set(Status::Meeting(Meeting { name, answer, lanes, request }));
    if !machine.hold_meeting(idx) {
        machine.pause();
    }
}
