"""What a trivial job imports: every module costs every host of every job."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mltree import write_tree

ALLOWED = {
    # what Python's own start or typing, json and re bring along
    "_ast", "_bisect", "_blake2", "_bootlocale", "_collections", "_collections_abc", "_compression",
    "_functools", "_heapq", "_json", "_locale", "_opcode", "_operator", "_posixsubprocess",
    "_random", "_sha512", "_signal", "_socket", "_sre", "_stat", "_string", "_struct", "_thread",
    "_typing", "_weakrefset", "abc", "array", "ast", "collections", "contextlib", "copyreg",
    "_ctypes", "encodings", "endian", "enum", "errno", "fcntl", "functools",
    "genericpath", "heapq",
    "itertools", "json", "keyword", "linecache", "locale", "math", "operator", "os", "posixpath",
    "re", "reprlib", "resource", "select", "selectors", "signal", "socket", "sre_compile",
    "sre_constants", "sre_parse", "stat", "string", "struct", "threading", "time", "tokenize",
    "token", "types", "typing", "warnings", "weakref", "__future__", "gc", "muster", "bisect",
    "_tokenize", "_suggestions", "_colorize",
}  # fmt: skip

RUN = (
    "import sys\n"
    "before = set(sys.modules)\n"
    "import json, os\n"
    "from muster.train import run\n"
    "outcome = run(os.environ)\n"
    "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
    "import typing\n"
    "slow = [name for name, module in sys.modules.items() if name.startswith('muster.')\n"
    "        and getattr(module, 'NamedTuple', None) is typing.NamedTuple]\n"
    "seen = [name for name in sys.modules if name.startswith('muster.run.observe')\n"
    "        or name == 'muster.run.channel.digest']\n"
    "print(json.dumps([outcome.exit_code, sorted(loaded), slow, seen]))\n"
)


def test_a_trivial_job_imports_nothing_heavy(tmp_path: Path) -> None:
    environ = write_tree(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("pass\n")
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    code, loaded, slow, seen = json.loads(done.stdout)
    assert code == 0, done.stderr
    assert not slow  # muster.types.values has one that starts need not wait for
    assert not seen  # nobody observes a job that is over at once
    assert set(loaded) <= ALLOWED, sorted(set(loaded) - ALLOWED)


HELD = (
    "import sys, _signal\n"
    "import muster.cli\n"
    "def held(how, which):\n"
    "    print(sorted(name for name in sys.modules if 'muster' in name or name == 'signal'))\n"
    "    raise SystemExit\n"
    "_signal.pthread_sigmask = held\n"
    "sys.argv = ['train']\n"
    "muster.cli.train()\n"
)


@pytest.mark.promise("F06")
def test_a_stop_is_held_before_anything_else_is_imported() -> None:
    """PID 1 loses a signal that comes before: all that is left is Python's own start."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", HELD], capture_output=True, text=True, check=True
    )
    seen = {name for name in ast.literal_eval(done.stdout) if not name.startswith("__editable")}
    assert {name for name in seen if "_impl_" not in name} == {"muster", "muster.cli"}
