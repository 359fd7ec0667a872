//! The extension module `plimsoll._core`: tensors, variables, ops, tapes and memory reports for Python.
//!
//! It owns the edge between the interpreter and the framework, and nothing else: `edge::call` labels bytes with the user's
//! Python line and gives up the GIL, `errors` turns errors into exception classes, and the rest hands values over. TensorFlow's
//! names, argument names and defaults are pure Python, in `python/plimsoll`; so a name is added there, in a table. What stays here holds no
//! Python callable, so that no cycle of references goes through Rust: functions are lent for a call (`function`, `gradient`).

#![deny(unsafe_op_in_unsafe_fn)]

mod current_graph;
mod data;
mod device;
mod dlpack;
mod edge;
mod errors;
mod exits;
mod footprint;
mod function;
mod gradient;
mod graph;
mod growth;
mod interrupt;
mod keras;
mod lines;
mod memory;
mod ops;
mod profile;
mod report;
mod tape;
mod tensor;
mod warnings;
mod why_alive;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    warnings::begin();
    data::add_to(module)?;
    device::add_to(module)?;
    dlpack::add_to(module)?;
    edge::add_to(module)?;
    exits::add_to(module)?;
    footprint::add_to(module)?;
    function::add_to(module)?;
    gradient::add_to(module)?;
    graph::add_to(module)?;
    growth::add_to(module)?;
    keras::add_to(module)?;
    lines::add_to(module)?;
    memory::add_to(module)?;
    ops::add_to(module)?;
    profile::add_to(module)?;
    tape::add_to(module)?;
    tensor::add_to(module)?;
    why_alive::add_to(module)
}
