//! Who keeps memory alive: the framework's holders are told from the user's tensors, and a program says where it reads variables.

#![forbid(unsafe_code)]

use plimsoll_tensor::program::Instruction;
use plimsoll_tensor::{
    Bytes, Device, Function, GradientTape, Holders, Program, Result, Step, Tensor, Variable,
};

/// Large enough to be evicted.
const MANY: usize = 1 << 18;

fn tensors(tensors: usize) -> Holders {
    Holders { tensors, ..Holders::default() }
}

#[test]
fn tensors_and_views_count_and_clones_do_not() -> Result<()> {
    let x = Tensor::ones([2, 3])?;
    assert_eq!(x.holders(), tensors(1));
    let clone = x.clone();
    assert_eq!(x.holders(), tensors(1));
    let view = x.transpose(0, 1)?;
    assert_eq!((x.holders(), view.holders()), (tensors(2), tensors(2)));
    drop((x, clone));
    assert_eq!(view.holders(), tensors(1));
    Ok(())
}

#[test]
fn tapes_variables_and_functions_are_told_apart() -> Result<()> {
    let x = Tensor::ones([3])?;
    let w = Variable::new(Tensor::ones([3])?);
    let held = |expected: &str| assert_eq!(x.holders().to_string(), expected);
    let tape = GradientTape::new();
    let product = tape.record(|| w.mul(&x))?;
    held("1 tensor, 1 slot of a tape");
    let copy = Variable::new(x.clone());
    held("1 tensor, 1 slot of a tape, 1 variable");
    let function = Function::new({
        let x = x.clone();
        move |y: Tensor| y.add(&x)
    });
    function.call(Tensor::ones([3])?)?;
    held("1 tensor, 1 slot of a tape, 1 variable, 1 program");
    drop((tape, product));
    held("1 tensor, 1 variable, 1 program");
    drop(function);
    held("1 tensor, 1 variable");
    // Somebody else holds its value, so the variable moves.
    copy.assign_add(&Tensor::ones([3])?)?;
    held("1 tensor");
    assert_eq!(copy.holders().to_string(), "1 variable");
    let last = copy.value();
    drop(copy);
    assert_eq!(last.holders(), tensors(1));
    Ok(())
}

#[test]
fn updates_hold_what_they_write_until_the_step_ends() -> Result<()> {
    let w = Variable::new(Tensor::ones([3])?);
    let rate = Tensor::full([3], 0.5)?;
    Step::run(&Device::cpu(), || {
        w.assign_sub(&rate)?;
        assert_eq!(rate.holders().to_string(), "1 tensor, 1 update that waits");
        Ok(())
    })?;
    assert_eq!(rate.holders(), tensors(1));
    assert_eq!(w.holders().to_string(), "1 variable");
    Ok(())
}

/// Under a limit the evictor holds what it will recompute from, and nothing afterwards.
#[test]
fn the_evictor_holds_what_it_recomputes_from() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let x = Variable::new(Tensor::full([MANY], 0.5)?);
    let n_bytes = (MANY * size_of::<f32>()) as u64;
    device.set_limit(Some(Bytes::new(device.stats().committed + 8 * n_bytes)))?;
    Step::run(&device, || {
        let tape = GradientTape::new();
        let mut y = x.value();
        tape.watch(&y)?;
        let start = y.clone();
        y = tape.record(|| (0..64).try_fold(y, |y, _| y.sin())?.sum(..))?;
        let holders = start.holders();
        assert!(holders.evictor > 0, "nothing was evicted: {holders}");
        tape.gradient(&y, [&start]).map(drop)
    })?;
    assert_eq!(x.holders().to_string(), "1 variable");
    Ok(())
}

/// A program says where each variable is first read: before the first call that has its value as an input.
#[test]
fn programs_say_where_variables_are_read() -> Result<()> {
    let [first, second] =
        ["first", "second"].map(|name| Tensor::ones([3]).map(|x| Variable::new(x).named(name)));
    let (first, second) = (first?, second?);
    let program = Program::record(&Device::cpu(), &[&Tensor::ones([3])?], |arguments| {
        let product = arguments[0].mul(&first)?;
        second.assign_add(&product)?;
        Ok(vec![product.add(&first)?])
    })?;
    let told: Vec<String> = program
        .instructions()
        .filter_map(|instruction| match *instruction {
            Instruction::Read(number) => Some(format!("read {number}")),
            Instruction::Call(number) => {
                program.calls().nth(number as usize).map(|call| call.op.name().to_owned())
            }
            _ => None,
        })
        .collect();
    assert_eq!(told, ["read 0", "mul", "add", "read 1", "add"]);
    assert!(program.to_string().contains("    read second\n"), "{program}");
    Ok(())
}
