"""`muster local --debug` of a rank in a container: an editor reaches it over the run folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import debugpy
import pytest

from tests.launcher.support.local.attaching import attached
from tests.launcher.support.local.local_docker import Start, job

pytestmark = pytest.mark.timeout(600)  # an image may have to be built first
SCRIPT = """\
import os
value = 42
host = os.environ["SM_CURRENT_HOST"]
print("value", value, "on", host, flush=True)
"""


@pytest.mark.dev
def test_a_debugger_stops_a_rank_in_a_container(start: Start, home: Path, base: str) -> None:
    (home / "src/train.py").write_text(SCRIPT)
    shutil.copytree(str(Path(debugpy.__file__ or "").parent), home / "src/debugpy")
    run = start(home, job("train", base, "--debug", "1"))
    debugger, configuration = attached(run, "rank 1")
    try:
        debugger.attach(configuration, str(home / "src/train.py"), 4)
        frame = debugger.stopped()
        assert (frame["line"], frame["source"]["path"]) == (4, str(home / "src/train.py"))
        assert debugger.value("host", frame) == "'algo-2'"
        debugger.ask("continue", threadId=frame["thread"])
        result = run.wait(60)
    finally:
        debugger.close()
    assert result.code == 0, result.err
    assert "value 42 on algo-2" in result.out


def test_an_image_without_debugpy_is_said(start: Start, home: Path, base: str) -> None:
    result = start(home, job("train", base, "--debug", "1")).wait(120)
    assert result.code != 0
    assert "rank 1 cannot be debugged: RuntimeError: there is no debugpy in " in result.err
    assert "pip install 'muster-training[debug]'" in result.err
