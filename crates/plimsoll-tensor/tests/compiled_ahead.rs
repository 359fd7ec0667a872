//! What a program launches was compiled before its first run, all kernels at once.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use plimsoll_tensor::{Device, Function, GradientTape, Result, Tensor, Variable};

#[test]
fn a_program_launches_what_was_compiled_ahead() -> Result<()> {
    let device = Device::emulated()?;
    let _on = device.enter();
    let Some(gpu) = device.gpu() else { unreachable!("it is a GPU") };
    let w = Variable::new(Tensor::randn([24, 24])?);
    let x = Tensor::randn([70, 24])?;
    let (gamma, beta) = (Tensor::ones([24])?, Tensor::zeros([24])?);
    // Ops without inputs are left to be compiled when they are launched: a gradient begins with this one.
    Tensor::ones([])?;
    let step = Function::new({
        let w = w.clone();
        move |x: Tensor| {
            let tape = GradientTape::new();
            let loss = tape.record(|| {
                let h = x.matmul(&w)?.gelu()?.dropout(0.1)?.softmax(1)?;
                h.cumsum(0)?.layer_norm(&gamma, &beta, 1e-5)?.square()?.mean(..)
            })?;
            let [grad] = tape.gradient(&loss, [&w])?;
            w.assign_sub(&grad.mul(0.1)?)?;
            Ok(loss)
        }
    });
    let before: BTreeSet<_> = gpu.loaded_kernels().into_iter().collect();
    step.call(x)?;
    let after: BTreeSet<_> = gpu.loaded_kernels().into_iter().collect();
    let ahead: BTreeSet<_> = gpu.dry_gpu().loaded_kernels().into_iter().collect();
    let launched: Vec<_> = after.difference(&before).collect();
    assert!(launched.len() >= 5, "{launched:?}");
    let late: Vec<_> = launched.iter().filter(|kernel| !ahead.contains(kernel)).collect();
    assert!(late.is_empty(), "{late:?} were compiled when they were launched");
    // The chains are a program's own: those that it has are as many as the dry run made.
    assert!(gpu.n_generated_kernels() > 0);
    assert_eq!(gpu.n_generated_kernels(), gpu.dry_gpu().n_generated_kernels());
    Ok(())
}
