"""What holds after every job, however it ended.

`check_host` and `check_job` take what hosts left and give back all that is wrong with it, in
words; `check_tree` does so for the files. A test that rightly differs says so in `Declared`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.traces import OURS, Tree

MAX_FAILURE_BYTES = 1024
STOPPED = 143
CODES: Mapping[str, frozenset[int]] = {  # the class of the first line -> the codes that it may have
    "ConfigError": frozenset({100}),
    "SourceError": frozenset({101}),
    "InstallError": frozenset({101}),
    "ClusterError": frozenset({102}),
    "PeerError": frozenset({102}),
    "HangError": frozenset({103}),
    "InternalError": frozenset({105}),
    "LaunchError": frozenset({106}),
    "StoppedError": frozenset({STOPPED}),
}
RESERVED = frozenset({104}).union(*CODES.values())  # one that nothing gives yet
PASSED = frozenset(range(1, 256)) - RESERVED
GRAMMAR = re.compile(rf"^({'|'.join([*CODES, 'UserScriptError'])}): \S")
SAID = re.compile(r"exit code (\d+)(?: of the script, reported as (\d+))?\)(?: and \d+ more)?$")
STATUS = re.compile(r"^ExecuteUserScriptError: ExitCode (-?\d+)$", re.M)
ENCOUNTERED = re.compile(r"Encountered exit_code (-?\d+)")
BLOCK = re.compile(r"^(?:STOPPED by .*, )?exit code (\d+)(?: \(muster keeps .*)?$")
MAY_CHANGE = ("output", "model", "checkpoints", "tmp")  # below /opt/ml
SITE = ".muster-site"  # of requirements, where the interpreter cannot be written


class Left(NamedTuple):
    """What one host left. `code` below 0: the signal that ended its `train`, which left no word.

    `failure`: the bytes of its failure file, None without one. `base`: its /opt/ml.
    `took_s`: from its start to its exit, None where nobody saw it end.
    """

    name: str
    code: int
    out: str
    err: str
    failure: bytes | None
    success: bool
    base: Path
    took_s: float | None = None

    @property
    def first_line(self) -> str:
        return (self.failure or b"").decode(errors="replace").partition("\n")[0]

    @property
    def ended_by_itself(self) -> bool:
        return self.code >= 0


class Declared(NamedTuple):
    """In what a test differs, and why it may. All else holds for every job.

    `canary`: a secret that must not be shown; `scripts_show_it`: on purpose, so only the failure
    file counts. `own_failure`: the script writes the failure file. `no_status_file`: the disk
    cannot take it, or the test cannot see it. `no_screen`: nobody reads what the hosts say last.
    `apart`: hosts that were cut off from the others or frozen, so that they may decide alone.
    `internal_error`: a defect was put in. `not_ours`: the image's own training module owns the
    end. `code_writes`: patterns of names that the scripts make in the code folder.
    `limit_s`: from a host's start to its exit.
    """

    canary: str = ""
    scripts_show_it: bool = False
    own_failure: bool = False
    no_status_file: bool = False
    no_screen: bool = False
    apart: frozenset[str] = frozenset()
    internal_error: bool = False
    not_ours: bool = False
    code_writes: tuple[str, ...] = ()
    limit_s: float = 90.0


NOTHING_SPECIAL = Declared()


def check_job(lefts: Sequence[Left], declared: Declared = NOTHING_SPECIAL) -> list[str]:
    """All that is wrong with what the hosts of a job left, the leader first; [] when nothing is.

    `lefts`: of the hosts that were started. Hosts that agree: those neither killed nor declared
    apart, as long as the leader is one of them - it decides for all.
    """
    wrong = [f"{left.name}: {what}" for left in lefts for what in check_host(left, declared)]
    if lefts and lefts[0].ended_by_itself and not (declared.no_screen or declared.not_ours):
        wrong += _on_the_leaders_screen(lefts[0])
    if lefts and _agrees(lefts[0], declared):
        agreeing = [left for left in lefts if _agrees(left, declared)]
        told = {left.name: (left.code, left.first_line) for left in agreeing}
        if len({code for code, _ in told.values()}) > 1:
            wrong.append(f"the hosts differ in their exit codes: {told}")
        elif not _files_are_mine(declared) and len(set(told.values())) > 1:
            wrong.append(f"the hosts differ in their first lines: {told}")
    return wrong


def check_host(left: Left, declared: Declared = NOTHING_SPECIAL) -> list[str]:
    """All that is wrong with what one host left by itself."""
    checks: Sequence[Callable[[Left, Declared], Iterable[str]]] = (
        _exit_code,
        _status_files,
        _failure_text,
        _secrets,
        _time,
    )
    return [what for check in checks for what in check(left, declared)]


def check_tree(
    before: Tree, after: Tree, killed: bool = False, code_writes: Sequence[str] = ()
) -> list[str]:
    """All that a host did to its /opt/ml beside writing where it may.

    The code folder may change when it was empty, that is, when muster filled it. `killed`: its
    `train` had no time to tidy up.
    """
    filled = any(Path(path).parts[0] == "code" and len(Path(path).parts) > 1 for path in before)
    wrong = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) == after.get(path):
            continue
        parts = Path(path).parts
        was = "changed" if path in before and path in after else "new"
        was = "removed" if path not in after else was
        if parts[0] == SITE:
            continue
        if any(part.startswith(OURS) for part in parts):
            if was == "new" and not killed:
                wrong.append(f"left over: {path}")
        elif parts[0] == "code" and len(parts) > 1:
            by_script = any(Path(*parts[1:]).match(one) for one in code_writes)
            if filled and not by_script:
                wrong.append(f"{was} in the code folder of the user: {path}")
        elif parts[0] not in MAY_CHANGE and path != "code":
            wrong.append(f"{was} outside the folders that a job may write: {path}")
    return wrong


def _agrees(left: Left, declared: Declared) -> bool:
    return left.ended_by_itself and left.name not in declared.apart


def _files_are_mine(declared: Declared) -> bool:
    """Whether the test or its script decides what lies in the output folder."""
    return declared.own_failure or declared.no_status_file or declared.not_ours


def _exit_code(left: Left, declared: Declared) -> Iterable[str]:
    if left.code < 0 and left.code != -9:
        yield f"ended by signal {-left.code}: only SIGKILL may end `train` without a word"
    if left.code > 255:
        yield f"{left.code} is no exit code"
    if left.code == 105 and not declared.internal_error:
        yield f"an InternalError is a defect: {left.first_line or left.err[-500:]!r}"
    if left.code >= 0 and not declared.not_ours:
        told = ENCOUNTERED.findall(left.err)
        if left.code != 0 and told and int(told[-1]) != left.code:
            yield f"it says exit_code {told[-1]} and exits with {left.code}"


def _status_files(left: Left, declared: Declared) -> Iterable[str]:
    if left.success and left.code != 0 and left.ended_by_itself:
        yield f"a success file beside exit code {left.code}"
    if _files_are_mine(declared) or not left.ended_by_itself:
        return
    if left.code == 0 and not left.success:
        yield "exit code 0 without a success file"
    if left.code == 0 and left.failure is not None:
        yield f"exit code 0 beside a failure file: {left.first_line!r}"
    if left.code not in (0, STOPPED) and left.failure is None:
        yield f"exit code {left.code} without a failure file"


def _failure_text(left: Left, declared: Declared) -> Iterable[str]:
    if left.failure is None or declared.own_failure or declared.not_ours:
        return
    if len(left.failure) > MAX_FAILURE_BYTES:
        yield f"the failure file has {len(left.failure)} bytes"
    try:
        text = left.failure.decode()
    except UnicodeDecodeError as error:
        yield f"the failure file is not UTF-8: {error}"
        return
    first, _, rest = text.partition("\n")
    kind = GRAMMAR.match(first)
    if kind is None:
        yield f"the first line has no class: {first!r}"
        return
    if kind[1] != "StoppedError" and not rest.startswith("Fix: "):
        yield f"the second line is no fix: {rest.partition(chr(10))[0]!r}"
    if left.ended_by_itself:
        yield from _codes_in(left, kind[1], first, text)


def _codes_in(left: Left, kind: str, first: str, text: str) -> Iterable[str]:
    """The exit code against the class and the numbers in the failure file."""
    if left.code not in CODES.get(kind, PASSED):
        yield f"exit code {left.code} beside {first!r}"
    if kind != "UserScriptError":
        return
    said, status = SAID.search(first), STATUS.search(text)
    if said and int(said[2] or said[1]) != left.code:
        yield f"exit code {left.code} beside {first!r}"
    if status and left.code not in _codes_of(int(status[1])):
        yield f"exit code {left.code} for the status {status[1]} of a rank"


def _codes_of(status: int) -> tuple[int, ...]:
    """What a rank's status may become: itself, or 1 where only muster says that code."""
    if status == -15 or status in RESERVED:
        return (1,)
    return (status,) if status >= 0 else (128 - status, 1)  # 1: our own signal came after its error


def _secrets(left: Left, declared: Declared) -> Iterable[str]:
    if not declared.canary:
        return
    texts = {"failure file": (left.failure or b"").decode(errors="replace")}
    if not declared.scripts_show_it:
        texts |= {"stdout": left.out, "stderr": left.err}
    for where, text in texts.items():
        if declared.canary in text:
            yield f"a secret was shown in its {where}"


def _time(left: Left, declared: Declared) -> Iterable[str]:
    if left.took_s is not None and left.took_s > declared.limit_s:
        yield f"it took {left.took_s:.1f} s, its bound is {declared.limit_s:g} s"


def _on_the_leaders_screen(leader: Left) -> Iterable[str]:
    """The last block is the last thing that the leader says, and names the code."""
    lines = leader.err.rstrip().splitlines()[-2:]
    if lines and lines[-1].startswith("StoppedError: "):
        lines = lines[:1]
    last = lines[-1] if lines else ""
    if leader.code == 0:
        if not last.startswith("SUCCEEDED "):
            yield f"{leader.name}: exit code 0, but it says last {last!r}"
        return
    said = BLOCK.match(last)
    if said is None:
        yield f"{leader.name}: its last line is {last!r}, not the end of the last block"
    elif int(said[1]) != leader.code:
        yield f"{leader.name}: exit code {leader.code}, but it says last {last!r}"
