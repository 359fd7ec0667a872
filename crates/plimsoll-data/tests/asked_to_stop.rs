//! A wait for a batch that somebody may end: in a process of its own, because the first who says so counts.

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use common::numbers;
use plimsoll_data::{Batch, Dataset, Field, Spec, stop_waiting_when};
use plimsoll_tensor::{DType, ErrorKind};

static HELD: Mutex<Option<Batch>> = Mutex::new(None);
static STOPS: AtomicBool = AtomicBool::new(false);

/// A binding asks its interpreter, which may drop whatever it holds: a batch of the same pipeline, too.
fn asked() -> bool {
    drop(HELD.lock().unwrap().take());
    STOPS.load(Ordering::Relaxed)
}

#[test]
fn whoever_is_asked_may_drop_a_batch_and_end_the_wait() {
    stop_waiting_when(asked);
    let dataset = numbers(40).batch(4).unwrap().prefetch(1);
    let mut n = 0;
    for batch in &dataset {
        *HELD.lock().unwrap() = Some(batch.unwrap());
        n += 1;
    }
    assert_eq!(n, 10);

    let spec = Spec::new([Field::new("x", DType::F32, 1).unwrap()]).unwrap();
    let never = Dataset::from_generator(spec, |_| {
        |_: &mut plimsoll_data::ExampleMut<'_>| {
            STOPS.store(true, Ordering::Relaxed);
            loop {
                std::thread::park();
            }
        }
    });
    let error = never.batch(2).unwrap().prefetch(1).iter().next().unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Interrupted { .. }), "{error}");
}
