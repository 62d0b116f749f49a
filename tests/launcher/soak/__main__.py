"""`python -m tests.launcher.soak --runs 200 --seed 1`: random faults, invariants only."""

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

from tests.launcher.soak import isolated, run, summary
from tests.launcher.soak.faults import UNTIMED, cannot_land
from tests.launcher.soak.scenario import Scenario, scenario, seeds, told
from tests.launcher.soak.verdict import Verdict

ROOT = Path(__file__).parents[3] / ".cache" / "soak"


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
    took_s = time.monotonic() - began_s
    found = summary.summarize(verdicts, len(chosen), options.seed, took_s, cannot_land())
    text = json.dumps(found, indent=2)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text + "\n")
    if options.json:
        print(text)
    print(summary.tell(found), file=lines)
    if not found["broken"]:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if found["broken"] else 0


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
        return Verdict(one.seed, 0.0, (), (), (f"the soak broke: {error!r}",), "")


def line(number: int, one: Scenario, verdict: Verdict) -> str:
    """`soak 17 seed 83219 ok 1.9 s: 3 hosts, script quick 0.3 s, ... -> 102`"""
    if not verdict.ran:
        return f"soak {number} seed {verdict.seed} not run: {verdict.why_not}: {told(one)}"
    codes = "/".join("-" if code is None else str(code) for code in dict.fromkeys(verdict.codes))
    state = "BROKEN" if verdict.wrong else "ok"
    timed = {fault.kind for fault in one.faults} - set(UNTIMED)
    missed = " (too late to hit anything)" if timed and not timed & set(verdict.landed) else ""
    return (
        f"soak {number} seed {verdict.seed} {state} {verdict.took_s:.1f} s: "
        f"{told(one)}{missed} -> {codes}"
    )


def details(verdict: Verdict, folder: Path) -> str:
    """All that a person needs to look into a run that went wrong."""
    parts = [f"  {what}" for what in verdict.wrong]
    parts += [f"  again: make soak ONLY={verdict.seed}", f"  kept: {folder}", verdict.story]
    return "\n".join(parts)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.launcher.soak", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="how many (200)")
    parser.add_argument("--seed", type=int, default=1, help="of the whole soak (1)")
    parser.add_argument("--only", type=int, help="one run with this seed of its own")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2)")
    parser.add_argument("--json", action="store_true", help="the summary on stdout as JSON")
    parser.add_argument("--output", type=Path, help="the summary into this file as well")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
