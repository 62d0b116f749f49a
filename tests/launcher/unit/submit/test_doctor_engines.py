"""`muster doctor --engine`: what is made of what an engine's client says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.commands.doctor_engines import checked, slurm_findings

UP = "Slurmctld(primary) at ctl is UP"
# muster's --requeue counts for more than this JobRequeue
CONFIG = "KillWait                = {} sec\nJobRequeue              = 0\nSLURM_VERSION = 22.05.8\n"


@pytest.mark.parametrize(
    ("answers", "levels"),
    [
        ((0, UP, CONFIG.format(30), "idle 2\nmixed 1"), ["OK", "OK", "OK"]),
        ((0, UP, CONFIG.format(10), "down 2"), ["OK", "FAIL", "WARN"]),
        ((1, "slurm_ping error", "", ""), ["FAIL"]),
        ((0, "Slurmctld(primary) at ctl is DOWN", "", ""), ["FAIL"]),
    ],
)
def test_what_a_controller_says_is_judged(
    answers: tuple[int, str, str, str], levels: list[str]
) -> None:
    assert [finding.level for _, finding in slurm_findings(*answers)] == levels


@pytest.mark.parametrize("engine", ["slurm", "kubernetes", "hosts"])
def test_a_desk_without_the_client_is_told(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "PATH", str(tmp_path))
    (finding,) = checked(engine)
    assert finding.level == "FAIL" and "there is no" in finding.found and finding.fix


def test_a_client_that_fails_is_shown_with_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "#!/bin/sh\necho '{'\necho 'The connection was refused' >&2\nexit 1\n"
    (tmp_path / "kubectl").write_text(script)
    (tmp_path / "kubectl").chmod(0o700)
    monkeypatch.setitem(os.environ, "PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert checked("kubernetes")[-1].found == "The connection was refused"
