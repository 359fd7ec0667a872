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
#[path = "../../../examples/post_001_1_graph_gradients.rs"]
mod post_001_1;
#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_001_2_batch_size.rs"]
mod post_001_2;
#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_001_3_persistent_tape.rs"]
mod post_001_3;
#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_002_1_explicit_deletion.rs"]
mod post_002_1;
#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_002_2_function.rs"]
mod post_002_2;
#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_002_3_dataset_batches.rs"]
mod post_002_3;
#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_003_1_epochs.rs"]
mod post_003_1;
#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_003_2_prefetch.rs"]
mod post_003_2;
#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_003_3_mixed_precision.rs"]
mod post_003_3;
#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_004_2_clear_graph.rs"]
mod post_004_2;
#[allow(dead_code, reason = "an example's `main` prints what is asserted here")]
#[path = "../../../examples/post_004_3_device_scope.rs"]
mod post_004_3;

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
fn post_001_1_holds_variables_gradients_and_y() {
    let figures = post_001_1::measure().unwrap();
    assert_eq!((figures.described, figures.variables, figures.gradients), (0, 4_004_000, 4_004_000));
    assert_eq!((figures.others, figures.after, figures.same_bits), (0, 0, true));
    // y, and single numbers.
    assert!((4_000..=4_000 + 512).contains(&figures.peak_others), "{} B", figures.peak_others);
    assert_eq!(figures.planned_others, figures.peak_others);
}

#[test]
fn post_002_2_needs_no_more_than_eager_code_for_the_same_bits() {
    let figures = post_002_2::measure().unwrap();
    assert!(figures.graph_peak <= figures.eager_peak, "{figures:?}");
    assert_eq!((figures.planned_peak, figures.bits[0]), (figures.graph_peak, figures.bits[1]));
}

#[test]
fn post_004_2_gives_graph_and_variables_back() {
    let figures = post_004_2::measure().unwrap();
    assert_eq!((figures.n_variables, figures.parameters), ([4; 3], 4 * (10 * 100 + 100 + 100 * 10 + 10)));
    assert_eq!((figures.n_programs, figures.n_cleared, figures.goes_on), (1, 0, true));
    assert_eq!(figures.after, [0, 0]);
}

#[test]
fn post_001_3_frees_what_the_tape_kept_and_stays_flat() {
    let figures = post_001_3::measure().unwrap();
    assert_eq!((figures.dz_dx, figures.dy_dx), (4.0, 2.0));
    assert_eq!((figures.own_with_tape, figures.own_without_tape), (4, 0));
    assert_eq!(figures.loop_before, figures.loop_after);
    assert!(figures.loop_peak < figures.loop_before + 64 * 1024, "{} B", figures.loop_peak);
}

#[test]
fn post_001_2_is_a_fixed_part_and_a_part_for_each_example() {
    let figures = post_001_2::measure().unwrap();
    assert_eq!(figures.fixed, 13_025_440);
    assert_eq!(figures.control, 64);
    // Inputs, hidden activations, logits, labels, and the logarithm of a sum for each example.
    assert_eq!(figures.per_example, 7_316);
    assert!(figures.losses.iter().all(|loss| loss.is_finite()), "{:?}", figures.losses);
}

#[test]
fn post_002_1_gradient_frees_what_the_tape_held() {
    let (late, early) = (post_002_1::measure(false).unwrap(), post_002_1::measure(true).unwrap());
    assert!(late.own_before > 0);
    assert_eq!((late.own_after, late.tape_frees), (0, 0));
    assert_eq!(late.y_frees, late.y_bytes);
    assert_eq!(early.gradient_bits, late.gradient_bits);
    assert_eq!(early.y_frees, 0, "it was dropped before");
}

#[test]
fn post_002_3_data_are_the_source_and_the_batches_in_flight() {
    for depth in 0..4 {
        let figures = post_002_3::measure(depth).unwrap();
        assert_eq!(figures.peak, figures.source + (depth as u64 + 1) * figures.batch, "depth {depth}");
        assert_eq!(figures.n_batches, 156);
    }
}

#[test]
fn post_003_1_fifty_epochs_are_flat_and_a_leak_is_named() {
    let figures = post_003_1::measure().unwrap();
    assert_eq!(figures.n_steps, 200);
    assert!(figures.steady.is_some(), "the bytes in use changed from step to step");
    // 64 predictions of 10 numbers, 200 times.
    assert_eq!(figures.leaked, 200 * 64 * 10 * 4);
    assert!(figures.leak.contains("post_003_1_epochs.rs"), "{}", figures.leak);
    assert!(figures.leak.contains("dense_1"), "{}", figures.leak);
}

#[test]
fn post_003_2_prefetch_stays_inside_its_allowance_and_leaves_nothing() {
    let figures = post_003_2::measure().unwrap();
    assert_eq!(figures.data.0, figures.data.1, "the pipeline's timing shows in the pool");
    assert!(figures.data.1 > figures.source);
    assert!(figures.data.1 - figures.source <= figures.allowance);
    assert_eq!(figures.in_use.0, figures.in_use.1);
}

#[test]
fn post_003_3_mixed_precision_halves_what_is_kept_and_not_what_stays() {
    let images = post_003_3::measure(&post_003_3::convolutional(), &[32, 32, 3], 64).unwrap();
    assert!(images.saved_ratio() <= 0.55, "{}", images.saved_ratio());
    let rows = post_003_3::measure(&post_003_3::perceptron(), &[784], 512).unwrap();
    assert!((0.87..0.90).contains(&rows.total_ratio()), "{}", rows.total_ratio());
}

#[test]
fn post_004_3_runs_on_the_cpu_and_says_so_once() {
    let figures = post_004_3::measure().unwrap();
    assert_eq!(figures.losses.len(), 5);
    assert!(figures.losses.iter().all(|loss| loss.is_finite()), "{:?}", figures.losses);
    let said = |what: &str| figures.warnings.iter().filter(|warning| warning.contains(what)).count();
    assert_eq!(said("from_logits"), 1, "{:?}", figures.warnings);
    if figures.device == "cpu" {
        assert_eq!(said("/GPU:0"), 1, "{:?}", figures.warnings);
    }
}
