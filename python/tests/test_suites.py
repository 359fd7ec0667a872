"""`cargo xtask suites` runs a test file that was written for TensorFlow, and tells passes, failures and missing names apart."""

import pathlib
import subprocess
import sys

RUN = pathlib.Path(__file__).parents[1] / "suites/run.py"
FILE = """
from tensorflow.python.eager import backprop
from tensorflow.python.eager import test
from tensorflow.python.framework import constant_op
from tensorflow.python.framework import test_util
from tensorflow.python.ops import control_flow_ops
from tensorflow.python.ops import math_ops


class ExampleTest(test.TestCase):

  @test_util.run_in_graph_and_eager_modes
  def testPasses(self):
    x = constant_op.constant([1.0, 2.0])
    grad = backprop.gradients_function(lambda x: math_ops.reduce_sum(x * x))(x)[0]
    self.assertAllEqual([2.0, 4.0], self.evaluate(grad))

  def testFails(self):
    self.assertAllEqual([1.0], constant_op.constant([2.0]))

  def testNeedsMore(self):
    control_flow_ops.switch_case(constant_op.constant(1), [lambda: 1, lambda: 2])

  @test_util.run_gpu_only
  def testOnAGpu(self):
    raise AssertionError
"""


def test_outcomes_are_told_apart(tmp_path):
    folder = tmp_path / "tensorflow/python"
    folder.mkdir(parents=True)
    (folder / "example_test.py").write_text(FILE)
    done = subprocess.run([sys.executable, RUN, tmp_path], capture_output=True, text=True, timeout=120)
    printed = done.stdout.splitlines()
    assert printed[-1].endswith("example_test.py: 1 of 2 in scope passed, 1 failed, 1 out of scope, 1 skipped by themselves"), done
    assert any(line.startswith("  FAILED         ExampleTest.testFails") for line in printed)
    assert "  out of scope   ExampleTest.testNeedsMore: switch_case" in printed
    assert done.returncode == 1 and "1 methods are not as reasons.toml says" in done.stderr
    only = subprocess.run([sys.executable, RUN, tmp_path, "--only", "Passes"], capture_output=True, text=True, timeout=120)
    assert only.returncode == 0, only
    nothing = subprocess.run([sys.executable, RUN, tmp_path / "tensorflow/nowhere"], capture_output=True, text=True, timeout=120)
    assert "there is no *_test.py below" in nothing.stderr
