"""`python -m muster_collectives.summary DIR`, and the same as functions.

from muster_collectives.summary import read_folders, runs_of

files = read_folders([folder])
for run in runs_of(files.found):
    print(run.name, run.straggler)
"""

from __future__ import annotations

import sys

from muster_collectives.tools.summary.command import main
from muster_collectives.tools.summary.read import Files, RankSummary, read_folders
from muster_collectives.tools.summary.runs import Group, Run, runs_of
from muster_collectives.tools.summary.stragglers import Straggler
from muster_collectives.tools.summary.table import as_json, as_text

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

if __name__ == "__main__":
    sys.exit(main())
