"""`python -m muster_collectives.summary DIR...`: what the groups of a run did, and who held it up.

DIR is what COLLECTIVES_SUMMARY_DIR was, or several: one from each host. Ends with 0 when it could
read them, whatever they say; with 1 for a folder that cannot be read. The same as functions:

from muster_collectives.summary import read_folders, runs_of

files = read_folders([folder])
for run in runs_of(files.found):
    print(run.name, run.straggler)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from muster_collectives.tools.summary.read import Files, RankSummary, read_folders
from muster_collectives.tools.summary.runs import Group, Run, Straggler, runs_of
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


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m muster_collectives.summary",
        description=(__doc__ or "").partition(" The same as functions")[0],
        allow_abbrev=False,
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="of summaries")
    parser.add_argument("--json", action="store_true", help="for programs, all figures")
    options = parser.parse_args()
    try:
        files = read_folders(options.folders)
    except OSError as error:
        print(f"summary: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    runs = runs_of(files.found)
    print(json.dumps(as_json(runs, files), indent=1) if options.json else as_text(runs, files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
