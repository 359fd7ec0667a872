//! The largest number that fits, by asking about few of them.

/// The largest `n` from 1 to `most` that fits, or zero if not even one does. What fits must also fit with less: then the
/// answer is exact, with `n` known to fit and `n + 1` known not to.
///
/// It doubles from `guess` until something does not fit, or halves until something does, and then cuts what is left in
/// halves, so that nothing much larger than the answer is ever asked about.
///
/// # Errors
/// Those of `fits`.
pub fn largest<E>(
    most: usize,
    guess: usize,
    mut fits: impl FnMut(usize) -> Result<bool, E>,
) -> Result<usize, E> {
    let (mut works, mut fails) = (0, most.saturating_add(1));
    let mut next = guess.clamp(1, most.max(1));
    while works + 1 < fails {
        match fits(next)? {
            true => works = next,
            false => fails = next,
        }
        let is_bounded = fails <= most;
        next = match (works, is_bounded) {
            (works, false) => works.saturating_mul(2).clamp(works + 1, most.max(works + 1)),
            (0, true) => (fails / 2).max(1),
            (works, true) => works + (fails - works) / 2,
        };
    }
    Ok(works)
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
                    let found = largest::<()>(most, guess, |n| {
                        asked.push(n);
                        assert!((1..=most).contains(&n), "{n} of {most}");
                        Ok(n <= answer)
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
    fn nothing_much_larger_than_the_answer_is_asked_about() {
        let mut greatest = 0;
        let found = largest::<()>(usize::MAX, 32, |n| {
            greatest = greatest.max(n);
            Ok(n <= 1000)
        });
        assert_eq!((found, greatest), (Ok(1000), 1024));
        assert_eq!(largest(10, 1, |_| Err("broken")), Err("broken"));
    }
}
