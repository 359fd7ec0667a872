//! Whether a run had at every moment the bytes in use that its dry run has: event by event, and not at the peak alone.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use plimsoll_memory::{Bytes, STEP};

use crate::profile::Profile;
use crate::recorder::SEGMENTS;
use crate::replay::Change;

/// A run and its dry run, held against each other at every moment that both have. A dry run leaves out what repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// How many moments both have,
    pub n_moments: u64,
    /// in so many steps.
    pub n_steps: u64,
    /// The first at which something else was in use, if there is one.
    pub difference: Option<Difference>,
}

/// A moment at which a run and its dry run differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What was going on: `step 3`, `evaluate after step 3`, or what comes before all steps.
    pub place: String,
    /// The number of the event in it.
    pub event: usize,
    /// The bytes in use, if the run has such an event,
    pub measured: Option<u64>,
    /// and those that were predicted, if the dry run has.
    pub predicted: Option<u64>,
}

/// A step, or what lies between two: the step, what began it with its number, such as the batch of an evaluation, and which one of
/// those that are called the same it is.
type Key = (u64, String, u64, usize);

impl Agreement {
    /// Compares a run with its dry run.
    ///
    /// # Errors
    /// A damaged profile.
    pub fn of(run: &Profile, plan: &Profile) -> io::Result<Agreement> {
        let (mut measured, mut predicted) = (in_use(run)?, in_use(plan)?);
        // The dry run ends where the run goes on with what it left out, so its last part is compared as far as it goes.
        let last = predicted.keys().next_back().cloned();
        let (mut n_moments, mut steps, mut difference) = (0, Vec::new(), None);
        for (key, predicted) in &mut predicted {
            let Some(measured) = measured.get_mut(key) else { continue };
            if last.as_ref() == Some(key) {
                let n = measured.len().min(predicted.len());
                measured.truncate(n);
                predicted.truncate(n);
            }
            let n = measured.len().max(predicted.len());
            let at = |of: &[u64], event: usize| of.get(event).copied();
            let first = (0..n).find(|&event| at(measured, event) != at(predicted, event));
            let found = first.map(|event| Difference {
                place: place(key),
                event: event + 1,
                measured: at(measured, event),
                predicted: at(predicted, event),
            });
            difference = difference.or(found);
            n_moments += n as u64;
            steps.push(key.0);
        }
        steps.dedup();
        Ok(Agreement {
            n_moments,
            n_steps: steps.iter().filter(|step| **step > 0).count() as u64,
            difference,
        })
    }
}

fn place((step, name, number, _): &Key) -> String {
    match (step, name.as_str()) {
        (0, "") => "what comes before all steps".to_owned(),
        (step, name) if name == STEP.as_str() => format!("step {step}"),
        (step, name) => format!("{name} {number} after step {step}"),
    }
}

/// The bytes in use after each event of memory and each mark.
fn in_use(profile: &Profile) -> io::Result<BTreeMap<Key, Vec<u64>>> {
    let mut parts: BTreeMap<Key, Vec<u64>> = BTreeMap::new();
    let mut key: Key = (0, String::new(), 0, 0);
    let mut alike: BTreeMap<(u64, String, u64), usize> = BTreeMap::new();
    profile.replay(|moment| {
        if let Some(Change::Mark(name, number)) = moment.change {
            let name = profile.text(name);
            if moment.begins_step || SEGMENTS.contains(&name) {
                let called = (moment.step, name.to_owned(), number);
                let nth = alike.entry(called.clone()).or_default();
                *nth += 1;
                key = (called.0, called.1, called.2, *nth);
            }
        }
        if moment.change.is_some_and(Change::is_counted) && !moment.is_left_out {
            parts.entry(key.clone()).or_default().push(moment.in_use);
        }
        true
    })?;
    Ok(parts)
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Agreement { n_moments, n_steps, difference } = self;
        match difference {
            _ if *n_moments == 0 => write!(f, "they have no moment in common"),
            None => write!(
                f,
                "at each of the {n_moments} moments that both have, in {n_steps} steps and beside them, the same bytes are in use"
            ),
            Some(Difference { place, event, measured, predicted }) => {
                let said = |bytes: &Option<u64>| {
                    bytes.map_or("nothing happens".to_owned(), |bytes| {
                        format!("{} B are in use", Bytes::new(bytes).grouped())
                    })
                };
                write!(
                    f,
                    "they differ first in {place}, event {event}: {} in one, {} in the other",
                    said(measured),
                    said(predicted)
                )
            }
        }
    }
}
