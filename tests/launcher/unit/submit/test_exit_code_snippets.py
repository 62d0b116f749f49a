"""What engines are told about exit codes: the page's table and snippets, and what is submitted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from muster.contract.engines import kubernetes as reader
from muster.submit import batch_job, kubernetes_job, slurm_script
from muster.submit.command import RETRIES
from muster.submit.kubernetes_job import MARGIN_S
from muster.submit.values import AGAIN
from tests.launcher.unit.submit.test_submit_script import job

PAGE = Path(__file__).parents[4] / "docs/reference/exit-codes.md"


def snippet(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    return str(found)


def test_codes_worth_another_attempt_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| (yes|resume) \|$", PAGE.read_text(), re.M)
    assert {int(code) for code, _ in rows} == AGAIN


def test_the_snippet_of_kubernetes_is_what_is_submitted(tmp_path: Path) -> None:
    shown = yaml.safe_load(snippet("yaml"))["spec"]
    asked = job(tmp_path, image="i", retries=RETRIES)
    made = kubernetes_job.objects(asked._replace(request=asked.request._replace(hosts=2)), b"")
    spec = made[-1]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    codes = spec["podFailurePolicy"]["rules"][1]["onExitCodes"]
    assert codes["containerName"] == container["name"]
    shown["podFailurePolicy"]["rules"][1]["onExitCodes"]["containerName"] = container["name"]
    assert shown["podFailurePolicy"] == spec["podFailurePolicy"]
    assert shown["backoffLimit"] == spec["backoffLimit"]
    for name in ("restartPolicy", "terminationGracePeriodSeconds"):
        assert shown["template"]["spec"][name] == spec["template"]["spec"][name]
    grace_s = spec["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s == reader.STOP_S + MARGIN_S


def test_the_snippet_of_batch_is_what_is_submitted() -> None:
    shown = json.loads(snippet("json"))["retryStrategy"]
    assert shown == batch_job.retry_strategy(RETRIES)


def test_the_snippet_of_slurm_begins_again_as_what_is_submitted_does(tmp_path: Path) -> None:
    shown, made = snippet("sh"), slurm_script.render(job(tmp_path, retries=RETRIES))
    (codes,) = re.findall(r"^ *([\d|]+)\)$", shown, re.M)
    again = re.findall(r"^ *([\d|]+)\) again=[^0]", made, re.M)
    assert {int(code) for code in codes.split("|")} == AGAIN
    assert {int(code) for code in "|".join(again).split("|")} == AGAIN
    assert f'"${{SLURM_RESTART_COUNT:-0}}" -lt {RETRIES} ]' in shown
    assert "muster run" in shown and "--ntasks-per-node=1" in shown
