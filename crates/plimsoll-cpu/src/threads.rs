//! Threads inside kernels: one fork-join over numbered tasks.
//!
//! A kernel cuts its work into tasks by shape alone, never by the number of threads, so that 1, 2 and 7
//! threads give the same bits. The calling thread takes part, which is why a pool of `n` threads has `n - 1`
//! workers. Nothing here decides whether threads pay: a kernel whose work is small asks for one task.
//!
//! The system may refuse a thread (`ulimit -u`), or the addresses for its stack (`ulimit -v`). [`start`] tells so before a
//! run begins; a kernel that meets with it later goes on by itself, with the same bits.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock};
use std::thread::{Builder, JoinHandle};

use rayon::{ThreadPool, ThreadPoolBuilder};

thread_local! {
    /// The number of threads that `with_threads` asked for on this thread; zero means the default.
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

/// The default number of threads; zero until first asked for.
static DEFAULT: AtomicUsize = AtomicUsize::new(0);

/// The number of threads that kernels called from this thread use.
pub fn n_threads() -> usize {
    let asked = ASKED.get();
    if asked != 0 {
        return asked;
    }
    match DEFAULT.load(Ordering::Relaxed) {
        0 => {
            let n = std::thread::available_parallelism().map_or(1, |n| n.get());
            DEFAULT.store(n, Ordering::Relaxed);
            n
        }
        n => n,
    }
}

/// Sets the default number of threads of the process; zero means one per core.
pub fn set_threads(n: usize) {
    DEFAULT.store(n, Ordering::Relaxed);
}

/// Runs `f` with kernels called from this thread using `n` threads.
pub fn with_threads<R>(n: usize, f: impl FnOnce() -> R) -> R {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            ASKED.set(self.0);
        }
    }
    let _restore = Restore(ASKED.replace(n));
    f()
}

/// Starts the threads that kernels called from this thread use, unless they run already.
///
/// # Errors
/// A system that does not start them; the error says what would help.
pub fn start() -> io::Result<()> {
    match n_threads() {
        0 | 1 => Ok(()),
        n_threads => match workers(n_threads - 1) {
            Ok(_) => Ok(()),
            Err(error) => {
                Err(io::Error::other(format!("{n_threads} threads for kernels are wanted: {error}")))
            }
        },
    }
}

/// Starts a thread; the one way to do so.
///
/// # Errors
/// A system that does not start it; the error says what would help.
pub fn spawn<R: Send + 'static>(
    name: String,
    f: impl FnOnce() -> R + Send + 'static,
) -> io::Result<JoinHandle<R>> {
    let refused = |why: String| {
        io::Error::other(format!(
            "the system does not start the thread {name}: {why}; fewer threads may do, or higher limits (`ulimit -u`, \
             `ulimit -v`)"
        ))
    };
    if !has_room_for_a_stack() {
        return Err(refused("there are no addresses left for its stack".to_owned()));
    }
    Builder::new().name(name.clone()).spawn(f).map_err(|error| refused(error.to_string()))
}

/// Whether a new thread finds addresses for all that is set up before its first line runs, where a refusal would end the
/// process.
fn has_room_for_a_stack() -> bool {
    // The stack, what the allocator and the standard library add to it, and some to spare for other threads.
    const ROOM: usize = 16 << 20;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice touches no memory that is in use.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), ROOM, libc::PROT_NONE, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: exactly what was mapped a moment ago, which nobody has seen.
    unsafe { libc::munmap(address, ROOM) };
    true
}

/// Runs `task(0)`, ..., `task(n_tasks - 1)`, each once, in no particular order, and returns when all are done.
#[inline]
pub fn parallel(n_tasks: usize, task: impl Fn(usize) + Sync) {
    let n_threads = n_threads().min(n_tasks);
    if n_threads <= 1 {
        (0..n_tasks).for_each(task);
    } else {
        fork_join(n_tasks, n_threads, &task);
    }
}

/// An address that the tasks of a kernel share.
///
/// Sharing it is harmless; what is done with it is promised where it is used.
#[derive(Debug)]
pub struct SharedPtr<T>(*mut T);

impl<T> SharedPtr<T> {
    /// Wraps an address.
    pub fn new(ptr: *mut T) -> SharedPtr<T> {
        SharedPtr(ptr)
    }

    /// The address.
    #[inline(always)]
    pub fn get(&self) -> *mut T {
        self.0
    }
}

impl<T> Clone for SharedPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedPtr<T> {}

// SAFETY: an address is a number; only reading or writing through it can race, and that is unsafe by itself.
unsafe impl<T> Send for SharedPtr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SharedPtr<T> {}

/// The part of `parallel` that does not depend on the closure's type.
fn fork_join(n_tasks: usize, n_threads: usize, task: &(dyn Fn(usize) + Sync)) {
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let claimed = next.fetch_add(1, Ordering::Relaxed);
            if claimed >= n_tasks {
                return;
            }
            task(claimed);
        }
    };
    match workers(n_threads - 1) {
        Ok(workers) => workers.in_place_scope(|scope| {
            for _ in 1..n_threads {
                scope.spawn(|_| work());
            }
            work();
        }),
        Err(error) => {
            static SAID: Once = Once::new();
            SAID.call_once(|| log::warn!("kernels run on one thread: {error}"));
            work();
        }
    }
}

/// The pool with that many workers, or why there is none; made on first use and kept, because threads are costly to
/// start.
fn workers(n_workers: usize) -> &'static Result<ThreadPool, String> {
    const MAX: usize = 256;
    static POOLS: [OnceLock<Result<ThreadPool, String>>; MAX] = [const { OnceLock::new() }; MAX];
    static STARTING: Mutex<()> = Mutex::new(());
    let n_workers = n_workers.min(MAX - 1);
    POOLS[n_workers].get_or_init(|| {
        let _one_at_a_time = STARTING.lock();
        let pool = ThreadPoolBuilder::new()
            .num_threads(n_workers)
            .spawn_handler(|worker| spawn(format!("plimsoll-{}", worker.index()), || worker.run()).map(drop));
        pool.build().map_err(|error| error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_for_any_number_of_threads() {
        for n_threads in [1, 2, 7] {
            let counts: Vec<AtomicUsize> = (0..100).map(|_| AtomicUsize::new(0)).collect();
            with_threads(n_threads, || {
                parallel(counts.len(), |task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn the_number_of_threads_is_restored() {
        let before = n_threads();
        with_threads(7, || assert_eq!(n_threads(), 7));
        assert_eq!(n_threads(), before);
    }
}
