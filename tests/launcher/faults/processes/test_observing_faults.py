"""H09: whatever fails in what looks into ranks, the job ends as it would without."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.launcher.support.cluster import Cluster
from tests.launcher.support.sabotage import SAID, train_with_broken

Make = Callable[..., Cluster]
WORKS = "import time\nprint('ran', flush=True)\ntime.sleep(2)\n"
PLACES = [  # made late, on the loop's thread, on others, at the end
    "muster.run.observe.observer:Observer.__init__",
    "muster.run.observe.observer:Observer._begin",
    "muster.run.observe.observer:Observer.close",
    "muster.run.observe.control:bound",
    "muster.run.observe.control:Control._listen",
    "muster.run.observe.watch:StallWatch._look",
    "muster.run.observe.stall:StallClock.is_due",
    "muster.run.observe.local_looks:LocalLooks.calls",
    "muster.run.observe.local_looks:LocalLooks._note",
    "muster.run.base.procfs:processes",
]
ENVIRON = {"MUSTER_STALL_WAIT_S": "0.4", "MUSTER_STALL_IDLE_S": "0.4"}


@pytest.mark.promise("H09")
@pytest.mark.parametrize("where", PLACES)
def test_a_defect_in_what_observes_changes_no_outcome(cluster: Make, where: str) -> None:
    job = cluster(WORKS, hosts=1, environ=ENVIRON)
    job.start(command=train_with_broken(where, "ValueError('x')"))
    result = job.wait(30)["algo-1"]
    assert SAID in result.err  # the fault
    assert (result.code, result.success) == (0, True), result.err
    assert result.err.count("a defect of muster") <= 1
    assert "Traceback" not in result.err
