"""`muster doctor`: problems of this machine that break jobs, and the command that fixes each.

Looking (doctor_facts) and judging (doctor_checks, doctor_software) are apart; this module prints.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from muster.types.names import counted

if TYPE_CHECKING:
    from muster.commands.doctor_facts import Facts
    from muster.commands.doctor_finding import Finding

SCHEMA = 1
_COLOURS = {"OK": "\x1b[32m", "WARN": "\x1b[33m", "FAIL": "\x1b[31m"}
_PLAIN = "\x1b[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Check this machine for problems that break jobs, and print each fix."
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="also run a small job of 2 hosts through every distribution (at most 90 s)",
    )
    parser.add_argument(
        "--engine", metavar="NAME", help="check slurm, kubernetes, batch or hosts for muster submit"
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    shape.add_argument(
        "--report", action="store_true", help="print a text to paste into an issue; names no host"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the findings on stdout. Returns 1 when one of them would break a job, else 0."""
    from muster.commands.doctor_facts import look

    facts = look(os.environ)
    if args.engine:
        from muster.commands.doctor_engines import checked

        findings = checked(args.engine)
    else:
        findings = examine(facts)
    if args.self_test:
        from muster.commands.self_test import self_test

        if sys.stderr.isatty():
            sys.stderr.write("muster doctor: running jobs, for at most 90 s\n")
        findings += self_test(facts)
    if args.json:
        text = as_json(facts, findings)
    elif args.report:
        text = as_report(findings)
    else:
        colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        text = as_text(findings, colours)
    sys.stdout.write(text)
    return int(any(finding.level == "FAIL" for finding in findings))


def examine(facts: Facts) -> list[Finding]:
    """All findings, in the order in which you would fix them."""
    from muster.commands import doctor_checks as checks
    from muster.commands import doctor_mpi as mpi
    from muster.commands import doctor_software as software

    table: dict[str, Callable[[Facts], Finding]] = {"system": checks.system}
    if facts.system == "Linux":
        table |= {
            "interface": checks.interface,
            "names": checks.names,
            "ports": checks.ports,
            "/dev/shm": checks.shared_memory,
            "open files": checks.open_files,
            "processes": checks.processes,
            "memory": checks.memory,
            "clock": checks.clock,
            "train": software.train,
            "torch": software.torch,
            "frameworks": software.frameworks,
            "mpirun": lambda facts: mpi.mpirun(facts.mpi),
            "mpi4py": lambda facts: mpi.mpi4py(facts.mpi, facts.executable),
            "packages": software.packages,
            "accelerators": software.accelerators,
            "fabric": software.fabric,
            "namespaces": software.isolation,
        }
    return [check(facts)._replace(name=name) for name, check in table.items()]


def as_text(findings: Sequence[Finding], colours: bool) -> str:
    """A line for each finding, two more under each that is not well, and the sum."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        colour, plain = (_COLOURS[finding.level], _PLAIN) if colours else ("", "")
        lines.append(f"{colour}{finding.level:<4}{plain}  {finding.name:<{width}}  {finding.found}")
        if finding.level != "OK":
            lines.append(f"{'':{width + 8}}breaks: {finding.breaks}")
            lines.append(f"{'':{width + 8}}fix:    {finding.fix}")
    return "\n".join([*lines, "", summary(findings), ""])


def summary(findings: Sequence[Finding]) -> str:
    """`16 checks: 14 ok, 2 warnings, 0 failures`."""
    counts = [sum(one.level == level for one in findings) for level in ("OK", "WARN", "FAIL")]
    warnings, failures = counted(counts[1], "warning"), counted(counts[2], "failure")
    return f"{counted(len(findings), 'check')}: {counts[0]} ok, {warnings}, {failures}"


def as_json(facts: Facts, findings: Sequence[Finding]) -> str:
    """`schema` grows when a key changes its meaning or goes away."""
    import json

    levels = {finding.level for finding in findings}
    document: Mapping[str, object] = {
        "schema": SCHEMA,
        "muster": facts.muster,
        "result": next((level for level in ("FAIL", "WARN") if level in levels), "OK").lower(),
        "checks": [_for_json(finding) for finding in findings],
        "machine": facts.machine._asdict()
        | {"interfaces": [one._asdict() for one in facts.machine.interfaces]},
    }
    return json.dumps(document, indent=2) + "\n"


def _for_json(finding: Finding) -> dict[str, str]:
    """Its fields; the fix has the key that it had in the first version of the schema."""
    fields = finding._asdict()
    fields["cure"] = fields.pop("fix")
    return fields


def as_report(findings: Sequence[Finding]) -> str:
    """The findings as a block of Markdown, without addresses but those of loopback."""
    import re

    text = re.sub(r"\b(?!127\.)\d+\.\d+\.\d+\.\d+\b", "x.x.x.x", as_text(findings, colours=False))
    return f"```text\n{text}```\n"
