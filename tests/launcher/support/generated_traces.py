"""What a script leaves beside its record: profiles as torch 2.13 writes them, files of calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.launcher.support.generated_records import START

BASE_NS = 1_790_857_026_000_000_000  # torch's own
SECRET = "hf_0123456789abcdef"


def profile(rank: int | None, begins_s: float = 10.0, pid: int = 102) -> dict[str, Any]:
    """One of a process, `begins_s` after the record's beginning; None: it has no group."""
    ts = (START + begins_s) * 1e6 - BASE_NS / 1e3
    place: dict[str, Any] = {"pid": pid, "tid": 7}
    header = {} if rank is None else {"distributedInfo": {"backend": "gloo", "rank": rank}}
    args = {"name": "thread 7 (python)"}
    return {
        "schemaVersion": 1, **header, "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS,
        "traceEvents": [
            {"ph": "M", "name": "thread_name", "ts": ts, **place, "args": args},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", **place, "ts": ts + 10.25,
             "dur": 500.5, "args": {"Input Dims": [[64, 64]], "token": SECRET}},
            {"ph": "X", "cat": "cpu_op", "name": "aten::copy_", **place, "ts": ts + 20.5,
             "dur": 100.125},
            {"ph": "s", "id": 5, "cat": "ac2g", "name": "ac2g", **place, "ts": ts + 21},
            {"ph": "f", "id": 5, "cat": "ac2g", "name": "ac2g", **place, "ts": ts + 30, "bp": "e"},
            {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": ts},
        ],
    }  # fmt: skip


def write_calls(folder: Path) -> None:
    """Of rank 0, whose second call failed, and the group's life."""
    folder.mkdir(parents=True)
    call = {"seq": 1, "verb": "all_reduce", "count": 9, "dtype": "float32", "op": "sum", "root": 0,
            "began_s": 1010.0, "took_s": 0.5, "code": "OK", "path": "one_shot"}  # fmt: skip
    flight = {
        "schema": 1, "group": "world", "rank": 0, "size": 4, "pid": 100, "monotonic_s": 1020.5,
        "error": {"kind": "PeerError", "message": "rank 1 is gone", "ranks": [1]},
        "operations": [call, {**call, "seq": 2, "began_s": 1020.0, "code": "EPEER"}],
    }  # fmt: skip
    (folder / "flight-world-rank0.json").write_text(json.dumps(flight))
    life = {"version": 1, "group": "world", "rank": 0, "size": 4, "global_ranks": [0, 1, 2, 3],
            "began_s": START + 5, "ended_s": START + 21, "wait_s": 0.4, "pid": 100}  # fmt: skip
    (folder / "collectives-world-0-x.json").write_text(json.dumps(life))
