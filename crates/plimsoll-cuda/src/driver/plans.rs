//! What a library was asked once for each kind of call, within a bound.
//!
//! A network has a few dozen kinds of products and convolutions, but a run whose lengths or image sizes change has new ones all
//! the time, and a plan of cuDNN's takes some 0.3 MiB of the host. So there is a most. Where it is reached, a quarter goes
//! at once, those that were not used for longest, so that the search for them is paid by many plans. A plan that comes back is made anew
//! and is the same: it depends on its key alone.

use std::collections::HashMap;
use std::hash::Hash;

/// Plans by what they depend on.
pub(super) struct Plans<K, P> {
    plans: HashMap<K, Kept<P>>,
    most: usize,
    n_uses: u64,
}

struct Kept<P> {
    plan: P,
    last_use: u64,
}

impl<K: Copy + Eq + Hash, P> Plans<K, P> {
    /// None yet, and never more than `most`, but for those that are added while none may go.
    pub fn at_most(most: usize) -> Plans<K, P> {
        Plans { plans: HashMap::new(), most, n_uses: 0 }
    }

    /// The plan for a key, without counting that as a use.
    pub fn peek(&self, key: &K) -> Option<&P> {
        self.plans.get(key).map(|kept| &kept.plan)
    }

    /// The plan for a key, which `make` makes if there is none. `may_drop` says whether others may go for it.
    ///
    /// # Errors
    /// Those of `make`; nothing has changed then.
    pub fn get_or<E>(
        &mut self,
        key: K,
        may_drop: bool,
        make: impl FnOnce() -> Result<P, E>,
    ) -> Result<&mut P, E> {
        self.n_uses += 1;
        let last_use = self.n_uses;
        if !self.plans.contains_key(&key) {
            let plan = make()?;
            if may_drop && self.plans.len() >= self.most {
                self.drop_oldest();
            }
            self.plans.insert(key, Kept { plan, last_use });
        }
        let kept = self.plans.get_mut(&key).unwrap_or_else(|| unreachable!("it is there, or was just added"));
        kept.last_use = last_use;
        Ok(&mut kept.plan)
    }

    /// Drops what was not used for longest, so that three quarters of the most are left.
    fn drop_oldest(&mut self) {
        let n_kept = self.most - self.most.div_ceil(4);
        let mut uses: Vec<u64> = self.plans.values().map(|kept| kept.last_use).collect();
        let n_dropped = uses.len().saturating_sub(n_kept);
        uses.sort_unstable();
        let first_kept = uses.get(n_dropped).copied().unwrap_or(u64::MAX);
        self.plans.retain(|_, kept| kept.last_use >= first_kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn use_of(plans: &mut Plans<u32, u32>, key: u32) -> bool {
        let mut is_new = false;
        let plan = plans.get_or(key, true, || {
            is_new = true;
            Ok::<u32, ()>(10 * key)
        });
        assert_eq!(plan.copied(), Ok(10 * key));
        is_new
    }

    #[test]
    fn there_are_never_more_than_the_most_and_what_is_used_stays() {
        let mut plans = Plans::at_most(8);
        for key in 0..1000 {
            assert_eq!(use_of(&mut plans, 0), key == 0, "what every step uses is never made again");
            use_of(&mut plans, key);
            assert!(plans.plans.len() <= 8);
        }
        assert!(plans.peek(&999).is_some() && plans.peek(&1).is_none());
        assert!(use_of(&mut plans, 1), "one that has gone is made again");
    }

    #[test]
    fn a_most_of_one_holds_the_latest() {
        let mut plans = Plans::at_most(1);
        assert!(use_of(&mut plans, 1) && use_of(&mut plans, 2) && !use_of(&mut plans, 2));
        assert_eq!(plans.plans.len(), 1);
    }

    #[test]
    fn what_cannot_be_made_changes_nothing() {
        let mut plans = Plans::at_most(2);
        use_of(&mut plans, 1);
        use_of(&mut plans, 2);
        assert_eq!(plans.get_or(3, true, || Err("no")), Err("no"));
        assert_eq!(plans.plans.len(), 2);
    }

    #[test]
    fn none_goes_while_none_may() {
        let mut plans = Plans::at_most(2);
        for key in 0..5 {
            plans.get_or(key, false, || Ok::<u32, ()>(key)).unwrap();
        }
        assert_eq!(plans.plans.len(), 5);
        use_of(&mut plans, 7);
        assert!(plans.plans.len() <= 2, "the next that may drop drops what was too many");
    }
}
