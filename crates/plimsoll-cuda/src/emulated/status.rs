//! What a thread of a block is at, in words for a person, too.

use std::ffi::{CStr, c_char, c_void};
use std::fmt;

/// Answers the requests of a warp's lanes; null for those that take no part. False: it cannot do without those.
pub type Answer = unsafe extern "C" fn(requests: *mut *mut c_void) -> bool;

/// An operation of a warp in which a thread waits for others.
#[derive(Clone, Copy)]
pub struct Meeting {
    /// The operation's name, a constant of the prelude.
    pub name: *const c_char,
    /// What the last one to come calls.
    pub answer: Answer,
    /// The lanes that take part, a bit each.
    pub lanes: u32,
    /// What this lane wants; it lies in its own frame.
    pub request: *mut c_void,
}

impl Meeting {
    /// Whether two lanes mean the same operation.
    pub fn is(&self, other: &Meeting) -> bool {
        std::ptr::fn_addr_eq(self.answer, other.answer) && self.lanes == other.lanes
    }
}

/// What a thread is at.
#[derive(Clone, Copy)]
pub enum Status {
    /// It can go on.
    Ready,
    /// It waits at the barrier in that line of the text.
    AtBarrier(u32),
    /// It waits for other lanes.
    Meeting(Meeting),
    /// It did what it must not, a constant of the prelude says what, in that line, and will not go on.
    Refused(*const c_char, u32),
    /// It has returned.
    Ended,
}

impl Status {
    /// Whether the thread has returned.
    pub fn ended(self) -> bool {
        matches!(self, Status::Ended)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the prelude passes constant strings, and modules stay loaded.
        let string = |constant| unsafe { CStr::from_ptr(constant) }.to_string_lossy();
        match *self {
            Status::Ready => f.write_str("could go on"),
            Status::AtBarrier(line) => write!(f, "at __syncthreads in line {line}"),
            Status::Meeting(meeting) => {
                write!(f, "in {} with the lanes {:#x} of its warp", string(meeting.name), meeting.lanes)
            }
            Status::Refused(what, line) => write!(f, "{} in line {line}", string(what)),
            Status::Ended => f.write_str("returned"),
        }
    }
}
