"""Stand-ins on PATH: each records its command line, then plays its part.

`torchrun` starts every rank that the real one would on this host, with the variables that the
real one sets, and ends with the first failing code; so launchers that hand it a command of their
own, as ours does, are followed through to the user's script.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

RECORD = """\
import json, os, subprocess, sys
line = json.dumps(sys.argv[1:]) + "\\n"
tool = os.path.basename(sys.argv[0])
record = os.open(os.environ["CONFORMANCE_REPORTS"] + "/" + tool + ".calls",
                 os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(record, line.encode())
os.close(record)
"""

TORCHRUN = """\
options, rest = {"nnodes": "1", "nproc-per-node": "1", "node-rank": "0"}, sys.argv[1:]
flags = {"no-python", "standalone", "module", "m"}
script = True
while rest and rest[0].startswith("-"):
    name, equals, value = rest.pop(0).lstrip("-").replace("_", "-").partition("=")
    if name in flags:
        script = script and name != "no-python"
    else:
        options[name] = value if equals else rest.pop(0)
count, node = int(options["nproc-per-node"]), int(options["node-rank"])
ranks = []
for local in range(count):
    environ = dict(
        os.environ,
        RANK=str(node * count + local), LOCAL_RANK=str(local), GROUP_RANK=str(node),
        WORLD_SIZE=str(count * int(options["nnodes"])), LOCAL_WORLD_SIZE=str(count),
        MASTER_ADDR=options.get("master-addr", "127.0.0.1"),
        MASTER_PORT=options.get("master-port", "29500"),
        TORCHELASTIC_RUN_ID="none", TORCHELASTIC_RESTART_COUNT="0",
    )
    command = ([os.environ["CONFORMANCE_PYTHON"], "-u"] if script else []) + rest
    ranks.append(subprocess.Popen(command, env=environ))
codes = [rank.wait() for rank in ranks]
sys.exit(next((code if code > 0 else 1 for code in codes if code), 0))
"""

# mpirun's options and how many words each takes
MPI_VALUES = {
    "host": 1, "np": 1, "map-by": 1, "bind-to": 1, "rank-by": 1, "x": 1, "mca": 2, "display": 1,
}  # fmt: skip

_PARSE_MPI = (
    f"""\
VALUES = {MPI_VALUES!r}
"""
    + """\
def parse(rest):
    hosts, total, agent, given = [], 1, "", {}
    while rest and rest[0].startswith("-"):
        name = rest.pop(0).lstrip("-")
        values = [rest.pop(0) for _ in range(VALUES.get(name, 0))]
        if name == "host":
            hosts = [one.partition(":")[::2] for one in values[0].split(",")]
        elif name == "np":
            total = int(values[0])
        elif name == "mca" and values[0] == "plm_rsh_agent":
            agent = values[1]
        elif name == "x" and "=" in values[0] and not values[0].startswith("LD_PRELOAD="):
            given.update([values[0].split("=", 1)])
    if rest[1:3] == ["-m", "mpi4py"]:  # it need not be installed where nobody calls MPI
        del rest[1:3]
    counts = [int(slots or 1) for _, slots in hosts]
    if sum(counts) != total:
        counts = [total // len(hosts)] * len(hosts)
    return [name for name, _ in hosts], counts, agent, given, rest

def start(place, counts, given, command):
    first = sum(counts[:place])
    ranks = []
    for local in range(counts[place]):
        environ = dict(
            os.environ, **given, OMPI_COMM_WORLD_RANK=str(first + local),
            OMPI_COMM_WORLD_LOCAL_RANK=str(local), OMPI_COMM_WORLD_SIZE=str(sum(counts)),
        )
        ranks.append(subprocess.Popen(command, env=environ))
    return ranks

def finish(ranks):
    codes = [rank.wait() for rank in ranks]
    sys.exit(next((code if code > 0 else 1 for code in codes if code), 0))

"""
)

# Asks the agent, if there is one, for daemons elsewhere and starts its own host's ranks when those
# were passed on: as the real one, of which no rank runs before every daemon has called home.
MPIRUN = (
    _PARSE_MPI
    + """\
if sys.argv[1:] == ["--version"]:
    sys.stdout.write("mpirun (Open MPI) 4.1.4\\n")
    sys.exit(0)
hosts, counts, agent, given, command = parse(sys.argv[1:])
asked = {"ess": "env", "ess_base_jobid": "1", "ess_base_num_procs": str(len(hosts)),
         "orte_node_regex": "x", "orte_hnp_uri": "1.0;tcp://" + hosts[0] + ":1"}
for place, host in enumerate(hosts[1:], 1):
    words = [word for pair in {**asked, "ess_base_vpid": str(place)}.items()
             for word in ("-mca", *pair)]
    if agent:
        subprocess.run([*agent.split(), host, "orted", *words], check=True)
finish(start(0, counts, given, command))
"""
)

# The daemon: a real one is told by mpirun what to start, this one looks at how that was called.
ORTED = (
    _PARSE_MPI
    + """\
folder = os.environ["CONFORMANCE_REPORTS"]
leader = os.path.join(folder, "..", "..", "algo-1", "reports", "mpirun.calls")
with open(leader) as file:
    line = json.loads(file.read().splitlines()[-1])
hosts, counts, agent, given, command = parse(line)
finish(start(int(sys.argv[sys.argv.index("ess_base_vpid") + 1]), counts, given, command))
"""
)

# A module of the incumbent's: hosts reach one another, and no server is started for it. Its
# workers are kept waiting, since they would write to /etc.
SSH = """\
import os, subprocess, time
SERVER = "/usr/sbin/sshd"
exists, popen, sleep = os.path.exists, subprocess.Popen, time.sleep

class Popen(popen):
    def __init__(self, args, *rest, **more):
        super().__init__(["true"] if args == [SERVER, "-D"] else args, *rest, **more)

class AutoAddPolicy:
    pass

class SSHClient:
    def load_system_host_keys(self):
        pass

    def set_missing_host_key_policy(self, policy):
        pass

    def connect(self, host, port):
        if host == "algo-1":
            raise OSError("the first host is kept from its workers")

    def close(self):
        pass

subprocess.Popen = Popen
os.path.exists = lambda path: path == SERVER or exists(path)
time.sleep = lambda seconds: sleep(min(seconds, 0.2))
"""

MPI_TOOLS = {"mpirun": MPIRUN, "orted": ORTED, "ssh": ""}

TEXT = """\
sys.stdout.write({text!r})
"""


def say(text: str) -> str:
    """The part of a tool that prints `text` and ends well."""
    return TEXT.format(text=text)


def write_tools(tools: Mapping[str, str], folder: Path) -> None:
    """One executable per tool in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in tools.items():
        path = folder / name
        path.write_text(f"#!{sys.executable} -IS\n{RECORD}{part}", encoding="utf-8")
        path.chmod(0o755)
