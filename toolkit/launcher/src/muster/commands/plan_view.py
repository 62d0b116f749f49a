"""The plan as a page for a person or one JSON object for a script, without secrets."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from muster.commands.plan_values import Preview, Row
from muster.plan.launchplan import Daemon, Direct, Launcher, LaunchPlan
from muster.types.environment import AT_START
from muster.types.errors import ConfigError, MusterError, Problem
from muster.types.masking import MASK, Masker, is_secret_name
from muster.types.names import counted
from muster.types.plain import SHOWN, columns, printable, shortened

SCHEMA = 1
VALUE_WIDTH = 44


def as_json(preview: Preview) -> str:
    """One object; a change of its keys that is not an addition raises `schema`."""
    masker, mine = preview.masker, preview.plans[preview.job.cluster.current]
    document = {
        "schema": SCHEMA,
        "understood": [row._asdict() for row in preview.facts],
        "assumed": preview.assumptions,
        "option": mine.option,
        "world_size": mine.world_size,
        "master_addr": mine.master_addr,
        "ports": dict(mine.ports),
        "digest": mine.digest,
        "hosts": [_host_object(preview, place, made) for place, made in preview.plans.items()],
        "current_host": preview.job.cluster.me.name,
        "environment": [row._asdict() for row in _environment(preview)],
        "made_at_start": _made_at_start(preview),
        "exports": {name: _value(name, text, masker) for name, text in preview.exports.items()},
        "notes": _other_notes(mine),
        "warnings": [*preview.job.warnings, *mine.warnings],
    }
    return masker.mask(json.dumps(document, indent=2)) + "\n"


def _host_object(preview: Preview, place: int, made: LaunchPlan) -> dict[str, object]:
    masker, starter = preview.masker, made.starter
    starts = None if isinstance(starter, Direct) else masked_argv(starter.command.argv, masker)
    return {
        "name": preview.job.cluster.hosts[place].name,
        "leader": place == made.leader,
        "in_distribution": place in preview.job.cluster.distribution,
        "ranks": [slot.rank for slot in made.ranks_of(place)],
        "launcher": starts if isinstance(starter, Launcher) else None,
        "daemon": {"command": starts, "starts": "on request"}
        if isinstance(starter, Daemon)
        else None,
        "services": [
            {"name": service.name, "command": masked_argv(service.command.argv, masker)}
            for service in made.services
        ],
        "script": masked_argv(made.script.argv, masker),
        "cwd": made.script.cwd,
        "each_rank": {
            str(rank): {name: _value(name, text, masker) for name, text in values.items()}
            for rank, values in made.per_rank.items()
        },
        "sets": [
            {**item._asdict(), "value": _value(item.name, item.value, masker)}
            for item in made.additions
        ],
    }


def as_text(preview: Preview, environment: bool = False, shown: Callable[[str], str] = str) -> str:
    """Two parts, what was understood and what would run; then assumptions, notes, warnings.
    `environment`: with all variables of a rank of this host. `shown`: see `DryRun`."""
    job = preview.job
    mine = preview.plans[job.cluster.current]
    lines = ["What was understood", *_table(preview.facts), "", "What would run"]
    for place in preview.plans:
        lines += _host_lines(preview, place)
    if len(preview.plans) < len(job.cluster.hosts):
        more = len(job.cluster.hosts) - len(preview.plans)
        lines.append(f"  and {more} more hosts (all with --json)")
    lines.append(f"  besides {len(preview.exports)} variables SM_* (all with --environment)")
    if environment:
        lines += ["", f"Environment of each rank on {job.cluster.me.name}"]
        lines += _table(
            (one.name, shortened(shown(one.value).replace("\n", "\\n"), SHOWN), one.source)
            for one in _environment(preview)
        )
        if mine.per_rank:
            lines.append("  besides those that differ between ranks, which stand at each host")
        lines.append(f"  {AT_START}: {', '.join(_made_at_start(preview))}")
    for title, entries in (
        ("Assumed", preview.assumptions),
        ("Notes", _other_notes(mine)),
        ("Warnings", [*job.warnings, *mine.warnings]),
    ):
        if entries:
            lines += ["", title, *(f"  {entry}" for entry in entries)]
    return printable(preview.masker.mask("\n".join(lines))) + "\n"


def _environment(preview: Preview) -> list[Row]:
    """The variables of scripts of this host."""
    environ, masker = preview.environ, preview.masker
    return [
        Row(name, _value(name, environ[name], masker), environ.origin(name))
        for name in sorted(environ)
    ]


def _made_at_start(preview: Preview) -> list[str]:
    """What `train` makes itself, too: files of values that are too large, a home."""
    environ, mine = preview.environ, preview.plans[preview.job.cluster.current]
    empty = [name for name in sorted(environ) if environ.origin(name) == AT_START]
    return [*dict.fromkeys((*mine.made_at_start, *empty))]


def _host_lines(preview: Preview, place: int) -> list[str]:
    made, cluster, masker = preview.plans[place], preview.job.cluster, preview.masker
    role = ", the leader" if place == made.leader else ""
    lines = [f"  {cluster.hosts[place].name}{role}: {_ranks(made, place, cluster.distribution)}"]
    if isinstance(made.starter, Launcher):
        lines.append(f"    {command_line(made.starter.command.argv, masker)}")
    if isinstance(made.starter, Daemon):
        daemon = command_line(made.starter.command.argv, masker)
        lines.append(f"    when {cluster.leader.name}'s mpirun asks for it: {daemon}")
    for service in made.services:
        lines.append(f"    {service.name}: {command_line(service.command.argv, masker)}")
    each = "each rank: " if _is_distributed(made, place, cluster.distribution) else ""
    lines.append(f"    {each}{command_line(made.script.argv, masker)}")
    lines.append(f"    in {made.script.cwd}")
    if made.per_rank:
        lines.append(f"    {_spans(made.per_rank, masker)}")
    if place and made.additions == preview.plans[0].additions:
        lines.append(f"    with the variables of {cluster.hosts[0].name}")
        return lines
    rows = [
        (f"{item.name}={_value(item.name, item.value, masker)}", item.reason)
        for item in made.additions
    ]
    return lines + [f"    {line}" for line in columns(rows)]


def _ranks(made: LaunchPlan, place: int, distribution: Sequence[int]) -> str:
    if place not in distribution:
        return "the script once, outside the distribution"
    if not _is_distributed(made, place, distribution):
        return "the script once"
    ranks = [slot.rank for slot in made.ranks_of(place)]
    listed = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
    return f"{listed} of {made.world_size}"


def _is_distributed(made: LaunchPlan, place: int, distribution: Sequence[int]) -> bool:
    return place in distribution and made.option != "none"


def _spans(per_rank: Mapping[int, Mapping[str, str]], masker: Masker) -> str:
    """`RANK=2...3 LOCAL_RANK=0...1 WORLD_SIZE=4`: what each rank gets, first to last."""
    first, last = per_rank[min(per_rank)], per_rank[max(per_rank)]
    parts = []
    for name, value in first.items():
        span = value if last.get(name) == value else f"{value}...{last.get(name, '')}"
        parts.append(f"{name}={_value(name, span, masker)}" if len(span) <= 60 else f"{name}=...")
    return f"and {' '.join(parts)}"


def _table(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    listed = list(rows)
    names = max(len(name) for name, _, _ in listed)
    values = min(VALUE_WIDTH, max(len(value) for _, value, _ in listed))
    return [
        f"  {name:<{names}}  {value:<{values}}  {source}".rstrip() for name, value, source in listed
    ]


def _other_notes(made: LaunchPlan) -> list[str]:
    """The notes that are not about a variable: those stand beside it."""
    about = {str(item) for item in made.additions}
    return [note for note in made.notes if note not in about]


def _value(name: str, value: str, masker: Masker) -> str:
    return MASK if value and is_secret_name(name) else masker.mask(value)


def masked_argv(argv: Sequence[str], masker: Masker) -> list[str]:
    """A command without secrets: also a short one after an option with a telling name."""
    result: list[str] = []
    for before, text in zip(("", *argv), argv, strict=False):
        hidden = before.startswith("-") and is_secret_name(before.lstrip("-"))
        result.append(MASK if hidden and text else masker.mask(text))
    return result


def command_line(argv: Sequence[str], masker: Masker) -> str:
    """A command as a shell would read it, but for what is masked."""
    return shlex.join(masked_argv(argv, masker)).replace(shlex.quote(MASK), MASK)


def error_text(error: MusterError) -> str:
    """Every problem with its fix."""
    problems = _problems(error)
    lines = [f"{type(error).__name__}: {counted(len(problems), 'problem')}, nothing would run"]
    for problem in problems:
        lines.append(f"  {problem}")
        if problem.fix:
            lines.append(f"    fix: {problem.fix}")
    return "\n".join(lines) + "\n"


def error_json(error: MusterError) -> str:
    entries = [problem._asdict() for problem in _problems(error)]
    document = {"schema": SCHEMA, "error": type(error).__name__, "problems": entries}
    return json.dumps(document, indent=2) + "\n"


def _problems(error: MusterError) -> tuple[Problem, ...]:
    if isinstance(error, ConfigError):
        return error.problems
    return (Problem("this machine", error.message, error.fix),)
