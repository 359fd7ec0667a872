use super::*;

/// Streams that only know what comes before what, and note work on the same memory that nothing orders.
#[derive(Default)]
struct Judge(Mutex<Case>);

#[derive(Default)]
struct Case {
    /// For each stream, how much work of each stream it comes after, its own included.
    seen: [[u64; 3]; 3],
    events: Vec<[u64; 3]>,
    past: Vec<Deed>,
    races: Vec<String>,
    n_waits: usize,
}

/// A piece of work that touched memory.
#[derive(Clone, Debug)]
struct Deed {
    stream: Stream,
    number: u64,
    addresses: Range<usize>,
    writes: bool,
}

impl Judge {
    /// Work on a stream that reads and writes.
    fn work(&self, stream: Stream, touched: &[(Range<usize>, bool)]) {
        let case = &mut *lock(&self.0);
        case.seen[stream as usize][stream as usize] += 1;
        let seen = case.seen[stream as usize];
        for (addresses, writes) in touched {
            let deed =
                Deed { stream, number: seen[stream as usize], addresses: addresses.clone(), writes: *writes };
            let conflicts = |past: &&Deed| {
                (past.writes || deed.writes)
                    && overlap(&past.addresses, &deed.addresses)
                    && past.number > seen[past.stream as usize]
            };
            let races =
                case.past.iter().filter(conflicts).map(|past| format!("{deed:?} may overtake {past:?}"));
            case.races.extend(races);
            case.past.push(deed);
        }
    }

    fn kernel(&self, reads: &[Range<usize>], writes: &[Range<usize>]) {
        let reads = reads.iter().map(|range| (range.clone(), false));
        let touched: Vec<_> = reads.chain(writes.iter().map(|range| (range.clone(), true))).collect();
        self.work(Stream::Compute, &touched);
    }

    fn races(&self) -> Vec<String> {
        lock(&self.0).races.clone()
    }

    fn n_waits(&self) -> usize {
        lock(&self.0).n_waits
    }
}

impl Streams for Judge {
    fn event(&self) -> Result<Event> {
        let mut case = lock(&self.0);
        case.events.push([0; 3]);
        Ok(Event(case.events.len() - 1))
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        let mut case = lock(&self.0);
        case.events[event.0] = case.seen[stream as usize];
        Ok(())
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        let mut case = lock(&self.0);
        let recorded = case.events[event.0];
        let seen = &mut case.seen[stream as usize];
        *seen = std::array::from_fn(|idx| seen[idx].max(recorded[idx]));
        case.n_waits += usize::from(stream == Stream::Compute);
        Ok(())
    }

    fn wait_on_host(&self, _: Event) -> Result<()> {
        Ok(())
    }

    unsafe fn copy_on(&self, stream: Stream, from: *const u8, to: *mut u8, n_bytes: usize) -> Result<()> {
        let [from, to] = [from.addr(), to.addr()].map(|start| start..start + n_bytes);
        self.work(stream, &[(from, false), (to, true)]);
        Ok(())
    }
}

/// Ten pieces of device memory and ten of pinned memory.
const SLOT: usize = 512;

fn device(slot: usize) -> Range<usize> {
    (1 << 30) + slot * SLOT..(1 << 30) + (slot + 1) * SLOT
}

fn pinned(slot: usize) -> Range<usize> {
    (1 << 40) + slot * SLOT..(1 << 40) + (slot + 1) * SLOT
}

fn start(copies: &Copies, judge: &Judge, stream: Stream, from: Range<usize>, to: Range<usize>) -> Copied {
    let from_address = std::ptr::without_provenance(from.start);
    let to_address = std::ptr::without_provenance_mut(to.start);
    // SAFETY: the judge touches no memory.
    unsafe { copies.start(judge, stream, from_address, to_address, from.len()) }.unwrap()
}

#[test]
fn a_copy_comes_after_the_work_before_it_and_later_work_does_not_wait_for_it() {
    let (copies, judge) = (Copies::default(), Judge::default());
    judge.kernel(&[], &[device(0)]);
    start(&copies, &judge, Stream::Down, device(0), pinned(0));
    judge.kernel(&[device(0)], &[device(1)]);
    copies.reuse(&judge, device(2)).unwrap();
    judge.kernel(&[], &[device(2)]);
    assert_eq!(judge.races(), [""; 0]);
    assert_eq!(judge.n_waits(), 0);
}

#[test]
fn memory_that_is_handed_out_again_is_waited_for_once_and_only_then() {
    let (copies, judge) = (Copies::default(), Judge::default());
    for slot in 0..3 {
        judge.kernel(&[], &[device(slot)]);
        start(&copies, &judge, Stream::Down, device(slot), pinned(slot));
    }
    copies.reuse(&judge, device(1)).unwrap();
    judge.kernel(&[], &[device(1)]);
    // The first copy came before the second.
    copies.reuse(&judge, device(0)).unwrap();
    judge.kernel(&[], &[device(0)]);
    assert_eq!((judge.races(), judge.n_waits()), (vec![], 1));
    // The third is not done: without a word it is a race, which the judge must see.
    judge.kernel(&[], &[device(2)]);
    assert_eq!(judge.races().len(), 1);
}

#[test]
fn a_value_goes_down_and_comes_up_again() {
    let (copies, judge) = (Copies::default(), Judge::default());
    judge.kernel(&[], &[device(0)]);
    start(&copies, &judge, Stream::Down, device(0), pinned(0));
    // The block is freed and handed out to the upload itself, then the pinned one to another value.
    copies.reuse(&judge, device(0)).unwrap();
    let up = start(&copies, &judge, Stream::Up, pinned(0), device(0));
    judge.kernel(&[], &[device(1)]);
    start(&copies, &judge, Stream::Down, device(1), pinned(0));
    copies.wait_for(&judge, &up).unwrap();
    judge.kernel(&[device(0)], &[]);
    assert_eq!(judge.races(), [""; 0]);
    copies.wait_for(&judge, &up).unwrap();
    assert_eq!(judge.n_waits(), 2, "what was waited for is not waited for again");
}

#[test]
fn all_that_was_started_is_forgotten_when_the_device_is_idle() {
    let (copies, judge) = (Copies::default(), Judge::default());
    for slot in 0..4 {
        start(&copies, &judge, Stream::Down, device(slot), pinned(slot));
    }
    copies.settle();
    assert!(!copies.is_busy.load(Ordering::Relaxed));
    let state = lock(&copies.state);
    assert!(state.accesses.is_empty());
    // One event for each copy and one for the work before it, used again; all of them are free now.
    assert_eq!(lock(&state.vacant).len(), lock(&judge.0).events.len());
}

/// What a program may do, in any order, keeping to the rules of the module's head: no two pieces of work on the same memory
/// are left to chance.
#[test]
fn whatever_is_done_in_whichever_order_nothing_races() {
    for seed in 0..300 {
        let (copies, judge) = (Copies::default(), Judge::default());
        let mut state = seed;
        let mut draw = |bound: usize| {
            state = u64::wrapping_add(
                u64::wrapping_mul(state, 6_364_136_223_846_793_005),
                1_442_695_040_888_963_407,
            );
            (state >> 33) as usize % bound
        };
        // For each live block, the copies that work on it has to wait for: a download by writers alone.
        let mut live: Vec<Option<(Option<Copied>, Option<Copied>)>> = vec![None; 6];
        let mut held: Vec<bool> = vec![false; 4];
        for _ in 0..200 {
            let (slot, host) = (draw(live.len()), draw(held.len()));
            match (draw(5), &mut live[slot]) {
                (_, block @ None) => {
                    copies.reuse(&judge, device(slot)).unwrap();
                    // A new value comes from a kernel, or from the host if one is there.
                    if held[host] {
                        *block = Some((
                            None,
                            Some(start(&copies, &judge, Stream::Up, pinned(host), device(slot))),
                        ));
                    } else {
                        judge.kernel(&[], &[device(slot)]);
                        *block = Some((None, None));
                    }
                }
                (0, Some((down, up))) => {
                    for copied in [down.take(), up.take()].iter().flatten() {
                        copies.wait_for(&judge, copied).unwrap();
                    }
                    judge.kernel(&[], &[device(slot)]);
                }
                (1, Some((_, up))) => {
                    if let Some(copied) = up.take() {
                        copies.wait_for(&judge, &copied).unwrap();
                    }
                    judge.kernel(&[device(slot)], &[]);
                }
                (2, Some((down, _))) => {
                    // What is in the pinned memory is overwritten: its block was freed and is this one now.
                    *down = Some(start(&copies, &judge, Stream::Down, device(slot), pinned(host)));
                    held[host] = true;
                }
                (3, Some(_)) => held[host] = false,
                (_, block) => *block = None,
            }
        }
        assert_eq!(judge.races(), [""; 0], "seed {seed}");
    }
}

#[test]
fn a_copy_is_cut_where_pieces_of_pinned_memory_meet() {
    let cut = |address, n_bytes| pieces(address, n_bytes).collect::<Vec<_>>();
    assert_eq!(cut(PIECE_BYTES, 0), vec![]);
    assert_eq!(cut(PIECE_BYTES, PIECE_BYTES), vec![0..PIECE_BYTES; 1]);
    assert_eq!(cut(PIECE_BYTES - 512, 1024), [0..512, 512..1024]);
    assert_eq!(
        cut(512, 2 * PIECE_BYTES),
        [
            0..PIECE_BYTES - 512,
            PIECE_BYTES - 512..2 * PIECE_BYTES - 512,
            2 * PIECE_BYTES - 512..2 * PIECE_BYTES
        ]
    );
}
