//! The other ranks of a run, as the plans of a program see them.

use std::sync::Arc;

use plimsoll_tensor::Result;
use plimsoll_tensor::program::{Agreed, Choice, Peers};

use crate::agreements::{other_programs, words};
use crate::communicator::Communicator;

/// The ranks as a program's plans see them.
#[derive(Debug)]
struct Ranks {
    communicator: Arc<dyn Communicator>,
    share_plans: bool,
}

/// The ranks with which the plans of a program are agreed upon; `share_plans` says whether all must run the same plan.
pub fn peers(communicator: &Arc<dyn Communicator>, share_plans: bool) -> Arc<dyn Peers> {
    Arc::new(Ranks { communicator: communicator.clone(), share_plans })
}

impl Peers for Ranks {
    fn share_plans(&self) -> bool {
        self.share_plans
    }

    fn agree(&self, own: &Choice, is_dry: bool) -> Result<Agreed> {
        let (rank, agreements) = (self.communicator.rank(), self.communicator.agreements());
        if is_dry {
            return Ok(match own.plan {
                Ok(_) if !self.share_plans => Agreed::Yes,
                _ => agreements.assume(own, rank),
            });
        }
        if let (Some(known), Ok(number)) = (agreements.known(own), own.plan) {
            let stands = number == known || !self.share_plans;
            return Ok(if stands { Agreed::Yes } else { Agreed::From(known) });
        }
        let (is_refused, plan) = match own.plan {
            Ok(number) => (0, number as u64),
            Err(least) => (1, least),
        };
        let note: Vec<u8> = [own.program, is_refused, plan].into_iter().flat_map(u64::to_le_bytes).collect();
        let notes = self.communicator.all_gather(&note)?;
        let agreed = self.weigh(&notes.iter().map(|note| words(note)).collect::<Vec<_>>())?;
        if agreed == Agreed::Yes {
            agreements.remember(own);
        }
        Ok(agreed)
    }
}

impl Ranks {
    /// What follows from the notes of all ranks.
    fn weigh(&self, notes: &[Vec<u64>]) -> Result<Agreed> {
        if let Some(rank) = notes.iter().position(|note| note.len() != 3) {
            return Err(other_programs(rank));
        }
        if let (true, Some(rank)) = (self.share_plans, notes.iter().position(|note| note[0] != notes[0][0])) {
            return Err(other_programs(rank));
        }
        let refused = notes.iter().position(|note| note[1] == 1);
        if let Some(rank) = refused {
            let least = notes.iter().filter(|note| note[1] == 1).map(|note| note[2]).max();
            return Ok(Agreed::Refused { rank, least: least.unwrap_or(0) });
        }
        let greatest = notes.iter().map(|note| note[2]).max().unwrap_or(0);
        let stands = !self.share_plans || notes.iter().all(|note| note[2] == greatest);
        Ok(if stands { Agreed::Yes } else { Agreed::From(usize::try_from(greatest).unwrap_or(usize::MAX)) })
    }
}
