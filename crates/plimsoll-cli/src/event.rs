//! The JSON lines that programs outside the repository read: names, order and meaning are a contract.
//!
//! A field of a feature that has not landed is `null`; it is there from the beginning, so that readers need not
//! change when it comes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::size::LimitFrom;

/// One line of `--json`.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// What a run will need.
    Plan(Box<PlanEvent>),
    /// An optimizer step.
    Step(StepEvent),
    /// An epoch, with its evaluation.
    Epoch(EpochEvent),
    /// The end of a training run.
    End(Box<EndEvent>),
    /// A workload that was measured.
    Bench(BenchEvent),
}

/// What a run will need.
#[derive(Clone, Debug, Serialize)]
pub struct PlanEvent {
    /// The recipe's name.
    pub recipe: String,
    /// The device's name.
    pub device: String,
    /// The model of the device.
    pub device_profile: String,
    /// Examples of one optimizer step.
    pub batch: usize,
    /// The most that may be committed.
    pub limit_bytes: Option<u64>,
    /// Who set the limit.
    pub limit_from: LimitFrom,
    /// Whether the run stays within the limit; if not, the figures are those of a run without one.
    pub fits: bool,
    /// The most in use at a time.
    pub peak_bytes: u64,
    /// The most committed at a time.
    pub committed_bytes: u64,
    /// The least limit under which the run works.
    pub least_limit_bytes: u64,
    /// The bytes at the peak by owner; they add up to it.
    pub owners: BTreeMap<&'static str, u64>,
    /// When the peak is reached first.
    pub peak_at: PeakAt,
    /// The largest holders at the peak.
    pub holders: Vec<Holder>,
    /// How long the longest step takes, by formula.
    pub predicted_step_ms: f64,
    /// The floating-point operations that the whole run recomputes to save memory.
    pub recomputed_flops: u64,
    /// The bytes that the whole run offloads to save memory.
    pub offloaded_bytes: u64,
    /// The devices of the ranks, as the option says; the figures above are then those of the rank that needs most.
    pub cluster: Option<String>,
    /// The stage of ZeRO.
    pub zero: Option<u8>,
    /// The ranks that were planned.
    pub ranks: Option<Vec<RankPlan>>,
}

/// What a rank of a cluster will need.
#[derive(Clone, Debug, Serialize)]
pub struct RankPlan {
    /// Its number.
    pub rank: usize,
    /// Whether it stays within its limit.
    pub fits: bool,
    /// The most in use at a time.
    pub peak_bytes: u64,
    /// The most committed at a time.
    pub committed_bytes: u64,
    /// The least limit under which it works.
    pub least_limit_bytes: u64,
    /// The bytes at its peak by owner; they add up to it.
    pub owners: BTreeMap<&'static str, u64>,
    /// When its peak is reached first.
    pub peak_at: PeakAt,
    /// What the step that needs most waits for transfers between ranks, by the rates of the device's profile; null if it has none.
    pub predicted_transfer_ms: Option<f64>,
    /// What a communicator takes of the device beside the pool, by the profile.
    pub communicator_bytes: Option<u64>,
}

/// When the most is in use.
#[derive(Clone, Debug, Serialize)]
pub struct PeakAt {
    /// The optimizer step.
    pub step: u64,
    /// What goes on: `setup`, `forward`, `backward`, `update`, `evaluate` or `save`.
    pub phase: &'static str,
    /// The layer.
    pub layer: &'static str,
    /// The op that asks for the last block.
    pub op: &'static str,
}

/// Who holds bytes at the peak.
#[derive(Clone, Debug, Serialize)]
pub struct Holder {
    /// What they are for.
    pub owner: &'static str,
    /// The layer that made them.
    pub layer: &'static str,
    /// The op that did.
    pub op: &'static str,
    /// The line, as `file:line`.
    pub line: String,
    /// How many they are, rounding included.
    pub bytes: u64,
}

/// An optimizer step.
#[derive(Clone, Debug, Serialize)]
pub struct StepEvent {
    /// Counted from 1, over resumed runs.
    pub step: u64,
    /// The mean loss of the step's batch.
    pub loss: f64,
    /// How long the step took.
    pub ms: f64,
    /// In use after the step.
    pub in_use_bytes: u64,
    /// The most in use since the start.
    pub peak_bytes: u64,
    /// The most committed since the start.
    pub committed_bytes: u64,
}

/// An epoch, with its evaluation.
#[derive(Clone, Debug, Serialize)]
pub struct EpochEvent {
    /// Counted from 1.
    pub epoch: u64,
    /// The mean loss of the epoch's steps.
    pub loss: f64,
    /// The mean loss of the held-out part.
    pub held_out_loss: Option<f64>,
    /// The part of the held-out predictions that is right.
    pub accuracy: Option<f64>,
}

/// The end of a training run.
#[derive(Clone, Debug, Serialize)]
pub struct EndEvent {
    /// The recipe's name.
    pub recipe: String,
    /// The device's name.
    pub device: String,
    /// Examples of one optimizer step.
    pub batch: usize,
    /// The policy's name.
    pub precision: &'static str,
    /// The seed of the run.
    pub seed: u64,
    /// `shipped`, `random` or a path.
    pub data: String,
    /// The version of this program.
    pub version: &'static str,
    /// Optimizer steps since the beginning.
    pub steps: u64,
    /// The last step's loss.
    pub loss: Option<f64>,
    /// The bits of the last step's loss in f32, in hexadecimal.
    pub loss_bits: Option<String>,
    /// Over the parameters sorted by name, little-endian, in their master dtype.
    pub parameters_sha256: String,
    /// What the plan said before the run began; nothing if there could be none.
    pub predicted_peak_bytes: Option<u64>,
    /// What the plan said before the run began.
    pub predicted_committed_bytes: Option<u64>,
    /// The most in use since the start.
    pub peak_bytes: u64,
    /// The most committed since the start.
    pub committed_bytes: u64,
    /// Resident, and not in the pool.
    pub outside_bytes: Option<u64>,
    /// The most that may be committed.
    pub limit_bytes: Option<u64>,
    /// Who set the limit.
    pub limit_from: LimitFrom,
    /// Ops that were recomputed to save memory.
    pub recomputed_ops: u64,
    /// Their work.
    pub recomputed_flops: u64,
    /// The bytes that were offloaded to save memory.
    pub offloaded_bytes: u64,
    /// The median time of a step.
    pub median_step_ms: Option<f64>,
    /// What went back to the system when the run ended.
    pub released_bytes: u64,
    /// The memory of each rank, in a run of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<Vec<RankEvent>>,
}

/// The memory of one rank.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RankEvent {
    /// Its number.
    pub rank: usize,
    /// What the plan said before the run began; nothing if there could be none.
    pub predicted_peak_bytes: Option<u64>,
    /// What the plan said before the run began.
    pub predicted_committed_bytes: Option<u64>,
    /// The most in use since the start.
    pub peak_bytes: u64,
    /// The most committed since the start.
    pub committed_bytes: u64,
    /// Over its parameters, as that of the run.
    pub parameters_sha256: String,
}

/// A workload that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct BenchEvent {
    /// The workload's name.
    pub workload: String,
    /// The device's name.
    pub device: String,
    /// The median of the repeats' medians.
    pub median_ms: f64,
    /// The smallest of the repeats' medians.
    pub min_ms: f64,
    /// The most in use.
    pub peak_bytes: u64,
    /// The most committed.
    pub committed_bytes: u64,
    /// How far the process's anonymous memory rose above what it had before anything was made.
    pub peak_anon_over_base_bytes: Option<u64>,
    /// Threads of the kernels.
    pub threads: usize,
    /// Whether all sums had one order.
    pub deterministic: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_contracts_names_in_its_order() -> serde_json::Result<()> {
        let step = Event::Step(StepEvent {
            step: 1,
            loss: 2.5,
            ms: 0.5,
            in_use_bytes: 7,
            peak_bytes: 9,
            committed_bytes: 11,
        });
        let line = concat!(
            r#"{"event":"step","step":1,"loss":2.5,"ms":0.5,"in_use_bytes":7,"#,
            r#""peak_bytes":9,"committed_bytes":11}"#
        );
        assert_eq!(serde_json::to_string(&step)?, line);
        let epoch =
            Event::Epoch(EpochEvent { epoch: 2, loss: 1.0, held_out_loss: None, accuracy: Some(0.5) });
        let line = r#"{"event":"epoch","epoch":2,"loss":1.0,"held_out_loss":null,"accuracy":0.5}"#;
        assert_eq!(serde_json::to_string(&epoch)?, line);
        Ok(())
    }
}
