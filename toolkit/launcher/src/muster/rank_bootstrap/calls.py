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
    from collections.abc import Callable, Iterator
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
# those of sockets, torch and numpy, too: only in code that names a communicator
SHARED = ("gather", "reduce", "scan", "scatter", "recv")
GROUPS = 16  # at most, those with a call under way and the latest first
RANKS = 4096  # of a group: of a larger one nothing is said
SHAPE_LETTERS = 100
# of these all members give tensors of the same shape
ALIKE = ("all_reduce", "broadcast", "reduce", "_broadcast_oop", "_reduce_oop")
# in these every member waits for every other
ALL_WAIT = ("all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "all_to_all",
            "alltoall", "barrier")  # fmt: skip
BLOCK = 32
MOST_A_STEP = 6
DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16",
    "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
}  # fmt: skip


class Records:
    """What this rank's libraries record. `began_s`: when the process did, monotonic."""

    def __init__(self, began_s: float) -> None:
        self._ages = Ages(began_s)
        self._torch_waits = TorchWaits(self._ages)

    def calls(self) -> "list[dict[str, object]]":
        """Of every group the call that runs, else the one that ended last."""
        return self._of(of_muster, lambda: of_torch(self._ages))

    def waits(self) -> "list[dict[str, object]]":
        """The same, without those of torch that cannot have run for long."""
        return self._of(of_muster, self._torch_waits.rows)

    def _of(self, *libraries: "Callable[[], list[dict[str, Any]]]") -> "list[dict[str, object]]":
        found: list[dict[str, Any]] = []
        for library in libraries:
            try:
                found += library()
            except Exception:  # another version, or it changes at this very moment
                continue
        found.sort(key=lambda row: (not row["running"], row["age_s"]))
        return [row for row in found if len(row["ranks"]) <= RANKS][:GROUPS]

    def arrivals(self) -> "dict[str, Any] | None":
        """See `arrivals_of_calls`."""
        return arrivals_of_calls()

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

    def looked(self, at_s: float) -> None:
        """At that time no call was there that is there now."""
        self._looked_s = max(self._looked_s, at_s)

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


class TorchWaits:
    """Calls of torch that may have run for long. What torch records of them is long, and the script
    stands still while it is read (80 ms of 2000 calls): only where a group has made no call since
    the look before, and had not ended them all then. The number of its last call costs nothing."""

    def __init__(self, ages: Ages) -> None:
        self._ages = ages
        self._looked_s = time.monotonic()
        self._last: dict[str, int | None] = {}
        self._ended: dict[str, int | None] = {}

    def rows(self) -> "list[dict[str, Any]]":
        """As `of_torch`, or none."""
        numbers, before, since_s = dict(numbers_of_torch()), self._last, self._looked_s
        self._last, self._looked_s = numbers, time.monotonic()
        if not any(
            before.get(name, number) == number
            and (number is None or self._ended.get(name) != number)
            for name, number in numbers.items()
        ):
            self._ages.looked(since_s)  # a call that runs by now began after that
            return []
        found = of_torch(self._ages)
        running = {row["group"] for row in found if row["running"]}
        self._ended = {name: at for name, at in numbers.items() if name not in running}
        return found


def native_call_of(code: "CodeType", at: int) -> str:
    """The call of MPI in which this code is, at that instruction; "" for none. Such code has no
    frames of its own, and the name stands in the code that calls it: the stack is as high after the
    call as before its name was looked up, while an argument's call and name lie higher."""
    import opcode  # only where a script uses mpi4py

    names, kept, height, found = opcode.opname, 0, 0, dict[int, str]()
    shifts = "LOAD_METHOD" not in opcode.opmap or sys.version_info >= (3, 12)
    text = code.co_code
    if not 0 <= at < len(text) or not names[text[at]].startswith("CALL"):
        return ""
    for place in range(0, at + 2, 2):
        op, number = text[place], kept | text[place + 1]
        name, before = names[op], height
        kept = number << 8 if name == "EXTENDED_ARG" else 0
        if name not in ("CACHE", "EXTENDED_ARG"):
            given = number if op >= opcode.HAVE_ARGUMENT else None
            height += opcode.stack_effect(op, given, jump=False)
        if name in ("LOAD_ATTR", "LOAD_METHOD"):
            number >>= shifts and name == "LOAD_ATTR"
            if number < len(code.co_names) and code.co_names[number] in MPI_CALLS + PICKLING:
                found[before] = code.co_names[number]
            else:
                found.pop(before, None)
        elif name.startswith(("STORE_", "POP_", "JUMP_", "RETURN_", "RAISE_")):
            found.clear()  # another statement
    # below may be a NULL, which the call takes away, too
    called = found.get(height) or found.get(height + ("PUSH_NULL" in opcode.opmap), "")
    known = code.co_names + code.co_varnames + code.co_freevars + code.co_cellvars
    has_one = any("comm" in name.lower() or "world" in name.lower() for name in known)
    return called if has_one or called not in SHARED else ""


def arrivals_of_calls() -> "dict[str, Any] | None":
    """When this rank came to the last calls of its largest group: `library`, `group`, `ranks`,
    `calls`: number and seconds of the monotonic clock. Only calls in which all wait for all count,
    of the last two whole blocks of BLOCK numbers, so that ranks that are asked at about the same
    time answer for the same ones; of a step with very many calls every 4th, 16th, ... None where no
    library records them, or the script reports no steps to `muster.metrics`."""
    progress = sys.modules["muster.runtime.metrics"].progress()  # first: the rest takes time
    if not progress or not progress[1]:
        return None
    found: list[tuple[str, str, Any, list[tuple[int, float]]]] = []
    for library in (muster_arrivals, torch_arrivals):
        try:
            found += library()
        except Exception:  # as above
            continue
    found = [one for one in found if 1 < len(one[2]) <= RANKS and len(one[3]) >= 2]
    if not found:
        return None
    name, group, ranks, calls = max(found, key=lambda one: (len(one[2]), len(one[3])))
    took_s, every = max(1e-3, calls[-1][1] - calls[0][1]), 1
    while len(calls) > MOST_A_STEP * every * took_s * progress[1]:
        every *= 4
    block = BLOCK * every
    last = calls[-1][0] // block * block
    chosen = [
        [number, at_s]
        for number, at_s in calls
        if last - 2 * block < number <= last and number % every == 0
    ]
    return {"library": name, "group": group, "ranks": list(ranks), "calls": chosen}


def muster_arrivals() -> "list[tuple[str, str, Any, list[tuple[int, float]]]]":
    """Of muster's own collectives."""
    live = sys.modules.get("muster_collectives.binding.live")
    return [] if live is None else [("muster", *one) for one in live.arrivals()]


def torch_arrivals() -> "list[tuple[str, str, Any, list[tuple[int, float]]]]":
    """Of torch's groups: its flight recorders know when a call was made, by the wall clock."""
    back_s = time.monotonic() - time.time()
    found: list[tuple[str, str, Any, list[tuple[int, float]]]] = []
    for entries in torch_recorders():
        made: dict[str, tuple[str, str, Any, list[tuple[int, float]]]] = {}
        for entry, group, ranks in entries:
            op = str(entry["profiling_name"]).rpartition(":")[2].strip("_")
            if op.startswith(ALL_WAIT) and not entry.get("is_p2p"):
                calls = made.setdefault(group, ("torch", group, ranks, []))[3]
                at_s = entry["time_created_ns"] / 1e9 + back_s
                calls.append((int(entry["collective_seq_id"]), round(at_s, 6)))
        found += made.values()
    return found


def of_muster() -> "list[dict[str, Any]]":
    """Muster's own collectives."""
    live = sys.modules.get("muster_collectives.binding.live")
    return [] if live is None else list(live.calls())


def of_torch(ages: Ages) -> "list[dict[str, Any]]":
    """What torch's flight recorders keep of gloo and NCCL: of each group the oldest call that is
    under way, else the last one."""
    found: dict[tuple[object, ...], tuple[dict[str, Any], list[int]]] = {}
    for entries in torch_recorders():
        chosen: dict[str, tuple[dict[str, Any], list[int]]] = {}
        for entry, group, ranks in entries:
            if not entry.get("is_p2p") and (group not in chosen or chosen[group][0]["retired"]):
                chosen[group] = entry, ranks
        found |= {key_of(entry): (entry, ranks) for entry, ranks in chosen.values()}
    old = ages.of({key: stamp_of(entry) for key, (entry, _) in found.items()})
    return [row_of(entry, ranks, old[key]) for key, (entry, ranks) in found.items()]


def numbers_of_torch() -> "Iterator[tuple[str, int | None]]":
    """Of each of torch's groups the number of its last call, where it says that."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None or not distributed.is_initialized():
        return
    for group, name in list(distributed._world.pg_names.items()):
        try:
            yield str(name), int(group._get_sequence_number_for_group())
        except Exception:  # a backend that counts none
            yield str(name), None


def torch_recorders() -> "Iterator[list[tuple[dict[str, Any], str, list[int]]]]":
    """Of each recorder its entries, oldest first, with the name and the members of their group."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    core = sys.modules.get("torch._C._distributed_c10d")
    json = sys.modules.get("json")
    if distributed is None or json is None or not distributed.is_initialized():
        return
    world = distributed._world
    if os.environ.get("RANK", "") not in ("", str(world.default_pg.rank())):
        return  # its ranks are not the job's
    members = {
        name: sorted(ranks, key=ranks.get)
        for group, name in list(world.pg_names.items())
        if (ranks := world.pg_group_ranks.get(group))
    }
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(core, name, None)
        if dump is not None:
            entries = json.loads(dump(True, False)).get("entries") or []
            named = ((entry, str(entry["process_group"][0])) for entry in entries)
            yield [(entry, group, members[group]) for entry, group in named if group in members]


def key_of(entry: "dict[str, Any]") -> "tuple[object, ...]":
    group, name = entry["process_group"]
    return group, name, entry["collective_seq_id"], entry["profiling_name"], entry["retired"]


def stamp_of(entry: "dict[str, Any]") -> int:
    """When a call began while it runs, else when it ended, where that was recorded."""
    ended_ns = entry.get("time_discovered_completed_ns") if entry["retired"] else 0
    return int(ended_ns or entry["time_created_ns"])


def row_of(entry: "dict[str, Any]", ranks: "list[int]", age_s: float) -> "dict[str, Any]":
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
        "library": "torch", "group": group, "ranks": ranks, "op": op,
        "number": int(entry["collective_seq_id"]),
        "shape": shape if len(shape) <= SHAPE_LETTERS else "",
        "running": not entry["retired"], "age_s": age_s, "absent": [],
    }  # fmt: skip
