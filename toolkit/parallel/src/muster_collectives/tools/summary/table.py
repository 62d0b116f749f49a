"""Runs as a table for people and as JSON for programs (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from muster_collectives.runtime.messages import ranks_text
from muster_collectives.tools.columns import columns
from muster_collectives.tools.summary.read import Files
from muster_collectives.tools.summary.runs import Group, Run, joint_s

_SHOWN_RANKS = 16
_MIB = 1 << 20
_HEAD = ("group", "rank", "host", "node", "calls", "MiB", "calls s", "waiting s", "sent MiB",
         "p2p MiB", "elsewhere")  # fmt: skip


def as_text(runs: Sequence[Run], files: Files) -> str:
    lines: list[str] = []
    for run in runs:
        lines += [f"run {run.name or 'without a name'}: {_count(len(run.groups), 'group')}"]
        rows = [_HEAD, *(row for group in run.groups for row in _rows(group))]
        lines += columns(rows, left=(0, 2))  # names
        lines += [note for group in run.groups for note in _notes(group)]
        lines.append(f"straggler: {run.straggler or 'none'}")
    if not runs:
        lines.append("no summaries here; COLLECTIVES_SUMMARY_DIR of the job says where they go")
    return "\n".join([*lines, *(f"not used: {each}" for each in files.refused)])


def as_json(runs: Sequence[Run], files: Files) -> dict[str, Any]:
    return {
        "runs": [
            {
                "run": run.name,
                "straggler": None if run.straggler is None else asdict(run.straggler),
                "groups": [_group_json(group) for group in run.groups],
            }
            for run in runs
        ],
        "refused": list(files.refused),
    }


def _group_json(group: Group) -> dict[str, Any]:
    first = group.members[0]
    return {
        "group": first.group, "life": first.life, "layer": first.layer, "size": first.size,
        "transport": first.transport, "why": first.why, "missing": list(group.missing),
        "straggler": None if group.straggler is None else asdict(group.straggler),
        "ranks": [{**asdict(one), "joint_s": joint_s(one)} for one in group.members],
    }  # fmt: skip


def _rows(group: Group) -> list[tuple[str, ...]]:
    """Of a large group those that spent the least time in calls: the late ones."""
    shown = group.members
    if len(shown) > _SHOWN_RANKS:
        shown = tuple(sorted(sorted(shown, key=joint_s)[:_SHOWN_RANKS], key=lambda one: one.rank))
    return [
        (one.group, str(one.global_ranks[one.rank]), one.host,
         str(one.nodes[one.rank]) if one.nodes else "-", str(one.calls), _mib(one.bytes),
         f"{one.time_s:.3f}", f"{one.wait_s:.3f}", _mib(one.sent_bytes), _mib(one.sends_bytes),
         str(one.elsewhere))
        for one in shown
    ]  # fmt: skip


def _notes(group: Group) -> list[str]:
    notes = []
    if len(group.members) > _SHOWN_RANKS:
        notes.append(f"group {group.name!r}: {_SHOWN_RANKS} of {len(group.members)} ranks shown")
    if group.missing:
        notes.append(f"group {group.name!r}: no summary of {ranks_text(group.missing)}: killed, "
                     "or in a folder that is not here")  # fmt: skip
    return notes


def _mib(bytes_: int) -> str:
    return f"{bytes_ / _MIB:.2f}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
