"""Jobs whose code is still to be brought to the hosts, and how such a job ends everywhere."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.launcher.support.cluster import Cluster, lines
from tests.launcher.support.records import events


def empty_code(job: Cluster) -> None:
    """Leaves the code folder of every host empty, so that the code must come from elsewhere."""
    for name in job.names:
        shutil.rmtree(job.base(name) / "code")
        (job.base(name) / "code").mkdir()


def code_channel(job: Cluster, name: str) -> Path:
    """The host's `code` channel, where a `sourcedir.tar.gz` may lie."""
    folder = job.base(name) / "input" / "data" / "code"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def start_after_the_other(job: Cluster, **options: object) -> None:
    """Starts algo-2, where the fault is, when algo-1 has its code; as `Cluster.start` does."""
    job.start("algo-1")
    job.wait_for("algo-1", "stage code ", "err")
    job.start("algo-2", **options)  # type: ignore[arg-type]


def one_ending(job: Cluster, limit_s: float = 60) -> str:
    """The first line on which all hosts agree when the job ended with 101 before any rank was
    started, and no host was lost meanwhile. In a job of several it names algo-2."""
    results = job.wait(limit_s)
    story = "\n".join(f"--- {name}\n{r.err}" for name, r in results.items())
    assert [r.code for r in results.values()] == [101] * len(results), story
    (line,) = {r.first_line for r in results.values()}
    for result in results.values():
        assert result.out.count("ran") == 0, story
        assert not lines(result.err, " lost "), story
    assert "rank_started" not in kinds(job), story
    assert len(job.names) == 1 or "algo-2" in line, line  # where the fault was
    return line


def kinds(job: Cluster) -> set[str]:
    """The kinds of events that the hosts recorded."""
    return {event["kind"] for event in events(job)}
