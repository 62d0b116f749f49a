"""A run as facets: short names with texts, so that two runs can be compared line by line.

What is a run's own (folders, ports, interpreter) is replaced by a placeholder. Several hosts or
ranks put `algo-2/` or `rank1/` before the name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import muster
from tests.launcher.conformance.runner import HostRun, Run
from tests.launcher.conformance.scenario import ABSENT
from tests.launcher.conformance.tools import MPI_VALUES
from tests.launcher.conformance.tree import PROBE

# Lines that other tools look for in the log
_INVOCATION = (
    "Invoking user script",
    "Training Env:",
    "Environment variables:",
    "Invoking script with the following command:",
)
_REPORT = ("Reporting training SUCCESS", "Reporting training FAILURE", "Encountered exit_code")
_LOGGER = "sagemaker-training-toolkit"
_RECORD = "data/muster/"  # where ours keeps the record of a job
CANARY = "canary-7f3a91"  # a secret; whoever prints it has leaked it
CULPRIT = "conformance-culprit"  # stands in the message of errors that scripts raise
USER_LINE = "user|"  # begins every line that a script prints to be compared

_FAILURE_WORDS = (
    "ExecuteUserScriptError",
    "InstallRequirementsError",
    "InstallModuleError",
    "Framework Error",
)
_SHELL = frozenset({"_", "PWD", "OLDPWD", "SHLVL"})  # a shell sets them, whoever started it
_MUSTER = os.path.dirname(os.path.realpath(muster.__file__))
_OPENED = ("SM_TRAINING_ENV",)  # compared key by key


def facets(run: Run) -> dict[str, str]:
    """All facets of a run."""
    found = {"in_time": _yes(run.in_time), "survivors": str(run.survivors)}
    for host in run.hosts:
        prefix = f"{host.host}/" if len(run.hosts) > 1 else ""
        for name, text in _host_facets(run, host):
            found[prefix + name] = text
    return found


def _host_facets(run: Run, host: HostRun) -> Iterator[tuple[str, str]]:
    shorten = _shortener(run, host)
    log = host.stdout + host.stderr
    yield "exit", str(host.exit_code)
    yield "success", _status_file(host.base / "output/success")
    yield from _failure(host.base / "output/failure")
    yield "log.invocation", "; ".join(marker for marker in _INVOCATION if marker in log)
    yield "log.report", "; ".join(marker for marker in _REPORT if marker in log)
    yield "log.logger", _yes(_LOGGER in log)
    yield "log.leak", _yes(CANARY in log)
    yield "log.culprit", _yes(CULPRIT in log)
    yield "stdout", _user_lines(host.stdout)
    yield "stderr", _user_lines(host.stderr)
    yield "files.code", " ".join(_names(host.base / "code"))
    output = [name for name in _names(host.base / "output") if name not in ("success", "failure")]
    yield "files.output", " ".join(name for name in output if not name.startswith(_RECORD))
    yield "files.record", _yes(any(name.startswith(_RECORD) for name in output))
    for tool, calls in host.calls.items():
        yield f"calls.{tool}", str(len(calls))
        if tool == "torchrun":
            yield from _torchrun(calls[0], shorten)
        elif tool == "mpirun" and calls:
            yield from _mpirun(calls[0], shorten)
    yield "script.runs", str(len(host.reports))
    for place, report in enumerate(host.reports):
        prefix = f"rank{place}/" if len(host.reports) > 1 else ""
        for name, text in _script(report, host.given):
            yield prefix + name, shorten(text)


def _script(report: Mapping[str, object], given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    argv, environ = report["argv"], report["env"]
    assert isinstance(argv, list) and isinstance(environ, dict)
    yield "script.name", str(argv[0])
    yield "script.argv", json.dumps(argv[1:], ensure_ascii=False)
    yield "script.cwd", str(report["cwd"])
    for name in ("descriptors", "python", "signals", "stdin_is_null"):
        yield f"script.{name}", str(report[name])
    for name, value in sorted(environ.items()):
        if name in _SHELL or given.get(name) == value:
            continue
        if name in _OPENED:
            for key, part in json.loads(value).items():
                yield f"env.{name}.{key}", json.dumps(part, sort_keys=True)
        else:
            yield f"env.{name}", value
    for name in given.keys() - environ.keys():
        if not name.startswith("MUSTER_"):  # settings of ours, which no script gets to see
            yield f"unset.{name}", "yes"


def _torchrun(call: tuple[str, ...], shorten: _Shorten) -> Iterator[tuple[str, str]]:
    """Options in one spelling; the command behind them."""
    rest, bare = list(call), {"no-python", "standalone"}
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).lstrip("-").replace("_", "-").partition("=")
        if name not in bare and not equals:
            value = rest.pop(0)
        yield f"torchrun.{name}", shorten(value or "yes")
    yield "torchrun.command", shorten(json.dumps(rest, ensure_ascii=False))


def _mpirun(call: tuple[str, ...], shorten: _Shorten) -> Iterator[tuple[str, str]]:
    """Options in one spelling; parameters and variables one by one, but for SM_*; the command."""
    rest, dashes = list(call), set()
    found: dict[str, str] = {}
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name = word.lstrip("-")
        if len(name) > 2:
            dashes.add(len(word) - len(name))
        values = [rest.pop(0) for _ in range(MPI_VALUES.get(name, 0))]
        if name == "x":
            variable, equals, value = values[0].partition("=")
            key = "SM_" if variable.startswith("SM_") else variable
            found[f"x.{key}"] = value if equals else "its own"
        elif name == "mca":
            found[f"mca.{values[0]}"] = values[1]
        else:
            found[name] = values[0] if values else "yes"
    yield "mpirun.dashes", " and ".join(map(str, sorted(dashes)))
    for name, value in found.items():
        yield f"mpirun.{name}", shorten(value)
    yield "mpirun.command", shorten(json.dumps(rest, ensure_ascii=False))


def _failure(path: Path) -> Iterator[tuple[str, str]]:
    if not path.exists():
        yield "failure", ABSENT
        return
    content = path.read_bytes()
    text = content.decode("utf-8", "replace")
    words = [word for word in _FAILURE_WORDS if word in text]
    code = re.search(r"ExitCode (-?\d+)", text)
    yield "failure", "present"
    yield "failure.head", text.splitlines()[0].partition(":")[0] if text.strip() else ""
    yield "failure.words", " ".join(words)
    yield "failure.exit_code", code[1] if code else ABSENT
    yield "failure.culprit", _yes(CULPRIT in text)
    yield "failure.leak", _yes(CANARY in text)
    yield "failure.fits", _yes(len(content) <= 1024 and "\ufffd" not in text)


class _Shorten:
    """Replaces what is a run's own by placeholders."""

    def __init__(self, pairs: tuple[tuple[str, str], ...]) -> None:
        self._pairs = pairs

    def __call__(self, text: str) -> str:
        for own, placeholder in self._pairs:
            text = text.replace(own, placeholder)
        return text


def _shortener(run: Run, host: HostRun) -> _Shorten:
    place = host.base.parent
    return _Shorten(
        (
            (str(host.base), "<base>"),
            ("/opt/ml", "<base>"),
            (str(place), "<host>"),
            (run.launcher.python, "<python>"),
            (str(run.launcher.bin), "<bin>"),
            (_MUSTER, "<muster>"),
            (str(PROBE), "<probe>"),
            (str(run.store_port), "7777"),
        )
    )


def _status_file(path: Path) -> str:
    if not path.exists():
        return ABSENT
    return "with content" if path.stat().st_size else "empty"


def _user_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip().startswith(USER_LINE)]
    return json.dumps(lines, ensure_ascii=False)


def _names(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if not path.is_dir() and "__pycache__" not in path.parts
    )


def _yes(truth: bool) -> str:
    return "yes" if truth else "no"
