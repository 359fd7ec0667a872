//! A trace for Perfetto: bytes in use, committed and by owner as counters, steps and phases as slices.
//!
//! Counters have the values of the page's buckets, of which there are at most 16,384: each event of a short recording, and of a
//! long one the moments at which most was in use.

use std::io;

use plimsoll_memory::{Owner, STEP};

use super::protobuf::Message;
use crate::page::timeline::{Mark, Timeline};
use crate::profile::Profile;

/// All packets are of one sequence, ours.
const SEQUENCE: u64 = 1;
const STEPS: u64 = 100;
const PHASES: u64 = 101;
const IN_USE: u64 = 200;
const COMMITTED: u64 = 201;
/// The counter of the first owner; the others follow, rounding last.
const OWNERS: u64 = 300;

// Fields of `TracePacket`, `TrackDescriptor`, `CounterDescriptor` and `TrackEvent`.
const PACKET: u64 = 1;
const TIMESTAMP: u64 = 8;
const SEQUENCE_ID: u64 = 10;
const TRACK_EVENT: u64 = 11;
const TRACK_DESCRIPTOR: u64 = 60;
const UUID: u64 = 1;
const TRACK_NAME: u64 = 2;
const COUNTER: u64 = 8;
const UNIT: u64 = 3;
const UNIT_SIZE_BYTES: u64 = 3;
const EVENT_TYPE: u64 = 9;
const EVENT_TRACK: u64 = 11;
const EVENT_NAME: u64 = 23;
const COUNTER_VALUE: u64 = 30;
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const COUNTER_EVENT: u64 = 4;

/// A profile as such a trace.
pub(super) fn trace(profile: &Profile) -> io::Result<Vec<u8>> {
    let timeline = Timeline::of(profile)?;
    let mut trace = Message::new();
    let mut tracks: Vec<(u64, String, bool)> = vec![
        (STEPS, "steps".to_owned(), false),
        (PHASES, "phases".to_owned(), false),
        (IN_USE, "memory in use".to_owned(), true),
        (COMMITTED, "memory committed".to_owned(), true),
    ];
    let owners = Owner::ALL.map(Owner::name).into_iter().chain(["rounding"]);
    tracks
        .extend(owners.enumerate().map(|(nth, name)| (OWNERS + nth as u64, format!("memory: {name}"), true)));
    for (uuid, name, is_counter) in tracks {
        let mut track = Message::new().number(UUID, uuid).text(TRACK_NAME, &name);
        if is_counter {
            track = track.message(COUNTER, Message::new().number(UNIT, UNIT_SIZE_BYTES));
        }
        let packet = Message::new().number(SEQUENCE_ID, SEQUENCE).message(TRACK_DESCRIPTOR, track);
        trace = trace.message(PACKET, packet);
    }
    trace = counters(trace, &timeline);
    Ok(slices(trace, &timeline, profile).into_bytes())
}

fn packet(trace: Message, nanoseconds: u64, event: Message) -> Message {
    let packet = Message::new().number(TIMESTAMP, nanoseconds).number(SEQUENCE_ID, SEQUENCE);
    trace.message(PACKET, packet.message(TRACK_EVENT, event))
}

fn counters(mut trace: Message, timeline: &Timeline) -> Message {
    let mut last: Vec<Option<u64>> =
        vec![None; timeline.buckets.first().map_or(0, |bucket| bucket.rows.len()) + 2];
    for bucket in &timeline.buckets {
        let time = time_of(&timeline.marks, bucket.at);
        let owners = bucket.rows.iter().enumerate().map(|(nth, &bytes)| (OWNERS + nth as u64, bytes));
        let values = [(IN_USE, bucket.most), (COMMITTED, bucket.committed)].into_iter().chain(owners);
        for (nth, (track, bytes)) in values.enumerate() {
            if last[nth] != Some(bytes) {
                last[nth] = Some(bytes);
                let event = Message::new().number(EVENT_TYPE, COUNTER_EVENT).number(EVENT_TRACK, track);
                trace = packet(trace, time, event.number(COUNTER_VALUE, bytes));
            }
        }
    }
    trace
}

/// Steps last until the next, phases until the next mark.
fn slices(mut trace: Message, timeline: &Timeline, profile: &Profile) -> Message {
    let is_step = |mark: &&Mark| profile.text(mark.name) == STEP.as_str();
    let end = timeline.marks.last().map_or(0, |mark| mark.nanoseconds);
    let steps: Vec<&Mark> = timeline.marks.iter().filter(is_step).collect();
    for (nth, mark) in steps.iter().enumerate() {
        let until = steps.get(nth + 1).map_or(end, |next| next.nanoseconds);
        trace = slice(trace, STEPS, &format!("step {}", mark.number), mark.nanoseconds, until);
    }
    for (nth, mark) in timeline.marks.iter().enumerate().filter(|(_, mark)| !is_step(mark)) {
        let until = timeline.marks.get(nth + 1).map_or(end, |next| next.nanoseconds);
        trace = slice(trace, PHASES, profile.text(mark.name), mark.nanoseconds, until);
    }
    trace
}

fn slice(trace: Message, track: u64, name: &str, from: u64, until: u64) -> Message {
    let begin =
        Message::new().number(EVENT_TYPE, SLICE_BEGIN).number(EVENT_TRACK, track).text(EVENT_NAME, name);
    let end = Message::new().number(EVENT_TYPE, SLICE_END).number(EVENT_TRACK, track);
    packet(packet(trace, from, begin), until, end)
}

/// The time of a moment; between two marks it is shared out by events.
fn time_of(marks: &[Mark], moment: u64) -> u64 {
    let after = marks.partition_point(|mark| mark.moment <= moment);
    let none = Mark { moment: 0, name: 0, number: 0, nanoseconds: 0 };
    let before = after.checked_sub(1).map_or(none, |before| marks[before]);
    match marks.get(after) {
        None => before.nanoseconds,
        Some(next) => {
            let share = (moment - before.moment) as f64 / (next.moment - before.moment).max(1) as f64;
            before.nanoseconds + ((next.nanoseconds - before.nanoseconds) as f64 * share) as u64
        }
    }
}
