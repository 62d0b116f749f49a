"""Reads the summaries of a run's groups (COLLECTIVES_SUMMARY_DIR): figures, and who held it up.

    from muster_collectives.summary import read_folders, runs_of

    files = read_folders([folder])
    for run in runs_of(files.found):
        print(run.name, run.straggler)

`python -m muster_collectives.summary DIR` prints the same, as a table or with --json.
"""

from __future__ import annotations

from muster_collectives.summary.read import Files, RankSummary, read_folders
from muster_collectives.summary.runs import Group, Run, runs_of
from muster_collectives.summary.stragglers import Straggler
from muster_collectives.summary.table import as_json, as_text

__all__ = [
    "Files",
    "Group",
    "RankSummary",
    "Run",
    "Straggler",
    "as_json",
    "as_text",
    "read_folders",
    "runs_of",
]
