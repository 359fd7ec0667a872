//! What ranks agree on about the plans of their programs.
//!
//! In a run, a rank that plans a program tells the others the number of its plan in a short note, and all go on from the greatest number
//! until they say the same; a program that was agreed on is not asked about again. A dry run transfers nothing: it takes for granted
//! what is known of the others, notes what this rank has chosen, and whoever makes dry runs of all ranks brings the notes
//! together ([`Agreements::settle`]) and makes them again until nothing changes. So plans are those of the run also where one rank
//! needs a leaner one than the others.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_tensor::program::{Agreed, Choice};
use plimsoll_tensor::{Error, Result};

/// What a rank knows of the plans of all ranks.
#[derive(Debug, Default)]
pub struct Agreements(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The plans that ranks run, by program and limit.
    run: HashMap<(u64, Option<u64>), usize>,
    /// What this rank has chosen in its dry run so far, in order,
    chosen: Vec<Choice>,
    /// and the numbers that it begins with there, because other ranks need them.
    first: Vec<usize>,
}

/// What all ranks have come to in their dry runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// All have chosen the same.
    Yes,
    /// Another rank needs leaner plans: the dry runs are to be made again.
    No,
    /// A rank cannot keep its limit; the least one with which all can, as far as they know.
    Refused {
        /// The rank.
        rank: usize,
        /// The least limit.
        least: u64,
    },
}

impl Agreements {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what was found out by dry runs.
    pub fn begin(&self) {
        let mut state = self.lock();
        (state.chosen, state.first) = (Vec::new(), Vec::new());
    }

    /// What this rank has chosen in its dry run, for the others. A dry run that was refused for another reason than its plan says
    /// how large a limit would do.
    pub fn note(&self, refused: Option<u64>) -> Vec<u8> {
        let state = self.lock();
        let refused = [u64::from(refused.is_some()), refused.unwrap_or(0)];
        let choices = state.chosen.iter().flat_map(|choice| [choice.program, number(choice)]);
        refused.into_iter().chain(choices).flat_map(u64::to_le_bytes).collect()
    }

    /// Brings the notes of all ranks together, in their order, after their dry runs. What follows holds for the next dry run.
    ///
    /// # Errors
    /// Ranks that planned other programs.
    pub fn settle(&self, notes: &[Vec<u8>]) -> Result<Settled> {
        let notes: Vec<Vec<u64>> = notes.iter().map(|note| words(note)).collect();
        let refused = notes.iter().map(|note| note.get(1).filter(|_| note.first() == Some(&1)).copied());
        if let Some(rank) = refused.clone().position(|least| least.is_some()) {
            let least = refused.flatten().max().unwrap_or(0);
            return Ok(Settled::Refused { rank, least });
        }
        let choices = |note: &Vec<u64>| -> Vec<(u64, u64)> {
            note.get(2..).unwrap_or_default().chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
        };
        let all: Vec<Vec<(u64, u64)>> = notes.iter().map(choices).collect();
        let longest = all.iter().map(Vec::len).max().unwrap_or(0);
        let (mut first, mut is_settled) = (Vec::new(), true);
        for at in 0..longest {
            let mut chosen = all.iter().map(|choices| choices.get(at).copied());
            let Some(Some((program, mut greatest))) = chosen.next() else { return Err(other_programs(0)) };
            for (rank, choice) in (1..).zip(chosen) {
                match choice {
                    Some((same, number)) if same == program => {
                        is_settled &= number == greatest;
                        greatest = greatest.max(number);
                    }
                    _ => return Err(other_programs(rank)),
                }
            }
            first.push(usize::try_from(greatest).unwrap_or(usize::MAX));
        }
        let mut state = self.lock();
        (state.chosen, state.first) = (Vec::new(), first);
        Ok(if is_settled { Settled::Yes } else { Settled::No })
    }

    /// The plan of a program that all ranks run under their limits, if it was agreed on before.
    pub(crate) fn known(&self, choice: &Choice) -> Option<usize> {
        self.lock().run.get(&(choice.program, choice.limit)).copied()
    }

    /// All ranks run that plan.
    pub(crate) fn remember(&self, choice: &Choice) {
        if let Ok(number) = choice.plan {
            self.lock().run.insert((choice.program, choice.limit), number);
        }
    }

    /// What a dry run makes of a choice.
    pub(crate) fn assume(&self, own: &Choice, rank: usize) -> Agreed {
        let mut state = self.lock();
        let first = state.first.get(state.chosen.len()).copied().unwrap_or(0);
        match own.plan {
            Ok(number) if number < first => Agreed::From(first),
            Ok(_) => {
                state.chosen.push(*own);
                Agreed::Yes
            }
            Err(least) => Agreed::Refused { rank, least },
        }
    }
}

fn number(choice: &Choice) -> u64 {
    choice.plan.map_or(u64::MAX, |number| number as u64)
}

pub(crate) fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect()
}

pub(crate) fn other_programs(rank: usize) -> Error {
    let detail = format!(
        "rank {rank} does something else: the program that it plans is not that of the other ranks; all of them need the same settings, \
         devices of one kind, and limits that are changed between the same steps"
    );
    Error::argument("distributed", detail)
}
