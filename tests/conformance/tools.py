"""Stand-ins on PATH: each records its command line, then plays its part (contract.md 5).

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
