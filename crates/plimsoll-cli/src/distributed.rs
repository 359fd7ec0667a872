//! `--distributed`: joining the processes that train together, and what the first of them says for all.

use std::sync::Arc;

use plimsoll::Device;
use plimsoll::dist::mpi::Mpi;
use plimsoll::dist::nccl::Nccl;
use plimsoll::dist::{Communicator, Strategy, launched, local};
use plimsoll::hardware::profile_of;

use crate::event::{EndEvent, RankEvent};
use crate::failure::Failure;
use crate::options::TrainOptions;
use crate::profile::of_rank;
use crate::terminal::{as_json, warn};

/// Joins the ranks, if the options ask for it: the run as this rank makes it. A process that nobody else was started with is
/// a run of one rank.
///
/// # Errors
/// No MPI, or one that does not start; leaves that cannot be shared out.
pub fn join(options: &TrainOptions) -> Result<Option<TrainOptions>, Failure> {
    if !options.distributed && options.leaves.is_none() {
        return Ok(None);
    }
    let launch = launched().filter(|launch| options.distributed && launch.size > 1);
    let communicator: Arc<dyn Communicator> = match launch {
        Some(_) => Arc::new(Mpi::open().map_err(|error| Failure::other(format!("--distributed: {error}")))?),
        None => local::alone(),
    };
    introduce(&*communicator)?;
    let strategy = Strategy::data_parallel(communicator).zero(options.zero.into());
    let strategy =
        options.leaves.map_or_else(|| strategy.clone(), |leaves| strategy.clone().leaves(leaves.get()));
    let mut joined = TrainOptions { strategy: Some(strategy), ..options.clone() };
    if let Some(launch) = launch {
        // Ranks on one machine share its processors and its memory.
        let n_sharing = launch.local_size.unwrap_or(launch.size).max(1);
        let n_processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        joined.run.threads = joined.run.threads.or((n_processors / n_sharing).max(1).try_into().ok());
        joined.run.n_sharing = Some(n_sharing);
        if joined.run.device.is_none() {
            (joined.run.device, joined.run.n_sharing) =
                gpu_of(launch.local_rank.unwrap_or(launch.rank), n_sharing);
        }
    }
    if !joined.is_first() {
        let (rank, _) = joined.rank();
        joined.profile = joined.profile.map(|path| of_rank(&path, rank));
        (joined.report, joined.live, joined.tensorboard) = (None, None, None);
        joined.oom_report = Some("off".into());
    }
    Ok(Some(joined))
}

/// The device of the process of that number among those of its machine: the GPUs go round, where there are some. Also how many
/// processes share it.
fn gpu_of(local_rank: usize, n_local: usize) -> (Option<String>, Option<usize>) {
    match (0..).take_while(|&number| profile_of(number).is_ok()).count() {
        0 => (None, Some(n_local)),
        n_gpus => (Some(format!("cuda:{}", local_rank % n_gpus)), Some(n_local.div_ceil(n_gpus))),
    }
}

/// The run with messages between GPUs by NCCL, if all ranks are on GPUs and have it; else messages go through the memory of the hosts.
///
/// # Errors
/// A rank that is gone.
pub fn between_gpus(options: &TrainOptions, device: &Device) -> Result<Option<TrainOptions>, Failure> {
    let Some(strategy) = options.strategy.as_ref().filter(|strategy| strategy.communicator().size() > 1)
    else {
        return Ok(None);
    };
    let communicator = strategy.communicator();
    let on_gpus = communicator.all_gather(&[u8::from(device.gpu().is_some())])?;
    if on_gpus.iter().all(|note| *note == [0]) {
        return Ok(None);
    }
    match Nccl::join(communicator.clone(), device) {
        Ok(nccl) => {
            let strategy = Some(strategy.clone().over(Arc::new(nccl)));
            Ok(Some(TrainOptions { strategy, ..options.clone() }))
        }
        Err(error) => {
            if options.is_first() {
                warn(&format!("{error}; messages between GPUs go through the memory of the host"));
            }
            Ok(None)
        }
    }
}

/// Says which process is which rank: whoever starts processes names those that die by their numbers.
fn introduce(communicator: &dyn Communicator) -> Result<(), Failure> {
    if communicator.size() == 1 {
        return Ok(());
    }
    let processes = communicator.all_gather(std::process::id().to_string().as_bytes())?;
    let name = |(rank, process): (usize, &Vec<u8>)| {
        format!("rank {rank} is process {}", String::from_utf8_lossy(process))
    };
    if communicator.is_first() {
        warn(&processes.iter().enumerate().map(name).collect::<Vec<_>>().join(", "));
    }
    Ok(())
}

/// Ends the run of all ranks if this one has failed: none is to wait for it.
///
/// # Errors
/// Those of a run of one rank.
pub fn ended(joined: &TrainOptions, result: Result<(), Failure>) -> Result<(), Failure> {
    let communicator = joined.strategy.as_ref().map(Strategy::communicator);
    match (result, communicator.filter(|communicator| communicator.size() > 1)) {
        (Err(failure), Some(communicator)) => {
            warn(&format!("rank {}: error: {failure}", communicator.rank()));
            communicator.abort(failure.exit as i32);
            Err(failure)
        }
        (result, _) => result,
    }
}

/// What all ranks say of their memory, in a run of several.
///
/// # Errors
/// Ranks whose parameters differ; a rank that is gone.
pub fn memory_of_ranks(options: &TrainOptions, event: &EndEvent) -> Result<Option<Vec<RankEvent>>, Failure> {
    let Some(strategy) = &options.strategy else { return Ok(None) };
    let communicator = strategy.communicator();
    let own = RankEvent {
        rank: communicator.rank(),
        predicted_peak_bytes: event.predicted_peak_bytes,
        predicted_committed_bytes: event.predicted_committed_bytes,
        peak_bytes: event.peak_bytes,
        committed_bytes: event.committed_bytes,
        parameters_sha256: event.parameters_sha256.clone(),
    };
    let notes = communicator.all_gather(as_json(&own)?.as_bytes())?;
    let read = |note: &Vec<u8>| {
        serde_json::from_slice(note).map_err(|error| Failure::other(format!("a rank says nonsense: {error}")))
    };
    let ranks: Vec<RankEvent> = notes.iter().map(read).collect::<Result<_, _>>()?;
    match ranks.iter().find(|rank| rank.parameters_sha256 != own.parameters_sha256) {
        Some(other) => {
            Err(Failure::other(format!("ranks {} and {} have trained other weights", own.rank, other.rank)))
        }
        None => Ok(Some(ranks)),
    }
}
