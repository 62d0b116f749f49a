"""`python -m tests.soak --runs 200 --seed 1`: random faults at random moments, invariants only."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TextIO

from tests.soak import isolated, run
from tests.soak.run import Verdict
from tests.soak.scenario import Scenario, scenario, seeds, told

ROOT = Path(__file__).parents[2] / ".cache" / "soak"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the soak; 1 when an invariant did not hold in one of its runs."""
    options = _parse(argv)
    if argv is None:  # stopped as a command, it still ends the processes that it started
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = [options.only] if options.only else seeds(options.seed, options.runs)
    home = ROOT / str(os.getpid())
    began_s = time.monotonic()
    # The table goes to stderr where stdout is for the machine.
    lines = sys.stderr if options.json else sys.stdout
    verdicts = soak(chosen, home, options.jobs, lines)
    summary = summarize(verdicts, options.seed, time.monotonic() - began_s)
    text = json.dumps(summary, indent=2)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text + "\n")
    if options.json:
        print(text)
    failed = sum(bool(one.wrong) for one in verdicts)
    print(
        f"soak: {len(verdicts)} runs with seed {options.seed}, {failed} in which something did "
        f"not hold, {summary['faults_landed']} faults landed, {summary['took_s']:.0f} s",
        file=lines,
    )
    if not failed:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if failed else 0


def soak(chosen: Sequence[int], home: Path, jobs: int, lines: TextIO) -> list[Verdict]:
    """Runs the scenarios of the seeds, `jobs` at a time; a line for each as it ends."""
    verdicts = []
    with ThreadPoolExecutor(jobs) as pool:
        running = {}
        for number, seed in enumerate(chosen, 1):
            one = scenario(seed)
            running[pool.submit(run_one, one, home / str(seed))] = (number, one)
        try:
            for future in as_completed(running):
                verdicts.append(future.result())
                tell(*running[future], verdicts[-1], home, lines)
        except KeyboardInterrupt:
            print("soak: interrupted, waiting for the jobs that run", file=lines, flush=True)
            pool.shutdown(cancel_futures=True)
    return verdicts


def tell(number: int, one: Scenario, verdict: Verdict, home: Path, lines: TextIO) -> None:
    """A line, and the story of a run in which something did not hold."""
    print(line(number, one, verdict), file=lines, flush=True)
    if verdict.wrong:
        print(details(verdict, home / str(verdict.seed)), file=lines, flush=True)


def run_one(one: Scenario, folder: Path) -> Verdict:
    """Runs a scenario where its hosts belong; a defect of the soak is a finding like another."""
    try:
        return isolated.run(one, folder) if one.netns else run.run(one, folder)
    except Exception as error:
        return Verdict(one.seed, 0.0, (), 0, (f"the soak broke: {error!r}",), "")


def line(number: int, one: Scenario, verdict: Verdict) -> str:
    """`soak 17 seed 83219 ok 1.9 s: 3 hosts, script quick 0.3 s, ... -> 102`"""
    codes = "/".join("-" if code is None else str(code) for code in dict.fromkeys(verdict.codes))
    state = "BROKEN" if verdict.wrong else "ok"
    timed = sum(fault.kind not in ("absent", "late", "none") for fault in one.faults)
    missed = " (too late to hit anything)" if timed and not verdict.landed else ""
    return (
        f"soak {number} seed {verdict.seed} {state} {verdict.took_s:.1f} s: "
        f"{told(one)}{missed} -> {codes}"
    )


def details(verdict: Verdict, folder: Path) -> str:
    """All that a person needs to look into a run that went wrong."""
    parts = [f"  {what}" for what in verdict.wrong]
    parts += [f"  again: make soak ONLY={verdict.seed}", f"  kept: {folder}", verdict.story]
    return "\n".join(parts)


def summarize(verdicts: Sequence[Verdict], seed: int, took_s: float) -> dict[str, object]:
    """The soak in numbers."""
    codes: dict[str, int] = {}
    for one in verdicts:
        for code in set(one.codes) - {None}:
            codes[str(code)] = codes.get(str(code), 0) + 1
    kinds: dict[str, int] = {}
    for one in verdicts:
        for fault in scenario(one.seed).faults or ():
            kinds[fault.kind] = kinds.get(fault.kind, 0) + 1
    return {
        "schema": 1,
        "seed": seed,
        "runs": len(verdicts),
        "took_s": round(took_s, 1),
        "faults": dict(sorted(kinds.items())),
        "faults_landed": sum(one.landed for one in verdicts),
        "runs_by_exit_code": dict(sorted(codes.items())),
        "broken": [
            {"seed": one.seed, "scenario": told(scenario(one.seed)), "wrong": list(one.wrong)}
            for one in verdicts
            if one.wrong
        ],
    }


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="how many (200)")
    parser.add_argument("--seed", type=int, default=1, help="of the whole soak (1)")
    parser.add_argument("--only", type=int, help="one run with this seed of its own")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2)")
    parser.add_argument("--json", action="store_true", help="the summary on stdout as JSON")
    parser.add_argument("--output", type=Path, help="the summary into this file as well")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
