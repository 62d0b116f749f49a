"""Async mode: bounded staleness, with real servers and a worker that goes as fast as it may."""

from __future__ import annotations

import math
import os
import select
import sys
from pathlib import Path

import pytest

from tests.parameter_server.support.servers import Inside, Maker, script, servers_fixture, together

pytestmark = pytest.mark.torch
__all__ = ["servers_fixture"]

STEPS = 8
QUIET_S = 0.5  # a worker that may go on pushes thousands of times meanwhile
# pushes as fast as it may, and writes a byte for every push that returned
FAST = f"""
import math, os, sys, torch
from muster_parameter_server import ParameterServer, sgd
torch.set_num_threads(1)
pipe = int(sys.argv[1])
staleness = {{"inf": math.inf, "None": None, "0": 0, "2": 2}}[sys.argv[2]]
parameter = torch.zeros(1000)
with ParameterServer.connect(
    [parameter], sgd(1.0), mode="async", staleness=staleness, timeout_s=90
) as server:
    for _ in range({STEPS}):
        server.push_pull([torch.ones(1000)])
        assert parameter[0] == parameter[-1] or staleness != 0
        os.write(pipe, b"x")
"""


class _Counted:
    """Pushes of the fast worker that have returned."""

    def __init__(self, reading: int) -> None:
        self._reading = reading
        self.count = 0

    def settle(self, expected: int) -> int:
        """The count once it is `expected`, and nothing more has come for a while."""
        while select.select([self._reading], [], [], 60 if self.count < expected else QUIET_S)[0]:
            got = len(os.read(self._reading, 100))
            if not got:
                break
            self.count += got
        return self.count


@pytest.mark.parametrize("staleness", [0, 2, None, math.inf])
def test_a_fast_worker_is_held_back_by_a_slow_one(
    staleness: float | None, servers: Maker, tmp_path: Path
) -> None:
    import torch

    from muster_parameter_server import ParameterServer, sgd

    bound = 1 if staleness is None else staleness
    made = servers(2, workers=2)
    reading, writing = os.pipe()
    try:
        argv = [sys.executable, str(script(tmp_path, FAST)), str(writing), str(staleness)]
        fast = made.start(argv, inherited=(writing,), RANK="1")
        counted = _Counted(reading)
        slow = torch.zeros(1000)
        with ParameterServer.connect(
            [slow],
            sgd(1.0),
            mode="async",
            staleness=staleness,
            timeout_s=90,
            environ=made.environ(0),
        ) as server:
            for clock in range(STEPS):
                may = min(STEPS, clock + bound)
                assert counted.settle(may) == may
                server.push_pull([torch.ones(1000)])
                # all own pushes, and those of the other up to clock - bound
                sure = clock + 1 + max(0, clock + 1 - bound)
                assert slow.max() <= -sure and slow.min() >= -2 * STEPS
            assert counted.settle(STEPS) == STEPS
            server.pull()
            assert torch.equal(slow, torch.full((1000,), -2.0 * STEPS))  # no push is lost
            assert server.version == 2 * STEPS
        ended = made.ended(fast)
        assert ended.code == 0, ended.output
        assert made.codes() == [0, 0]
    finally:
        os.close(reading)
        os.close(writing)


def test_one_that_has_said_goodbye_is_not_waited_for() -> None:
    import torch

    from muster_parameter_server import ParameterServer, sgd

    made = Inside(1, workers=2)

    def work(rank: int, steps: int) -> int:
        with ParameterServer.connect(
            [torch.zeros(10)], sgd(0.1), mode="async", staleness=1, environ=made.environ(rank)
        ) as server:
            for _ in range(steps):
                server.push_pull([None])
            return server.step

    assert together(lambda: work(0, 2), lambda: work(1, 20)) == [2, 20]
    assert made.codes() == [0]
