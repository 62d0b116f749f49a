"""Which collective calls a rank is in, as its libraries record them: rows of `looks.Call`'s fields;
and the call of MPI that its main thread is in, which nobody records.

Run by `agent.py` from its own folder, once somebody asks. It imports nothing that the script has
not loaded, and says nothing where it is not sure: no evidence is better than a wrong one.
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

MPI = "mpi4py.MPI"
# of mpi4py, those that wait for other ranks
MPI_CALLS = (
    "Allgather", "Allgatherv", "Allreduce", "Alltoall", "Alltoallv", "Alltoallw", "Barrier",
    "Bcast", "Exscan", "Gather", "Gatherv", "Reduce", "Reduce_scatter", "Reduce_scatter_block",
    "Scan", "Scatter", "Scatterv", "Probe", "Mprobe", "Recv", "Send", "Bsend", "Rsend", "Ssend",
    "Sendrecv", "Sendrecv_replace", "Wait", "Waitall", "Waitany", "Waitsome", "Split", "Dup",
    "Create",
)  # fmt: skip
# those that pickle; `send`, `wait` and the like are other modules' names, too
PICKLING = (
    "allgather", "allreduce", "alltoall", "barrier", "bcast", "exscan", "gather", "reduce", "scan",
    "scatter", "recv", "ssend", "sendrecv",
)  # fmt: skip
GROUPS = 16  # at most, those with a call under way and the latest first
RANKS = 4096  # of a group: of a larger one nothing is said
SHAPE_LETTERS = 100
# of these all members give tensors of the same shape
ALIKE = ("all_reduce", "broadcast", "reduce", "_broadcast_oop", "_reduce_oop")
DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16",
    "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
}  # fmt: skip


class Records:
    """What this rank's libraries record. `began_s`: when the process did, monotonic."""

    def __init__(self, began_s: float) -> None:
        self._ages = Ages(began_s)

    def calls(self) -> "list[dict[str, object]]":
        """Of every group the call that runs, else the one that ended last."""
        found: list[dict[str, Any]] = []
        for library in (of_muster, lambda: of_torch(self._ages)):
            try:
                found += library()
            except Exception:  # another version, or it changes at this very moment
                continue
        found.sort(key=lambda row: (not row["running"], row["age_s"]))
        return [row for row in found if len(row["ranks"]) <= RANKS][:GROUPS]

    def native_call(self, code: "CodeType", at: int) -> str:
        """See `native_call_of`."""
        return native_call_of(code, at)


class Ages:
    """How old calls are. torch stamps them by the wall clock, which may jump: of one that was not
    there at the look before, a stamp is believed as far back as that look, and from then on
    the monotonic clock counts."""

    def __init__(self, began_s: float) -> None:
        self._looked_s = began_s
        self._since: dict[tuple[object, ...], float] = {}

    def of(self, stamps: "dict[tuple[object, ...], int]") -> "dict[tuple[object, ...], float]":
        """Call -> its age in seconds. `stamps`: of all calls, in nanoseconds."""
        now, wall_s = time.monotonic(), time.time()
        most_s = now - self._looked_s
        self._looked_s = now
        self._since = {
            key: self._since.get(key, now - min(max(0.0, wall_s - stamp / 1e9), most_s))
            for key, stamp in stamps.items()
        }
        return {key: now - since for key, since in self._since.items()}


def native_call_of(code: "CodeType", at: int) -> str:
    """The call of MPI in which this code is, at that instruction; "" for none. Such code has no
    frames of its own, and the name stands in the code that calls it."""
    import opcode  # only where a script uses mpi4py

    names, kept, found = opcode.opname, 0, ""
    shifts = "LOAD_METHOD" not in opcode.opmap or sys.version_info >= (3, 12)
    text = code.co_code
    if not 0 <= at < len(text) or not names[text[at]].startswith("CALL"):
        return ""
    for place in range(0, at, 2):
        name, number = names[text[place]], kept | text[place + 1]
        kept = number << 8 if name == "EXTENDED_ARG" else 0
        if name in ("LOAD_ATTR", "LOAD_METHOD"):
            number >>= shifts and name == "LOAD_ATTR"
            if number < len(code.co_names) and code.co_names[number] in MPI_CALLS + PICKLING:
                found = code.co_names[number]
        elif name.startswith(("STORE_", "POP_")):
            found = ""  # another statement
    return found


def of_muster() -> "list[dict[str, Any]]":
    """Muster's own collectives."""
    live = sys.modules.get("muster_collectives.binding.live")
    return [] if live is None else list(live.calls())


def of_torch(ages: Ages) -> "list[dict[str, Any]]":
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
    entries: list[dict[str, Any]] = []
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(core, name, None)
        if dump is not None:
            entries += rows_of(json.loads(dump(True, False)).get("entries") or [], members)
    found = {key_of(entry): entry for entry in entries}
    old = ages.of({key: stamp_of(entry) for key, entry in found.items()})
    return [row_of(entry, members, old[key]) for key, entry in found.items()]


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
    return list(chosen.values())


def key_of(entry: "dict[str, Any]") -> "tuple[object, ...]":
    group, name = entry["process_group"]
    return group, name, entry["collective_seq_id"], entry["profiling_name"], entry["retired"]


def stamp_of(entry: "dict[str, Any]") -> int:
    """When a call began while it runs, else when it ended, where that was recorded."""
    ended_ns = entry.get("time_discovered_completed_ns") if entry["retired"] else 0
    return int(ended_ns or entry["time_created_ns"])


def row_of(
    entry: "dict[str, Any]", members: "dict[str, list[int]]", age_s: float
) -> "dict[str, Any]":
    """As `looks.Call` has it."""
    group = str(entry["process_group"][0])
    op = str(entry["profiling_name"]).rpartition(":")[2]
    shape = ""
    if op in ALIKE:
        pairs = zip(entry["input_dtypes"], entry["input_sizes"], strict=True)
        shape = " ".join(
            f"{DTYPES.get(dtype, dtype.lower())}[{','.join(map(str, sizes))}]"
            for dtype, sizes in pairs
        )
    return {
        "library": "torch", "group": group, "ranks": members[group], "op": op,
        "number": int(entry["collective_seq_id"]),
        "shape": shape if len(shape) <= SHAPE_LETTERS else "",
        "running": not entry["retired"], "age_s": age_s, "absent": [],
    }  # fmt: skip
