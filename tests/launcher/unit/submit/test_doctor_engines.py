"""`muster doctor --engine`: what is made of what an engine's client says."""

from __future__ import annotations

import os
import sys
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


KUBECTL = """\
#!/bin/sh
[ "$1" != version ] || {{
  echo '{{
  "clientVersion": {{"major": "1", "minor": "20"}},{server}
}}'
  [ -n '{server}' ] || {{ echo 'The connection to the server was refused' >&2; exit 1; }}
  exit 0
}}
[ "$4" != secrets ] || {{ echo no; exit 1; }}
echo yes
"""
SERVER = '"serverVersion": {{"major": "1", "minor": "{}"}}'


@pytest.mark.parametrize(
    ("server", "levels", "found"),
    [
        (SERVER.format(32), ["OK", "OK", "OK", "OK", "FAIL", "OK"], "Kubernetes 1.32"),
        (SERVER.format("23+"), ["OK", "FAIL", "OK", "OK", "FAIL", "OK"], "Kubernetes 1.23"),
        ("", ["OK", "FAIL"], "The connection to the server was refused"),
    ],
)
def test_what_a_cluster_says_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, levels: list[str], found: str
) -> None:
    """A right that is missing, an old cluster, one that is not there: kubectl tells of itself."""
    (tmp_path / "kubectl").write_text(KUBECTL.format(server=server))
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    findings = checked("kubernetes")
    assert [one.level for one in findings] == levels, findings
    assert found in findings[1].found
    assert {one.name for one in findings if one.level == "FAIL"} - {"cluster"} <= {"secrets"}


def test_what_batch_needs_at_the_desk_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert [(one.name, one.level) for one in checked("batch")] == [
        ("boto3", "OK"),
        ("region", "WARN"),
    ]
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert [one.found for one in checked("batch")][1:] == ["eu-west-1"]
    monkeypatch.setitem(sys.modules, "boto3", None)
    (finding,) = checked("batch")
    assert finding.level == "FAIL" and "pip install" in finding.fix
