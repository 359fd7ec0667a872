//! The largest number that fits, found with few trials.

/// The factor by which a number grows as long as everything fits: what is far too large is refused as quickly as anything
/// else.
const GROWTH: usize = 8;

/// How often the linear estimate is used before bisection: it leads nowhere where bytes do not grow linearly.
const N_ESTIMATES: usize = 6;

/// Whether a number fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It does.
    Fits,
    /// It does not; how many bytes would have been enough, if that is known.
    Needs(Option<u64>),
}

/// The largest `n` from 1 to `most` that fits `limit` bytes, or zero if not even one does. What fits must also fit with
/// less: then the answer is exact, with `n` known to fit and `n + 1` known not to.
///
/// From `guess` it grows by a factor until something does not fit, or halves until something does. From then on it
/// estimates `n` linearly from what the last refusals would have needed, because bytes grow nearly linearly with `n`; where
/// that is unknown, it bisects.
///
/// # Errors
/// Those of `fit`.
pub fn largest<E>(
    most: usize,
    guess: usize,
    limit: u64,
    mut fit: impl FnMut(usize) -> Result<Fit, E>,
) -> Result<usize, E> {
    let (mut works, mut fails) = (0, None);
    let mut estimate = LinearEstimate::new(limit);
    let mut next = guess.clamp(1, most.max(1));
    while works < most && fails != Some(works + 1) {
        match fit(next)? {
            Fit::Fits => works = next,
            Fit::Needs(enough) => {
                fails = Some(next);
                estimate.refusals.extend(enough.map(|bytes| (next, bytes)));
            }
        }
        next = match fails {
            None => works.saturating_mul(GROWTH).min(most),
            Some(fails) if fails <= works + 1 => break,
            Some(fails) => estimate.between(works, fails),
        };
    }
    Ok(works)
}

/// A linear estimate from what refused numbers would have needed.
struct LinearEstimate {
    limit: u64,
    /// Numbers that did not fit, and the bytes that each would have needed.
    refusals: Vec<(usize, u64)>,
    /// How far the next number lies from what is known where the estimate is out of range; it doubles each time.
    stride: usize,
    n_tried: usize,
}

impl LinearEstimate {
    fn new(limit: u64) -> LinearEstimate {
        LinearEstimate { limit, refusals: Vec::new(), stride: 1, n_tried: 0 }
    }

    /// The next number to try, between one that fits and one that does not.
    fn between(&mut self, works: usize, fails: usize) -> usize {
        self.n_tried += 1;
        let estimate = self.estimate().filter(|_| self.n_tried <= N_ESTIMATES);
        let Some(estimate) = estimate else { return works + (fails - works) / 2 };
        if works < estimate && estimate < fails {
            return estimate;
        }
        // The answer is close to the end that the estimate leads to; one from a single point is rough.
        let stride = if self.refusals.len() == 1 { self.stride.max(works / 16) } else { self.stride };
        self.stride = stride.saturating_mul(2);
        let next =
            if estimate <= works { works.saturating_add(stride) } else { fails.saturating_sub(stride) };
        next.clamp(works + 1, fails - 1)
    }

    /// The number that fits by the last two refusals, or by the only one and the origin.
    fn estimate(&self) -> Option<usize> {
        let point = |&(n, bytes): &(usize, u64)| (n as f64, bytes as f64);
        let (n, bytes) = point(self.refusals.last()?);
        let (other_n, other_bytes) = self.refusals.iter().rev().nth(1).map_or((0.0, 0.0), point);
        let per_one = (bytes - other_bytes) / (n - other_n);
        let estimate = n - (bytes - self.limit as f64) / per_one;
        (per_one > 0.0 && estimate.is_finite()).then_some(estimate.max(0.0) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_found_from_any_guess_and_both_sides_were_asked_about() {
        for most in [1, 2, 7, 64, 1000] {
            for answer in 0..=most.min(70) {
                for guess in [1, 3, 64, 5000] {
                    let mut asked = Vec::new();
                    let found = largest::<()>(most, guess, 0, |n| {
                        asked.push(n);
                        assert!((1..=most).contains(&n), "{n} of {most}");
                        Ok(if n <= answer { Fit::Fits } else { Fit::Needs(None) })
                    });
                    assert_eq!(found, Ok(answer), "most {most}, guess {guess}");
                    assert!(answer == 0 || asked.contains(&answer));
                    assert!(answer == most || asked.contains(&(answer + 1)));
                    assert!(asked.len() <= 25, "{asked:?}");
                }
            }
        }
    }

    #[test]
    fn nothing_far_larger_than_the_answer_is_asked_about() {
        let mut greatest = 0;
        let found = largest::<()>(usize::MAX, 32, 0, |n| {
            greatest = greatest.max(n);
            Ok(if n <= 1000 { Fit::Fits } else { Fit::Needs(None) })
        });
        assert_eq!((found, greatest), (Ok(1000), 2048));
        assert_eq!(largest(10, 1, 0, |_| Err("broken")), Err("broken"));
    }

    #[test]
    fn bytes_that_would_have_been_enough_lead_to_the_answer() {
        // A fixed part, a part for each one, and steps as allocators have them.
        let enough = |n: usize| (700 + 13 * n as u64).next_multiple_of(64);
        for limit in [0, 712, 713, 5000, 70_000, 1_000_000] {
            let mut n_asked = 0;
            let found = largest::<()>(usize::MAX, 8, limit, |n| {
                n_asked += 1;
                Ok(if enough(n) <= limit { Fit::Fits } else { Fit::Needs(Some(enough(n))) })
            });
            let answer = (1..).take_while(|&n| enough(n) <= limit).count();
            assert_eq!(found, Ok(answer), "{limit}");
            // Growing takes as many as there are, and then a few.
            assert!(n_asked <= answer.max(8).ilog(8) as usize + 9, "{n_asked} for {answer}");
        }
    }
}
