"""What ``fit`` prints: a bar while an epoch goes on, and a line when it has ended."""

import sys
import time

_WIDTH = 20


class Progress:
    """The progress of a run; ``verbose`` is 0 for nothing, 1 for a bar, 2 for one line for each epoch."""

    def __init__(self, verbose, epochs):
        self.verbose, self.epochs = verbose, epochs
        self._started = self._bar_length = 0

    def epoch_begins(self, epoch):
        self._started = time.monotonic()
        if self.verbose:
            print(f"Epoch {epoch + 1}/{self.epochs}")

    def moves(self, batch, n_batches, logs):
        """Shows the bar, of an epoch that has come to a batch."""
        done = batch + 1
        filled = int(_WIDTH * done / n_batches) if n_batches else 0
        of_all = f"{done}/{n_batches}" if n_batches else f"{done}/Unknown"
        text = f"{of_all} {'━' * filled}{' ' * (_WIDTH - filled)} {self._time(done)}{_numbers(logs)}"
        sys.stdout.write("\r" + text.ljust(self._bar_length))
        sys.stdout.flush()
        self._bar_length = len(text)

    def epoch_ends(self, n_batches, logs):
        if not self.verbose:
            return
        of_all = f"{n_batches}/{n_batches}"
        bar = f" {'━' * _WIDTH}" if self.verbose == 1 else " -"
        text = f"{of_all}{bar} {self._time(n_batches)}{_numbers(logs)}"
        print(("\r" if self.verbose == 1 else "") + text.ljust(self._bar_length))
        self._bar_length = 0

    def _time(self, n_steps):
        seconds = time.monotonic() - self._started
        each = seconds / max(n_steps, 1)
        return f"{seconds:.0f}s {each * 1e3:.0f}ms/step" if each >= 1e-3 else f"{seconds:.0f}s {each * 1e6:.0f}us/step"


def _numbers(logs):
    return "".join(f" - {name}: {value:.4f}" if abs(value) > 1e-3 or not value else f" - {name}: {value:.4e}"
                   for name, value in logs.items())  # fmt: skip
