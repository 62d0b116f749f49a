"""Runs inside the namespaces of an isolated cluster; started by `isolated`, never imported.

`cluster PLAN` makes the bridge and the hosts and waits for them; `host PLAN NAME` is PID 1 of one
host: it puts its files in place and becomes `train`. Standard library and iproute2 only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

BRIDGE = "cluster0"
LIMIT_S = 20.0


def cluster(path: str) -> None:
    hosts = json.loads(Path(path).read_text())
    ip("link", "set", "lo", "up")
    ip("link", "add", "name", BRIDGE, "type", "bridge")
    ip("link", "set", BRIDGE, "up")
    children = {}
    for number, (name, host) in enumerate(hosts.items(), 1):
        children[name] = start_host(path, name, host, number)
    for name, child in children.items():
        code = child.wait()
        write(Path(hosts[name]["place"], "exit"), str(code))


def start_host(path: str, name: str, host: dict[str, str], number: int) -> subprocess.Popen[bytes]:
    place = Path(host["place"])
    unshare = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child"]
    with (place / "stdout.log").open("wb") as out, (place / "stderr.log").open("wb") as err:
        child = subprocess.Popen(
            [*unshare, "--mount-proc", sys.executable, "-IS", __file__, "host", path, name],
            stdin=subprocess.PIPE, stdout=out, stderr=err,
        )  # fmt: skip
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
    end = time.monotonic() + LIMIT_S
    while not children.read_text().split():  # it forks after it has its namespaces
        if time.monotonic() > end or child.poll() is not None:
            raise SystemExit(f"the namespaces of {name} do not appear")
        time.sleep(0.005)
    here, there = f"host{number}", "eth0"
    ip("link", "add", "name", here, "type", "veth", "peer", "name", there, "netns", str(child.pid))
    ip("link", "set", here, "master", BRIDGE, "up")
    write(place / "pid", children.read_text().split()[0])
    assert child.stdin is not None
    child.stdin.close()  # the host waits for the end of its input
    return child


def host(path: str, name: str) -> None:
    sys.stdin.read()
    hosts = json.loads(Path(path).read_text())
    me = hosts[name]
    ip("link", "set", "lo", "up")
    ip("addr", "add", f"{me['address']}/24", "dev", "eth0")
    ip("link", "set", "eth0", "up")
    names = "".join(f"{one['address']} {other}\n" for other, one in hosts.items())
    known = Path(me["place"], "hosts")
    known.write_text(f"127.0.0.1 localhost\n{names}")
    mount("--bind", str(known), "/etc/hosts")
    mount("-t", "tmpfs", "none", "/opt")
    Path("/opt/ml").mkdir()
    mount("--bind", me["base"], "/opt/ml")
    subprocess.run(["hostname", f"container-of-{name}"], check=True)  # never the job's name
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.chdir("/")
    os.execve(me["train"], [me["train"]], json.loads(me["environ"]))


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def write(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


if __name__ == "__main__":
    if sys.argv[1] == "cluster":
        cluster(sys.argv[2])
    else:
        host(sys.argv[2], sys.argv[3])
