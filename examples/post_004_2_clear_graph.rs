//! Post 004, example 2: a model inside a function, and what dropping the function gives back.
//!
//! Run it with `cargo run --release --example post_004_2_clear_graph`.
#![allow(clippy::print_stdout, reason = "an example shows its figures")]

#[path = "shared/table.rs"]
mod table;

use plimsoll::clear_session;
use plimsoll::prelude::*;

/// What the example measures.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// How many variables the function owns after each of three calls.
    pub n_variables: [usize; 3],
    /// The bytes of these variables.
    pub parameters: u64,
    /// How many programs it keeps.
    pub n_programs: usize,
    /// How many there are when the session is cleared,
    pub n_cleared: usize,
    /// and whether it then computes what it did before.
    pub goes_on: bool,
    /// In use and committed when the function is dropped.
    pub after: [u64; 2],
}

/// Runs the post's program and measures it.
pub fn measure() -> Result<Figures> {
    set_seed(0);
    let device = Device::separate_cpu();
    let _on = device.enter();
    let run_model = Function::new(|x: Tensor| {
        let model = Sequential::new()
            .add(Dense::new(100).activation(Activation::Relu))
            .add(Dense::new(10))
            .build([10])?;
        model.call(&x)
    });
    let x = Tensor::randn([1, 10])?;
    let first = run_model.call(x.clone())?.to_vec::<f32>()?;
    let mut n_variables = [0; 3];
    for n in &mut n_variables {
        run_model.call(x.clone())?;
        *n = run_model.variables().len();
    }
    let parameters = device.stats().rows().get(Owner::Parameters);
    let n_programs = run_model.cache().programs.len();
    clear_session();
    let n_cleared = run_model.cache().programs.len();
    let goes_on = run_model.call(x.clone())?.to_vec::<f32>()? == first;
    drop((run_model, x));
    let stats = device.stats();
    let after = [stats.in_use, stats.committed];
    Ok(Figures { n_variables, parameters, n_programs, n_cleared, goes_on, after })
}

#[allow(dead_code, reason = "the tests use `measure` alone")]
fn main() -> Result<()> {
    let figures = measure()?;
    let [in_use, committed] = figures.after;
    table::print(
        "post 004, example 2: a model inside a function",
        "the cached graph lingers when the function is deleted",
        "raises: variables are made in a traced function",
        &[
            table::words("variables after each of three calls", format!("{:?}", figures.n_variables)),
            table::bytes("their bytes", figures.parameters),
            table::words("programs", figures.n_programs.to_string()),
            table::words("programs when the session is cleared", figures.n_cleared.to_string()),
            table::words("the function goes on with its variables", figures.goes_on.to_string()),
            table::bytes("in use when the function is dropped", in_use),
            table::bytes("committed then", committed),
        ],
    );
    Ok(())
}
