"""The soak in numbers, as `make soak` writes them and `benchmarks/launcher/soak.py` reads them."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from tests.launcher.soak.scenario import scenario, told
from tests.launcher.soak.verdict import Verdict

CHECKOUT = Path(__file__).parents[3]
KINDS = ("stop", "kill", "freeze", "reset", "partition", "absent", "late")


class Landing(TypedDict):
    planned: int
    landed: int


class Broken(TypedDict):
    seed: int
    scenario: str
    wrong: list[str]


class Summary(TypedDict):
    """`runs`: asked for; `ran`: that did; `ok`: that ran and in which all held; `not_run`: the
    others by their reason. `cannot_land`: why a kind of fault cannot hit anything on this
    machine; `never_landed`: the other kinds that hit nothing in the whole soak."""

    schema: int
    seed: int
    commit: str
    seconds: float
    runs: int
    ran: int
    ok: int
    not_run: dict[str, int]
    faults: dict[str, Landing]
    cannot_land: dict[str, str]
    never_landed: list[str]
    runs_by_exit_code: dict[str, int]
    broken: list[Broken]


def summarize(
    verdicts: Sequence[Verdict],
    runs: int,
    seed: int,
    seconds: float,
    cannot_land: Mapping[str, str] | None = None,
) -> Summary:
    """Of a soak of so many runs; those without a verdict were interrupted."""
    exempt = dict(cannot_land or {})
    not_run = Counter(one.why_not for one in verdicts if not one.ran)
    if runs > len(verdicts):
        not_run["interrupted"] = runs - len(verdicts)
    codes = Counter(str(c) for one in verdicts for c in set(one.codes) - {None})
    faults = landing(verdicts)
    return {
        "schema": 2,
        "seed": seed,
        "commit": commit(),
        "seconds": round(seconds, 1),
        "runs": runs,
        "ran": sum(one.ran for one in verdicts),
        "ok": sum(one.ran and not one.wrong for one in verdicts),
        "not_run": dict(sorted(not_run.items())),
        "faults": faults,
        "cannot_land": exempt,
        "never_landed": [k for k in KINDS if not faults[k]["landed"] and k not in exempt],
        "runs_by_exit_code": dict(sorted(codes.items())),
        "broken": [
            {"seed": one.seed, "scenario": told(scenario(one.seed)), "wrong": list(one.wrong)}
            for one in verdicts
            if one.wrong
        ],
    }


def planned(chosen: Iterable[int]) -> Counter[str]:
    """How many faults of each kind the scenarios of the seeds hold."""
    return Counter(fault.kind for seed in chosen for fault in scenario(seed).faults)


def landing(verdicts: Sequence[Verdict]) -> dict[str, Landing]:
    """How many faults of each kind were to land, and did."""
    wanted = planned(one.seed for one in verdicts)
    did = Counter(kind for one in verdicts for kind in one.landed)
    return {kind: {"planned": wanted[kind], "landed": did[kind]} for kind in KINDS}


def tell(summary: Summary) -> str:
    """The summary for a person: a line, and one for each thing that did not come about."""
    landed = ", ".join(f"{k} {n['landed']}/{n['planned']}" for k, n in summary["faults"].items())
    lines = [
        f"soak: {summary['runs']} runs with seed {summary['seed']}, {summary['ran']} ran, "
        f"{len(summary['broken'])} in which something did not hold, {summary['seconds']:.0f} s",
        f"soak: faults landed of those planned: {landed}",
    ]
    lines += [f"soak: {n} not run: {why}" for why, n in summary["not_run"].items()]
    lines += [f"soak: no {kind} can land: {why}" for kind, why in summary["cannot_land"].items()]
    return "\n".join(lines)


def commit() -> str:
    """Of the checkout; "" without git or outside a repository."""
    words = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(
            words, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
