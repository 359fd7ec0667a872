//! The pool against a naive model: a list of live blocks, kept by hand.
//!
//! Every script runs on ghost pages and on host pages at once. After every action the numbers must be those of
//! the model, both pools must agree to the byte and the offset, and the map must be sound. On the host every
//! block is filled with a pattern that must still be there when it is dropped.

use plimsoll_memory::{
    Block, Bytes, GRANULE, GhostPages, HostPages, Label, OffsetPlan, Owner, Planned, Pool, Region, Site,
    TraceEvent, rounded_size,
};
use proptest::prelude::*;

const REGION_BYTES: u64 = 64 << 20;

#[derive(Clone, Debug)]
enum Action {
    Acquire {
        bytes: usize,
        owner: Owner,
    },
    /// Drops one of the live blocks, chosen by the number.
    Release(usize),
    Relabel(usize, Owner),
    Trim,
    /// Sets a limit of so many granules more than are in use, or lifts it.
    Limit(Option<u64>),
    Step {
        open: bool,
    },
    /// Begins a step whose plan has the right sizes and these offsets, in units; without one a block is said to
    /// outlive the step.
    PlannedStep {
        offsets: Vec<Option<u64>>,
    },
}

fn owner() -> impl Strategy<Value = Owner> {
    proptest::sample::select(Owner::ALL.to_vec())
}

fn action() -> impl Strategy<Value = Action> {
    let bytes = prop_oneof![0..2000usize, 0..20_000usize, 16_000..70_000usize, 500_000..6_000_000usize];
    prop_oneof![
        6 => (bytes, owner()).prop_map(|(bytes, owner)| Action::Acquire { bytes, owner }),
        5 => any::<usize>().prop_map(Action::Release),
        1 => (any::<usize>(), owner()).prop_map(|(i, owner)| Action::Relabel(i, owner)),
        1 => Just(Action::Trim),
        1 => proptest::option::of(0..12u64).prop_map(Action::Limit),
        1 => any::<bool>().prop_map(|open| Action::Step { open }),
        1 => offsets().prop_map(|offsets| Action::PlannedStep { offsets }),
    ]
}

fn offsets() -> impl Strategy<Value = Vec<Option<u64>>> {
    let offset = proptest::option::weighted(0.9, prop_oneof![0..100u64, 0..20_000u64]);
    proptest::collection::vec(offset, 1..20)
}

/// A plan of acquisitions, of which those outside the step region are no part, with offsets in units.
fn plan(acquisitions: impl Iterator<Item = (usize, Owner)>, offsets: &[Option<u64>]) -> OffsetPlan {
    let sizes =
        acquisitions.filter(|(_, owner)| owner.region() == Region::Step).map(|(bytes, _)| bytes as u64);
    let planned = |(bytes, unit): (u64, &Option<u64>)| Planned { bytes, offset: unit.map(|unit| 512 * unit) };
    OffsetPlan::new(sizes.zip(offsets).map(planned).collect()).unwrap()
}

/// A live block on both pools, and what the model knows of it.
struct Live {
    ghost: Block,
    host: Block,
    requested: u64,
    owner: Owner,
    pattern: u8,
}

impl Live {
    fn fill(&self) {
        // SAFETY: the block is alive and has this many bytes.
        unsafe { self.host.as_ptr().write_bytes(self.pattern, self.host.rounded()) };
    }

    fn is_intact(&self) -> bool {
        let (start, n_bytes) = (self.host.as_ptr(), self.host.rounded());
        // SAFETY: the block is alive, has this many bytes, and `fill` has written all of them.
        let bytes = unsafe { std::slice::from_raw_parts(start, n_bytes) };
        bytes.iter().all(|&byte| byte == self.pattern)
    }
}

struct Pair {
    ghost: Pool,
    host: Pool,
    live: Vec<Live>,
    n_acquired: u64,
    peak: u64,
    /// A planned step is open.
    is_planned: bool,
}

impl Pair {
    fn new() -> Self {
        let host = Pool::new(HostPages::with_region_bytes([REGION_BYTES; 3]).unwrap());
        let ghost = Pool::new(GhostPages::new(REGION_BYTES));
        for pool in [&host, &ghost] {
            pool.start_trace();
        }
        Self { ghost, host, live: Vec::new(), n_acquired: 0, peak: 0, is_planned: false }
    }

    fn in_use(&self) -> u64 {
        self.live.iter().map(|block| rounded_size(block.requested)).sum()
    }

    fn apply(&mut self, action: &Action) -> Result<(), TestCaseError> {
        match *action {
            Action::Acquire { bytes, owner } => self.acquire(bytes, owner)?,
            Action::Release(i) if !self.live.is_empty() => {
                let block = self.live.swap_remove(i % self.live.len());
                prop_assert!(block.is_intact());
            }
            Action::Relabel(i, owner) if !self.live.is_empty() => {
                let i = i % self.live.len();
                self.live[i].ghost.relabel(owner);
                self.live[i].host.relabel(owner);
                self.live[i].owner = owner;
            }
            Action::Release(_) | Action::Relabel(..) | Action::Step { .. } | Action::PlannedStep { .. } => {}
            Action::Trim => prop_assert_eq!(self.ghost.trim(), self.host.trim()),
            Action::Limit(spare) => {
                let floor = self.in_use().next_multiple_of(GRANULE);
                let limit = spare.map(|spare| Bytes::new(floor + spare * GRANULE));
                prop_assert_eq!(self.ghost.set_limit(limit), self.host.set_limit(limit));
            }
        }
        Ok(())
    }

    fn acquire(&mut self, bytes: usize, owner: Owner) -> Result<(), TestCaseError> {
        let label = Label::new(owner, Site::UNKNOWN);
        let before = self.ghost.stats();
        match (self.ghost.acquire(bytes, label), self.host.acquire(bytes, label)) {
            (Ok(ghost), Ok(host)) => {
                prop_assert_eq!(host.as_ptr().addr() % 512, 0);
                prop_assert!(ghost.as_ptr().is_null());
                prop_assert_eq!((ghost.region(), ghost.offset()), (host.region(), host.offset()));
                let outlives = self.is_planned && host.region() == Region::Persistent;
                prop_assert!(host.region() == owner.region() || outlives);
                prop_assert_eq!((host.bytes(), host.rounded() as u64), (bytes, rounded_size(bytes as u64)));
                self.n_acquired += 1;
                let pattern = self.n_acquired as u8;
                let block = Live { ghost, host, requested: bytes as u64, owner, pattern };
                block.fill();
                self.live.push(block);
                self.peak = self.peak.max(self.in_use());
            }
            (Err(ghost), Err(host)) => {
                prop_assert_eq!(&ghost, &host);
                prop_assert!(before.limit.is_some() || ghost.to_string().contains("addresses"));
                prop_assert_eq!(self.ghost.stats().in_use, before.in_use);
            }
            (ghost, host) => prop_assert!(false, "ghost {ghost:?}, host {host:?}"),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let stats = self.ghost.stats();
        prop_assert_eq!(&stats, &self.host.stats());
        prop_assert_eq!(stats.in_use, self.in_use());
        prop_assert_eq!(stats.n_live, self.live.len() as u64);
        prop_assert_eq!(stats.n_acquired, self.n_acquired);
        prop_assert_eq!(stats.peak_in_use, self.peak);
        for owner in Owner::ALL {
            let rows = self.live.iter().filter(|block| block.owner == owner).map(|block| block.requested);
            prop_assert_eq!(stats.rows().get(owner), rows.sum::<u64>());
        }
        if self.live.is_empty() && !self.is_planned {
            prop_assert_eq!(stats.committed, 0);
        }
        prop_assert_eq!(self.ghost.verify(), Ok(()));
        prop_assert_eq!(self.host.verify(), Ok(()));
        prop_assert_eq!(self.ghost.snapshot(), self.host.snapshot());
        Ok(())
    }
}

fn acquisitions(script: &[Action]) -> impl Iterator<Item = (usize, Owner)> {
    script.iter().filter_map(|action| match *action {
        Action::Acquire { bytes, owner } => Some((bytes, owner)),
        _ => None,
    })
}

fn run(script: &[Action]) -> Result<(), TestCaseError> {
    let mut pair = Pair::new();
    let mut steps = None;
    for (i, action) in script.iter().enumerate() {
        // The old scopes end before new ones begin, as steps do.
        match action {
            Action::Step { open } => {
                steps = None;
                steps = open.then(|| (pair.ghost.begin_step(), pair.host.begin_step())).or(steps);
                pair.is_planned = false;
            }
            Action::PlannedStep { offsets } => {
                steps = None;
                let plan = plan(acquisitions(&script[i..]), offsets);
                let scopes = (pair.ghost.begin_planned_step(&plan), pair.host.begin_planned_step(&plan));
                prop_assert_eq!(scopes.0.on_plan(), scopes.1.on_plan());
                steps = Some(scopes).or(steps);
                pair.is_planned = true;
            }
            _ => {}
        }
        pair.apply(action)?;
        pair.check()?;
    }
    drop(steps);
    let Pair { ghost, host, live, .. } = pair;
    for block in live {
        prop_assert!(block.is_intact());
    }
    prop_assert_eq!((ghost.stats().committed, host.stats().committed), (0, 0));
    let trace = ghost.take_trace();
    prop_assert_eq!(&trace, &host.take_trace());
    let n_releases = trace.iter().filter(|event| matches!(event, TraceEvent::Release { .. })).count();
    prop_assert_eq!(n_releases as u64, ghost.stats().n_acquired);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_script_keeps_the_books(script in proptest::collection::vec(action(), 1..120)) {
        run(&script)?;
    }

    /// A ghost of a pool with a past goes on exactly as the pool itself does.
    #[test]
    fn a_ghost_predicts_its_original(
        past in proptest::collection::vec(action(), 0..60),
        future in proptest::collection::vec((0..3_000_000usize, owner(), any::<usize>()), 1..60),
        offsets in proptest::option::of(offsets()),
    ) {
        let mut pair = Pair::new();
        for action in &past {
            pair.apply(action)?;
        }
        let original = &pair.ghost;
        let copy = original.ghost();
        prop_assert_eq!(copy.stats(), original.stats());
        prop_assert_eq!(copy.snapshot(), original.snapshot());
        let acquisitions = future.iter().map(|&(bytes, owner, _)| (bytes, owner));
        let plan = offsets.map(|offsets| plan(acquisitions, &offsets));
        let runs = [original, &copy].map(|pool| {
            pool.start_trace();
            let _step = plan.as_ref().map(|plan| pool.begin_planned_step(plan));
            let mut live = Vec::new();
            for &(bytes, owner, drop) in &future {
                live.extend(pool.acquire(bytes, Label::new(owner, Site::UNKNOWN)).ok());
                if drop % 3 == 0 && !live.is_empty() {
                    live.swap_remove(drop % live.len());
                }
            }
            drop(live);
            (pool.take_trace(), pool.stats())
        });
        prop_assert_eq!(&runs[0], &runs[1]);
        prop_assert_eq!(copy.verify(), Ok(()));
    }

    /// What is in use after a set of acquisitions does not depend on their order or on what was freed between.
    #[test]
    fn in_use_does_not_depend_on_placement(
        sizes in proptest::collection::vec(0..400_000usize, 1..40),
        holes in proptest::collection::vec(0..400_000usize, 0..40),
    ) {
        let label = Label::new(Owner::Saved, Site::UNKNOWN);
        let clean = Pool::new(GhostPages::new(REGION_BYTES));
        let holed = Pool::new(GhostPages::new(REGION_BYTES));
        let between: Vec<_> = holes.iter().map(|&bytes| holed.acquire(bytes, label).unwrap()).collect();
        let kept: Vec<_> = between.into_iter().step_by(2).collect();
        let first: Vec<_> = sizes.iter().map(|&bytes| clean.acquire(bytes, label).unwrap()).collect();
        let second: Vec<_> = sizes.iter().rev().map(|&bytes| holed.acquire(bytes, label).unwrap()).collect();
        drop(kept);
        prop_assert_eq!(clean.stats().in_use, holed.stats().in_use);
        prop_assert_eq!(clean.stats().rows(), holed.stats().rows());
        prop_assert!(first.iter().chain(&second).all(|block| block.region() == Region::Step));
    }
}
