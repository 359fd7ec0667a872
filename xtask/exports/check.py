"""Reads exports of a run with the readers of the tools that they are for, and holds them against what the run said of itself.

Called by `cargo xtask exports` as `check.py FOLDER MEMORY_VIZ`: FOLDER has run.pickle, run.pftrace, run.prom, board/ and run.jsonl,
MEMORY_VIZ is PyTorch's torch/cuda/_memory_viz.py.
"""

import importlib.util
import json
import pathlib
import pickle
import sys

problems = []


def check(what, holds, detail=""):
    print(("ok: " if holds else "PROBLEM: ") + what, "" if holds else detail)
    if not holds:
        problems.append(what)


def check_pickle(path, viz_path, peak):
    spec = importlib.util.spec_from_file_location("memory_viz", viz_path)
    viz = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(viz)
    snapshot = pickle.loads(path.read_bytes())
    in_use = sum(segment["allocated_size"] for segment in snapshot["segments"])
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    check("pickle: blocks tile their segments", all(sum(b["size"] for b in s["blocks"]) == s["total_size"] for s in snapshot["segments"]))
    check("pickle: allocated blocks add up", sum(b["size"] for b in blocks if b["state"] == "active_allocated") == in_use)
    trace = snapshot["device_traces"][0]
    sign = {"alloc": 1, "free_completed": -1}
    now = in_use - sum(sign.get(event["action"], 0) * event["size"] for event in trace)
    most = now
    for event in trace:
        now += sign.get(event["action"], 0) * event["size"]
        most = max(most, now)
    check("pickle: replaying its events gives the peak", most == peak, f"{most} {peak}")
    check("pickle: and ends with what its segments hold", now == in_use, f"{now} {in_use}")
    summary = viz.segsum(snapshot)
    check("pickle: PyTorch's segsum has its totals", str(viz.Bytes(in_use)) in summary, summary[:300])
    listing = viz.trace(snapshot)
    check("pickle: PyTorch's trace lists its entries", f"{len(trace)} entries" in listing, listing[:300])
    for draw in (viz.trace_plot, viz.segment_plot):
        check(f"pickle: PyTorch's {draw.__name__} takes it", "<script" in draw(snapshot))
    lines = {(frame["filename"], frame["line"]) for event in trace for frame in event["frames"]}
    check("pickle: frames name lines", any(name.endswith("digits.rs") for name, _ in lines), str(lines)[:300])


def check_perfetto(path, peak, n_steps):
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    trace = perfetto_trace_pb2.Trace()
    trace.ParseFromString(path.read_bytes())
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
    events = [(p.timestamp, p.track_event) for p in trace.packet if p.HasField("track_event")]
    names = {uuid: track.name for uuid, track in tracks.items()}
    in_use = [event.counter_value for _, event in events if names[event.track_uuid] == "memory in use"]
    check("perfetto: the counter reaches the peak", max(in_use) == peak, f"{max(in_use)} {peak}")
    check("perfetto: counters are in bytes", all(t.counter.unit == 3 for t in tracks.values() if t.HasField("counter")))
    steps = [event.name for _, event in events if event.name.startswith("step ")]
    check("perfetto: a slice for each step", len(steps) == n_steps, f"{len(steps)} {n_steps}")
    open_slices = {}
    for _, event in events:
        open_slices[event.track_uuid] = open_slices.get(event.track_uuid, 0) + {1: 1, 2: -1}.get(event.type, 0)
    check("perfetto: every slice ends", not any(open_slices.values()), str(open_slices))


def check_openmetrics(path, end):
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    families = {family.name: family for family in text_string_to_metric_families(path.read_text())}
    value = lambda name: families[f"plimsoll_memory_{name}_bytes"].samples[0].value
    check("openmetrics: peak", value("peak") == end["peak_bytes"])
    check("openmetrics: committed", value("peak_committed") == end["committed_bytes"])
    owners = families["plimsoll_memory_peak_owner_bytes"].samples
    check("openmetrics: owners add up", sum(sample.value for sample in owners) == end["peak_bytes"])
    check("openmetrics: predicted", value("predicted_peak") == end["predicted_peak_bytes"])


def check_tensorboard(folder, end, steps):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder))
    board.Reload()
    losses = board.Scalars("loss")
    check("tensorboard: a loss for each step", [s.step for s in losses] == [s["step"] for s in steps])
    check("tensorboard: the last loss", abs(losses[-1].value - end["loss"]) <= 1e-6 * abs(end["loss"]), f"{losses[-1].value} {end['loss']}")
    peaks = [scalar.value for scalar in board.Scalars("memory/peak_bytes")]
    check("tensorboard: memory", abs(peaks[-1] - steps[-1]["peak_bytes"]) <= 64, str(peaks[-1]))
    check("tensorboard: numbers of epochs", "epoch/val_loss" in board.Tags()["scalars"], str(board.Tags()["scalars"]))


def main():
    folder, viz = pathlib.Path(sys.argv[1]), sys.argv[2]
    lines = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    end = lines[-1]
    steps = [line for line in lines if line["event"] == "step"]
    check_pickle(folder / "run.pickle", viz, end["peak_bytes"])
    check_perfetto(folder / "run.pftrace", end["peak_bytes"], end["steps"])
    check_openmetrics(folder / "run.prom", end)
    check_tensorboard(folder / "board", end, steps)
    print(f"{len(problems)} problems")
    sys.exit(1 if problems else 0)


main()
