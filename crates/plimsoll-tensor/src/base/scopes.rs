//! Scopes that begin and end, each by itself.
//!
//! What a thread's context says at a moment follows from the scopes that are open on it. A closure's scopes end in the
//! reverse order of their beginnings, but guards need not: a generator of Python keeps one open while others come and go.
//! So a scope has a number, and its end takes out the scope of that number and no other. What is current then is what the
//! innermost scope says that is still open. Nothing here restores a value that was current before, and nothing pops.
//!
//! [`Current`] is for values that are read all the time, [`Scopes`] for lists and for what has a destructor.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

/// An open scope of this thread's context. Dropping it ends it, and no other, in whatever order scopes are dropped.
#[must_use = "the scope ends when this is dropped"]
pub struct OpenScope {
    number: u64,
    end: fn(u64),
    stays_on_its_thread: PhantomData<*const ()>,
}

impl OpenScope {
    /// The scope of that number, which `end` takes out of its list.
    pub fn new(number: u64, end: fn(u64)) -> OpenScope {
        OpenScope { number, end, stays_on_its_thread: PhantomData }
    }
}

impl Drop for OpenScope {
    #[inline]
    fn drop(&mut self) {
        (self.end)(self.number);
    }
}

/// The open scopes of one kind, outermost first.
pub struct Scopes<T> {
    open: Vec<(u64, T)>,
    last_number: u64,
}

impl<T> Default for Scopes<T> {
    fn default() -> Scopes<T> {
        Scopes::new()
    }
}

impl<T> Scopes<T> {
    /// No open scope.
    pub const fn new() -> Scopes<T> {
        Scopes { open: Vec::new(), last_number: 0 }
    }

    /// Begins a scope inside all that are open; returns its number.
    pub fn begin(&mut self, value: T) -> u64 {
        self.last_number += 1;
        self.open.push((self.last_number, value));
        self.last_number
    }

    /// Ends the scope of that number; returns what it said. To be dropped when this list is not borrowed any more: a
    /// destructor may look at the context.
    pub fn end(&mut self, number: u64) -> Option<T> {
        let at = self.open.iter().rposition(|(open, _)| *open == number)?;
        Some(self.open.remove(at).1)
    }

    /// The number of the innermost open scope; zero outside.
    pub fn number(&self) -> u64 {
        self.open.last().map_or(0, |(number, _)| *number)
    }

    /// What the innermost open scope says.
    #[inline]
    pub fn innermost(&self) -> Option<&T> {
        self.open.last().map(|(_, value)| value)
    }

    /// The same, to be changed.
    #[inline]
    pub fn innermost_mut(&mut self) -> Option<&mut T> {
        self.open.last_mut().map(|(_, value)| value)
    }

    /// What the open scopes say, outermost first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.open.iter().map(|(_, value)| value)
    }

    /// The same, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.open.iter_mut().map(|(_, value)| value)
    }
}

/// A value that open scopes set and that is read all the time: reading it is one load.
///
/// ```
/// use plimsoll_tensor::scopes::Current;
/// let current = Current::new("outside");
/// let (outer, inner) = (current.begin("outer"), current.begin("inner"));
/// current.end(outer);
/// assert_eq!(current.get(), "inner");
/// current.end(inner);
/// assert_eq!(current.get(), "outside");
/// ```
pub struct Current<T> {
    /// What the innermost open scope says; outside all, what holds there.
    value: Cell<T>,
    /// The number of the innermost open scope; zero outside.
    number: Cell<u64>,
    last_number: Cell<u64>,
    /// What holds outside, followed by the open scopes around the innermost one.
    around: RefCell<Vec<(u64, T)>>,
}

impl<T: Copy> Current<T> {
    /// A value that is `outside` while no scope is open.
    pub const fn new(outside: T) -> Current<T> {
        Current {
            value: Cell::new(outside),
            number: Cell::new(0),
            last_number: Cell::new(0),
            around: RefCell::new(Vec::new()),
        }
    }

    /// What the innermost open scope says.
    #[inline]
    pub fn get(&self) -> T {
        self.value.get()
    }

    /// The number of the innermost open scope; zero outside.
    #[inline]
    pub fn number(&self) -> u64 {
        self.number.get()
    }

    /// Changes what the innermost open scope says, until it ends; outside all scopes, what holds there.
    #[inline]
    pub fn set(&self, value: T) {
        self.value.set(value);
    }

    /// Changes what the scope of that number says, if it is open; zero means outside.
    #[inline]
    pub fn set_in(&self, number: u64, value: T) {
        if number == self.number.get() {
            return self.value.set(value);
        }
        if let Some(scope) = self.around.borrow_mut().iter_mut().find(|(open, _)| *open == number) {
            scope.1 = value;
        }
    }

    /// Begins a scope inside all that are open; returns its number.
    pub fn begin(&self, value: T) -> u64 {
        let number = self.last_number.get() + 1;
        self.last_number.set(number);
        self.around.borrow_mut().push((self.number.replace(number), self.value.replace(value)));
        number
    }

    /// Ends the scope of that number.
    pub fn end(&self, number: u64) {
        let mut around = self.around.borrow_mut();
        if number != self.number.get() {
            return around.retain(|(open, _)| *open != number || number == 0);
        }
        if let Some((number, value)) = around.pop() {
            self.number.set(number);
            self.value.set(value);
        }
    }
}

/// A guard that calls `f` when it is dropped.
pub(crate) fn on_drop(f: impl FnOnce()) -> impl Drop {
    struct OnDrop<F: FnOnce()>(Option<F>, PhantomData<*const ()>);
    impl<F: FnOnce()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            if let Some(f) = self.0.take() {
                f();
            }
        }
    }
    OnDrop(Some(f), PhantomData)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every order in which four scopes can end.
    fn orders() -> Vec<Vec<usize>> {
        let mut orders = vec![vec![]];
        for n in 0..4 {
            let longer = |order: &Vec<usize>| {
                let insert = |at: usize| [&order[..at], &[n], &order[at..]].concat();
                (0..=order.len()).map(insert).collect::<Vec<_>>()
            };
            orders = orders.iter().flat_map(longer).collect();
        }
        orders
    }

    #[test]
    fn the_innermost_open_scope_is_current_in_whatever_order_scopes_end() {
        assert_eq!(orders().len(), 24);
        for order in orders() {
            let (mut scopes, current) = (Scopes::new(), Current::new(usize::MAX));
            let numbers: Vec<[u64; 2]> = (0..4).map(|n| [scopes.begin(n), current.begin(n)]).collect();
            let mut open: Vec<usize> = (0..4).collect();
            for n in order {
                assert_eq!(scopes.end(numbers[n][0]), Some(n));
                current.end(numbers[n][1]);
                open.retain(|&other| other != n);
                assert!(scopes.iter().eq(&open));
                assert_eq!(scopes.innermost(), open.last());
                assert_eq!(current.get(), open.last().copied().unwrap_or(usize::MAX));
            }
        }
    }

    #[test]
    fn a_scope_that_has_ended_ends_nothing_more() {
        let (mut scopes, current) = (Scopes::new(), Current::new(0));
        let (first, second) = (scopes.begin(1), scopes.begin(2));
        assert_eq!([scopes.end(first), scopes.end(first)], [Some(1), None]);
        assert_eq!(scopes.innermost(), Some(&2));
        assert_eq!((scopes.end(second), scopes.number()), (Some(2), 0));
        let (first, _second) = (current.begin(1), current.begin(2));
        current.end(first);
        current.end(first);
        current.end(0);
        assert_eq!(current.get(), 2);
    }

    #[test]
    fn a_scope_is_changed_where_it_stands() {
        let current = Current::new(0);
        let outer = current.begin(1);
        let inner = current.begin(2);
        current.set_in(outer, 10);
        current.set_in(0, -1);
        current.set(20);
        assert_eq!(current.get(), 20);
        current.end(inner);
        assert_eq!(current.get(), 10);
        current.end(outer);
        assert_eq!(current.get(), -1);
    }
}
