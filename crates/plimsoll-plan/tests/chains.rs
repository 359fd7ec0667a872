//! Steps as chains of blocks: what dynamic programming chooses, compared with everything that could be chosen.

mod support;

use plimsoll_plan::{
    Chain, Decisions, OffloadStore, Peaks, PlanSet, Planner, Trace, Weights, decide, decide_with,
};
use support::nets::{MIB, dense_net, named, tree, u_net};
use support::{Execution, Net};

const WEIGHTS: Weights = Weights { distance_weight: 0.5, offload_weight: 1.0 };

/// Ops in microseconds and values in MiB, as a transformer of GPT-2's size has them on a GPU.
fn transformer(n_layers: usize) -> Net {
    let mut net = Net { fixed: 1900 * MIB, ..Net::default() };
    let mut x = net.op(&[], 24 * MIB, 30_000, Vec::new());
    for _ in 0..n_layers {
        let normal = net.op(&[x], 24 * MIB, 16_000, vec![x]);
        let heads = net.op(&[normal], 72 * MIB, 101_000, vec![x]);
        let attended = net.nodes.len() as u32;
        net.op(&[heads], 24 * MIB, 46_000, vec![heads, attended]);
        let projected = net.op(&[attended], 24 * MIB, 36_000, vec![attended]);
        let middle = net.op(&[projected, x], 24 * MIB, 23_000, Vec::new());
        let normal = net.op(&[middle], 24 * MIB, 16_000, vec![middle]);
        let up = net.op(&[normal], 96 * MIB, 133_000, vec![middle]);
        let active = net.op(&[up], 96 * MIB, 55_000, vec![up]);
        let down = net.op(&[active], 24 * MIB, 133_000, vec![up]);
        x = net.op(&[down, middle], 24 * MIB, 23_000, Vec::new());
    }
    let normal = net.op(&[x], 24 * MIB, 16_000, vec![x]);
    net.op(&[normal], 120 * MIB, 1_800_000, vec![x]);
    net
}

/// A residual network with stages: fewer and fewer bytes, and more and more time for each of them.
fn residual(blocks_in_stages: &[usize]) -> Net {
    let mut net = Net { fixed: 64 * MIB, ..Net::default() };
    let mut x = net.op(&[], 32 * MIB, 300_000, Vec::new());
    for (stage, &n_blocks) in blocks_in_stages.iter().enumerate() {
        let bytes = (32 * MIB) >> stage;
        for block in 0..n_blocks {
            let shortcut = if block == 0 { net.product(&[x], bytes, 150_000) } else { x };
            let narrow = net.product(&[x], bytes / 4, 200_000);
            let active = net.activation(narrow, 8_000);
            let narrow = net.product(&[active], bytes / 4, 450_000);
            let active = net.activation(narrow, 8_000);
            let wide = net.product(&[active], bytes, 200_000);
            let sum = net.op(&[wide, shortcut], bytes, 20_000, Vec::new());
            x = net.activation(sum, 10_000);
        }
    }
    net.product(&[x], MIB, 50_000);
    net
}

/// A chain of a few drawn blocks, some of them alike.
fn drawn_chain(seed: u64) -> Net {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut draw = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let mut net = Net { fixed: MIB, ..Net::default() };
    let kinds: Vec<Vec<(u64, u64)>> = (0..2)
        .map(|_| (0..2 + draw(2)).map(|_| ((1 + draw(16)) * 65_536, 1_000 + draw(100_000))).collect())
        .collect();
    let mut x = net.product(&[], MIB, 20_000);
    for _ in 0..2 + draw(2) {
        let mut inside = x;
        for &(bytes, time) in &kinds[draw(2) as usize] {
            inside = net.product(&[inside], bytes, time);
        }
        x = net.product(&[x, inside], MIB / 2, 5_000);
    }
    net.product(&[x], MIB / 4, 10_000);
    net
}

/// All networks of the tests, with the deep ones.
fn all() -> Vec<(String, Net)> {
    let mut nets = named();
    nets.push(("transformer".to_owned(), transformer(12)));
    nets.push(("residual".to_owned(), residual(&[3, 4, 6, 3])));
    nets.extend((0..30).map(|seed| (format!("drawn chain {seed}"), drawn_chain(seed))));
    nets
}

/// The peak and extra time that an executor of decisions finds.
fn executed(net: &Net, trace: &Trace, decisions: &Decisions) -> (u64, u64) {
    let outcome = Execution::new(trace, net.fixed, decisions).run();
    (outcome.peak, outcome.extra_time)
}

#[test]
fn repeated_blocks_are_found_with_what_lies_around_them() {
    // What lies before the first cut belongs to the first layer, as it saves nothing; the head is one more.
    for n_layers in [4, 12, 48] {
        assert_eq!(Chain::new(&transformer(n_layers).trace()).n_blocks(), [n_layers + 1]);
    }
    let [n_blocks] = Chain::new(&residual(&[3, 4, 6, 3]).trace()).n_blocks()[..] else { panic!("one pass") };
    assert!((12..=32).contains(&n_blocks), "{n_blocks} blocks of 16");
}

#[test]
fn graphs_that_are_no_chains_are_left_to_the_greedy_planner() {
    assert!(Chain::new(&dense_net(12).trace()).is_empty());
    assert!(Chain::new(&tree(32).trace()).is_empty());
    assert!(Chain::new(&Trace::default()).is_empty());
    // Ahead of the first value that is read again on the way up, and after the last, a U-Net is a chain.
    let n_blocks = Chain::new(&u_net(4).trace()).n_blocks();
    assert!(n_blocks.iter().sum::<usize>() <= 3, "{n_blocks:?}");
}

#[test]
fn an_executor_that_follows_a_prescription_finds_what_was_expected() {
    let store = OffloadStore { capacity: u64::MAX, bytes_per_us: 20_000, overlaps: false };
    let mut n_plans = 0;
    for (name, net) in all() {
        for offload_store in [None, Some(store)] {
            let net = Net { offload_store, ..net.clone() };
            let trace = net.trace();
            let chain = Chain::new(&trace);
            for percent in (10..100).step_by(10) {
                let target = trace.natural_peak() * percent / 100;
                let prescribed = chain.best(target).evicted;
                let Some(decisions) = decide_with(&trace, target, WEIGHTS, &prescribed) else { continue };
                let (peak, time) = executed(&net, &trace, &decisions);
                assert!(peak <= target, "{name}, {percent} %: {peak} > {target}");
                assert_eq!(time, decisions.extra_time, "{name}, {percent} %");
                n_plans += usize::from(!prescribed.is_empty());
            }
        }
    }
    assert!(n_plans > 300, "only {n_plans} plans were prescribed");
}

/// All combinations of the options of a chain's blocks, each block alone or a few at a time.
fn combinations(chain: &Chain) -> Vec<Vec<u32>> {
    let choices = chain.choices(0);
    let n_blocks = chain.n_blocks()[0];
    let mut found = Vec::new();
    let mut open = vec![(0, Vec::new())];
    while let Some((place, evicted)) = open.pop() {
        if place == n_blocks {
            found.push(evicted);
            continue;
        }
        for (blocks, options) in choices.iter().filter(|(blocks, _)| blocks.start == place) {
            let more = options.iter().map(|option| [&evicted[..], &option.evicted[..]].concat());
            open.extend(more.map(|evicted| (blocks.end, evicted)));
        }
    }
    found.sort();
    found.dedup();
    found
}

#[test]
fn hardly_any_combination_of_options_is_faster() {
    let (mut n_compared, mut n_best, mut best_times, mut chosen_times) = (0, 0, 0, 0);
    for seed in 0..40 {
        let net = drawn_chain(seed);
        let trace = net.trace();
        let chain = Chain::new(&trace);
        let combinations = combinations(&chain);
        assert!(chain.n_blocks()[0] <= 4 && combinations.len() > 8, "{seed}");
        for percent in [90, 80, 70, 60] {
            let target = trace.natural_peak() * percent / 100;
            let time = |evicted: &[u32]| {
                let decisions = decide_with(&trace, target, WEIGHTS, evicted)?;
                let (peak, time) = executed(&net, &trace, &decisions);
                assert!(peak <= target, "{seed}, {percent} %");
                Some(time)
            };
            let Some(best) = combinations.iter().filter_map(|evicted| time(evicted)).min() else { continue };
            let prescribed =
                time(&chain.best(target).evicted).expect("what fits with one prescription fits with another");
            // A plan set has the decisions of the greedy planner alone as well.
            let chosen = time(&[]).map_or(prescribed, |alone| alone.min(prescribed));
            n_compared += 1;
            n_best += usize::from(chosen == best);
            best_times += best;
            chosen_times += chosen;
        }
    }
    // Blocks are measured at a few targets each; close to the least that a step can need, others would be better.
    println!("{n_best} of {n_compared} are the best; {chosen_times} ns against {best_times} ns");
    assert!(n_compared > 100, "only {n_compared} targets can be met");
    assert!(100 * n_best >= 90 * n_compared, "{n_best} of {n_compared} are the best");
    assert!(100 * chosen_times <= 103 * best_times, "{chosen_times} against {best_times}");
}

/// The plan set of a network, dry-run by the executor.
fn plan_set(net: &Net, trace: &Trace) -> PlanSet {
    let natural = Peaks { peak: trace.natural_peak(), committed: trace.natural_peak() };
    let dry_run = |decisions: &Decisions| {
        let peak = executed(net, trace, decisions).0;
        Ok::<_, ()>(Some(Peaks { peak, committed: peak }))
    };
    PlanSet::new(trace, natural, |decisions| dry_run(decisions)).expect("every plan can be dry-run")
}

/// The peaks that are expected of everything that is dry-run.
fn dry_run_peaks(planners: &[Planner], trace: &Trace) -> Vec<u64> {
    let natural = Peaks { peak: trace.natural_peak(), committed: trace.natural_peak() };
    let mut peaks = Vec::new();
    let set = PlanSet::by(planners, trace, natural, |decisions| {
        peaks.push(decisions.expected_peak);
        Ok::<_, ()>(None)
    });
    assert!(set.is_ok());
    peaks
}

#[test]
fn the_leanest_of_each_planner_is_dry_run() {
    let drawn = (30..120).map(|seed| (format!("drawn chain {seed}"), drawn_chain(seed)));
    for (name, net) in all().into_iter().chain(drawn) {
        let trace = net.trace();
        let both = dry_run_peaks(&Planner::ALL, &trace);
        for planner in Planner::ALL {
            let Some(leanest) = dry_run_peaks(&[planner], &trace).into_iter().min() else { continue };
            assert!(both.contains(&leanest), "{name}: {leanest} by {planner:?} is left out");
        }
    }
}

/// The extra time of the candidate that a limit takes, if one fits.
fn time_within(plan_set: &PlanSet, trace: &Trace, limit: u64) -> Option<u64> {
    plan_set.within(limit).map(|at| plan_set.candidates()[at].time - trace.natural_time())
}

/// What a plan set would be made of without blocks: what the greedy planner alone decides at a grid of targets, the fastest first, each
/// leaner than the one before by a hundredth of the natural peak.
fn greedy(trace: &Trace) -> Vec<Decisions> {
    let natural = trace.natural_peak();
    let mut found = Vec::new();
    for distance_weight in [0.0, 0.5, 1.0] {
        let at = |target| decide(trace, target, Weights { distance_weight, offload_weight: 1.0 });
        let (mut fails, mut works) = (0, natural);
        for _ in 0..9 {
            let between = fails + (works - fails) / 2;
            *if at(between).is_some() { &mut works } else { &mut fails } = between;
        }
        found.extend((0..24).filter_map(|step| at(works + (natural - works) / 24 * step)));
    }
    found.sort_by_key(|decisions| (decisions.extra_time, decisions.expected_peak));
    let mut least = natural;
    found.retain(|decisions| {
        let is_leaner = decisions.expected_peak + natural / 100 <= least;
        least = if is_leaner { decisions.expected_peak } else { least };
        is_leaner
    });
    found
}

#[test]
fn no_plan_set_is_slower_than_the_greedy_planner_alone() {
    for (name, net) in all() {
        let trace = net.trace();
        let plan_set = plan_set(&net, &trace);
        for pair in plan_set.candidates().windows(2) {
            assert!(pair[0].peaks.peak <= pair[1].peaks.peak && pair[0].time >= pair[1].time, "{name}");
        }
        for decisions in greedy(&trace) {
            let Decisions { expected_peak: limit, extra_time, .. } = decisions;
            let time = time_within(&plan_set, &trace, limit).expect("the greedy plan fits");
            assert!(
                time <= extra_time,
                "{name}: {time} within {limit} bytes, and {extra_time} by the greedy planner alone"
            );
        }
    }
}

/// The extra time, in thousandths of the natural time, of the greedy planner alone and of the plan set, when a part of what is
/// not fixed is left.
fn thousandths(net: &Net, parts: &[u64]) -> Vec<(u64, u64)> {
    let trace = net.trace();
    let (plan_set, greedy) = (plan_set(net, &trace), greedy(&trace));
    let part = |percent: u64| {
        let limit = net.fixed + (trace.natural_peak() - net.fixed) * percent / 100;
        let alone = greedy.iter().filter(|decisions| decisions.expected_peak <= limit);
        let alone = alone.map(|decisions| decisions.extra_time).min().expect("the greedy plan fits");
        let both = time_within(&plan_set, &trace, limit).expect("a candidate fits");
        (1000 * alone / trace.natural_time(), 1000 * both / trace.natural_time())
    };
    parts.iter().map(|&percent| part(percent)).collect()
}

#[test]
fn deep_networks_gain() {
    let parts = [80, 60, 40, 30, 20];
    for n_layers in [12, 24, 48] {
        let times = thousandths(&transformer(n_layers), &parts);
        println!("a transformer of {n_layers} layers, at {parts:?} %: {times:?} thousandths");
        let (alone, both): (Vec<u64>, Vec<u64>) = times.into_iter().unzip();
        assert!(both.iter().zip(&alone).all(|(both, alone)| both <= alone), "{n_layers} layers");
        assert!(both.iter().sum::<u64>() < alone.iter().sum(), "{n_layers} layers");
    }
    let parts = [80, 60, 50, 40];
    let times = thousandths(&residual(&[3, 4, 6, 3]), &parts);
    println!("a residual network, at {parts:?} %: {times:?} thousandths");
    // Close to the least that it can need, the greedy planner alone takes a quarter more time.
    let (alone, both) = times[3];
    assert!(5 * both <= 4 * alone, "{both} against {alone}");
}
