"""What an eager op of one element costs from Python, recorded, with its backward, on the CPU; PyTorch beside it in the same run, if it is there.

    PYTHONPATH=FOLDER python python/peers/eager_op.py

FOLDER is the wheel, unpacked. The line label is on, as always. Of 40 turns of 200 ops, which take turns, the best counts.
"""

import time

import plimsoll as tf

N_OPS = 200


def of_plimsoll():
    x = tf.Variable([1.0])

    def run():
        with tf.GradientTape() as tape:
            y = x
            for _ in range(N_OPS):
                y = y * x
        tape.gradient(y, x)

    return run


def of_torch():
    import torch

    torch.set_num_threads(1)
    x = torch.ones(1, requires_grad=True)

    def run():
        y = x
        for _ in range(N_OPS):
            y = y * x
        torch.autograd.grad(y, x)

    return run


def main():
    programs = {"plimsoll": of_plimsoll()}
    try:
        programs["torch"] = of_torch()
    except ImportError:
        print("PyTorch is not there")
    best = dict.fromkeys(programs, float("inf"))
    for _ in range(40):
        for name, program in programs.items():
            began = time.perf_counter()
            program()
            best[name] = min(best[name], time.perf_counter() - began)
    for name, seconds in best.items():
        print(f"{name:10} {seconds / N_OPS * 1e6:.2f} µs for an op, recorded, with its backward")


if __name__ == "__main__":
    main()
