"""`parameter_server` and its relatives as jobs: who is started, told what, and ended when.

The frameworks are stand-ins; jobs of the real ones have tests of their own.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

import pytest

from tests.launcher.support.cluster import Cluster
from tests.launcher.support.stand_ins import framework_cluster, is_alive, said, task_of

Make = Callable[..., Cluster]

LED = """
    import tensorflow as tf
    config = json.loads(os.environ["TF_CONFIG"])
    task = config["task"]
    if task["type"] == "worker":
        tf.distribute.Server(config["cluster"], job_name="worker", task_index=task["index"],
                             protocol="grpc").join()
    say("chief")
    time.sleep(0.5)
"""


@pytest.mark.clock
@pytest.mark.slow
def test_idle_workers_of_tensorflow_are_ended_after_their_chief_and_servers_with_the_job(
    cluster: Make,
) -> None:
    job = framework_cluster(cluster, LED, "tensorflow", hosts=3)
    began = time.monotonic()
    results = job.run(limit_s=40)
    took = time.monotonic() - began
    assert {r.code for r in results.values()} == {0}, job.story("failed")
    assert all(r.success for r in results.values())
    (chief,) = said(results["algo-1"].out, "chief")
    assert task_of(chief) == ("chief", 0)
    told = [one for r in results.values() for one in said(r.out, "serving")]
    served = sorted((one["role"], one["number"]) for one in told)
    assert served == [("ps", 0), ("ps", 1), ("ps", 2), ("worker", 0), ("worker", 1)]
    for one in told:
        assert one["spec"] == json.loads(chief["env"]["TF_CONFIG"])["cluster"]
        assert (one["env"].get("CUDA_VISIBLE_DEVICES") == "-1") is (one["role"] == "ps")
        assert not is_alive(one["pid"])
    places = [place for places in told[0]["spec"].values() for place in places]
    assert len({place.rpartition(":")[2] for place in places}) == 6  # one machine, one port each
    assert "rank 1 does nothing since rank 0 has ended: it ends now" in results["algo-2"].err
    assert took < 12, took


AT_WORK = """
    import select, socket, subprocess, threading
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    burn = "import time\\nend = time.monotonic() + 4\\nwhile time.monotonic() < end: pass"

    def works():
        limit = time.monotonic() + 4
        while time.monotonic() < limit:
            sum(range(20_000))

    def uploads():
        "2 MB/s for 4 s, as an S3 client does it: next to no processor time, and the main thread "
        "waits for its own threads."
        with open("model.bin", "wb") as file:
            file.truncate(200_000)
        store = socket.create_server(("127.0.0.1", 0))

        def take():
            with store.accept()[0] as taken:
                while taken.recv(1 << 20):
                    pass

        def upload():
            with socket.create_connection(store.getsockname()) as sock:
                for _ in range(40):
                    with open("model.bin", "rb", buffering=0) as file:
                        sock.sendall(file.read())
                    time.sleep(0.1)

        threads = [threading.Thread(target=one) for one in (take, upload)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    ways = [
        lambda: time.sleep(4),
        lambda: select.select([], [], [], 4),
        lambda: subprocess.run(["sleep", "4"], check=True),
        lambda: subprocess.run([sys.executable, "-c", burn], check=True),
        works,
        uploads,
    ]
    if task["type"] == "worker":
        ways[task["index"]]()
        say("finished")
"""


@pytest.mark.promise("F65")
@pytest.mark.slow
def test_workers_that_work_on_after_their_chief_in_any_way_are_left_alone(cluster: Make) -> None:
    """Asleep, in poll, for a process that sleeps, for one that works, in Python, in threads."""
    environ = {"MUSTER_IDLE_S": "1"}
    job = framework_cluster(cluster, AT_WORK, "tensorflow", hosts=7, environ=environ)
    job.expect(code_writes=("model.bin",))
    results = job.run(limit_s=60)
    assert {r.code for r in results.values()} == {0}, job.story("failed")
    assert [len(said(r.out, "finished")) for r in results.values()] == [0, *[1] * 6]
    assert "ranks that do nothing more end" in results["algo-2"].err
    assert not [r for r in results.values() if "it ends now" in r.err]


@pytest.mark.promise("F65")
def test_without_a_limit_no_worker_is_ended(cluster: Make) -> None:
    script = """
        import threading
        if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "worker":
            thread = threading.Thread(target=time.sleep, args=(8,))
            thread.start()
            thread.join()
            say("finished")
    """
    job = framework_cluster(cluster, script, "tensorflow", environ={"MUSTER_IDLE_S": "0"})
    results = job.run(limit_s=60)
    assert {r.code for r in results.values()} == {0}, job.story("failed")
    assert len(said(results["algo-2"].out, "finished")) == 1


def test_a_worker_that_fails_by_itself_after_its_chief_fails_the_job(cluster: Make) -> None:
    script = """
        if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "worker":
            time.sleep(3)
            raise ValueError("late")
    """
    results = framework_cluster(cluster, script, "tensorflow").run(limit_s=40)
    assert {(r.code, r.first_line) for r in results.values()} == {
        (1, "UserScriptError: ValueError: late (algo-2 rank 1, exit code 1)")
    }


def test_an_idle_worker_that_does_not_obey_is_killed_and_the_job_succeeds(cluster: Make) -> None:
    script = """
        import signal
        if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "worker":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            say("serving")
            wait()
        time.sleep(1)
    """
    job = framework_cluster(cluster, script, "tensorflow", environ={"MUSTER_IDLE_S": "0.5"})
    results = job.run(limit_s=40)
    assert {r.code for r in results.values()} == {0}, job.story("failed")


def with_a_host_outside(cluster: Make, script: str, name: str, **options: object) -> Cluster:
    """A job of three hosts, of which algo-3 has no part in the distribution."""
    of_group = {"a": ["algo-1", "algo-2"], "b": ["algo-3"]}
    groups = [
        {"instance_group_name": group, "instance_type": "ml.c5", "hosts": hosts}
        for group, hosts in of_group.items()
    ]
    job = framework_cluster(
        cluster,
        script,
        name,
        hosts=3,
        hyperparameters={"sagemaker_distribution_instance_groups": '["a"]'},
        resources={"current_group_name": "a", "instance_groups": groups},
        **options,
    )
    path = job.base("algo-3") / "input" / "config" / "resourceconfig.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "current_group_name": "b"}))
    return job


def test_hosts_outside_the_distribution_run_the_script_once_to_its_own_end(cluster: Make) -> None:
    script = """
        if "TF_CONFIG" in os.environ:
            say("member")
            if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "worker":
                wait()
        else:
            time.sleep(6)
            say("helper")
    """
    job = with_a_host_outside(cluster, script, "tensorflow", environ={"MUSTER_IDLE_S": "0.5"})
    results = job.run(limit_s=40)
    assert {r.code for r in results.values()} == {0}, job.story("failed")
    assert len(said(results["algo-3"].out, "helper")) == 1
    assert [task_of(one) for r in results.values() for one in said(r.out, "member")] == [
        ("chief", 0),
        ("worker", 0),
    ]
    assert not said(results["algo-3"].out, "serving")
    assert "running the script once each: algo-3" in results["algo-1"].err


@pytest.mark.parametrize("name", ["mxnet", "pytorch"])
def test_a_host_outside_has_no_role_and_no_server_and_the_others_do_not_count_it(
    cluster: Make, name: str
) -> None:
    """The members wait until the helper has ended: it is no part of them and may end first."""
    script = """
        if "DMLC_ROLE" in os.environ or "PARAMETER_SERVER_ADDRESSES" in os.environ:
            say("member")
            while not os.path.exists("go"):
                time.sleep(0.02)
        else:
            say("helper")
    """
    job = with_a_host_outside(cluster, script, name)
    job.expect(code_writes=("go",))
    job.start()
    job.wait_for("algo-3", "helper")
    for host in ("algo-1", "algo-2"):
        job.wait_for(host, "member")
        (job.base(host) / "code" / "go").touch()
    results = job.wait(20)
    assert {r.code for r in results.values()} == {0}, job.story("failed")
    assert not said(results["algo-3"].out, "serving") + said(results["algo-3"].out, "member")
    (helper,) = said(results["algo-3"].out, "helper")
    assert not [v for v in helper["env"] if v.startswith(("DMLC_", "PARAMETER_SERVER_"))]
    members = [one["env"] for r in results.values() for one in said(r.out, "member")]
    servers = [one for r in results.values() for one in said(r.out, "serving")]
    assert [one["role"] for one in servers].count("server") == 2
    if name == "mxnet":
        counts = {(env["DMLC_NUM_WORKER"], env["DMLC_NUM_SERVER"]) for env in members}
        assert counts == {("2", "2")}
    else:
        assert {env["WORLD_SIZE"] for env in members} == {"2"}
        for env in members:
            places = [p.rpartition(":")[0] for p in env["PARAMETER_SERVER_ADDRESSES"].split(",")]
            assert places == [job.addresses["algo-1"], job.addresses["algo-2"]]


def test_mirrored_workers_know_one_another(cluster: Make) -> None:
    job = framework_cluster(
        cluster, 'say("worker")', "tensorflow", option="multi_worker_mirrored_strategy"
    )
    results = job.run(limit_s=20)
    assert {r.code for r in results.values()} == {0}, job.story("failed")
    told = [one for r in results.values() for one in said(r.out, "worker")]
    assert [task_of(one) for one in told] == [("worker", 0), ("worker", 1)]
    first = int(job.environ["MUSTER_WORKER_PORT"])
    assert json.loads(told[0]["env"]["TF_CONFIG"])["cluster"] == {
        "worker": [f"{job.addresses[n]}:{first + i}" for i, n in enumerate(job.names)]
    }


@pytest.mark.parametrize("hosts", [1, 2])
def test_mxnet_has_its_three_roles(cluster: Make, hosts: int) -> None:
    job = framework_cluster(cluster, 'import mxnet\nsay("worker")\ntime.sleep(1)', "mxnet", hosts)
    results = job.run(limit_s=20)
    assert {r.code for r in results.values()} == {0}, job.story("failed")
    roles = {n: sorted(o["role"] for o in said(r.out, "serving")) for n, r in results.items()}
    assert (
        roles == {"algo-1": ["scheduler", "server"], "algo-2": ["server"]}
        if hosts == 2
        else {"algo-1": ["scheduler", "server"]}
    )
    root = job.addresses["algo-1"] if hosts > 1 else "127.0.0.1"
    for result in results.values():
        for one in [*said(result.out, "serving"), *said(result.out, "worker")]:
            env = one["env"]
            assert env["DMLC_PS_ROOT_URI"] == root
            assert env["DMLC_PS_ROOT_PORT"] == job.environ["MUSTER_PS_PORT"]
            assert env["DMLC_NUM_WORKER"] == env["DMLC_NUM_SERVER"] == str(hosts)
            assert env["DMLC_INTERFACE"] == "lo"
            assert not is_alive(one["pid"])


CONNECTS = """
    import socket
    for place in os.environ["PARAMETER_SERVER_ADDRESSES"].split(","):
        address, _, port = place.rpartition(":")
        limit = time.monotonic() + 20
        while time.monotonic() < limit:
            try:
                socket.create_connection((address, int(port)), timeout=5).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        else:
            raise TimeoutError(place)
    say("connected")
"""


@pytest.mark.promise("S08")
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.slow
def test_pytorch_s_servers_and_ranks_share_addresses_and_a_key_that_nobody_else_sees(
    cluster: Make, hosts: int
) -> None:
    keys = set()
    for _ in range(2):
        job = framework_cluster(
            cluster,
            CONNECTS + "    print(os.environ['PARAMETER_SERVER_KEY'], file=open('key', 'w'))\n",
            "pytorch",
            hosts,
            hyperparameters={"sagemaker_mpi_num_of_processes_per_host": "2"},
        )
        job.expect(code_writes=("key",))
        results = job.run(limit_s=30)
        assert {r.code for r in results.values()} == {0}, job.story("failed")
        told = [
            one
            for r in results.values()
            for word in ("serving", "connected")
            for one in said(r.out, word)
        ]
        assert len(told) == 3 * hosts
        keys |= {one["env"]["PARAMETER_SERVER_KEY"] for one in told}
        ranks = [one["env"] for one in told if "number" not in one]
        assert sorted(int(env["RANK"]) for env in ranks) == list(range(2 * hosts))
        assert {env["WORLD_SIZE"] for env in ranks} == {str(2 * hosts)}
        key = (job.base("algo-1") / "code" / "key").read_text().strip()
        written = [path for path in job.folder.rglob("*") if path.is_file() and path.name != "key"]
        assert any(path.name == "summary.json" for path in written)
        assert not [path for path in written if key.encode() in path.read_bytes()]
    assert len(keys) == 2
    assert all(one.startswith("64 ") for one in keys)


def test_a_key_that_a_failing_rank_shows_is_masked(cluster: Make) -> None:
    script = "raise ValueError('the key is ' + os.environ['PARAMETER_SERVER_KEY'])"
    results = framework_cluster(cluster, script, "pytorch").run(limit_s=20)
    (line,) = {r.first_line for r in results.values()}
    assert "ValueError: the key is ***" in line


def test_a_port_that_somebody_holds_is_named_with_its_variable(cluster: Make) -> None:
    job = framework_cluster(cluster, LED, "tensorflow")
    port = int(job.environ["MUSTER_PS_PORT"]) + 1
    with socket.create_server(("127.0.0.1", port)):
        results = job.run(limit_s=20)
    assert {r.code for r in results.values()} == {102}
    for result in results.values():
        assert f"port {port} (ps-1) is in use by PID" in result.first_line
        assert "MUSTER_PS_PORT" in result.failure
