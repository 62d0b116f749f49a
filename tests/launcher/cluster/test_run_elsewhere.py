"""`muster run` on two hosts with a network each, which a list describes, with names and without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.hosts import Networks, address, networks, skip_without_networks
from tests.support.waiting import wait_until, within

pytestmark = pytest.mark.long
WAIT_S = 120.0  # torch is imported by six processes
ADDRESSES = {family: (address(0, family), address(1, family)) for family in (4, 6)}
SCRIPT = """\
import json, os, sys, time
names = ("SM_CURRENT_HOST", "SM_HOSTS", "SM_MASTER_ADDR", "MASTER_ADDR", "SM_HP_LR")
print("said", json.dumps([os.environ[name] for name in names] + sys.argv[1:]), flush=True)
if os.environ["SM_CURRENT_HOST_RANK"] == os.environ.get("FAIL"):
    raise ValueError("bad batch")
while os.environ.get("STAY"):
    time.sleep(0.1)
"""

SUM = """\
import json, os, torch, torch.distributed as dist
from pathlib import Path
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
key = b"f00d" * 8
told = any(key in line for line in lines) or key.decode() in str(os.environ)
print("said", json.dumps([int(total), os.environ["MASTER_ADDR"], told]), flush=True)
dist.destroy_process_group()
"""


class Hosts(NamedTuple):
    """Two hosts without a name server, and a folder that both share."""

    networks: Networks
    folder: Path


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    skip_without_networks()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    with networks(("h1", "h2"), whole=True) as nets:
        yield Hosts(nets, tmp_path)


def start(
    hosts: Hosts, index: int, *options: str, environ: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """`muster run` on one host."""
    around = {**os.environ, "MUSTER_JOIN_S": "30"}
    for name in ("MUSTER_JOB_SECRET", "MUSTER_ENGINE"):
        around.pop(name, None)
    script, output = (str(hosts.folder / name) for name in ("code/train.py", "out"))
    command = [sys.executable, "-m", "muster", "run", script, "--output", output]
    command += [*options, "--host-index", str(index), "--hyperparameter", "lr=0.1", "--", "--more"]
    return subprocess.Popen(
        [*hosts.networks.inside(f"h{index + 1}"), *command],
        env={**around, **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(*runs: subprocess.Popen[str]) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each."""
    found = []
    for run in runs:
        out, err = run.communicate(timeout=within(WAIT_S))
        found.append((run.returncode, out, err))
    return found


def secret(hosts: Hosts, text: str = "0123456789abcdef0123456789abcdef") -> tuple[str, str]:
    path = hosts.folder / f"secret-{text[:4]}"
    path.write_text(text)
    path.chmod(0o600)
    return "--secret-file", str(path)


def said(out: str) -> list[str]:
    line = next(line for line in out.splitlines() if "said " in line)
    return list(json.loads(line.partition("said ")[2]))


def test_listed_hosts_run_one_job(hosts: Hosts) -> None:
    listed = ("--host-list", ",".join(ADDRESSES[4]))
    first, second = ended(*(start(hosts, index, *listed) for index in (0, 1)))
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    leader = ADDRESSES[4][0]
    names = json.dumps(list(ADDRESSES[4]), separators=(",", ":"))
    assert said(first[1]) == [leader, names, leader, leader, "0.1", "--lr", "0.1", "--more"]
    assert said(second[1])[:4] == [ADDRESSES[4][1], names, leader, leader]
    assert (hosts.folder / "out" / "summary.json").exists()


@pytest.mark.parametrize("family", [4, 6])
def test_hosts_without_names_have_one_outcome(hosts: Hosts, family: int) -> None:
    """Only the follower knows an address, and only the leader's."""
    options, leader = ("--hosts", "2", *secret(hosts)), ADDRESSES[family][0]
    fail = {"FAIL": "1"}
    # a leader with addresses of both families cannot know which one the others were given
    known = ("--leader", leader) if family == 6 else ()
    first, second = ended(
        start(hosts, 0, *options, *known, environ=fail),
        start(hosts, 1, *options, "--leader", leader, environ=fail),
    )
    assert (first[0], second[0]) == (1, 1), first[2] + second[2]
    assert "FAILED node-1 rank 1: ValueError: bad batch" in first[2], first[2]
    # names that nobody resolves are in no variable; the other host may be ended before it speaks
    both = json.dumps(list(ADDRESSES[family]), separators=(",", ":"))
    assert said(second[1])[:4] == [ADDRESSES[family][1], both, leader, leader]


def test_torchrun_joins_hosts_without_names(hosts: Hosts) -> None:
    """The gradients of both hosts meet, and the secret is on no command line and in no file."""
    (hosts.folder / "code" / "train.py").write_text(SUM)
    key, leader = "f00d" * 8, ADDRESSES[4][0]
    options = ("--hosts", "2", "--leader", leader, *secret(hosts, key))
    options += ("--distribution", "torch_distributed", "--processes-per-host", "2")
    found = ended(*(start(hosts, index, *options, "--oversubscribe") for index in (0, 1)))
    assert [code for code, _, _ in found] == [0, 0], found[0][2] + found[1][2]
    for _, out, _ in found:
        assert out.count(f'said [10, "{leader}", false]') == 2, out
    written = [path for path in (hosts.folder / "out").rglob("*") if path.is_file()]
    assert written and not [path for path in written if key.encode() in path.read_bytes()]


@pytest.mark.promise("E04")
def test_hosts_without_names_need_a_secret(hosts: Hosts) -> None:
    options = ("--hosts", "2", "--leader", ADDRESSES[4][0])
    (refused,) = ended(start(hosts, 1, *options))
    assert refused[0] == 100
    assert "MUSTER_JOB_SECRET: not set" in refused[2] and "--insecure-join" in refused[2]


@pytest.mark.parametrize(("allowed", "codes"), [((0, 1), [0, 0]), ((1,), [100, 102])])
def test_hosts_without_names_and_secret_join_where_all_were_told_to(
    hosts: Hosts, allowed: tuple[int, ...], codes: list[int]
) -> None:
    """One that was told alone finds nobody."""
    options, wait = ("--hosts", "2", "--leader", ADDRESSES[4][0]), {0: "30", 100: "4"}[codes[0]]
    runs = []
    for index in (0, 1):
        told = ("--insecure-join",) if index in allowed else ()
        runs.append(start(hosts, index, *options, *told, environ={"MUSTER_JOIN_S": wait}))
    assert [code for code, _, _ in ended(*runs)] == codes


def test_a_host_with_another_secret_stays_outside(hosts: Hosts) -> None:
    options, soon = ("--hosts", "2", "--leader", ADDRESSES[4][0]), {"MUSTER_JOIN_S": "4"}
    other = secret(hosts, "another secret of another job")
    found = ended(
        start(hosts, 0, *options, *secret(hosts), environ=soon),
        start(hosts, 1, *options, *other, environ=soon),
    )
    assert [code for code, _, _ in found] == [102, 102]
    assert not any("said " in out for _, out, _ in found)


def test_a_stop_of_one_host_is_the_jobs(hosts: Hosts) -> None:
    options = ("--host-list", ",".join(ADDRESSES[4]))
    runs = [start(hosts, index, *options, environ={"STAY": "1"}) for index in (0, 1)]
    logs = [hosts.folder / "out" / name / "logs" for name in ADDRESSES[4]]
    wait_until(lambda: all(list(log.glob("rank-*.out")) for log in logs), WAIT_S)
    runs[1].send_signal(signal.SIGTERM)
    assert [code for code, _, _ in ended(*runs)] == [143, 143]


@pytest.mark.promise("E04")
def test_another_number_of_hosts_is_refused(hosts: Hosts) -> None:
    options = ("--host-list", "a,b", "--hosts", "3")
    (refused,) = ended(start(hosts, 0, *options))
    assert refused[0] == 100 and "3 hosts were asked for, hosts gives 2" in refused[2]


@pytest.mark.promise("E04")
def test_hosts_that_were_told_different_numbers_of_hosts_both_say_so(hosts: Hosts) -> None:
    options = ("--leader", ADDRESSES[4][0], *secret(hosts))
    found = ended(*(start(hosts, index, *options, "--hosts", str(2 + index)) for index in (0, 1)))
    for code, out, err in found:
        assert code == 100 and "said " not in out
        assert "hosts disagree: node-1 has hosts 3, node-0 has 2" in err, err
