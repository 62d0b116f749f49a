"""`rank_bootstrap/python_main.py` beside Python itself: same script, same output, same end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.rank_bootstrap import python_main

MAIN = python_main.__file__
SCRIPTS = {
    "says who it is": """
import sys
print(__name__, __file__, sys.argv, sys.path[0], __spec__, __package__, __doc__, __annotations__)
print(sorted(name for name in globals() if not name.startswith("__")))
""",
    "has a docstring and future imports": """
\"\"\"What it is for.\"\"\"
from __future__ import annotations
def f(x: missing) -> None: ...
print(__doc__, f.__annotations__)
""",
    "pickles its own classes": """
import pickle
class Batch: pass
print(type(pickle.loads(pickle.dumps(Batch()))) is Batch)
""",
    "starts processes that find it": """
import multiprocessing
def double(x): return 2 * x
if __name__ == "__main__":
    for kind in ("spawn", "fork"):
        with multiprocessing.get_context(kind).Pool(1) as pool:
            print(kind, pool.map(double, [1, 2]))
""",
    "imports what lies beside it": "import helper; print(helper.VALUE)",
    "raises": "def step(): raise ValueError('bad batch')\nstep()",
    "raises from another": """
try: 1 / 0
except ZeroDivisionError as error: raise RuntimeError("no rate") from error
""",
    "raises several": "raise ExceptionGroup('two', [ValueError(1), TypeError(2)])",
    "has a syntax error": "x = = 1",
    "ends with a number": "import sys; sys.exit(3)",
    "ends with a text": "import sys; sys.exit('no data')",
    "ends with nothing": "import sys; sys.exit()",
    "ends with 256": "import sys; sys.exit(256)",
    "ends with -1": "import sys; sys.exit(-1)",
    "has a hook for exceptions": """
import sys
sys.excepthook = lambda kind, error, trace: print("hook:", kind.__name__, trace is not None)
raise ValueError(1)
""",
    "has work at exit": """
import atexit, sys
atexit.register(print, "at exit")
sys.exit(4)
""",
    "has work at exit that fails": """
import atexit, sys
def fail(): raise OSError("disk")
atexit.register(fail)
sys.exit(4)
""",
    "leaves a thread": """
import sys, threading
threading.Timer(0.2, print, ("thread",)).start()
sys.exit(5)
""",
    "does not end its last line": "import sys; sys.stdout.write('half'); sys.exit(6)",
    "closes its output": "import sys; sys.stdout.close(); sys.exit(7)",
}


def ran(argv: list[str], folder: Path) -> tuple[int, str, str]:
    environ = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        argv, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, re.sub("0x[0-9a-f]+", "0x", done.stderr)


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_runs_and_ends_as_under_python_itself(tmp_path: Path, text: str) -> None:
    if "ExceptionGroup" in text and sys.version_info < (3, 11):
        pytest.skip("exception groups came with 3.11")
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "helper.py").write_text("VALUE = 7")
    plain = ran([sys.executable, "train.py", "--lr", "0.1"], tmp_path)
    ours = ran([sys.executable, MAIN, "script", "train.py", "--lr", "0.1"], tmp_path)
    assert ours == plain


@pytest.mark.parametrize("text", ["raise ValueError('bad batch')", "import sys; sys.exit(3)", ""])
def test_a_module_runs_and_ends_as_under_python_itself(tmp_path: Path, text: str) -> None:
    package = tmp_path / "job"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(f"import sys\nprint(__name__, sys.argv[1:])\n{text}\n")
    plain = ran([sys.executable, "-m", "job.train", "--lr", "0.1"], tmp_path)
    ours = ran([sys.executable, MAIN, "module", "job.train", "--lr", "0.1"], tmp_path)
    assert (ours[0], ours[1]) == (plain[0], plain[1])
    # the frames of the module itself; those of `python -m` before them are left out
    assert ours[2].splitlines()[-1:] == plain[2].splitlines()[-1:]


def test_work_at_exit_that_waits_for_ever_does_not_hold_the_failure_back(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import atexit, sys, threading\natexit.register(threading.Event().wait)\nsys.exit(9)\n"
    )
    began = time.monotonic()
    code, _, err = ran([sys.executable, MAIN, "script", "train.py"], tmp_path)
    assert (code, err.count("\n")) == (9, 1)
    assert "took over 15 s: it ends without it" in err
    assert time.monotonic() - began < python_main.LEAVE_S + 10


def test_an_interrupted_script_ends_with_the_code_of_the_signal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise KeyboardInterrupt\n")
    code, _, err = ran([sys.executable, MAIN, "script", "train.py"], tmp_path)
    assert (code, err.splitlines()[-1]) == (130, "KeyboardInterrupt")
    assert MAIN not in err
