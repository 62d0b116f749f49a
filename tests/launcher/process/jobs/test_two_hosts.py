"""Several hosts without a distribution: join, ready barrier, first failure, stop, end."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest

from tests.launcher.support.cluster import Cluster, lines
from tests.launcher.support.events import events_in
from tests.launcher.support.records import WAIT_SHOWN, ended, keep_record
from tests.launcher.support.sabotage import train_after
from tests.support.mltree import TWO_HOSTS
from tests.support.waiting import wait_until

Make = Callable[..., Cluster]

RENDEZVOUS = (
    "import os, json\n"
    "keys = ['MASTER_ADDR', 'MASTER_PORT', 'GLOO_SOCKET_IFNAME', 'RANK', 'WORLD_SIZE',\n"
    "        'SM_CURRENT_HOST', 'MUSTER_JOB_SECRET']\n"
    "print(json.dumps({k: os.environ.get(k) for k in keys}))\n"
)
FAILS_ON_SECOND = (
    "import os, sys, time\n"
    "if os.environ['SM_CURRENT_HOST'] == 'algo-2':\n"
    "    time.sleep(0.3)\n"
    "    raise ValueError('bad batch')\n"
    "print('waiting', flush=True)\n"
    "time.sleep(600)\n"
)


@pytest.mark.clock
@pytest.mark.promise("F33")
def test_a_job_that_does_nothing_ends_within_three_seconds(cluster: Make) -> None:
    job = cluster(RENDEZVOUS)
    began = time.monotonic()
    results = job.run()
    assert time.monotonic() - began < 3
    for name, result in results.items():
        assert (result.code, result.success) == (0, True), result.err
        seen = json.loads(result.out)
        assert seen == {
            "MASTER_ADDR": job.addresses["algo-1"],
            "MASTER_PORT": str(job.ports[1]),
            "GLOO_SOCKET_IFNAME": "lo",
            "RANK": None,
            "WORLD_SIZE": None,
            "SM_CURRENT_HOST": name,
            "MUSTER_JOB_SECRET": None,
        }


@pytest.mark.promise("F31")
def test_a_failure_on_a_follower_is_the_same_on_every_host(cluster: Make) -> None:
    job = cluster(FAILS_ON_SECOND, hosts=3)
    results = job.run(limit_s=20)
    expected = "UserScriptError: ValueError: bad batch (algo-2 rank 1, exit code 1)"
    assert {result.first_line for result in results.values()} == {expected}
    assert {result.code for result in results.values()} == {1}
    # the leader's block is the last thing on its screen
    assert results["algo-1"].err.rstrip().splitlines()[-1] == "exit code 1"
    assert "FAILED algo-2 rank 1: ValueError: bad batch" in results["algo-1"].err
    assert "2 ranks were stopped by muster" in results["algo-1"].err


@pytest.mark.promise("F09")
def test_an_exit_code_of_a_follower_is_every_host_s(cluster: Make) -> None:
    script = (
        "import os, sys, time\n"
        "if os.environ['SM_CURRENT_HOST'] == 'algo-2':\n    sys.exit(42)\n"
        "time.sleep(600)\n"
    )
    results = cluster(script).run(limit_s=20)
    assert {r.code for r in results.values()} == {42}
    assert {r.first_line for r in results.values()} == {
        "UserScriptError: exit(42) without an error message (algo-2 rank 1, exit code 42)"
    }


def test_a_culprit_that_exits_after_its_victims_is_still_named(cluster: Make) -> None:
    """Evidence decides, not the order of exits (protocol.md, Failures)."""
    script = (
        f"import os, socket, sys, time, traceback\n{WAIT_SHOWN}"
        "if os.environ['SM_CURRENT_HOST'] == 'algo-2':\n"
        "    try:\n        raise ValueError('the cause')\n"
        "    except ValueError:\n        traceback.print_exc()\n"
        "    wait_ended(0)\n"
        "    os._exit(1)\n"
        "wait_shown('algo-2', 1, 'ValueError: the cause')\n"
        "raise RuntimeError('[gloo/transport/tcp/pair.cc:547] Connection closed by peer')\n"
    )
    job = cluster(script)
    keep_record(job)
    results = job.run(limit_s=60)
    assert {r.first_line for r in results.values()} == {
        "UserScriptError: ValueError: the cause (algo-2 rank 1, exit code 1)"
    }
    assert ended(job) == [0, 1]


def report_progress_often() -> None:
    from muster.run.job import coordinator

    coordinator.PROGRESS_S = 0.3


@pytest.mark.promise("F20")
def test_a_late_host_is_waited_for_and_named(cluster: Make) -> None:
    job = cluster(RENDEZVOUS)
    job.start("algo-1", command=train_after(report_progress_often))
    wait_until(
        lambda: (
            len(lines(job.text("algo-1", "err"), "WARNING job waiting for algo-2 to join")) >= 3
        ),
        20,
        lambda: job.story("not named again and again"),
    )
    job.start("algo-2")
    assert {r.code for r in job.wait(20).values()} == {0}


@pytest.mark.promise("F20")
def test_a_late_leader_is_waited_for_and_named(cluster: Make) -> None:
    job = cluster(RENDEZVOUS)
    job.environ["MUSTER_RUN_DIR"] = str(job.folder / "run")
    job.start("algo-2")
    job.wait_for("algo-2", "looking for the leader algo-1", "err")
    delay_s = 1.0  # the fault
    since = time.monotonic()
    wait_until(lambda: time.monotonic() - since >= delay_s, 2 * delay_s)
    assert job.processes["algo-2"].poll() is None, job.story("it did not wait")
    job.start("algo-1")
    assert {r.code for r in job.wait(20).values()} == {0}
    summary = json.loads((job.folder / "run" / "summary.json").read_text())
    assert summary["phases"]["algo-2"]["join"] >= delay_s


@pytest.mark.promise("F21")
def test_a_host_that_never_comes_ends_the_job_at_the_join_limit(cluster: Make) -> None:
    job = cluster(RENDEZVOUS, hosts=3, environ={"MUSTER_JOIN_S": "6"})  # two must meet
    job.start("algo-1", "algo-2")
    results = job.wait(30)
    assert {r.code for r in results.values()} == {102}
    assert {r.first_line for r in results.values()} == {
        "ClusterError: algo-3 did not join within 6 s (2 of 3 present)"
    }


def test_a_leader_that_never_comes_is_named(cluster: Make) -> None:
    job = cluster(RENDEZVOUS, environ={"MUSTER_JOIN_S": "1"})
    job.start("algo-2")
    result = job.wait(10)["algo-2"]
    assert result.code == 102
    assert result.first_line.startswith("ClusterError: the leader algo-1 could not be joined")
    assert "refused" in result.first_line


@pytest.mark.clock
@pytest.mark.promise("F01")
@pytest.mark.parametrize("host", ["algo-1", "algo-2"])
def test_a_stop_on_one_host_reaches_the_ranks_of_all_within_two_seconds(
    cluster: Make, host: str
) -> None:
    script = (
        "import signal, sys, time\n"
        "def stop(*_):\n    print('told', flush=True)\n    time.sleep(0.2)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\nprint('ready', flush=True)\ntime.sleep(600)\n"
    )
    job = cluster(script, hosts=3)
    job.start_until("ready")
    job.signal(host)
    for name in job.names:
        job.wait_for(name, "told", limit_s=2)
    results = job.wait(10)
    assert {(r.code, r.failure) for r in results.values()} == {(143, "")}


def test_ranks_that_fail_during_a_stop_do_not_change_it(cluster: Make) -> None:
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )
    job = cluster(script)
    job.start_until("ready")
    job.signal("algo-2")
    assert {(r.code, r.failure) for r in job.wait(10).values()} == {(143, "")}


@pytest.mark.promise("F27")
def test_a_host_that_dies_is_named_by_the_survivors(cluster: Make) -> None:
    waits = "print('ready', flush=True)\nimport time; time.sleep(600)\n"
    job = cluster(waits, hosts=3, environ={"MUSTER_FINISH_S": "600"})  # it is not waited for
    job.start_until("ready")
    job.processes["algo-3"].kill()
    results = job.wait(20)
    for name in ("algo-1", "algo-2"):
        assert results[name].code == 102
        assert results[name].first_line.startswith("PeerError: lost algo-3 (")


def test_a_leader_that_dies_is_named_by_the_followers(cluster: Make) -> None:
    job = cluster("print('ready', flush=True)\nimport time; time.sleep(600)\n", hosts=3)
    job.start_until("ready")
    job.processes["algo-1"].kill()
    results = job.wait(20)
    for name in ("algo-2", "algo-3"):
        assert results[name].code == 102
        assert results[name].first_line == "PeerError: lost algo-1 (its port is closed)"


def test_bad_input_on_one_host_ends_all_with_its_message(cluster: Make) -> None:
    job = cluster(RENDEZVOUS)
    base = job.base("algo-2")
    (base / "input" / "config" / "hyperparameters.json").write_text('{"sagemaker_program": "x.py",')
    results = job.run(limit_s=15)
    assert {r.code for r in results.values()} == {100}
    assert {r.first_line for r in results.values()} == {results["algo-2"].first_line}
    assert "invalid JSON at line 1" in results["algo-1"].first_line


@pytest.mark.clock
def test_bad_input_on_every_host_ends_within_two_seconds(cluster: Make) -> None:
    job = cluster(RENDEZVOUS, hyperparameters={"sagemaker_mpi_enabled": "yes"})
    began = time.monotonic()
    results = job.run(limit_s=15)
    assert {r.code for r in results.values()} == {100}
    assert time.monotonic() - began < 2


@pytest.mark.promise("F24")
def test_hosts_that_disagree_are_told_apart(cluster: Make) -> None:
    job = cluster(RENDEZVOUS, hyperparameters={"lr": "0.1"})
    config = job.base("algo-2") / "input" / "config" / "hyperparameters.json"
    config.write_text(json.dumps({"sagemaker_program": "train.py", "lr": "0.2"}))
    results = job.run(limit_s=15)
    assert {r.code for r in results.values()} == {100}
    for result in results.values():
        assert "hosts disagree: algo-2 has hyperparameters" in result.first_line


@pytest.mark.promise("F24")
def test_hosts_with_different_code_are_told_apart_before_a_rank_runs(cluster: Make) -> None:
    job = cluster("print('ran')\n")
    (job.base("algo-2") / "code" / "train.py").write_text("print('ran otherwise')\n")
    results = job.run(limit_s=15)
    assert {(r.code, r.out) for r in results.values()} == {(100, "")}
    (line,) = {r.first_line for r in results.values()}
    told = (
        "hosts disagree: algo-2 has code ([0-9a-f]{12}), algo-1 has code ([0-9a-f]{12})(?![0-9a-f])"
    )
    found = re.search(told, line)
    assert found, line
    assert found[1] != found[2]


def test_a_host_outside_the_distribution_keeps_the_job_alive(cluster: Make) -> None:
    groups = [
        {"instance_group_name": "gpu", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
        {"instance_group_name": "data", "instance_type": "ml.c5.xlarge", "hosts": ["algo-2"]},
    ]
    script = (
        "import os, sys, time\n"
        "helper = os.environ['SM_CURRENT_HOST'] == 'algo-2'\n"
        "time.sleep(0.5 * helper)\nprint('end')\nsys.exit(9 * helper)\n"
    )
    job = cluster(script, resources={"instance_groups": groups, "current_group_name": "gpu"})
    results = job.run(limit_s=15)
    assert {r.code for r in results.values()} == {9}
    assert lines(results["algo-1"].out, "end")


def test_the_record_tells_the_run(cluster: Make) -> None:
    job = cluster("print('out')\nimport sys; print('err', file=sys.stderr)", environ={})
    job.environ["MUSTER_RUN_DIR"] = str(job.folder / "run")
    job.run()
    run = job.folder / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["schema"] == 1
    assert summary["outcome"]["result"] == "Succeeded"
    assert [(r["host"], r["rank"], r["status"]) for r in summary["ranks"]] == [
        ("algo-1", 0, 0),
        ("algo-2", 1, 0),
    ]
    events = events_in(run)
    for name in TWO_HOSTS["hosts"]:  # type: ignore[attr-defined]
        kinds = [event["kind"] for event in events if event["host"] == name]
        assert {"phase", "plan", "rank_started", "rank_ended", "outcome"} <= set(kinds)
        assert ("clock" in kinds) == (name == "algo-2")
        assert (run / name / "logs").is_dir()
    assert (run / "algo-2" / "logs" / "rank-1.out").read_text() == "out\n"
    assert (run / "algo-2" / "logs" / "rank-1.err").read_text() == "err\n"
    plans = [event for event in events if event["kind"] == "plan"]
    assert [event["ranks"] for event in plans] == [{"algo-1": "0", "algo-2": "1"}] * 2
    assert {event["digest"] for event in plans} == {summary["plan"]["digest"]}
    clock = next(event for event in events if event["kind"] == "clock")
    assert abs(clock["offset_s"]) <= clock["round_trip_s"] < 1  # both hosts have one clock


@pytest.mark.promise("F32")
def test_every_rank_that_failed_is_recorded_once_by_the_leaders_clock(cluster: Make) -> None:
    script = (
        "import os, time\nif os.environ['SM_CURRENT_HOST'] == 'algo-2': raise ValueError('x')\n"
    )
    job = cluster(script + "time.sleep(60)", environ={"MUSTER_REPORT_ACK_S": "1"})
    job.environ["MUSTER_RUN_DIR"] = str(job.folder / "run")
    job.run()
    events = events_in(job.folder / "run")
    (failure,) = (event for event in events if event["kind"] == "failure")
    (ended,) = (event for event in events if event["kind"] == "rank_ended" and event["status"] == 1)
    assert (failure["host"], failure["rank"], failure["status"]) == ("algo-2", 1, 1)
    assert failure["summary"] == "ValueError: x"
    assert abs(failure["at_s"] - ended["t"]) < 1


def test_figures_of_all_ranks_reach_the_summary(cluster: Make) -> None:
    script = (
        "import json, os, time\n"
        "import muster\n"
        "folder = os.environ['COLLECTIVES_SUMMARY_DIR']\n"
        "assert folder == os.environ['COLLECTIVES_FLIGHT_DIR']\n"
        "if os.environ['SM_CURRENT_HOST'] == 'algo-2':\n"
        "    os.makedirs(folder)\n"
        "    with open(folder + '/collectives-world-1-x.json', 'w') as file:\n"
        "        json.dump({'global_ranks': [0, 1], 'rank': 1, 'wait_s': 0.5}, file)\n"
        "for step in range(8):\n"
        "    muster.metrics(step=step, loss=1.0)\n"
        "while time.process_time() < 1.5: pass\n"  # longer than it takes to be looked at
    )
    job = cluster(script)
    job.environ["MUSTER_RUN_DIR"] = str(job.folder / "run")
    assert {result.code for result in job.run().values()} == {0}
    summary = json.loads((job.folder / "run" / "summary.json").read_text())
    one, two = (rank["figures"] for rank in summary["ranks"])
    for figures in (one, two):
        assert 1.4 < figures["cpu_s"] < 10
        assert figures["peak_memory_bytes"] > 1 << 20
        assert figures["steps"] == 7
    assert (one["waits_s"], two["waits_s"]) == (None, 0.5)
    assert summary["figures_left_out"] == {}


def see_with_a_defect() -> None:
    from muster.run.job.figures import Figures

    def fails(*_args: object) -> None:
        raise AssertionError("a defect")

    Figures._gather = fails  # type: ignore[method-assign]


def test_a_defect_of_what_gathers_figures_harms_no_job(cluster: Make) -> None:
    job = cluster("pass", hosts=1)
    job.environ["MUSTER_RUN_DIR"] = str(job.folder / "run")
    job.start(job.names[0], command=train_after(see_with_a_defect))
    assert {result.code for result in job.wait(20).values()} == {0}
    assert "no figures of ranks: AssertionError" in job.text(job.names[0], "err")


def test_without_a_secret_the_listed_addresses_decide_who_may_join(cluster: Make) -> None:
    job = cluster(RENDEZVOUS)
    del job.environ["MUSTER_JOB_SECRET"]
    assert {r.code for r in job.run().values()} == {0}


@pytest.mark.promise("S03")
def test_without_a_secret_a_host_from_another_address_is_refused(cluster: Make) -> None:
    job = cluster(RENDEZVOUS, environ={"MUSTER_JOIN_S": "6"})  # one must be refused by then
    del job.environ["MUSTER_JOB_SECRET"]
    elsewhere = {**job.addresses, "algo-2": "127.9.9.77"}
    job.expect(apart=frozenset({"algo-2"}))
    job.start("algo-1")
    job.start("algo-2", environ={"MUSTER_HOST_ADDRESSES": json.dumps(elsewhere)})
    results = job.wait(30)
    assert {r.code for r in results.values()} == {102}
    assert "refused 127.9.9.77: it says it is algo-2" in results["algo-1"].err
