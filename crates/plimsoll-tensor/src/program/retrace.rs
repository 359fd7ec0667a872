//! Recording again and again: the cost that users of `tf.function` and `torch.compile` find last.
//!
//! Each new signature is a recording, and a program to be kept. Where one argument is different at every call (a length, a
//! dtype, strides) the function is slower than eager code, and nothing says so by itself. This counts new signatures in a row
//! that differ in the same argument, and warns once per function.

/// After so many new signatures in a row that differ in one argument there is a warning.
const MANY: u32 = 8;

/// The new signatures of a function in a row.
#[derive(Debug, Default)]
pub(super) struct Retraces {
    /// The argument in which they differ, and how many there were.
    row: Option<(usize, u32)>,
    has_warned: bool,
}

impl Retraces {
    /// A program was found: the row is over.
    pub fn found(&mut self) {
        self.row = None;
    }

    /// A program was recorded for a new signature, which differs from the latest so.
    pub fn recorded(&mut self, difference: Option<(usize, String)>) {
        let Some((argument, how)) = difference else {
            self.row = None;
            return;
        };
        let n = self.row.filter(|row| row.0 == argument).map_or(1, |row| row.1 + 1);
        self.row = Some((argument, n));
        if n >= MANY && !self.has_warned {
            self.has_warned = true;
            log::warn!(
                "a function was recorded for {n} new signatures in a row, because argument {argument} is different each time: \
                 {how}; pad it to few shapes, make its layout contiguous, or keep its dtype, and programs are used again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MANY, Retraces};

    #[test]
    fn a_row_is_of_one_argument_and_ends_with_a_program_that_was_found() {
        let mut retraces = Retraces::default();
        let differ = |argument: usize| Some((argument, String::new()));
        for _ in 0..3 {
            (1..MANY).for_each(|_| retraces.recorded(differ(0)));
            retraces.found();
        }
        (1..MANY).for_each(|_| retraces.recorded(differ(0)));
        (1..MANY).for_each(|_| retraces.recorded(differ(1)));
        retraces.recorded(None);
        (1..MANY).for_each(|_| retraces.recorded(differ(1)));
        assert!(!retraces.has_warned);
        retraces.recorded(differ(1));
        assert!(retraces.has_warned);
    }
}
