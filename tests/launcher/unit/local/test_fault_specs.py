"""`--fault`: what can be written, what it means for a job, and who can be hit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.arguments import UsageError
from muster.local.faults.account import lines, saved_since
from muster.local.faults.injector import Injector, Landing
from muster.local.faults.means import Means, NotLandedError, Target
from muster.local.faults.plan import read_faults, settle
from muster.local.faults.processes import ProcessMeans
from muster.local.faults.spec import Fault, parse_fault
from muster.local.orders import HostOrder, Orders
from muster.local.record.runfolder import RunFolder
from tests.support.waiting import wait_until

HOSTS = ("algo-1", "algo-2", "algo-3")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("kill:rank=1@10s", {"kind": "kill", "rank": 1, "at_s": 10}),
        ("kill:host=algo-2@step=40", {"kind": "kill", "hosts": ("algo-2",), "at_step": 40}),
        ("kill:rank=0", {"kind": "kill", "rank": 0}),
        ("freeze:rank=1@5s+5s", {"kind": "freeze", "rank": 1, "at_s": 5, "lasts_s": 5}),
        ("freeze:host=algo-2+200ms", {"kind": "freeze", "hosts": ("algo-2",), "lasts_s": 0.2}),
        ("slow:rank=3:50%", {"kind": "slow", "rank": 3, "percent": 50}),
        ("slow:host=algo-1:5%@1.5s+2s", {"kind": "slow", "hosts": ("algo-1",), "percent": 5,
                                         "at_s": 1.5, "lasts_s": 2}),
        ("cut:algo-1/algo-2@5s+5s", {"kind": "cut", "hosts": ("algo-1", "algo-2"), "at_s": 5,
                                     "lasts_s": 5}),
        ("cut:algo-1/algo-3@step=4", {"kind": "cut", "hosts": ("algo-1", "algo-3"), "at_step": 4}),
        ("disk:algo-2@5s", {"kind": "disk", "hosts": ("algo-2",), "at_s": 5}),
        ("disk:host=algo-1+1s", {"kind": "disk", "hosts": ("algo-1",), "lasts_s": 1}),
        ("stop@30s", {"kind": "stop", "at_s": 30}),
        ("random:seed=7", {"kind": "random", "seed": 7}),
        ("random", {"kind": "random", "seed": -1}),
    ],
)  # fmt: skip
def test_a_fault_is_what_its_words_say(text: str, meant: dict[str, object]) -> None:
    assert parse_fault(text) == Fault(spec=text, **meant)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("klil:rank=1", "no fault is called 'klil', did you mean 'kill'?"),
        ("", "no fault is called ''"),
        ("kill", "whom it hits is missing"),
        ("kill:rnk=1", "expected rank=NUMBER or host=NAME, got 'rnk=1', did you mean 'rank'?"),
        ("kill:rank=-1", "expected rank=NUMBER or host=NAME"),
        ("kill:rank=", "expected rank=NUMBER or host=NAME"),
        ("kill:rank=1@10", "expected seconds such as 10s"),
        ("kill:rank=1@", "expected seconds such as 10s"),
        ("kill:rank=1@stpe=4", "expected @SECONDSs or @step=NUMBER, got @stpe=4, did you mean"),
        ("kill:rank=1@step=x", "expected @SECONDSs or @step=NUMBER"),
        ("kill:rank=1@1s+5s", "kill does not last"),
        ("kill:rank=1@1s@2s", "expected seconds such as 10s"),
        ("slow:rank=1", "expected the speed that is left"),
        ("slow:rank=1:100%", "expected the speed that is left, 1% to 99%, got '100%'"),
        ("slow:rank=1:50", "expected the speed that is left"),
        ("cut:algo-1", "expected two hosts"),
        ("cut:algo-1/algo-1", "expected two hosts"),
        ("disk:rank=1", "a disk is a host's: expected its name, got 'rank=1'"),
        ("disk@1s", "whom it hits is missing"),
        ("stop:rank=1", "stop is for the whole job"),
        ("random:sed=7", "expected random or random:seed=NUMBER"),
        ("random:seed=7@5s", "nothing may follow @"),
    ],
)
def test_what_is_no_fault_is_refused_with_what_may_stand_there(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        parse_fault(text)
    assert "for example" in refused.value.fix or "faults are kill" in refused.value.fix


@given(st.text(alphabet="kilfrezsowcutpandm:@+=%/.0123456789 -msé", max_size=40))
def test_whatever_is_written_is_a_fault_or_refused(text: str) -> None:
    try:
        fault = parse_fault(text)
    except UsageError:
        return
    assert parse_fault(fault.spec) == fault


@given(
    st.sampled_from(["freeze:rank=3", "slow:rank=3:20%", "cut:algo-1/algo-2"]),
    st.integers(0, 999_999),
    st.integers(0, 999_999_000),
)
def test_moments_and_lengths_are_read_to_the_millisecond(what: str, at_s: int, ms: int) -> None:
    fault = parse_fault(f"{what}@{at_s}s+{ms / 1000:.3f}s")
    assert (fault.at_s, fault.lasts_s) == (at_s, ms / 1000)


def test_hosts_that_the_job_has_not_are_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="the job has no host 'algo2', did you mean 'algo-2'"):
        read_faults(["kill:host=algo2@1s"], HOSTS)
    with pytest.raises(UsageError, match="the job has no host 'algo-9'"):
        read_faults(["cut:algo-1/algo-9"], HOSTS)


@pytest.mark.parametrize(
    ("text", "isolation", "said"),
    [
        ("cut:algo-1/algo-2", "process", "no network of their own"),
        ("cut:algo-1/algo-2", "docker", "cannot part two of 3 hosts"),
        ("disk:algo-1", "process", "filling it would fill yours"),
        ("disk:algo-1", "docker", "use --isolation netns"),
        ("kill:rank=6@1s", "netns", "the job has no rank 6"),
    ],
)
def test_what_hosts_cannot_suffer_is_refused(text: str, isolation: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        settle(read_faults([text], HOSTS), HOSTS, 6, True, isolation)
    assert said in f"{refused.value.message}; {refused.value.fix}"


def test_a_rank_may_exist_where_the_request_does_not_say_how_many() -> None:
    faults = read_faults(["kill:rank=6@1s"], HOSTS)
    assert settle(faults, HOSTS, 3, False, "process") == faults


@given(st.integers(0, 999_999_999), st.sampled_from(["process", "netns", "docker"]),
       st.integers(1, 3), st.integers(1, 4))  # fmt: skip
def test_a_seed_chooses_one_fault_that_the_job_can_suffer(
    seed: int, isolation: str, hosts: int, each: int
) -> None:
    names = HOSTS[:hosts]
    faults = read_faults([f"random:seed={seed}"], names)
    (chosen,) = settle(faults, names, hosts * each, True, isolation)
    assert settle(faults, names, hosts * each, True, isolation) == (chosen,)
    # what is printed repeats it
    printed = read_faults([chosen.spec], names)
    assert settle(printed, names, hosts * each, True, isolation) == (chosen,)
    assert 1 <= chosen.at_s <= 10 and chosen.kind != "random"


def test_seeds_reach_every_kind_of_fault() -> None:
    seeds = read_faults([f"random:seed={seed}" for seed in range(200)], HOSTS)
    kinds = {fault.kind for fault in settle(seeds, HOSTS, 6, True, "netns")}
    assert kinds == {"kill", "freeze", "slow", "cut", "stop"}


def test_a_process_of_somebody_else_is_never_hit() -> None:
    """The number that a rank had may be another's by now, or never have been ours."""
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleep) as supervisor, subprocess.Popen(sleep) as other:
        try:
            environ = {"MUSTER_INSTALL_TARGET": "/x"}
            host = HostOrder("algo-1", "127.0.0.1", (), environ, "/", "/", -1, -1)
            means = ProcessMeans(supervisor.pid, Orders("process", (host,)))
            for target in (Target("algo-1", 0, other.pid), Target("algo-1")):
                for action in (means.kill, means.freeze):
                    with pytest.raises(NotLandedError, match="had ended"):
                        action(target)
            means._signal(other.pid, signal.SIGKILL)
            assert other.poll() is None
        finally:
            supervisor.kill()
            other.kill()


class _Counted(Means):
    def __init__(self) -> None:
        self.did: list[str] = []

    def kill(self, target: Target) -> None:
        self.did.append(f"kill {target.in_words()}")

    def freeze(self, target: Target) -> None:
        self.did.append(f"freeze {target.in_words()}")

    def thaw(self, target: Target) -> None:
        self.did.append(f"thaw {target.in_words()}")


Inject = Callable[..., Injector]


@pytest.fixture
def inject(tmp_path: Path) -> Inject:
    """An injector for a job whose rank 0 runs on algo-1; its folder is `tmp_path`."""

    def start(text: str, means: Means, ended: Mapping[int, int] = {}) -> Injector:
        (tmp_path / "algo-1/metrics").mkdir(parents=True)
        event = {"t": time.monotonic(), "host": "algo-1", "rank": 0, "kind": "rank_started"}
        line = json.dumps({**event, "pid": 7, "world_size": 1})
        (tmp_path / "algo-1/events.jsonl").write_text(line + "\n")
        folder = RunFolder(str(tmp_path), "job", -1)
        faults = read_faults(text.split(), HOSTS[:2])
        made = Injector(faults, folder, HOSTS[:2], means, ended)
        made.start()
        return made

    return start


def test_a_fault_waits_for_the_step_that_its_rank_reports(inject: Inject, tmp_path: Path) -> None:
    means = _Counted()
    injector = inject("kill:rank=0@step=3", means)
    with (tmp_path / "algo-1/metrics/rank-0.jsonl").open("a") as file:
        print('{"step": 2}\n{"broken', file=file, flush=True)
        wait_until(lambda: injector._steps == {0: 2}, 5)
        assert not means.did
        print('{"step": "9"}\n{"step": 5}', file=file, flush=True)
        wait_until(lambda: means.did == ["kill rank 0 (pid 7) of algo-1"], 5)
    (report,) = injector.close()
    assert report.landed and report.text.endswith("after the ranks started, at step 5")
    assert '"kind": "fault"' in (tmp_path / "algo-1/events.jsonl").read_text()


def test_a_step_that_never_came_is_said_at_the_end(inject: Inject, tmp_path: Path) -> None:
    means = _Counted()
    (report,) = inject("kill:host=algo-1@step=3", means).close()
    assert not report.landed and not means.did
    assert report.text.startswith("never reached @step=3: no step was reported")


def test_a_rank_that_the_job_has_not_is_said(inject: Inject) -> None:
    injector = inject("kill:rank=4", _Counted())
    wait_until(lambda: bool(injector.said), 5)
    assert injector.said.popleft() == (
        "fault: kill:rank=4 did not land: there is no rank 4: the last one is 0"
    )
    injector.close()


def test_a_host_frozen_for_good_goes_on_once_it_is_the_last(inject: Inject) -> None:
    """Or the run would never end."""
    means = _Counted()
    injector = inject("freeze:host=algo-1", means, ended={1: 0})
    wait_until(lambda: means.did == ["freeze algo-1", "thaw algo-1"], 5)
    assert injector.close()[0].landed


def test_what_still_lasts_is_undone_at_the_end(inject: Inject) -> None:
    means = _Counted()
    injector = inject("freeze:rank=0", means)
    wait_until(lambda: bool(means.did), 5)
    injector.close()
    assert means.did == ["freeze rank 0 (pid 7) of algo-1", "thaw rank 0 (pid 7) of algo-1"]


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        ("slow:rank=0:60% freeze:rank=0", "rank 0 (pid 7) of algo-1 is slowed already by {}"),
        ("freeze:rank=0 slow:rank=0:60%", "rank 0 (pid 7) of algo-1 is frozen already by {}"),
        ("freeze:rank=0 freeze:rank=0", "rank 0 (pid 7) of algo-1 is frozen already by {}"),
        ("slow:host=algo-1:60% freeze:rank=0", "algo-1 is slowed already by {}"),
        ("slow:rank=0:60% freeze:host=algo-1", "rank 0 (pid 7) of algo-1 is slowed already by {}"),
        ("freeze:rank=0 freeze:host=algo-2", ""),
        ("slow:rank=0:60% slow:rank=0:60%", ""),
        ("slow:rank=0:60% slow:host=algo-1:60%", ""),
        ("freeze:rank=0 kill:rank=0", ""),
    ],
)
def test_what_would_undo_another_fault_does_not_land(inject: Inject, faults: str, why: str) -> None:
    """What is slow goes on all the time: it is not frozen, whatever is said of it."""
    injector = inject(faults, _Counted())
    wait_until(lambda: len(injector.said) == 2, 5)
    first, second = injector.close()
    assert first.landed and second.landed is not bool(why)
    assert not why or second.text == why.format(first.spec)


def test_means_that_fail_do_not_end_the_run(inject: Inject) -> None:
    class Broken(_Counted):
        def kill(self, target: Target) -> None:
            raise ValueError("defect")

    injector = inject("kill:rank=0", Broken())
    wait_until(lambda: bool(injector.said), 5)
    assert "did not land: muster failed: ValueError('defect')" in injector.said.popleft()
    assert not injector.close()[0].landed


def test_the_last_word_says_what_landed_what_was_said_and_what_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name, time_s in (("old.pt", 50), ("epoch-1.pt", 110), ("epoch-2.pt", 118.5)):
        (folder / name).write_text("x")
        os.utime(folder / name, (time_s, time_s))
    reports = [Landing("kill:rank=1@1s", True, "killed rank 1 1.0 s after", 10.0, 120.0),
               Landing("stop@9s", False, "the job ended before @9s")]  # fmt: skip
    outcome = {"t": 10.5, "host": "algo-1", "headline": "UserScriptError: killed\nmore"}
    assert lines(reports, outcome, 137, saved_since([str(folder)], 100)) == [
        "faults:",
        "  kill:rank=1@1s: killed rank 1 1.0 s after",
        "  stop@9s: did not land: the job ended before @9s",
        "  algo-1 said 0.5 s after the first fault: UserScriptError: killed",
        "  exit code 137",
        "  left of this run: checkpoints/epoch-2.pt, checkpoints/epoch-1.pt (2 files, the newest "
        "1.5 s before the fault)",
    ]
    assert lines([], None, 1, [])[-1] == "  no checkpoint and no model of this run is left"
