//! The memory summary at the end of a run, for readers who have never seen one.

use std::fmt::Write;

use plimsoll::Stats;
use plimsoll::report::Growth;

use crate::event::RankEvent;
use crate::progress::{scaled, share};
use crate::session::Outside;
use crate::size::{Limit, LimitFrom};

/// What each owner's bytes are, in a few words.
const MEANINGS: [(&str, &str); 9] = [
    ("parameters", "the model's weights"),
    ("gradients", "how the loss changes with each weight"),
    ("optimizer", "the optimizer's state for each weight"),
    ("saved", "activations of forward that backward reads"),
    ("temporary", "values between one op and the next"),
    ("workspace", "scratch memory of an op while it runs"),
    ("data", "examples and batches"),
    ("graph", "recorded functions"),
    ("rounding", "what blocks are larger than requested"),
];

/// The memory of each rank.
pub fn ranks(ranks: &[RankEvent]) -> String {
    let mut text = format!("{} ranks trained the same weights; at most in use, and committed:", ranks.len());
    for rank in ranks {
        let (peak, committed) = (scaled(rank.peak_bytes), scaled(rank.committed_bytes));
        let _infallible = write!(text, "\n  rank {}: {peak}, {committed}", rank.rank);
    }
    text
}

/// Who owned the peak, how near the limit it came, and what was released.
pub fn describe(at_end: &Stats, limit: Limit, outside: Option<Outside>, released: u64) -> String {
    let peak = at_end.peak_in_use;
    let mut text = format!("memory: at most {} in use at a time, by", scaled(peak));
    let mut rows: Vec<(&str, u64)> = at_end.peak_rows.iter().filter(|(_, bytes)| *bytes > 0).collect();
    rows.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    for (owner, bytes) in rows {
        let meaning = MEANINGS.iter().find(|(name, _)| *name == owner).map_or("", |(_, meaning)| meaning);
        let row = format!("\n  {:>11} {:>4.0} %  {owner:<11} {meaning}", scaled(bytes), share(bytes, peak));
        text.push_str(&row);
    }
    let against = match (limit.bytes, limit.from) {
        (Some(limit), LimitFrom::User) => {
            format!("{:.0} % of your limit of {}", share(at_end.peak_committed, limit), scaled(limit))
        }
        (Some(limit), _) => {
            format!("{:.1} % of the {} that were free", share(at_end.peak_committed, limit), scaled(limit))
        }
        (None, _) => "there was no limit".to_owned(),
    };
    // Writing into a string cannot fail.
    let _always = write!(text, "\n  taken from the system {}, {against}", scaled(at_end.peak_committed));
    let _always = match outside {
        None => Ok(()),
        Some(Outside::InProcess(bytes)) => {
            write!(text, "\n  outside the pool {} (code, threads, records)", scaled(bytes))
        }
        Some(Outside::OnGpu(memory)) => {
            memory.to_string().lines().try_for_each(|row| write!(text, "\n  {row}"))
        }
    };
    let _always = write!(text, "\n  given back at the end {}", scaled(released));
    text
}

/// What grew from step to step, a line each.
pub fn growth(growth: &[Growth]) -> String {
    let mut text = match growth {
        [] => "growth: no line left blocks behind at each step".to_owned(),
        _ => "growth: left behind at each step (bytes a step, bytes now, owner, where they were made)"
            .to_owned(),
    };
    for Growth { per_step, bytes, owner, site, .. } in growth {
        // Writing into a string cannot fail.
        let _always =
            write!(text, "\n  {:>11}  {:>11}  {owner:<10}  {site}", scaled(*per_step), scaled(*bytes));
    }
    text
}

#[cfg(test)]
mod tests {
    use plimsoll::{Device, DriverMemory, Owner, Tensor, with_owner};

    use super::*;

    #[test]
    fn every_owner_has_a_meaning() {
        let rows = Device::separate_cpu().stats().rows();
        for (owner, _) in rows.iter() {
            assert!(MEANINGS.iter().any(|(name, _)| *name == owner), "{owner}");
        }
    }

    #[test]
    fn the_largest_owner_comes_first_and_the_limit_is_named() -> plimsoll::Result<()> {
        let device = Device::separate_cpu();
        let _on = device.enter();
        let weights = with_owner(Owner::Parameters, || Tensor::zeros([1 << 20]))?;
        let data = with_owner(Owner::Data, || Tensor::zeros([1 << 18]))?;
        let stats = device.stats();
        drop((weights, data));
        let limit = Limit { bytes: Some(20 << 20), from: LimitFrom::User };
        let text = describe(&stats, limit, Some(Outside::InProcess(3 << 20)), 6 << 20);
        let parameters = text.find("4.00 MiB   80 %  parameters  the model's weights").expect(&text);
        assert!(text.find("data        examples").is_some_and(|data| data > parameters), "{text}");
        assert!(text.contains("of your limit of 20.00 MiB"), "{text}");
        assert!(text.contains("given back at the end 6.00 MiB"), "{text}");
        Ok(())
    }

    #[test]
    fn what_a_driver_counts_as_used_is_the_pools_and_what_lies_outside() {
        let stats = Device::separate_cpu().stats();
        let limit = Limit { bytes: None, from: LimitFrom::None };
        let memory = DriverMemory {
            total: 80 << 20,
            used: 30 << 20,
            committed: 24 << 20,
            graphs: 0,
            communicators: 0,
        };
        let text = describe(&stats, limit, Some(Outside::OnGpu(memory)), 0);
        for row in [
            "30.00 MiB (31,457,280 B)  used",
            "24.00 MiB (25,165,824 B)  committed",
            "6.00 MiB (6,291,456 B)  outside",
        ] {
            assert!(text.contains(row), "{text}");
        }
    }
}
