//! What a program takes outside the pool: the bytes of the heap behind its lists.
//!
//! Capacities are counted, not lengths, because they are what the heap has given. Labels and sites are interned and belong to
//! nobody; ops that several calls share are counted with each.

use std::sync::Arc;

use smallvec::{Array, SmallVec};

use super::{Call, Program, ValueView, VariableInput};
use crate::device::holders::Held;
use crate::device::storage::Storage;
use crate::eager::op::Meta;
use plimsoll_memory::Owner;

/// The two counters before what an `Arc` leads to.
const COUNTERS: usize = 2 * size_of::<usize>();

impl Program {
    /// The bytes of the heap that it takes.
    pub fn heap_bytes(&self) -> usize {
        let views: usize = self.calls.iter().map(Call::heap_bytes).sum();
        let captured = self.owned_storages().count() * (COUNTERS + size_of::<Storage>());
        let results =
            self.results.capacity() * size_of::<ValueView>() + self.results.len() * size_of::<Meta>();
        let numbers = [&self.donated, &self.written, &self.new_places, &self.cleared];
        let numbers: usize = numbers.iter().map(|list| list.capacity() * size_of::<u32>()).sum();
        views
            + results
            + numbers
            + captured
            + spilled(&self.devices)
            + self.calls.heap_bytes()
            + self.values.heap_bytes()
            + self.blocks.heap_bytes()
            + self.instructions.heap_bytes()
            + self.arguments.capacity() * size_of::<Meta>()
            + self.argument_devices.capacity()
            + self.variables.capacity() * size_of::<VariableInput>()
            + self.variables.len() * size_of::<Meta>()
            + self.captured.storages.capacity() * size_of::<Held>()
    }

    /// The bytes of devices that it alone owns, with the programs that were made from it: constants that were made while it was
    /// recorded.
    pub fn graph_bytes(&self) -> u64 {
        let constants = self.owned_storages().filter(|storage| storage.owner() == Owner::Graph);
        constants.map(|storage| storage.n_bytes() as u64).sum()
    }

    /// The captured storages that nobody else holds.
    fn owned_storages(&self) -> impl Iterator<Item = &Held> {
        self.captured.storages.iter().filter(|storage| Arc::strong_count(storage) == 1)
    }
}

impl Call {
    fn heap_bytes(&self) -> usize {
        let n_views = self.inputs.len() + self.outputs.len();
        let op = self.op.heap_bytes();
        let op = if op == 0 { 0 } else { COUNTERS + op };
        n_views * size_of::<Meta>()
            + spilled(&self.inputs)
            + spilled(&self.outputs)
            + spilled(&self.wanted)
            + op
    }
}

/// The bytes of a short list that has become a long one.
fn spilled<A: Array>(list: &SmallVec<A>) -> usize {
    if list.spilled() { list.capacity() * size_of::<A::Item>() } else { 0 }
}
