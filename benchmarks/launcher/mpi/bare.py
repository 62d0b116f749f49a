"""Bare mpirun on one or two hosts, and the trivial agent in place of ssh; runs as PID 1 of a host.

`bare.py PYTHON HOSTS PROCESSES BASE` is mpirun's host, or on the other one the end of the wire:
it executes the one command line that arrives. `bare.py agent HOST COMMAND...` sends it there.
No checks of any kind: this is what the least possible remote start costs.
"""

import json
import os
import socket
import subprocess
import sys
import time

PORT = 9999


def main(python: str, hosts: str, processes: str, base: str) -> int:
    with open(f"{base}/input/config/resourceconfig.json") as file:
        me = json.load(file)["current_host"]
    if me != "algo-1":
        return execute()
    if hosts != "1":
        wait_for("algo-2")
    listed = ",".join(f"10.77.0.{number + 1}:{processes}" for number in range(int(hosts)))
    agent = f"{python} -IS {os.path.abspath(__file__)} agent"
    line = [
        os.environ["MUSTER_MPIRUN"], "--host", listed, "-np", str(int(hosts) * int(processes)),
        "--allow-run-as-root", "--bind-to", "none", "--map-by", "slot",
        "--mca", "plm_rsh_agent", agent, "--mca", "plm_rsh_no_tree_spawn", "1",
        "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0",
        "--mca", "pml", "ob1", "--mca", "btl", "^openib",
        "--mca", "btl_vader_single_copy_mechanism", "none",
        python, f"{base}/code/train.py",
    ]  # fmt: skip
    return subprocess.run(line, check=False).returncode


def execute() -> int:
    with socket.create_server(("", PORT)) as server:
        server.accept()[0].close()  # that we are here
        wire, _ = server.accept()
        with wire:
            line = wire.makefile("rb").read().decode()
    return subprocess.run(["sh", "-c", line.replace("--daemonize", "")], check=False).returncode


def wait_for(host: str) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            socket.create_connection((host, PORT), 1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.005)


def send(host: str, words: list[str]) -> int:
    with socket.create_connection((host, PORT), 10) as wire:
        wire.sendall(" ".join(words).encode())
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "agent":
        sys.exit(send(sys.argv[2], sys.argv[3:]))
    sys.exit(main(*sys.argv[1:5]))
