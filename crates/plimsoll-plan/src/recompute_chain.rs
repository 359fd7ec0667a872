//! Recompute chains: what restores a value that is not resident, in order.
//!
//! The greedy planner asks it of a trace, the rewriting of a program of its calls, and the log of an eager step of its records. They
//! differ in what a record is and in what is resident; the walk from a value back to what is there is this one, so that what was
//! planned is what is run. What happens to the links (counted, written as calls, run at once) is up to them.

use std::collections::HashMap;

/// One link of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// A record that is run once more, and whether one of its auxiliary outputs is wanted.
    Recompute {
        /// Its number.
        record: u32,
        /// Whether auxiliary outputs are made, too.
        with_aux: bool,
    },
    /// A value that was offloaded, and is reloaded.
    Reload(u32),
}

/// The record that makes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maker {
    /// Its number; numbers rise in the order in which records were made.
    pub record: u32,
    /// Whether the value is an auxiliary output of it.
    pub is_aux: bool,
}

/// Records of how values were made, and where the values are.
pub trait Records {
    /// The record that makes a value; nothing if the value comes from outside.
    fn maker(&self, value: u32) -> Option<Maker>;

    /// The values that a record reads, without what comes from outside.
    fn inputs(&self, record: u32) -> impl Iterator<Item = u32>;

    /// Whether a value can be read as it is.
    fn is_resident(&self, value: u32) -> bool;

    /// Whether a value that is not resident can be reloaded.
    fn is_offloaded(&self, value: u32) -> bool;

    /// Whether running a record once more gives what it gave.
    fn is_recomputable(&self, record: u32) -> bool;
}

/// What restores a value from what is resident, in the order in which values were first made.
///
/// # Errors
/// The value, itself or one on the way, that cannot be restored.
pub fn chain(records: &impl Records, target: u32) -> Result<Vec<Link>, u32> {
    // In order; reloads of what a record made come before the record, for which no value has this number.
    let mut links: Vec<((u32, u32), Link)> = Vec::new();
    let mut open = vec![target];
    while let Some(value) = open.pop() {
        let Maker { record, is_aux } = records.maker(value).ok_or(value)?;
        let is_offloaded = records.is_offloaded(value);
        let key = (record, if is_offloaded { value } else { u32::MAX });
        match links.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => {
                if let Link::Recompute { with_aux, .. } = &mut links[at].1 {
                    *with_aux |= is_aux;
                }
            }
            Err(at) if is_offloaded => links.insert(at, (key, Link::Reload(value))),
            Err(_) if !records.is_recomputable(record) => return Err(value),
            Err(at) => {
                links.insert(at, (key, Link::Recompute { record, with_aux: is_aux }));
                open.extend(records.inputs(record).filter(|&input| !records.is_resident(input)));
            }
        }
    }
    Ok(links.into_iter().map(|(_, link)| link).collect())
}

/// The values that a chain reads, each with the place of the last link that does.
pub fn last_reads(records: &impl Records, chain: &[Link]) -> HashMap<u32, usize> {
    let mut last_reads = HashMap::new();
    for (at, link) in chain.iter().enumerate() {
        if let Link::Recompute { record, .. } = *link {
            last_reads.extend(records.inputs(record).map(|input| (input, at)));
        }
    }
    last_reads
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Record `n` makes the values `2 n`, an output, and `2 n + 1`, an auxiliary one.
    struct Some {
        inputs: Vec<Vec<u32>>,
        resident: Vec<u32>,
        offloaded: Vec<u32>,
        fixed: Vec<u32>,
    }

    impl Records for Some {
        fn maker(&self, value: u32) -> Option<Maker> {
            (value < 100).then_some(Maker { record: value / 2, is_aux: value % 2 == 1 })
        }

        fn inputs(&self, record: u32) -> impl Iterator<Item = u32> {
            self.inputs[record as usize].iter().copied()
        }

        fn is_resident(&self, value: u32) -> bool {
            self.resident.contains(&value)
        }

        fn is_offloaded(&self, value: u32) -> bool {
            self.offloaded.contains(&value)
        }

        fn is_recomputable(&self, record: u32) -> bool {
            !self.fixed.contains(&record)
        }
    }

    fn records() -> Some {
        // The last record reads the output and the auxiliary output of the one before, which reads those of the first two.
        let inputs = vec![vec![], vec![0], vec![2, 0], vec![4, 5, 2]];
        Some { inputs, resident: Vec::new(), offloaded: Vec::new(), fixed: Vec::new() }
    }

    fn recompute(record: u32, with_aux: bool) -> Link {
        Link::Recompute { record, with_aux }
    }

    #[test]
    fn each_record_is_run_once_and_in_order() {
        let all = [recompute(0, false), recompute(1, false), recompute(2, true), recompute(3, false)];
        assert_eq!(chain(&records(), 6), Ok(all.to_vec()));
        assert_eq!(last_reads(&records(), &all), HashMap::from([(0, 2), (2, 3), (4, 3), (5, 3)]));
        assert_eq!(chain(&records(), 3), Ok(vec![recompute(0, false), recompute(1, true)]));
    }

    #[test]
    fn a_chain_begins_at_what_is_there() {
        let resident = Some { resident: vec![2], offloaded: vec![0], ..records() };
        let links = [Link::Reload(0), recompute(2, true), recompute(3, false)];
        assert_eq!(chain(&resident, 6), Ok(links.to_vec()));
        let offloaded = Some { offloaded: vec![5, 4, 2], ..records() };
        let reloads = [Link::Reload(2), Link::Reload(4), Link::Reload(5), recompute(3, false)];
        assert_eq!(chain(&offloaded, 6), Ok(reloads.to_vec()));
        assert_eq!(chain(&offloaded, 4), Ok(vec![Link::Reload(4)]));
    }

    #[test]
    fn what_cannot_be_restored_is_named() {
        let fixed = Some { fixed: vec![0], ..records() };
        assert_eq!(chain(&fixed, 6), Err(0));
        assert_eq!(chain(&Some { inputs: vec![vec![100]], ..records() }, 0), Err(100));
    }
}
