"""The line, the report, and whose line is whose."""

import gc
import inspect

import numpy as np
import plimsoll as tf
import pytest


def line():
    return inspect.currentframe().f_back.f_lineno


def test_every_byte_is_labelled_with_the_users_line():
    a = tf.ones([1000]); made = line()  # fmt: skip
    b = tf.nn.softmax(a + 1.0); combined = line()  # fmt: skip
    rows = {row[4]: row for row in tf.report().rows if row[3] == __file__}
    assert rows[made][0] == "temporary" and rows[made][6] == "full"
    assert rows[combined][6] == "softmax"
    report = tf.report()
    assert report.in_use == sum(row[1] for row in report.rows)
    assert f"{__file__}:{combined} softmax" in str(report) and str(report) in report._repr_html_()
    assert b.shape == (1000,)


def test_the_line_is_right_in_long_functions_and_in_functions_that_come_and_go():
    """Lines are kept by code object and instruction; the address of a function that is gone is soon that of another one."""
    for n in range(600):
        lines = ["def made(ones):", *["    pass"] * (n % 40), "    x = ones([7])", *["    pass"] * (n % 3), "    return x, ones([8])"]
        names = {}
        exec(compile("\n".join(lines), f"made_{n % 5}.py", "exec"), names)
        x = names.pop("made")(tf.ones)
        found = {row[3:5] for row in tf.report().rows if row[3].startswith("made_")}
        assert found == {(f"made_{n % 5}.py", 2 + n % 40), (f"made_{n % 5}.py", 3 + n % 40 + n % 3)}
        del x, names


def test_saved_values_name_the_line_that_made_them():
    v = tf.Variable(tf.ones([1000]))
    with tf.GradientTape() as tape:
        y = tf.exp(v); made = line()  # fmt: skip
        loss = tf.reduce_sum(y)
    saved = tape.saved()
    assert [(row[0], row[4], row[5]) for row in saved.values] == [("exp", __file__, made)]
    assert (saved.bytes, saved.own_bytes) == (4000, 0)
    del y
    assert tape.saved().own_bytes == 4000
    del loss
    assert tape.saved().bytes == 0
    assert "exp" in str(saved)


def test_what_is_deleted_is_given_back_at_once():
    before = tf.stats()["in_use"]
    x = tf.ones([1000, 1000])
    assert tf.stats()["in_use"] == before + 4_000_256
    del x
    assert tf.stats()["in_use"] == before
    tf.trim()


def test_a_limit_that_cannot_be_kept_is_an_error_with_the_report():
    x = tf.Variable(tf.random.normal([1000, 1000]))
    with tf.limit("8MiB"):
        with pytest.raises(tf.errors.ResourceExhaustedError, match="limit") as caught:
            tf.exp(tf.exp(x) + x)
        assert isinstance(caught.value, MemoryError) and isinstance(caught.value, tf.errors.OpError)
        assert caught.value.report.limit == 8 << 20
        assert any(row[0] == "parameters" for row in caught.value.report.rows)
        assert "traceback" in str(caught.value)
        del caught
        gc.collect()
        assert tf.exp(x).shape == (1000, 1000)
    assert tf.stats()["limit"] is None
    assert tf.exp(tf.exp(x) + x).shape == (1000, 1000)


def test_a_limit_holds_from_the_call_on():
    tf.limit(64 << 20)
    assert tf.stats()["limit"] == 64 << 20
    with tf.limit("32MiB"):
        assert tf.stats()["limit"] == 32 << 20
    assert tf.stats()["limit"] == 64 << 20
    tf.limit(None)
    with pytest.raises(ValueError):
        tf.limit("many")


def test_a_plan_of_any_function_is_its_run_to_the_byte():
    def step(x):
        return tf.reduce_sum(tf.exp(x) * x)

    x = tf.ones([1000, 100])
    plan = tf.plan(step, x)
    tf.reset_peaks()
    tf.function(step)(x)
    assert tf.stats()["peak_in_use"] == plan.peak == sum(plan.rows.values())
    # x alone: the sum takes in the ops that make its input.
    assert 800_000 > plan.peak >= 400_000 and str(plan) in plan._repr_html_()


def test_a_profile_is_recorded_in_a_block_and_explained(tmp_path):
    with tf.profile(tmp_path / "run.plimsoll") as profile:
        assert "a recording to" in str(profile)
        x = tf.ones([1000, 100]) + 1.0
    text = str(profile)
    assert "the profile of a run" in text and "800,768 B" in text and __file__ in text
    profile.page(tmp_path / "run.html")
    assert "<html" in (tmp_path / "run.html").read_text() and profile._repr_html_().startswith("<pre>")
    assert x.shape == (1000, 100)
    with pytest.raises(OSError, match="nowhere"), tf.profile(tmp_path / "nowhere" / "run.plimsoll"):
        pass


def test_memory_info_has_tensorflows_keys():
    tf.config.experimental.reset_memory_stats("CPU:0")
    x = tf.ones([1000])
    info = tf.config.experimental.get_memory_info("CPU:0")
    assert info["current"] == tf.stats()["in_use"] and info["peak"] >= info["current"]
    assert x.shape == (1000,)


def test_errors_name_the_op_and_what_would_work():
    with pytest.raises(tf.errors.InvalidArgumentError, match="matmul: shapes"):
        tf.matmul(tf.ones([2, 3]), tf.ones([2, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="cast"):
        tf.ones([2]) + tf.constant(np.ones(2))


def test_ten_thousand_steps_are_flat():
    w, x = tf.Variable(tf.ones([4, 4])), tf.ones([4, 4])
    seen = set()
    for _ in range(10_000):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ w))
        gradient = tape.gradient(loss, w)
        w.assign_sub(0.001 * gradient)
        del tape, loss, gradient
        seen.add(tf.stats()["in_use"])
    assert len(seen) == 1
