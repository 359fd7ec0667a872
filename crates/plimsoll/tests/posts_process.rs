//! Figures of the posts' examples that are the whole process's, in a process where nothing else runs.
#![allow(clippy::duplicate_mod, reason = "each example brings the table that it prints with")]

#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_003_2_prefetch.rs"]
mod post_003_2;
#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_004_1_dispose.rs"]
mod post_004_1;

#[test]
fn threads_end_and_memory_goes_back() {
    let prefetch = post_003_2::measure().unwrap();
    assert_eq!(prefetch.threads.0, prefetch.threads.1);

    let models = post_004_1::measure().unwrap();
    assert!(models.with_model > 0);
    assert_eq!(models.after, 0);
    assert!(models.growth <= 1 << 20, "{} B", models.growth);
}
