"""`--internet`: hosts in namespaces reach what this machine reaches, by pasta."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.support.local.local_runs import MARK, Start, start
from tests.launcher.support.local.unprivileged import as_nobody, readable_python
from tests.support.waiting import wait_until

__all__ = ["start"]
SERVER = "203.0.113.5"
PORT = 8099
# a network like a machine's: an interface with a default route, and a server behind it
PARENT = f"""\
set -e
ip link set lo up
ip link add out0 type veth peer name out1
ip address add 198.51.100.2/24 dev out0
ip link set out0 up
ip link set out1 up
ip route add default via 198.51.100.1
ip address add {SERVER}/32 dev lo
env -u {MARK} "$1" -m http.server {PORT} --bind {SERVER} >/dev/null 2>&1 &
echo $! > server
shift
exec "$@"
"""
REACH = f"""\
import os, socket, time, urllib.request
for _ in range(100):
    try:
        print("got", urllib.request.urlopen("http://{SERVER}:{PORT}/hello", timeout=5).read())
        break
    except OSError as error:
        last = error
        time.sleep(0.05)
else:
    print("not reached", last)
print("ready on", os.environ["SM_CURRENT_HOST"], socket.gethostbyname("algo-2"), flush=True)
time.sleep(float(os.environ.get("SM_HP_SECONDS", "0")))
"""


def fill(home: Path) -> None:
    (home / "src").mkdir()
    (home / "src/reach.py").write_text(REACH)
    (home / "hello").write_text("world")


def end_server(home: Path) -> None:
    if (home / "server").exists():
        os.kill(int((home / "server").read_text()), signal.SIGKILL)


@pytest.fixture(autouse=True)
def server_ends(request: pytest.FixtureRequest) -> Iterator[None]:
    """Before `start` counts what is left, for which it needs the home."""
    name = "nobodys_home" if "nobodys_home" in request.fixturenames else "home"
    home = request.getfixturevalue(name)
    request.getfixturevalue("start")
    yield
    end_server(home)


def wrapper() -> tuple[str, ...]:
    """Runs a command in a network that stands for this machine's."""
    if os.getuid() != 0 or not shutil.which("pasta") or not os.path.exists("/dev/net/tun"):
        pytest.skip("needs root, /dev/net/tun and pasta (apt-get install passt)")
    within = ("unshare", "--net", "sh", "-c", PARENT, "sh", sys.executable)
    probe = [*within[:2], "ip", "link", "add", "a0", "type", "veth", "peer", "name", "a1"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no network namespaces here")
    return within


ARGV = ("src/reach.py", "--hosts", "2", "--isolation", "netns")


def test_every_host_reaches_a_server_of_the_parents_network(start: Start, home: Path) -> None:
    result = start(home, (*ARGV, "--internet"), wrapper=wrapper()).wait()
    assert result.code == 0, result.err
    assert result.out.count("got b'world'") == 2
    assert result.out.count("10.77.0.2") == 2
    assert "no internet" not in result.err


# as most distributions have it; on some it is root's alone
OPEN_TUN = """\
mount -t tmpfs -o mode=755 devices /mnt
mknod -m 666 /mnt/tun c 10 200
mount --bind /mnt/tun /dev/net/tun
exec "$@"
"""


def test_every_host_does_without_root(nobodys_home: Path, start: Start) -> None:
    within = ("unshare", "--mount", "sh", "-ec", OPEN_TUN, "sh", *wrapper(), *as_nobody())
    argv = (*ARGV, "--internet")
    result = start(nobodys_home, argv, wrapper=within, python=readable_python()).wait()
    assert result.code == 0, result.err
    assert result.out.count("got b'world'") == 2


def test_without_the_option_no_host_does(start: Start, home: Path) -> None:
    result = start(home, ARGV, wrapper=wrapper()).wait()
    assert result.code == 0, result.err
    assert result.out.count("not reached") == 2


def test_killed_it_leaves_nothing(start: Start, home: Path) -> None:
    run = start(home, (*ARGV, "--internet", "--hyperparameter", "seconds=600"), wrapper=wrapper())
    run.wait_ready(2)
    assert len(run.alive("--config-net")) == 2
    run.signal(signal.SIGKILL)
    wait_until(lambda: not run.alive(), 10, lambda: f"alive: {run.alive()}")


@pytest.mark.parametrize(
    ("isolation", "answer"), [("netns", "apt-get install passt"), ("process", "leave out")]
)
def test_what_cannot_be_had_is_refused(
    start: Start, home: Path, isolation: str, answer: str
) -> None:
    argv = (*ARGV[:-1], isolation, "--internet")
    result = start(home, argv, environ={"PATH": "/nonexistent"}).wait()
    assert result.code == 2
    assert answer in result.err
    assert not result.folder.exists()
