//! `plimsoll plan --cluster`: what the ranks of a cluster will need that is not there.
//!
//! A rank is planned like any other run, on a ghost of its device, with ghosts of the other ranks. Ranks differ in their shards alone,
//! by a chunk at most, so three at most are planned: the first, which writes files, and those with the largest and the smallest shards. All
//! others lie between these two.

use std::fmt::Write;
use std::num::NonZeroUsize;

use plimsoll::Device;
use plimsoll::dist::{COLLECTIVES, Settled, Shards, Strategy, ghost};
use plimsoll::nn::plan::{Plan, least_limit, plan};
use plimsoll::nn::with_policy;

use super::find;
use super::plan::{self as single, describe_peak};
use crate::cluster::Cluster;
use crate::event::{Event, RankPlan};
use crate::failure::Failure;
use crate::options::{PlanOptions, TrainOptions};
use crate::preflight::dry_run;
use crate::progress::scaled;
use crate::recipe::Recipe;
use crate::recipes;
use crate::run_setup::policy;
use crate::target::Target;
use crate::terminal::Style;

/// A rank, and what it will need.
struct Planned {
    rank: usize,
    plan: Plan,
    least_limit: u64,
}

/// Plans the ranks of a cluster.
///
/// # Errors
/// Bad options; data that cannot be used.
pub fn run(recipes: &[Recipe], options: &PlanOptions, cluster: &Cluster) -> Result<(), Failure> {
    let published = recipes::published();
    let recipe = match published.iter().find(|recipe| recipe.name() == options.recipe) {
        Some(recipe) => recipe,
        None => find(recipes, &options.recipe)?,
    };
    let n_ranks = cluster.n_ranks.get();
    let mut options = options.clone();
    match cluster.model.as_str() {
        "cpu" => options.run.device = Some("cpu".to_owned()),
        model => options.planned_device = Some(model.to_owned()),
    }
    // Unless it is said otherwise, a rank has what a run of its own would have.
    let batch = options.run.batch.map_or(recipe.default_batch().saturating_mul(n_ranks), NonZeroUsize::get);
    options.run.batch = NonZeroUsize::new(batch);
    let target = Target::of(&options)?;
    let planned = planned(recipe, &options, n_ranks, &target)?;
    let Some(worst) = planned.iter().max_by_key(|planned| planned.plan.peak_bytes) else {
        unreachable!("at least one rank is planned")
    };
    let style = Style::of(options.run.json);
    if style == Style::Text {
        let text = describe(recipe, &options, (cluster, batch), &planned, worst)?;
        style
            .say(format!("{}{}", text.trim_end(), describe_transfers(worst, n_ranks, &target)).trim_end())?;
    }
    let mut event = single::event(recipe, &target, batch, &worst.plan, worst.least_limit);
    event.cluster = Some(format!("{n_ranks}x{}", cluster.model));
    event.zero = Some(options.zero);
    event.ranks = Some(planned.iter().map(|planned| rank_plan(planned, &target)).collect());
    style.emit(&Event::Plan(Box::new(event)))
}

/// The first rank, and those with the most and the fewest elements of what is cut into shards.
fn ranks_to_plan(recipe: &Recipe, options: &PlanOptions, n_ranks: usize) -> Result<Vec<usize>, Failure> {
    if options.zero == 0 || n_ranks == 1 {
        return Ok(vec![0]);
    }
    let _on = Device::ghost_cpu().enter();
    let model = with_policy(policy(recipe, &options.run), || recipe.model())?;
    let mut shards = Shards::new(n_ranks);
    let variables = model.trainable_variables();
    variables.iter().for_each(|variable| shards.push(variable.n_elems()));
    let n_elems = |rank: &usize| -> usize {
        (0..variables.len()).map(|variable| shards.piece(variable, *rank).len()).sum()
    };
    // Of equal ones the first rank, which is planned anyway.
    let (most, fewest) = ((0..n_ranks).rev().max_by_key(n_elems), (0..n_ranks).min_by_key(n_elems));
    let mut ranks: Vec<usize> = [Some(0), most, fewest].into_iter().flatten().collect();
    ranks.sort_unstable();
    ranks.dedup();
    Ok(ranks)
}

/// Plans some ranks, which have the same plan where they must: again with what the others need, until nothing changes.
fn planned(
    recipe: &Recipe,
    options: &PlanOptions,
    n_ranks: usize,
    target: &Target,
) -> Result<Vec<Planned>, Failure> {
    let training = |rank: usize| -> Result<(usize, TrainOptions), Failure> {
        let strategy = Strategy::data_parallel(ghost(rank, n_ranks)?).zero(options.zero.into());
        let strategy =
            options.leaves.map_or_else(|| strategy.clone(), |leaves| strategy.clone().leaves(leaves.get()));
        Ok((rank, TrainOptions { strategy: Some(strategy), ..options.training() }))
    };
    let ranks = ranks_to_plan(recipe, options, n_ranks)?;
    let ranks = ranks.into_iter().map(training).collect::<Result<Vec<_>, Failure>>()?;
    let agreements = |training: &TrainOptions| training.strategy.clone().map(|it| it.communicator().clone());
    loop {
        let (mut plans, mut notes) = (Vec::new(), Vec::new());
        for (_, training) in &ranks {
            let plan = plan(&target.device, || dry_run(recipe, training))?;
            let refused = plan.refusal.is_some().then_some(0);
            notes.extend(agreements(training).map(|rank| rank.agreements().note(refused)));
            plans.push(plan);
        }
        let mut is_settled = true;
        for rank in ranks.iter().filter_map(|(_, training)| agreements(training)) {
            is_settled &= rank.agreements().settle(&notes)? != Settled::No;
        }
        if is_settled {
            let planned = |((rank, training), plan): (&(usize, TrainOptions), Plan)| {
                agreements(training).iter().for_each(|rank| rank.agreements().begin());
                let least_limit = least_limit(&target.device, || dry_run(recipe, training))?;
                Ok(Planned { rank: *rank, plan, least_limit })
            };
            return ranks.iter().zip(plans).map(planned).collect();
        }
    }
}

/// How long the step that needs most waits for transfers between ranks, in milliseconds, if the rates of links are known.
fn transfer_ms(planned: &Planned, target: &Target) -> Option<f64> {
    target.device.profile()?;
    let transfers = planned.plan.timeline.iter().filter(|moment| COLLECTIVES.contains(&moment.site.op()));
    Some(transfers.map(|moment| moment.nanoseconds as f64 / 1e6).sum())
}

fn describe_transfers(planned: &Planned, n_ranks: usize, target: &Target) -> String {
    let (Some(ms), Some(profile)) = (transfer_ms(planned, target), target.device.profile()) else {
        return String::new();
    };
    format!(
        "\n\ntransfers between ranks take about {ms:.1} ms of that step, at {} GB/s by the profile; a communicator takes up to {} beside \
         what is shown\n",
        profile.bytes_per_second_between(n_ranks) / 1_000_000_000,
        scaled(profile.communicator_bytes)
    )
}

fn rank_plan(planned: &Planned, target: &Target) -> RankPlan {
    let Planned { rank, plan, least_limit } = planned;
    RankPlan {
        rank: *rank,
        fits: plan.fits(),
        peak_bytes: plan.peak_bytes,
        committed_bytes: plan.committed_bytes,
        least_limit_bytes: *least_limit,
        owners: plan.owners.iter().collect(),
        peak_at: describe_peak(plan),
        predicted_transfer_ms: transfer_ms(planned, target),
        communicator_bytes: target.device.profile().map(|profile| profile.communicator_bytes),
    }
}

fn describe(
    recipe: &Recipe,
    options: &PlanOptions,
    (cluster, batch): (&Cluster, usize),
    planned: &[Planned],
    worst: &Planned,
) -> Result<String, Failure> {
    let Cluster { n_ranks, model } = cluster;
    let mut text = format!(
        "{} on {n_ranks} ranks with one {model} each, ZeRO {}, batch {batch}\n\n{:>8}  {:>14}  {:>14}  {:>14}\n",
        recipe.name(),
        options.zero,
        "rank",
        "in use",
        "taken",
        "least limit"
    );
    for Planned { rank, plan, least_limit } in planned {
        let bytes = [plan.peak_bytes, plan.committed_bytes, *least_limit].map(scaled);
        let fits = if plan.fits() { "" } else { "  does not fit" };
        // Writing into a string cannot fail.
        let _always = writeln!(text, "{rank:>8}  {:>14}  {:>14}  {:>14}{fits}", bytes[0], bytes[1], bytes[2]);
    }
    if planned.len() > 1 {
        text.push_str(
            "the first rank, and those with the largest and the smallest shards; all others lie between\n",
        );
    }
    let _always = write!(text, "\nrank {}: {}", worst.rank, worst.plan);
    Ok(text)
}
