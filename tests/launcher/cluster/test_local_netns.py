"""`muster local` with hosts in namespaces: what a host sees, and that nothing stays behind.

Runs as root and, as an unprivileged user, rootless; skipped where the kernel does not allow it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from muster.local.hosts import why_not_isolated
from tests.launcher.support.local.local_runs import (
    SCRIPT,
    STUBBORN,
    Start,
    contents,
    facts_of,
    start,
)
from tests.launcher.support.local.unprivileged import (
    NOBODY,
    as_nobody,
    readable_python,
)
from tests.support.waiting import wait_until, within

__all__ = ["start"]
NETNS = ("--isolation", "netns")

LOOK = """\
import json, os, socket, subprocess, sys
def attempt(action):
    try:
        return str(action())
    except OSError as error:
        return type(error).__name__
facts = {
    "hostname": socket.gethostname(),
    "names": {name: socket.gethostbyname(name) for name in ("algo-1", "algo-2")},
    "init": os.path.basename(os.readlink("/proc/1/exe")).startswith("python"),
    "pids": len([name for name in os.listdir("/proc") if name.isdigit()]),
    "interfaces": sorted(name for _, name in socket.if_nameindex()),
    "sysfs": sorted(os.listdir("/sys/class/net")),
    "tmp": sorted(os.listdir("/tmp")),
    "shm": os.listdir("/dev/shm"),
    "ml": sorted(os.listdir("/opt/ml")),
    "base": os.environ["SM_MODEL_DIR"],
    "user": os.getuid(),
    "channel": open("/opt/ml/input/data/train/a.csv").read(),
    "write channel": attempt(lambda: open("/opt/ml/input/data/train/a.csv", "a")),
    "remove from channel": attempt(lambda: os.unlink("/opt/ml/input/data/train/a.csv")),
    "write interpreter": attempt(lambda: open(os.path.join(sys.prefix, "x"), "w")),
    "write etc": attempt(lambda: open("/etc/x", "w")),
    "write root": attempt(lambda: os.mkdir("/x")),
    "write home": open(os.path.expanduser("~/x"), "w").write("x"),
    "write opt": attempt(lambda: os.mkdir("/opt/x")),
    "outside": attempt(lambda: socket.create_connection(("192.0.2.1", 80), timeout=2)),
    "old": os.path.exists("/.old"),
}
open("/tmp/mine", "w").write("x")
open("/dev/shm/mine", "w").write("x")
print("facts " + json.dumps(facts), flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> None:
    reason = why_not_isolated(str(tmp_path_factory.mktemp("trial")))
    if reason:
        pytest.skip(f"this machine allows no namespaces: {reason}")


def fill(home: Path) -> None:
    (home / "src").mkdir()
    (home / "data").mkdir()
    (home / "data/a.csv").write_text("1,2\n")
    for name, text in (("train.py", SCRIPT), ("stubborn.py", STUBBORN), ("look.py", LOOK)):
        (home / "src" / name).write_text(text)


def check_facts(facts: dict[str, Any]) -> None:
    assert sorted(facts) == ["algo-1", "algo-2"]
    for host, seen in facts.items():
        assert seen["hostname"] == host
        assert seen["names"] == {"algo-1": "10.77.0.1", "algo-2": "10.77.0.2"}
        assert seen["init"], "train is PID 1"
        assert seen["pids"] < 10
        assert seen["interfaces"] == seen["sysfs"] == ["eth0", "lo"]
        assert "mine" not in seen["tmp"] + seen["shm"]
        assert seen["ml"] == ["checkpoints", "code", "input", "model", "output"]
        assert seen["base"] == "/opt/ml/model"
        assert seen["user"] == 0
        assert seen["channel"] == "1,2\n"
        assert seen["write home"] == 1
        assert seen["outside"] in ("OSError", "TimeoutError")
        assert not seen["old"]
        for action in ("write channel", "remove from channel", "write interpreter"):
            assert seen[action] in ("OSError", "PermissionError"), action
        for action in ("write etc", "write root", "write opt"):
            assert seen[action] in ("OSError", "PermissionError"), action


def test_a_host_sees_what_a_container_would(start: Start, home: Path) -> None:
    before = contents(home / "data"), contents(home / "src")
    there = links()
    result = start(home, ("src/look.py", "--hosts", "2", "--channel", "train=data", *NETNS)).wait()
    assert result.code == 0, result.err
    check_facts(facts_of(result.out))
    assert before == (contents(home / "data"), contents(home / "src"))
    new = links() - there  # also those of tests beside this one, which go
    wait_until(lambda: not new & links(), 60, lambda: f"left behind: {new & links()}")
    assert (result.folder / "algo-2/opt/ml/input/data/train").readlink() == home / "data"
    assert not Path("/tmp/mine").exists()


def links() -> set[str]:
    found = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    return {line.split(": ")[1] for line in found.splitlines()}


def test_namespaces_are_the_default(start: Start, home: Path) -> None:
    result = start(home, ("src/train.py", "--hosts", "2")).wait()
    assert result.code == 0, result.err
    assert result.summary["local"]["isolation"] == "netns"
    assert result.summary["plan"]["master_addr"] == "algo-1"
    assert (result.folder / "algo-2/opt/ml/model/model.txt").read_text() == "algo-2"


def test_hosts_share_the_folder_of_checkpoints_and_it_stays(start: Start, home: Path) -> None:
    (home / "src/saves.py").write_text(
        "import os\n"
        "name = '/opt/ml/checkpoints/' + os.environ['SM_CURRENT_HOST']\n"
        "print('found', sorted(os.listdir('/opt/ml/checkpoints')), flush=True)\n"
        "open(name, 'w').write('x')\n"
    )
    argv = ("src/saves.py", "--hosts", "2", "--checkpoint", "ckpt", *NETNS)
    for expected in (set(), {"algo-1", "algo-2"}):
        result = start(home, argv).wait()
        assert result.code == 0, result.err
        assert all(name in result.out for name in expected)
    assert sorted(path.name for path in (home / "ckpt").iterdir()) == ["algo-1", "algo-2"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
@pytest.mark.parametrize(
    "name", ["Ω 日本 é", b"not-utf8-\xff\xfe".decode(errors="surrogateescape")]
)
def test_a_mount_of_any_name_is_no_obstacle(start: Start, home: Path, name: str) -> None:
    place = home / name
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", os.fsencode(place)], check=True)
    try:
        result = start(home, ("src/train.py", *NETNS)).wait()
        assert result.code == 0, result.err
    finally:
        subprocess.run(["umount", "-l", os.fsencode(place)], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_it_works_without_root(nobodys_home: Path, start: Start) -> None:
    python = readable_python()
    argv = ("src/look.py", "--hosts", "2", "--channel", "train=data", *NETNS)
    result = start(nobodys_home, argv, wrapper=as_nobody(), python=python).wait()
    assert result.code == 0, result.err
    check_facts(facts_of(result.out))
    assert {path.stat().st_uid for path in result.folder.rglob("*")} == {NOBODY}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_killed_without_root_it_leaves_nothing(nobodys_home: Path, start: Start) -> None:
    argv = ("src/stubborn.py", "--hosts", "2", *NETNS)
    run = start(nobodys_home, argv, wrapper=as_nobody(), python=readable_python())
    run.wait_ready(2)
    run.signal(signal.SIGKILL)
    run.check_nothing_left()


@pytest.mark.parametrize("script", ["train.py", "stubborn.py"])
@pytest.mark.parametrize("victim", ["", "muster.local.supervisor"])
def test_killing_muster_local_or_its_holder_leaves_nothing(
    start: Start, home: Path, script: str, victim: str
) -> None:
    argv = (f"src/{script}", "--hosts", "2", "--hyperparameter", "seconds=600", *NETNS)
    run = start(home, argv)
    run.wait_ready(2)
    os.kill(min(run.alive(victim)) if victim else run.process.pid, signal.SIGKILL)
    run.check_nothing_left()


def test_an_interrupt_stops_the_scripts_in_time_and_leaves_nothing(
    start: Start, home: Path
) -> None:
    argv = ("src/train.py", "--hosts", "2", "--hyperparameter", "seconds=600", *NETNS)
    run = start(home, argv)
    run.wait_ready(2)
    began = time.monotonic()
    run.signal(signal.SIGINT)
    result = run.wait(10)
    assert time.monotonic() - began < within(5)
    assert result.code == 143, result.err
    assert result.out.count("checkpoint written") == 2
    run.check_nothing_left(limit_s=0)


def test_an_interrupt_while_hosts_start_is_not_lost(start: Start, home: Path) -> None:
    argv = ("src/train.py", "--hosts", "2", "--hyperparameter", "seconds=600", *NETNS)
    run = start(home, argv)
    wait_until(lambda: "isolation netns" in run.err, 10)
    wait_until(lambda: len(run.alive("muster\0train")) > 0, 10)  # PID 1 without a handler yet
    run.signal(signal.SIGINT)
    assert run.wait(8).code == 143
    run.check_nothing_left(limit_s=0)


def test_two_runs_with_the_same_names_and_addresses_stay_apart(start: Start, home: Path) -> None:
    argv = ("src/train.py", "--hosts", "2", "--hyperparameter", "seconds=1", *NETNS)
    first, second = start(home, argv), start(home, argv)
    results = first.wait(), second.wait()
    assert [result.code for result in results] == [0, 0], results[0].err + results[1].err
    assert results[0].summary["job"] != results[1].summary["job"]


def test_requirements_are_installed_before_the_hosts_lose_the_network(
    start: Start, home: Path
) -> None:
    make_wheel(home / "wheels", "quince", "1.0")
    (home / "src/requirements.txt").write_text(
        f"--no-index\n--find-links {home / 'wheels'}\nquince==1.0\n"
    )
    (home / "src/train.py").write_text("import quince; print('found', quince.__file__)\n")
    result = start(home, ("src/train.py", "--hosts", "2", *NETNS)).wait()
    assert result.code == 0, result.err
    for number in (1, 2):
        path = result.folder / f"algo-{number}/site/quince.py"
        assert f"[algo-{number}:{number - 1}] found {path}" in result.out
    assert result.err.count("Successfully installed") == 1


def make_wheel(folder: Path, name: str, version: str) -> None:
    folder.mkdir()
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")


def test_a_requirement_that_cannot_be_had_ends_the_run_with_101(start: Start, home: Path) -> None:
    (home / "src/requirements.txt").write_text("--no-index\nno-such-thing-anywhere==9\n")
    run = start(home, ("src/train.py", *NETNS))
    result = run.wait()
    assert result.code == 101
    assert "FAILED InstallError" in result.err
    assert result.summary["outcome"]["exit_code"] == 101
    run.check_nothing_left(limit_s=0)


def test_the_timeout_counts_while_requirements_are_installed(start: Start, home: Path) -> None:
    (home / "src/setup.py").write_text("import time; time.sleep(600)\n")
    run = start(home, ("src/train.py", "--timeout", "5", *NETNS))
    result = run.wait()
    assert result.code == 124, result.err
    last = result.err.rstrip().splitlines()[-1]
    assert last == "Stopped: --timeout 5 s reached (exit code 124)"
    assert result.summary["outcome"]["exit_code"] == 124
    run.check_nothing_left(limit_s=0)


WITHOUT_NETWORK_NAMESPACES = (
    *("unshare", "--user", "--map-root-user", "sh", "-c"),
    'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"',
    "sh",
)


def test_where_the_kernel_refuses_hosts_become_plain_processes(start: Start, home: Path) -> None:
    run = start(home, ("src/train.py", "--hosts", "2"), wrapper=WITHOUT_NETWORK_NAMESPACES)
    result = run.wait()
    assert result.code == 0, result.err
    assert "no namespaces here (unshare: the kernel's limit of namespaces" in result.err
    assert result.summary["local"]["isolation"] == "process"


def test_namespaces_that_were_asked_for_and_refused_are_a_usage_error(
    start: Start, home: Path
) -> None:
    run = start(home, ("src/train.py", *NETNS), wrapper=WITHOUT_NETWORK_NAMESPACES)
    result = run.wait()
    assert result.code == 2
    assert "--isolation netns is not possible here" in result.err
    assert not result.folder.exists()


CACHES = """\
import os, sys
home = os.path.expanduser("~")
hub = f"{home}/.cache/huggingface"
print("model", open(f"{hub}/model").read(), flush=True)
try:
    open(f"{hub}/{os.environ['SM_CURRENT_HOST']}", "w").close()
except OSError as error:
    print("read-only", error, flush=True)
built = f"{home}/.cache/torch_extensions/{os.environ['SM_CURRENT_HOST']}"
print("built before", os.path.exists(built), flush=True)
open(built, "w").close()
kernels = os.environ["TORCHINDUCTOR_CACHE_DIR"]
open(f"{kernels}/x", "w").close()
"""


def check_caches(start: Start, home: Path, **user: Any) -> None:
    (home / "src/caches.py").write_text(CACHES)
    hub = home / "me/.cache/huggingface"
    hub.mkdir(parents=True)
    (hub / "model").write_text("weights")
    for path in (home / "me", home / "me/.cache", hub, hub / "model"):
        os.chown(path, (home / "src").stat().st_uid, -1)
    argv = ("src/caches.py", "--hosts", "2", *NETNS)
    environ = {"HOME": str(home / "me"), "XDG_CACHE_HOME": ""}
    for built in ("False", "True"):
        result = start(home, argv, environ, **user).wait()
        assert result.code == 0, result.err
        assert result.out.count("model weights") == 2
        assert result.out.count(f"built before {built}") == 2
    assert os.listdir(hub) == ["model"]
    made = home / "me/.cache/muster"
    assert sorted(os.listdir(made / "torch_extensions")) == ["algo-1", "algo-2"]
    assert (made / "torchinductor/x").exists()
    assert made.stat().st_mode & 0o777 == 0o700


def test_hosts_see_the_users_caches_and_share_those_of_compilers(start: Start, home: Path) -> None:
    check_caches(start, home)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_caches_work_without_root(nobodys_home: Path, start: Start) -> None:
    wrapper = (*as_nobody()[:-1], f"HOME={nobodys_home}/me")
    check_caches(start, nobodys_home, wrapper=wrapper, python=readable_python())


def test_a_lock_that_a_killed_build_left_is_removed_unless_another_run_is_at_work(
    start: Start, home: Path
) -> None:
    folder = home / "me/.cache/muster/torch_extensions/py311_cpu/mine"
    folder.mkdir(parents=True)
    lock, go = folder / "lock", home / "me/go"
    lock.touch()
    environ = {"HOME": str(home / "me"), "XDG_CACHE_HOME": ""}
    until = ("--hyperparameter", "seconds=60", "--hyperparameter", f"until={go}")
    first = start(home, ("src/train.py", *until, *NETNS), environ)
    first.wait_ready(1)
    assert not lock.exists()
    lock.touch()
    second = start(home, ("src/train.py", *NETNS), environ).wait()
    assert second.code == 0, second.err
    assert lock.exists()
    go.touch()
    assert first.wait().code == 0


def test_a_path_in_a_folder_that_hosts_have_of_their_own_is_warned_of(
    start: Start, home: Path
) -> None:
    argv = ("src/train.py", "--env", "DATA=/tmp/mine", *NETNS)
    result = start(home, (*argv, "--", "--to=/var/tmp/x", "--lr=/2")).wait()
    assert result.code == 0, result.err
    assert "WARNING --env DATA=/tmp/mine: /tmp is each host's own" in result.err
    assert "WARNING -- /var/tmp/x: /var/tmp is each host's own" in result.err
    assert result.err.count("WARNING --") == 2
