"""Which collective calls a rank is in, as its libraries record them: rows of `looks.Call`'s fields.

Run by `agent.py` from its own folder, once somebody asks. It imports nothing that the script has
not loaded, and says nothing where it is not sure: no evidence is better than a wrong one.
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GROUPS = 16  # at most, those with a call under way and the latest first
RANKS = 4096  # of a group: of a larger one nothing is said
SHAPE_LETTERS = 100
# of these all members give tensors of the same shape
ALIKE = ("all_reduce", "broadcast", "reduce", "_broadcast_oop", "_reduce_oop")
DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16",
    "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
}  # fmt: skip


def calls() -> "list[dict[str, object]]":
    """Of every group the call that runs, else the one that ended last."""
    found: list[dict[str, Any]] = []
    for library in (of_muster, of_torch):
        try:
            found += library()
        except Exception:  # another version, or it changes at this very moment
            continue
    found.sort(key=lambda row: (not row["running"], row["age_s"]))
    return [row for row in found if len(row["ranks"]) <= RANKS][:GROUPS]


def of_muster() -> "list[dict[str, Any]]":
    """Muster's own collectives."""
    live = sys.modules.get("muster_collectives.binding.live")
    return [] if live is None else list(live.calls())


def of_torch() -> "list[dict[str, Any]]":
    """What torch's flight recorders keep of gloo and NCCL."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    core = sys.modules.get("torch._C._distributed_c10d")
    json = sys.modules.get("json")
    if distributed is None or json is None or not distributed.is_initialized():
        return []
    world = distributed._world
    if os.environ.get("RANK", "") not in ("", str(world.default_pg.rank())):
        return []  # its ranks are not the job's
    members = {
        name: sorted(ranks, key=ranks.get)
        for group, name in list(world.pg_names.items())
        if (ranks := world.pg_group_ranks.get(group))
    }
    found = []
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(core, name, None)
        if dump is not None:
            found += rows_of(json.loads(dump(True, False)).get("entries") or [], members)
    return found


def rows_of(
    entries: "list[dict[str, Any]]", members: "dict[str, list[int]]"
) -> "list[dict[str, Any]]":
    """Of each group the oldest call that is under way, else the last one."""
    chosen: dict[str, dict[str, Any]] = {}
    for entry in entries:
        group = str(entry["process_group"][0])
        if entry.get("is_p2p") or group not in members:
            continue
        before = chosen.get(group)
        if before is None or before["retired"]:
            chosen[group] = entry
    return [row_of(entry, group, members[group]) for group, entry in chosen.items()]


def row_of(entry: "dict[str, Any]", group: str, ranks: "list[int]") -> "dict[str, Any]":
    """The age of a call that ended counts from its beginning where its end was not recorded."""
    runs = not entry["retired"]
    ended_ns = 0 if runs else entry.get("time_discovered_completed_ns") or 0
    since_ns = ended_ns or entry["time_created_ns"]
    op = str(entry["profiling_name"]).rpartition(":")[2]
    shape = ""
    if op in ALIKE:
        pairs = zip(entry["input_dtypes"], entry["input_sizes"], strict=True)
        shape = " ".join(
            f"{DTYPES.get(dtype, dtype.lower())}[{','.join(map(str, sizes))}]"
            for dtype, sizes in pairs
        )
    return {
        "library": "torch", "group": group, "ranks": ranks, "op": op,
        "number": int(entry["collective_seq_id"]),
        "shape": shape if len(shape) <= SHAPE_LETTERS else "",
        "running": runs, "age_s": max(0.0, time.time() - since_ns / 1e9), "absent": [],
    }  # fmt: skip
