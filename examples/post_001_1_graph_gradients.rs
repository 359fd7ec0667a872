//! Post 001, example 1: gradients in a graph of two variables.
//!
//! Run it with `cargo run --release --example post_001_1_graph_gradients`.
#![allow(clippy::print_stdout, reason = "an example shows its figures")]

#[path = "shared/figures.rs"]
mod figures;
#[path = "shared/table.rs"]
mod table;

use figures::{bits, in_use, owned};
use plimsoll::Rows;
use plimsoll::prelude::*;

/// What the example measures, in bytes that were asked for.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// In use when the graph is described and nothing has run.
    pub described: u64,
    /// x and w, once they are initialised.
    pub variables: u64,
    /// dx and dw, when the run has returned.
    pub gradients: u64,
    /// Everything else then.
    pub others: u64,
    /// The most that the run had in use besides x, w, dx, dw and the workspace of a call: y, and single numbers.
    pub peak_others: u64,
    /// The same as the plan of the run says, which runs nothing.
    pub planned_others: u64,
    /// Whether the gradients have the bits of a tape's.
    pub same_bits: bool,
    /// In use when the graph, its session and the gradients are dropped.
    pub after: u64,
}

/// What is neither a variable, a gradient nor the workspace of a call.
fn others(rows: &Rows) -> u64 {
    let named = [Owner::Parameters, Owner::Gradients, Owner::Workspace];
    Owner::ALL.iter().filter(|owner| !named.contains(owner)).map(|&owner| rows.get(owner)).sum()
}

/// Runs the post's program and measures it.
pub fn measure() -> Result<Figures> {
    set_seed(0);
    let device = Device::separate_cpu();
    let _on = device.enter();
    let graph = Graph::new()?;
    let building = graph.enter()?;
    let x = graph.variable(&Tensor::randn([1000, 1000])?)?.named("x");
    let w = graph.variable(&Tensor::randn([1000, 1])?)?.named("w");
    let y = x.matmul(&w)?;
    let loss = y.square()?.mean(..)?;
    let gradients: Vec<Tensor> = graph.gradients(&[&loss], &[&x, &w])?.into_iter().flatten().collect();
    drop(building);
    let described = in_use(&device);

    let session = Session::new(&graph);
    session.run([&graph.initializer()?], &[])?;
    let variables = owned(&device, Owner::Parameters);
    let planned_others = others(&session.plan(&[&gradients[0], &gradients[1]])?.owners);
    device.pool().reset_peaks();
    let values = session.run([&gradients[0], &gradients[1]], &[])?;
    let stats = device.stats();
    let (gradients_bytes, others_bytes) = (owned(&device, Owner::Gradients), others(&stats.rows()));

    let same_bits = bits(&values)? == {
        let tape = GradientTape::new();
        let loss = tape.record(|| x.matmul(&w)?.square()?.mean(..))?;
        bits(&tape.gradient(&loss, [&x, &w])?)?
    };
    drop((values, gradients, loss, y, x, w, session, graph));
    Ok(Figures {
        described,
        variables,
        gradients: gradients_bytes,
        others: others_bytes,
        peak_others: others(&stats.peak_rows),
        planned_others,
        same_bits,
        after: in_use(&device),
    })
}

#[allow(dead_code, reason = "the tests use `measure` alone")]
fn main() -> Result<()> {
    let figures = measure()?;
    table::print(
        "post 001, example 1: gradients in a graph",
        "the intermediate y adds considerably to the memory",
        "raises in TensorFlow 2; y is 4,000 of 8,012,000 B",
        &[
            table::bytes("in use when the graph is described", figures.described),
            table::bytes("x and w, initialised", figures.variables),
            table::bytes("dx and dw, fetched", figures.gradients),
            table::bytes("anything else then", figures.others),
            table::bytes("at the peak, besides them and workspace (y)", figures.peak_others),
            table::bytes("the same before anything ran", figures.planned_others),
            table::words("bits", if figures.same_bits { "those of a tape" } else { "OTHERS than a tape's" }),
            table::bytes("in use when all is dropped", figures.after),
        ],
    );
    Ok(())
}
