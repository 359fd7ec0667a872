//! Decisions stay within their target at every moment, on networks of every form.

mod support;

use std::cell::Cell;
use std::sync::Arc;

use plimsoll_plan::{Decisions, Input, LazyPlanSet, Measured, OffloadStore, Peaks, PlanSet, Weights, decide};
use support::nets::{MIB, chain, named, u_net};
use support::{Execution, Net};

/// Weights with this weight of the reuse distance.
fn weights(distance_weight: f64) -> Weights {
    Weights { distance_weight, offload_weight: 1.0 }
}

/// Executes decisions of every kind, with an offload store or without; returns how many there were, and how many values they
/// offload.
fn execute_all(offload_store: Option<OffloadStore>) -> (usize, usize) {
    let (mut n_plans, mut n_offloaded) = (0, 0);
    for (name, net) in named() {
        let net = Net { offload_store, ..net };
        let trace = net.trace();
        let natural = trace.natural_peak();
        for percent in (5..100).step_by(5) {
            for (distance_weight, offload_weight) in [(0.0, 1.0), (0.5, 1.0), (1.0, 1.0), (0.5, 0.0)] {
                let target = natural * percent / 100;
                let Some(decisions) = decide(&trace, target, Weights { distance_weight, offload_weight })
                else {
                    continue;
                };
                let outcome = Execution::new(&trace, net.fixed, &decisions).run();
                assert!(
                    outcome.peak <= target,
                    "{name}, {percent} %, distance_weight {distance_weight}, offload_weight {offload_weight}: {} > {target}",
                    outcome.peak
                );
                assert_eq!(
                    outcome.extra_time, decisions.extra_time,
                    "{name}, {percent} %, {distance_weight}, {offload_weight}, {offload_store:?}"
                );
                assert!(decisions.offloaded_bytes <= offload_store.map_or(0, |store| store.capacity));
                n_plans += 1;
                n_offloaded += decisions.offloaded.iter().filter(|&&offloaded| offloaded).count();
            }
        }
    }
    (n_plans, n_offloaded)
}

#[test]
fn an_executor_that_follows_decisions_stays_under_the_target() {
    let (n_plans, n_offloaded) = execute_all(None);
    assert!(n_plans > 500, "only {n_plans} plans were made");
    assert_eq!(n_offloaded, 0);
}

#[test]
fn an_executor_that_offloads_values_stays_under_the_target() {
    let (without, _) = execute_all(None);
    for overlaps in [false, true] {
        for (capacity, bytes_per_us) in [(u64::MAX, 1_000), (u64::MAX, 50_000), (6 * MIB, 10_000)] {
            let (n_plans, n_offloaded) = execute_all(Some(OffloadStore { capacity, bytes_per_us, overlaps }));
            assert!(n_plans >= without, "{n_plans} plans with an offload store, {without} without");
            assert!(n_offloaded > 100, "{n_offloaded} values were offloaded");
        }
    }
}

#[test]
fn what_cannot_be_recomputed_is_offloaded() {
    let net = Net {
        offload_store: Some(OffloadStore { capacity: u64::MAX, bytes_per_us: 1_000, overlaps: false }),
        ..chain(12)
    };
    let mut trace = net.trace();
    let target = trace.natural_peak() * 7 / 10;
    for record in &mut trace.records {
        record.inputs.push(Input::Transient);
    }
    let decisions = decide(&trace, target, weights(0.5)).expect("values can be offloaded");
    assert_eq!((decisions.recomputed.len(), decisions.n_evicted() > 0), (0, true));
    assert!(Execution::new(&trace, net.fixed, &decisions).run().peak <= target);
    trace.offload_store = None;
    assert_eq!(decide(&trace, target, weights(0.5)), None);
}

#[test]
fn reloads_begin_ahead_of_their_use_where_there_is_room() {
    let offload_store = OffloadStore { capacity: u64::MAX, bytes_per_us: 20_000, overlaps: true };
    let net = Net { offload_store: Some(offload_store), ..chain(12) };
    let trace = net.trace();
    let target = trace.natural_peak() * 7 / 10;
    let decisions = decide(&trace, target, Weights { distance_weight: 0.5, offload_weight: 0.0 })
        .expect("values can be offloaded");
    let n_offloaded = decisions.offloaded.iter().filter(|&&offloaded| offloaded).count();
    assert!(2 * decisions.prefetched.len() > n_offloaded, "{} of {n_offloaded}", decisions.prefetched.len());
    for &(position, number) in &decisions.prefetched {
        let next = trace.values[number as usize].fetches.iter().find(|&&fetch| fetch >= position);
        assert!(next.is_some_and(|&next| next > position), "value {number} is reloaded too late");
    }
    assert!(Execution::new(&trace, net.fixed, &decisions).run().peak <= target);
}

#[test]
fn an_offload_that_overlaps_with_compute_frees_its_block_when_it_ends() {
    let offload_store = OffloadStore { capacity: u64::MAX, bytes_per_us: 20_000, overlaps: true };
    let net = Net { offload_store: Some(offload_store), ..chain(24) };
    let trace = net.trace();
    let without = Net { offload_store: None, ..net.clone() }.trace();
    let target = trace.natural_peak() * 85 / 100;
    let decisions = decide(&trace, target, Weights { distance_weight: 0.5, offload_weight: 0.0 })
        .expect("it can be done");
    let recomputed = decide(&without, target, Weights { distance_weight: 0.5, offload_weight: 0.0 })
        .expect("it can be done");
    // A block takes 205 µs and saves 5 MiB, of which 4 MiB can be offloaded in that time.
    assert!(decisions.offloaded_bytes > 20 * MIB, "{}", decisions.offloaded_bytes);
    assert!(
        2 * decisions.extra_time < recomputed.extra_time,
        "{} against {} by recomputation",
        decisions.extra_time,
        recomputed.extra_time
    );
}

#[test]
fn a_target_that_everything_fits_decides_nothing() {
    for (name, net) in named() {
        let trace = net.trace();
        let decisions = decide(&trace, trace.natural_peak(), weights(0.5)).expect("the natural step fits");
        assert_eq!((decisions.n_evicted(), decisions.extra_time), (0, 0), "{name}");
    }
}

#[test]
fn a_long_chain_needs_far_less_at_little_more_time() {
    let net = chain(48);
    let trace = net.trace();
    let activations = trace.natural_peak() - net.fixed;
    // The square root of a chain's length is what one more forward pass allows: see Chen et al., 2016.
    let decisions = decide(&trace, net.fixed + activations / 4, weights(0.5)).expect("a quarter is enough");
    let ratio = decisions.extra_time as f64 / trace.natural_time() as f64;
    assert!(ratio < 0.34, "one forward pass is a third of the time; {ratio}");
}

#[test]
fn in_a_plan_set_peaks_rise_while_time_falls() {
    for (name, net) in named() {
        let trace = net.trace();
        let natural = Peaks { peak: trace.natural_peak(), committed: trace.natural_peak() };
        let plan_set = PlanSet::new(&trace, natural, |decisions| {
            let peak = Execution::new(&trace, net.fixed, decisions).run().peak;
            Ok::<_, ()>(Some(Peaks { peak, committed: peak.next_multiple_of(65_536) }))
        })
        .expect("every plan can be dry-run");
        for pair in plan_set.candidates().windows(2) {
            assert!(pair[0].peaks.peak <= pair[1].peaks.peak, "{name}");
            assert!(pair[0].peaks.committed < pair[1].peaks.committed, "{name}");
            assert!(pair[0].time >= pair[1].time, "{name}");
        }
        let least = plan_set.least();
        assert!(plan_set.within(least).is_some() && plan_set.within(least - 1).is_none(), "{name}");
        assert!(
            plan_set.within(u64::MAX).is_some_and(|at| plan_set.candidates()[at].decisions.is_none()),
            "{name}"
        );
    }
}

#[test]
fn a_lazy_plan_set_chooses_what_the_plan_set_chooses() {
    for (name, net) in named() {
        let trace = net.trace();
        // What else is in use on the device.
        let outside = 3 << 20;
        let placed =
            |peak: u64| Peaks { peak: peak + outside, committed: (peak + outside).next_multiple_of(65_536) };
        let dry_run = |decisions: &Decisions| placed(Execution::new(&trace, net.fixed, decisions).run().peak);
        let natural = placed(trace.natural_peak());
        let plan_set = PlanSet::new(&trace, natural, |decisions| Ok::<_, ()>(Some(dry_run(decisions))))
            .expect("every plan can be dry-run");
        let n_measured = Cell::new(0);
        let measure = |decisions: &Arc<Decisions>, limit: u64| {
            n_measured.set(n_measured.get() + 1);
            let peaks = dry_run(decisions);
            Ok::<_, ()>(if peaks.peak > limit { Measured::Peak(peaks.peak) } else { Measured::Placed(peaks) })
        };
        let span = natural.committed - plan_set.least();
        for limit in
            (0..=20).rev().map(|part| plan_set.least() + span * part / 20).chain([plan_set.least() - 1])
        {
            let mut lazy = LazyPlanSet::new(&trace, natural);
            n_measured.set(0);
            let found = lazy.within(0, limit, |decisions| measure(decisions, limit)).expect("as above");
            let expected = plan_set.within(limit).map(|at| plan_set.candidates()[at].decisions.as_deref());
            assert_eq!(
                found.map(|number| lazy.decisions(number).map(|it| &**it)),
                expected,
                "{name}, {limit}"
            );
            assert!(
                n_measured.get() <= 8 || limit < plan_set.least(),
                "{name}, {limit}: {n_measured:?} measured"
            );
            let least = lazy.least(0, measure).expect("as above").map(|(least, _)| least);
            assert_eq!(least, Some(plan_set.least()), "{name}, {limit}");
        }
    }
}

#[test]
fn the_same_trace_gives_the_same_decisions() {
    let trace = u_net(4).trace();
    let target = trace.natural_peak() * 7 / 10;
    assert_eq!(decide(&trace, target, weights(1.0)), decide(&trace, target, weights(1.0)));
}

#[test]
fn choices_name_every_value_that_forward_evicts() {
    let trace = chain(12).trace();
    let target = trace.natural_peak() * 6 / 10;
    let decisions = decide(&trace, target, Weights { distance_weight: 0.5, offload_weight: 1.0 })
        .expect("it can be done");
    assert_eq!(decisions.choices.len(), decisions.n_evicted());
    let saved: u64 = decisions.choices.iter().map(|choice| choice.bytes).sum();
    assert!(saved >= trace.natural_peak() - target, "{saved}");
    let time: u64 = decisions.choices.iter().map(|choice| choice.time).sum();
    assert!(time > 0 && time <= decisions.extra_time, "{time} of {}", decisions.extra_time);
}
