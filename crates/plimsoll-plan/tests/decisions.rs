//! Decisions keep their target at every moment, on networks of every form.

mod support;

use std::cell::Cell;
use std::sync::Arc;

use plimsoll_plan::{Candidates, Decisions, Depot, Family, Input, Measured, Played, Weights, decide};
use support::nets::{MIB, chain, named, u_net};
use support::{Execution, Net};

/// How values are compared, beside the time that they stay away.
fn weights(patience: f64) -> Weights {
    Weights { patience, moving: 1.0 }
}

/// Follows decisions of every kind, for a depot or without; returns how many there were, and how many values they moved.
fn follow(depot: Option<Depot>) -> (usize, usize) {
    let (mut n_plans, mut n_moved) = (0, 0);
    for (name, net) in named() {
        let net = Net { depot, ..net };
        let trace = net.trace();
        let natural = trace.natural_peak();
        for percent in (5..100).step_by(5) {
            for (patience, moving) in [(0.0, 1.0), (0.5, 1.0), (1.0, 1.0), (0.5, 0.0)] {
                let target = natural * percent / 100;
                let Some(decisions) = decide(&trace, target, Weights { patience, moving }) else { continue };
                let played = Execution::new(&trace, net.fixed, &decisions).run();
                assert!(
                    played.peak <= target,
                    "{name}, {percent} %, patience {patience}, moving {moving}: {} > {target}",
                    played.peak
                );
                assert_eq!(
                    played.extra_time, decisions.extra_time,
                    "{name}, {percent} %, {patience}, {moving}, {depot:?}"
                );
                assert!(decisions.offloaded_bytes <= depot.map_or(0, |depot| depot.room));
                n_plans += 1;
                n_moved += decisions.offloaded.iter().filter(|&&moved| moved).count();
            }
        }
    }
    (n_plans, n_moved)
}

#[test]
fn an_executor_that_follows_them_stays_under_the_target() {
    let (n_plans, n_moved) = follow(None);
    assert!(n_plans > 500, "only {n_plans} plans were made");
    assert_eq!(n_moved, 0);
}

#[test]
fn an_executor_that_moves_values_stays_under_the_target() {
    let (without, _) = follow(None);
    for is_beside in [false, true] {
        for (room, rate) in [(u64::MAX, 1_000), (u64::MAX, 50_000), (6 * MIB, 10_000)] {
            let (n_plans, n_moved) = follow(Some(Depot { room, rate, is_beside }));
            assert!(n_plans >= without, "{n_plans} plans with a depot, {without} without");
            assert!(n_moved > 100, "{n_moved} values were moved");
        }
    }
}

#[test]
fn what_cannot_be_computed_again_is_moved() {
    let net = Net { depot: Some(Depot { room: u64::MAX, rate: 1_000, is_beside: false }), ..chain(12) };
    let mut trace = net.trace();
    let target = trace.natural_peak() * 7 / 10;
    for record in &mut trace.records {
        record.inputs.push(Input::Passing);
    }
    let decisions = decide(&trace, target, weights(0.5)).expect("values can be moved");
    assert_eq!((decisions.repeated.len(), decisions.n_dropped() > 0), (0, true));
    assert!(Execution::new(&trace, net.fixed, &decisions).run().peak <= target);
    trace.depot = None;
    assert_eq!(decide(&trace, target, weights(0.5)), None);
}

#[test]
fn values_come_back_ahead_of_their_use_where_there_is_room() {
    let depot = Depot { room: u64::MAX, rate: 20_000, is_beside: true };
    let net = Net { depot: Some(depot), ..chain(12) };
    let trace = net.trace();
    let target = trace.natural_peak() * 7 / 10;
    let decisions =
        decide(&trace, target, Weights { patience: 0.5, moving: 0.0 }).expect("values can be moved");
    let n_moved = decisions.offloaded.iter().filter(|&&moved| moved).count();
    assert!(2 * decisions.prefetched.len() > n_moved, "{} of {n_moved}", decisions.prefetched.len());
    for &(position, number) in &decisions.prefetched {
        let next = trace.values[number as usize].fetches.iter().find(|&&fetch| fetch >= position);
        assert!(next.is_some_and(|&next| next > position), "value {number} comes back too late");
    }
    assert!(Execution::new(&trace, net.fixed, &decisions).run().peak <= target);
}

#[test]
fn what_is_moved_beside_the_work_is_let_go_when_it_is_out() {
    let depot = Depot { room: u64::MAX, rate: 20_000, is_beside: true };
    let net = Net { depot: Some(depot), ..chain(24) };
    let trace = net.trace();
    let without = Net { depot: None, ..net.clone() }.trace();
    let target = trace.natural_peak() * 85 / 100;
    let decisions = decide(&trace, target, Weights { patience: 0.5, moving: 0.0 }).expect("it can be done");
    let computed = decide(&without, target, Weights { patience: 0.5, moving: 0.0 }).expect("it can be done");
    // A block takes 205 µs and keeps 5 MiB, of which 4 MiB can go out in that time.
    assert!(decisions.offloaded_bytes > 20 * MIB, "{}", decisions.offloaded_bytes);
    assert!(
        2 * decisions.extra_time < computed.extra_time,
        "{} against {} by computing again",
        decisions.extra_time,
        computed.extra_time
    );
}

#[test]
fn a_target_that_everything_fits_decides_nothing() {
    for (name, net) in named() {
        let trace = net.trace();
        let decisions = decide(&trace, trace.natural_peak(), weights(0.5)).expect("the natural step fits");
        assert_eq!((decisions.n_dropped(), decisions.extra_time), (0, 0), "{name}");
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
fn in_a_family_peaks_rise_while_time_falls() {
    for (name, net) in named() {
        let trace = net.trace();
        let natural = Played { peak: trace.natural_peak(), committed: trace.natural_peak() };
        let family = Family::new(&trace, natural, |decisions| {
            let peak = Execution::new(&trace, net.fixed, decisions).run().peak;
            Ok::<_, ()>(Some(Played { peak, committed: peak.next_multiple_of(65_536) }))
        })
        .expect("nothing refuses to be played");
        for pair in family.members().windows(2) {
            assert!(pair[0].played.peak <= pair[1].played.peak, "{name}");
            assert!(pair[0].played.committed < pair[1].played.committed, "{name}");
            assert!(pair[0].time >= pair[1].time, "{name}");
        }
        let least = family.least();
        assert!(family.within(least).is_some() && family.within(least - 1).is_none(), "{name}");
        assert!(family.within(u64::MAX).is_some_and(|at| family.members()[at].decisions.is_none()), "{name}");
    }
}

#[test]
fn candidates_that_are_measured_on_demand_say_what_the_family_says() {
    for (name, net) in named() {
        let trace = net.trace();
        // What lies on the device beside the step.
        let outside = 3 << 20;
        let placed =
            |peak: u64| Played { peak: peak + outside, committed: (peak + outside).next_multiple_of(65_536) };
        let play = |decisions: &Decisions| placed(Execution::new(&trace, net.fixed, decisions).run().peak);
        let natural = placed(trace.natural_peak());
        let family = Family::new(&trace, natural, |decisions| Ok::<_, ()>(Some(play(decisions))))
            .expect("nothing refuses to be played");
        let n_measured = Cell::new(0);
        let measure = |decisions: &Arc<Decisions>, limit: u64| {
            n_measured.set(n_measured.get() + 1);
            let played = play(decisions);
            Ok::<_, ()>(if played.peak > limit {
                Measured::Peak(played.peak)
            } else {
                Measured::Placed(played)
            })
        };
        let span = natural.committed - family.least();
        for limit in (0..=20).rev().map(|part| family.least() + span * part / 20).chain([family.least() - 1])
        {
            let mut candidates = Candidates::new(&trace, natural);
            n_measured.set(0);
            let way = candidates.within(limit, |decisions| measure(decisions, limit)).expect("as above");
            let expected = family.within(limit).map(|at| family.members()[at].decisions.as_deref());
            assert_eq!(way.map(|way| candidates.decisions(way).map(|it| &**it)), expected, "{name}, {limit}");
            assert!(
                n_measured.get() <= 8 || limit < family.least(),
                "{name}, {limit}: {n_measured:?} played"
            );
            assert_eq!(candidates.least(measure).expect("as above").0, family.least(), "{name}, {limit}");
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
fn choices_name_every_value_that_forward_lets_go() {
    let trace = chain(12).trace();
    let target = trace.natural_peak() * 6 / 10;
    let decisions = decide(&trace, target, Weights { patience: 0.5, moving: 1.0 }).expect("it can be done");
    assert_eq!(decisions.choices.len(), decisions.n_dropped());
    let saved: u64 = decisions.choices.iter().map(|choice| choice.bytes).sum();
    assert!(saved >= trace.natural_peak() - target, "{saved}");
    let time: u64 = decisions.choices.iter().map(|choice| choice.time).sum();
    assert!(time > 0 && time <= decisions.extra_time, "{time} of {}", decisions.extra_time);
}
