"""Where TensorFlow and MXNet hang is known by stacks alone: nobody records their calls."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.launcher.support.local.asking import verdict_of
from tests.launcher.support.local.hangs import here
from tests.support.frameworks import JOB_S, PROCESS, STEPS_S, Start
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.dev, pytest.mark.timeout(900)]  # the first test may make the environment
TENSORFLOW = """\
import os, time
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def total():
    def add():
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([4]))
    return strategy.run(add)
total()
print("ready on", os.environ["SM_CURRENT_HOST"], flush=True)
if os.environ["SM_CURRENT_HOST"] == "algo-2":
    time.sleep(600)  # here
total()  # waits
"""
MXNET = """\
import os, time
import mxnet as mx
store = mx.kv.create("dist_sync")
store.init(0, mx.nd.ones(4))
value = mx.nd.ones(4)
store.push(0, value)
store.pull(0, out=value)
value.wait_to_read()
print("ready on", os.environ["SM_CURRENT_HOST"], flush=True)
if os.environ["SM_CURRENT_HOST"] == "algo-2":
    time.sleep(600)  # here
store.push(0, value)
store.pull(0, out=value)
value.wait_to_read()  # waits
"""


def test_a_mirrored_worker_that_sleeps_is_shown_with_its_line(
    start: Start, tensorflow: Path, tmp_path: Path
) -> None:
    _check(start, tensorflow, tmp_path, TENSORFLOW, "multi_worker_mirrored_strategy")


def test_a_worker_of_mxnet_that_sleeps_is_shown_with_its_line(
    start: Start, mxnet: Path, tmp_path: Path
) -> None:
    _check(start, mxnet, tmp_path, MXNET, "parameter_server")


def _check(start: Start, python: Path, home: Path, script: str, distribution: str) -> None:
    (home / "train.py").write_text(script)
    run = start(python, home / "train.py", distribution, 2, isolation=PROCESS)
    wait_until(lambda: run.out.count("ready on") == 2, JOB_S, lambda: run.err[-5000:])
    found: dict[str, object] = {}

    def shown() -> bool:
        found.update(verdict_of(run))
        return here(home) in str(found["sentence"])

    wait_until(shown, STEPS_S, lambda: str(found))
    assert found["kind"] != "busy", found
    run.signal(signal.SIGTERM)
    assert run.wait(JOB_S).code == 143
