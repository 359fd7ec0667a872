//! The figures of the posts' examples, as their programs measure them.
#![allow(clippy::duplicate_mod, reason = "each example brings the table that it prints with")]

#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_000_1_implicit_watching.rs"]
mod post_000_1;
#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_000_2_explicit_watching.rs"]
mod post_000_2;
#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_000_3_selective_watching.rs"]
mod post_000_3;
#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_001_3_persistent_tape.rs"]
mod post_001_3;

use plimsoll::GradientTape;

#[test]
fn post_000_1_keeps_nothing_of_its_own() {
    let figures = post_000_1::measure(|_, _, _| Ok(())).unwrap();
    assert_eq!(figures.own, 0);
    assert_eq!(figures.with_z, 12_000_004);
    assert_eq!(figures.without_z, 8_000_004);
    assert_eq!(figures.gradient_peak, 16_000_008);
}

#[test]
fn post_000_2_watching_by_hand_changes_neither_bytes_nor_bits() {
    let [by_itself, by_hand] = post_000_2::measure().unwrap();
    assert_eq!(by_itself, by_hand);
}

#[test]
fn post_000_3_keeps_z1_only_where_a_gradient_reads_it() {
    let as_written = post_000_3::measure(GradientTape::new()).unwrap();
    assert_eq!((as_written.own, as_written.gradients), (4_000_000, [true; 3]));
    let only_x = post_000_3::measure(GradientTape::new().watch_accessed_variables(false)).unwrap();
    assert_eq!((only_x.own, only_x.gradients), (0, [true, false, false]));
}

#[test]
fn post_001_3_frees_what_the_tape_kept_and_stays_flat() {
    let figures = post_001_3::measure().unwrap();
    assert_eq!((figures.dz_dx, figures.dy_dx), (4.0, 2.0));
    assert_eq!((figures.own_with_tape, figures.own_without_tape), (4, 0));
    assert_eq!(figures.loop_before, figures.loop_after);
    assert!(figures.loop_peak < figures.loop_before + 64 * 1024, "{} B", figures.loop_peak);
}
