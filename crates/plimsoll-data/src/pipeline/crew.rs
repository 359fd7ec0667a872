//! The threads that make batches.
//!
//! An iteration has its threads from a crew, and gives them back when it is dropped; a crew that nobody holds ends them. A
//! training run iterates once an epoch, and should not fail in a late one because the system refuses a thread then. So it
//! holds a crew from its beginning to its end, and the iterations of the same dataset find their threads there.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use plimsoll_cpu::threads;
use plimsoll_tensor::{Error, Result};

use crate::node::lock;

/// What a thread is given to do.
type Work = Box<dyn FnOnce() + Send>;

/// Threads of a dataset that are kept until this is dropped; see
/// [`Dataset::start_threads`](crate::Dataset::start_threads).
#[derive(Debug)]
pub struct Threads {
    _crew: Arc<Crew>,
}

/// Where the iterations of a dataset look for a crew that somebody holds.
#[derive(Debug, Default)]
pub(crate) struct Held(Mutex<Weak<Crew>>);

impl Held {
    /// The crew that is held, or a new one.
    pub fn crew(&self) -> Arc<Crew> {
        lock(&self.0).upgrade().unwrap_or_default()
    }

    /// Holds a crew with so many threads.
    pub fn hold(&self, n_threads: usize) -> Result<Threads> {
        let crew = self.crew();
        let hired: Result<Vec<Worker>> = (0..n_threads).map(|number| crew.hire(number)).collect();
        hired?.into_iter().for_each(|worker| crew.dismiss(worker));
        *lock(&self.0) = Arc::downgrade(&crew);
        Ok(Threads { _crew: crew })
    }
}

/// Threads, of which some have nothing to do.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    idle: Mutex<Vec<Worker>>,
}

impl Crew {
    /// A thread that has nothing to do; a new one if there is none.
    pub fn hire(&self, number: usize) -> Result<Worker> {
        let idle = lock(&self.idle).pop();
        let hired = idle.map_or_else(|| Worker::start(number), Ok);
        hired.map_err(|error| Error::within("the dataset cannot make batches", error))
    }

    /// Waits until a thread has done its work, and keeps it.
    pub fn dismiss(&self, mut worker: Worker) {
        worker.wait();
        lock(&self.idle).push(worker);
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for Worker { work, thread, .. } in lock(&self.idle).drain(..) {
            drop(work);
            // A panic was caught and handed on; there is nothing else to hear.
            let _ = thread.join();
        }
    }
}

/// A thread that does one thing after the other.
#[derive(Debug)]
pub(crate) struct Worker {
    work: Sender<Work>,
    /// Hears of the end of each work that was begun.
    done: Receiver<()>,
    is_busy: bool,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start(number: usize) -> io::Result<Worker> {
        let ((work, given), (say_done, done)) = (channel::<Work>(), channel());
        let thread = threads::spawn(format!("plimsoll-data-{number}"), move || {
            for work in given {
                // What users gave to the dataset is guarded where it is called; this is for what they drop.
                let _ = catch_unwind(AssertUnwindSafe(work));
                if say_done.send(()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Worker { work, done, is_busy: false, thread })
    }

    /// Gives an idle thread something to do.
    pub fn begin(&mut self, work: impl FnOnce() + Send + 'static) {
        self.is_busy = self.work.send(Box::new(work)).is_ok();
    }

    fn wait(&mut self) {
        if std::mem::take(&mut self.is_busy) {
            // A thread that has ended says nothing any more, and has nothing left to do.
            let _ = self.done.recv();
        }
    }
}
