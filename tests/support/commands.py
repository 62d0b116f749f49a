"""Command lines by fact: a Python tells its own when it starts, and that of every program before
it starts it, so that none is too short-lived to be seen, however busy the machine."""

from __future__ import annotations

import json
from pathlib import Path

_HOOK = """\
import json, os, sys
_STARTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system")
def _tell(words):
    words = [words] if isinstance(words, str) else [os.fsdecode(word) for word in words]
    place = os.open({record!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(place, (json.dumps(words) + "\\n").encode())
    os.close(place)
def _told(event, arguments):
    if event in _STARTS:
        _tell(arguments[0] if event == "os.system" else arguments[1])
_tell(sys.orig_argv)
sys.addaudithook(_told)
"""


class Recorder:
    """`environ` has a Python, and those that it starts, tell. Not those that are started with -I or
    -S, nor a fork that becomes another program."""

    def __init__(self, folder: Path) -> None:
        self._record = folder / "started"
        hook = folder / "recorder"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(_HOOK.format(record=str(self._record)))
        self.environ = {"PYTHONPATH": str(hook)}

    def started(self) -> list[list[str]]:
        """The words of each, in the order of their starts."""
        lines = self._record.read_text().splitlines() if self._record.exists() else []
        return [json.loads(line) for line in lines]
