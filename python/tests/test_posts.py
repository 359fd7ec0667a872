"""The posts' own programs, unchanged but for the import line, with the figures that must be true of them."""

import os

import numpy as np
import plimsoll as tf
import pytest
from conftest import in_use, run_post


def stopping_before_gradient(monkeypatch, figures):
    """Lets the tape measure itself when `gradient` is called, which the posts' programs do by themselves."""
    original = tf.GradientTape.gradient

    def gradient(self, target, sources, **options):
        figures.append((self.saved().own_bytes, in_use()))
        tf.reset_peaks()
        return original(self, target, sources, **options)

    monkeypatch.setattr(tf.GradientTape, "gradient", gradient)


def bits(tensor):
    return tensor.numpy().tobytes()


def test_000_1_and_2_keep_nothing_of_their_own(monkeypatch):
    figures = []
    stopping_before_gradient(monkeypatch, figures)
    first = run_post("post_000_1")
    # The program holds z by its name: 12,000,004 B with it, 8,000,004 B without.
    assert figures == [(0, 12_000_004)]
    peak = tf.stats()["peak_rows"]
    held = sum(peak.values()) - peak["rounding"] - peak["workspace"]
    assert held == 16_000_008 + 4_000_000  # of which z, which the program never drops, is 4,000,000
    gradients = [bits(g) for g in first["gradients"]]
    del first
    tf.random.set_seed(0)
    second = run_post("post_000_2")
    assert figures[1] == figures[0]
    assert [bits(g) for g in second["gradients"]] == gradients


def test_000_1_without_z():
    x, y = (tf.Variable(tf.random.normal([1000, 1000])) for _ in range(2))
    with tf.GradientTape() as tape:
        z = tf.matmul(x, y)
        loss = tf.reduce_sum(z)
    assert in_use() == 12_000_004
    del z
    assert in_use() == 8_000_004
    tf.reset_peaks()
    gradients = tape.gradient(loss, [x, y])
    peak = tf.stats()["peak_rows"]
    assert sum(peak.values()) - peak["rounding"] - peak["workspace"] == 16_000_008
    assert len(gradients) == 2


def test_000_3_keeps_z1_only_where_a_gradient_reads_it():
    names = run_post("post_000_3")
    assert all(g.shape == (1000, 1000) for g in names["gradients"])
    x, y, w = (names[name] for name in "xyw")
    for watches, own in ((True, 4_000_000), (False, 0)):
        with tf.GradientTape(watch_accessed_variables=watches) as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.matmul(tf.matmul(x, y), w))
        assert tape.saved().own_bytes == own
    assert [g is None for g in tape.gradient(loss, [x, y, w])] == [False, True, True]


def test_001_3_a_persistent_tape_gives_back_what_it_kept(capsys):
    run_post("post_001_3")
    assert capsys.readouterr().out == (
        "tf.Tensor(4.0, shape=(), dtype=float32) tf.Tensor(2.0, shape=(), dtype=float32)\n"
    )
    x = tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        y = x * x
        z = y * y
    assert float(tape.gradient(z, x)) == 4.0
    del y
    assert tape.saved().own_bytes == 4
    del tape
    assert tf.stats()["rows"]["saved"] == 0
    before = tf.stats()["in_use"]
    for _ in range(10_000):
        with tf.GradientTape(persistent=True) as tape:
            y = x * x
        tape.gradient(y, x)
        del tape, y
    assert tf.stats()["in_use"] == before


class Linear:
    """What the fragments of the posts call a model, and an optimizer for it."""

    def __init__(self):
        self.w = tf.Variable(tf.random.normal([8, 1]))
        self.b = tf.Variable(tf.zeros([1]))
        self.trainable_variables = [self.w, self.b]

    def __call__(self, x):
        return tf.nn.tanh(tf.matmul(x, self.w) + self.b)


class Descent:
    def __init__(self):
        self.in_use = []

    def apply_gradients(self, pairs):
        for gradient, variable in pairs:
            variable.assign_sub(0.1 * gradient)
        self.in_use.append(in_use())


def test_002_1_gradient_has_freed_the_tape(monkeypatch):
    model, optimizer = Linear(), Descent()
    x, target = tf.random.normal([64, 8]), tf.random.normal([64, 1])
    after, given = [], []
    original = tf.GradientTape.gradient

    def gradient(self, *arguments):
        gradients = original(self, *arguments)
        after.append(self.saved().own_bytes)
        given.append([bits(g) for g in gradients])
        return gradients

    monkeypatch.setattr(tf.GradientTape, "gradient", gradient)
    # Dropping y before `gradient` changes no bit.
    with tf.GradientTape() as tape:
        y = model(x)
        loss = tf.reduce_mean(tf.square(y - target))
    del y
    tape.gradient(loss, model.trainable_variables)
    # Once `gradient` has been called, dropping y frees its 64 floats, with the tape still there.
    with tf.GradientTape() as tape:
        y = model(x)
        loss = tf.reduce_mean(tf.square(y - target))
    gradients = tape.gradient(loss, model.trainable_variables)
    alive = in_use()
    del y
    assert in_use() == alive - 256
    del tape, loss, gradients
    before = model.w.numpy()
    run_post("post_002_1", "y = model(x)", x=x, target=target, model=model, optimizer=optimizer)
    assert after == [0, 0, 0]
    assert given[0] == given[1] == given[2]
    assert not np.array_equal(model.w.numpy(), before)


def test_003_1_fifty_epochs_are_flat():
    batches = [{"inputs": tf.random.normal([64, 8]), "labels": tf.random.normal([64, 1])} for _ in range(4)]
    optimizer = Descent()
    run_post(
        "post_003_1",
        num_epochs=50,
        dataset=batches,
        model=Linear(),
        loss_function=lambda predictions, labels: tf.reduce_mean(tf.square(predictions - labels)),
        optimizer=optimizer,
    )
    assert len(optimizer.in_use) == 200
    assert len(set(optimizer.in_use)) == 1


def test_002_2_a_function_peaks_no_higher_than_eager_code_and_has_its_bits():
    model, optimizer = Linear(), Descent()
    x, target = tf.random.normal([64, 8]), tf.random.normal([64, 1])
    # The post never says where `tape` comes from: here one records before its program begins.
    tape = tf.GradientTape()
    with tape:
        before = model.w.numpy()
        run_post("post_002_2", "y = model(x)", x=x, target=target, model=model, optimizer=optimizer, tape=tape)
    assert not np.array_equal(model.w.numpy(), before)
    del tape

    layers = [tf.Variable(tf.random.normal([256, 256]) * 0.05) for _ in range(8)]

    def step(x, target):
        with tf.GradientTape() as tape:
            y = x
            for w in layers:
                y = tf.nn.relu(tf.matmul(y, w))
            loss = tf.reduce_mean(tf.square(y - target))
        return [loss, *tape.gradient(loss, layers)]

    x, target = tf.random.normal([512, 256]), tf.random.normal([512, 256])
    peaks, values = [], []
    function = tf.function(step)
    planned = function.plan(x, target).peak
    for run in (step, function):
        tf.reset_peaks()
        values.append([bits(value) for value in run(x, target)])
        peaks.append(tf.stats()["peak_in_use"])
    assert values[0] == values[1]
    assert peaks[1] == planned <= peaks[0]


def test_001_1_a_graph_has_x_w_y_dx_and_dw_and_nothing_else(monkeypatch, capsys):
    with pytest.raises(RuntimeError, match="Use tf.GradientTape instead"):
        run_post("post_001_1")
    peaks, described = [], []
    original = tf.compat.v1.Session.run

    def run(self, *arguments):
        described.append(in_use())
        tf.reset_peaks()
        values = original(self, *arguments)
        peaks.append(tf.stats()["peak_rows"])
        return values

    monkeypatch.setattr(tf.compat.v1.Session, "run", run)
    before = in_use()
    tf.compat.v1.disable_eager_execution()
    try:
        names = run_post("post_001_1")
    finally:
        tf.compat.v1.enable_eager_execution()
    # Nothing when the graph is described, x and w when it is initialised.
    assert described == [before, before + 4_004_000]
    rows = peaks[1]
    assert rows["parameters"] == 4_004_000 and rows["gradients"] == 4_004_000
    # Besides them: y, and single numbers on the way from the mean.
    others = sum(rows.values()) - rows["rounding"] - rows["workspace"] - 8_008_000
    assert 4_000 <= others <= 4_000 + 64
    dx, dw = names["grad_values"]
    x, w = (tf.constant(names[name].numpy()) for name in "xw")
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
    assert [dx.tobytes(), dw.tobytes()] == [bits(g) for g in tape.gradient(loss, [x, w])]
    assert "array" in capsys.readouterr().out


class Watched(Descent):
    """An optimizer that looks at the bytes of data, without rounding, and at the threads."""

    def __init__(self):
        super().__init__()
        self.data, self.threads = [], []

    def apply_gradients(self, pairs):
        super().apply_gradients(pairs)
        self.data.append(tf.stats()["rows"]["data"])
        self.threads.append(len(os.listdir("/proc/self/task")))


def test_002_3_data_is_the_source_and_batches_and_no_second_copy():
    n, size = 10_000, 64
    features, labels = tf.random.normal([n, 8]), tf.random.normal([n, 1])
    source, batch = n * 9 * 4, size * 9 * 4
    names = dict(
        features=features,
        labels=labels,
        batch_size=size,
        model=Linear(),
        compute_loss=lambda predictions, labels: tf.reduce_mean(tf.square(predictions - labels)),
    )
    optimizer = Watched()
    run_post("post_002_3", optimizer=optimizer, **names)
    assert len(optimizer.data) == 157
    # The loop's variables hold the batch before while the next one is made.
    assert max(optimizer.data) == source + 2 * batch
    # Made ahead, there is room for that one already: the source and depth + 1 batches.
    dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(size).prefetch(2)
    data = {tf.stats()["rows"]["data"] for _ in dataset}
    assert data == {source + 3 * batch}


def test_003_2_prefetch_is_counted_and_fifty_epochs_are_flat():
    x, y = tf.random.normal([512, 8]), tf.random.normal([512, 1])
    optimizer = Watched()
    run_post(
        "post_003_2",
        "",
        num_epochs=50,
        data=(x, y),
        batch_size=32,
        model=Linear(),
        loss_function=lambda predictions, labels: tf.reduce_mean(tf.square(predictions - labels)),
        optimizer=optimizer,
    )
    assert len(optimizer.data) == 50 * 16
    source, batch = 512 * 9 * 4, 32 * 9 * 4
    # Four batches ahead at most, and the one that the loop has.
    assert set(optimizer.data) == {source + 5 * batch}
    assert len(set(optimizer.in_use)) == 1
    assert max(optimizer.threads[-16:]) <= max(optimizer.threads[:16])
