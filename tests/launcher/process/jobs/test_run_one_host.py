"""`muster run` on one host: what its script is told, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import within

SCRIPT = """\
import json, os, socket, sys
socket.getaddrinfo(os.environ["SM_MASTER_ADDR"], None)
mine = sorted(name for name in os.environ if name.startswith("SM_"))
print("told", json.dumps([mine, sys.argv[1:]]), flush=True)
sys.exit(42)
"""


def told(folder: Path, *words: str) -> tuple[int, list[list[str]], str]:
    """The exit code of a muster command, what the script was told, and what muster said."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    options = ["--hyperparameter", "lr=0.1", "--channel", "train=data", "--checkpoint", "kept"]
    done = subprocess.run(
        [sys.executable, "-m", "muster", words[0], "train.py", *options, *words[1:], "--", "--x"],
        cwd=folder,
        env=kept,
        capture_output=True,
        text=True,
        timeout=within(60),
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if "told " in line]
    assert lines, done.stdout + done.stderr
    return done.returncode, list(json.loads(lines[0].partition("told ")[2])), done.stderr


def test_a_script_is_told_what_muster_local_tells_it(tmp_path: Path) -> None:
    """No variable less, and by an address of the leader; its exit code is the job's."""
    (tmp_path / "data").mkdir()
    (tmp_path / "train.py").write_text(SCRIPT)
    code, (here, arguments), _ = told(tmp_path, "local", "--isolation", "process", "--output", "a")
    again, (there, same), said = told(tmp_path, "run", "--output", "b")
    assert (code, again) == (42, 42) and "rank 0: exit(42)" in said, said
    assert arguments == same == ["--lr", "0.1", "--x"]
    assert here == there and len(here) > 40, set(here) ^ set(there)
