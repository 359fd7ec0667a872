//! Why memory is alive: rows add up, and what `freed_by` says is what a drop frees, on random graphs.

#![forbid(unsafe_code)]

use plimsoll_tensor::{
    Bytes, Device, Function, GradientTape, HolderId, HolderKind, Owner, Price, Result, Tensor, Variable,
    WhyAlive,
};

/// SplitMix64: the same graphs on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

type Call = Function<Tensor, Tensor, Box<dyn Fn(Tensor) -> Result<Tensor>>>;

/// A function and the tensor that it captures.
struct Captures {
    function: Call,
    captured: Tensor,
}

/// What a program of a user's has at some moment. All tensors have the same number of elements.
struct World {
    random: Random,
    n: usize,
    tensors: Vec<Tensor>,
    tapes: Vec<GradientTape>,
    variables: Vec<Variable>,
    functions: Vec<Captures>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        // Below and above the size from which tapes rebuild values instead of saving them.
        let n = [200, 2048][random.below(2)];
        World { random, n, tensors: vec![], tapes: vec![], variables: vec![], functions: vec![] }
    }

    fn tensor(&mut self) -> Result<Tensor> {
        match self.tensors.len() {
            0 => Tensor::full([self.n], 0.5),
            n => Ok(self.tensors[self.random.below(n)].clone()),
        }
    }

    /// Runs an op on what is there: with a variable or without, recorded by none, one or two tapes.
    fn op(&mut self) -> Result<()> {
        let (x, y) = (self.tensor()?.reshape([self.n])?, self.tensor()?.reshape([self.n])?);
        let variable = match self.variables.len() {
            0 => None,
            n => Some(self.variables[self.random.below(n)].clone()),
        };
        let which = self.random.below(9);
        let made = || -> Result<Vec<Tensor>> {
            let v: &Tensor = variable.as_deref().unwrap_or(&y);
            Ok(match which {
                0 => vec![x.sin()?],
                1 => vec![x.mul(v)?.exp()?],
                2 => vec![x.add(v)?],
                3 => vec![x.sigmoid()?.mul(v)?],
                4 => vec![v.square()?.tanh()?, x.clone()],
                5 => vec![x.mul(v)?.sort(0, false)?.0],
                6 => vec![x.mul(v)?.relu()?.reshape([2, x.n_elems() / 2])?],
                7 => {
                    let product = x.mul(v)?;
                    let halves = product.chunk(0, 2)?;
                    let product = halves[0].mul(&halves[1])?;
                    vec![Tensor::concat(&[&product, &halves[0]], 0)?]
                }
                _ => vec![x.mul(v)?.sum(..)?.add(&y)?],
            })
        };
        let n_tapes = self.tapes.len();
        let recorded = match (n_tapes, self.random.below(4)) {
            (0, _) | (_, 0) => made()?,
            (_, 1) if n_tapes > 1 => {
                let (outer, inner) = (&self.tapes[0], &self.tapes[n_tapes - 1]);
                outer.record(|| inner.record(made))?
            }
            _ => self.tapes[self.random.below(n_tapes)].record(made)?,
        };
        self.tensors.extend(recorded);
        Ok(())
    }

    fn act(&mut self) -> Result<()> {
        match self.random.below(16) {
            0 | 1 => self.tensors.push(Tensor::full([self.n], 0.25)?),
            2 => {
                let value = if self.random.below(2) == 0 {
                    self.tensor()?.reshape([self.n])?
                } else {
                    Tensor::full([self.n], 1.5)?
                };
                let name = format!("v{}", self.variables.len());
                self.variables.push(Variable::new(value).named(&name));
            }
            3 => self.tapes.push(GradientTape::new().persistent(self.random.below(2) == 0)),
            4 => {
                let view = self.tensor()?.reshape([2, self.n / 2])?;
                self.tensors.push(view);
            }
            5 if !self.tensors.is_empty() => {
                let at = self.random.below(self.tensors.len());
                self.tensors.swap_remove(at);
            }
            6 if !self.tapes.is_empty() => {
                let at = self.random.below(self.tapes.len());
                self.tapes.remove(at);
            }
            7 if !self.variables.is_empty() => {
                let at = self.random.below(self.variables.len());
                let value = self.tensor()?.reshape([self.n])?;
                self.variables[at].assign(&value)?;
            }
            8 if !self.variables.is_empty() => {
                let at = self.random.below(self.variables.len());
                self.tensors.push(self.variables[at].value());
            }
            9 => {
                let captured = self.tensor()?.reshape([self.n])?;
                let own = captured.clone();
                let f: Box<dyn Fn(Tensor) -> Result<Tensor>> = Box::new(move |y| y.mul(&own)?.exp());
                let function = Function::new(f);
                self.tensors.push(function.call(Tensor::ones([self.n])?)?);
                self.functions.push(Captures { function, captured });
            }
            _ => self.op()?,
        }
        Ok(())
    }

    /// Drops all handles of a storage: tensors, and the functions that have captured one.
    fn drop_handles(&mut self, why: &WhyAlive) -> Vec<HolderId> {
        let at = self.random.below(self.tensors.len());
        let chosen = self.tensors[at].clone();
        let mut set: Vec<HolderId> = why.of(&chosen).and_then(|alive| alive.handles()).into_iter().collect();
        let (gone, kept) = std::mem::take(&mut self.functions)
            .into_iter()
            .partition::<Vec<Captures>, _>(|captures| captures.captured.shares_memory_with(&chosen));
        self.functions = kept;
        set.extend(gone.iter().flat_map(|captures| why.programs(&captures.function)));
        drop(gone);
        self.tensors.retain(|tensor| !tensor.shares_memory_with(&chosen));
        set
    }

    /// Drops something, and says which holders these were.
    fn drop_one(&mut self, why: &WhyAlive) -> Vec<HolderId> {
        match self.random.below(4) {
            0 if !self.tapes.is_empty() => {
                let at = self.random.below(self.tapes.len());
                let tape = self.tapes.remove(at);
                why.tape(&tape).into_iter().collect()
            }
            1 if !self.variables.is_empty() => {
                let at = self.random.below(self.variables.len());
                let variable = self.variables.remove(at);
                why.variable(&variable).into_iter().collect()
            }
            _ if !self.tensors.is_empty() => self.drop_handles(why),
            _ => Vec::new(),
        }
    }
}

#[test]
fn what_a_drop_frees_is_what_was_said_on_random_graphs() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let (mut n_freed, mut n_nothing, mut kinds) = (0u64, 0u32, std::collections::BTreeSet::new());
    for seed in 0..500 {
        let mut world = World::new(seed);
        for _ in 0..12 + world.random.below(24) {
            world.act()?;
        }
        for round in 0..3 {
            let why = device.why_alive();
            let before = device.stats().in_use;
            assert_eq!(why.in_use(), before, "graph {seed}");
            assert_eq!(why.rows().iter().map(|row| row.bytes).sum::<u64>(), before, "graph {seed}");
            assert!(why.blocks().iter().all(|alive| !alive.held_by.is_empty()), "graph {seed}: {why}");
            kinds.extend(why.blocks().iter().flat_map(|alive| &alive.held_by).map(|by| by.kind));
            // One holder, then two, then three at once.
            let set: Vec<HolderId> = (0..=round).flat_map(|_| world.drop_one(&why)).collect();
            let said = why.freed_by(set);
            let after = device.snapshot();
            assert_eq!(before - after.in_use(), said.bytes, "graph {seed}, round {round}\n{why}");
            let left = |serial: &u64| after.blocks().iter().any(|block| block.serial == *serial);
            assert!(!said.blocks.iter().any(left), "graph {seed}: a block that was to be freed is there");
            n_freed += said.bytes;
            n_nothing += u32::from(said.bytes == 0);
        }
        drop(world);
        assert_eq!(device.stats().in_use, 0, "graph {seed}");
    }
    use HolderKind::{Handles, Program, Tape, Variable};
    assert!([Handles, Variable, Tape, Program].iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
    assert!(n_freed > 0 && n_nothing > 0, "both cases occur: {n_freed} B, {n_nothing} times nothing");
    Ok(())
}

#[test]
fn holders_are_named_and_shared_bytes_are_one_row() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let w = Variable::new(Tensor::full([4096], 0.5)?).named("dense.kernel");
    let x = Tensor::full([4096], 2.0)?;
    let tape = GradientTape::new();
    let y = tape.record(|| w.sin()?.mul(&x))?;
    let why = device.why_alive();
    let text = why.to_string();
    assert_eq!(why.of(&w).unwrap().held_by.len(), 2, "{text}");
    assert!(text.contains("shared by variable dense.kernel and tape"), "{text}");
    assert!(text.contains("for mul and 1 handle in your code"), "{text}");
    // y is held by one tensor, which leads to both slots.
    let of_y = why.of(&y).unwrap();
    assert_eq!(of_y.holders(), "handles in your code");
    assert_eq!(why.freed_by(of_y.handles()).bytes, 4 * 4096);
    // x goes with its handle and the slot, whoever is first.
    let of_x = why.of(&x).unwrap().handles();
    assert_eq!(why.freed_by(of_x).bytes, 0);
    assert_eq!(why.freed_by(of_x.into_iter().chain(of_y.handles())).bytes, 2 * 4 * 4096);
    assert_eq!(why.freed_by(of_x.into_iter().chain(why.tape(&tape))).bytes, 4 * 4096);
    let holders = why.holders();
    let bytes_of =
        |kind| holders.iter().filter(|(by, _)| by.kind == kind).map(|(_, bytes)| bytes).sum::<u64>();
    assert_eq!(bytes_of(HolderKind::Tape), 2 * 4 * 4096);
    Ok(())
}

#[test]
fn a_price_is_the_time_of_the_ops_from_what_is_there() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let w = Variable::new(Tensor::full([64, 64], 0.5)?).named("w");
    let x = Tensor::full([64, 64], 2.0)?;
    let tape = GradientTape::new();
    let y = tape.record(|| w.matmul(&x)?.sin())?;
    let price = |tensor: &Tensor| device.why_alive().of(tensor).unwrap().price.clone();
    // The product is gone or saved: `sin` reads it, so its backward does, too.
    let Price::Recompute { nanoseconds, n_ops } = price(&y) else { panic!("{}", price(&y)) };
    // Flops and bytes of a product of 64 at a CPU's rates, and of `sin`: see `device/rates.rs`.
    assert_eq!(n_ops, 1);
    assert_eq!(nanoseconds, 1000 + 2 * 4 * 64 * 64 / 16);
    let never = |tensor: &Tensor| match price(tensor) {
        Price::Never(why) => why,
        price => panic!("{price}"),
    };
    assert_eq!(never(&w), "it is the value of variable w, which only a checkpoint has");
    assert_eq!(never(&x), "no tape has recorded how it was computed");
    // What was read and overwritten since cannot be read again.
    let z = tape.record(|| w.relu())?;
    assert!(matches!(price(&z), Price::Recompute { n_ops: 1, .. }));
    let data = Tensor::full([1000], 1.0)?.owned_by(Owner::Data);
    assert_eq!(never(&data), "it was read from data");
    Ok(())
}

/// Under a limit, slots name values of a log, and the evictor holds what it recomputes from.
#[test]
fn what_is_logged_under_a_limit_is_told_too() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let x = Variable::new(Tensor::full([1 << 18], 0.5)?).named("x");
    let n_bytes = 4 << 18;
    device.set_limit(Some(Bytes::new(device.stats().committed + 8 * n_bytes)))?;
    let tape = GradientTape::new();
    let y = tape.record(|| (0..64).try_fold(x.value(), |y, _| y.sin()))?;
    let why = device.why_alive();
    let before = device.stats().in_use;
    assert_eq!(why.in_use(), before);
    let said = why.freed_by(why.tape(&tape));
    assert!(said.bytes > 0, "{why}");
    let of_x = &why.of(&x).unwrap().held_by;
    assert!(of_x.iter().any(|by| by.kind == HolderKind::Evictor), "something was evicted: {why}");
    drop(tape);
    assert_eq!(before - device.stats().in_use, said.bytes, "{why}");
    drop(y);
    device.set_limit(None)?;
    Ok(())
}

/// A language that embeds the framework says who has a tensor there.
#[test]
fn names_of_handles_stand_beside_their_block() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let x = Tensor::full([1000], 1.0)?;
    let y = Tensor::full([1000], 1.0)?;
    let mut why = device.why_alive();
    for name in ["a of main", "b of main", "c of main", "d of main"] {
        why.name_handle(&x, name);
    }
    why.name_handle(&y, "y of main");
    why.name_handle(&Tensor::full([1000], 1.0)?, "one that was not there");
    let holders: Vec<String> = why.rows().into_iter().map(|row| row.holders).collect();
    assert_eq!(
        holders,
        [
            "handles in your code (a of main; b of main; c of main; and 1 more)",
            "handles in your code (y of main)"
        ]
    );
    Ok(())
}
