"""One case as calls. Each contender has buffers of its own: what one registers others would use,
and caches would be warm for some. Each is checked before it is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster_collectives.core import DTYPE_BYTES, CollectiveError, Op, Region, Verb
from muster_collectives.tools.bench import cases
from muster_collectives.tools.bench.cases import DTYPES, Case
from muster_collectives.tools.bench.group import BenchGroup

Call = Callable[[], object]
_PIECE_BYTES = 512 << 10
_MPI_TYPES: Mapping[str, str] = {
    "float32": "FLOAT", "float64": "DOUBLE", "int8": "INT8_T", "uint8": "UINT8_T",
    "int32": "INT32_T", "int64": "INT64_T",
}  # fmt: skip


@dataclass
class Prepared:
    """The contenders of one case, ready to be called. `calls` by contender; `absent`: why one is
    not there; `regions`: released by all ranks; `buffers` of all."""

    calls: dict[str, Call] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    buffers: list[Buffers] = field(default_factory=list)

    def release(self) -> None:
        self.calls.clear()
        self.buffers.clear()
        for region in self.regions:
            region.release()


@dataclass(frozen=True)
class Buffers:
    """The memory of one case. `given` is a rank's input, `result` its output: the same tensor for
    all_reduce. `count` as the core counts it."""

    given: Any
    result: Any
    count: int


def prepare(group: BenchGroup, case: Case) -> Prepared:
    """Collective. Raises ValueError where a contender's result is wrong."""
    made = Prepared()
    for name in case.names:
        try:
            buffers = _buffers(group, case, case.dtype)
            made.buffers.append(buffers)
            made.calls[name] = _call(group, case, name, buffers, made)
        except LookupError as reason:
            made.absent[name] = str(reason.args[0])
    return made


def _buffers(group: BenchGroup, case: Case, dtype: str) -> Buffers:
    """As many elements of `dtype` as the case has of its own."""
    kind = getattr(group.torch, dtype)
    count = case.size_bytes // DTYPE_BYTES[DTYPES[case.dtype]]
    if case.verb == "all_reduce":
        data = group.torch.zeros(count, dtype=kind)
        return Buffers(data, data, count)
    count = max(1, count // group.size)
    part = group.torch.zeros(count, dtype=kind)
    whole = group.torch.zeros(count * group.size, dtype=kind)
    return Buffers(*((part, whole) if case.verb == "all_gather" else (whole, part)), count)


def _call(group: BenchGroup, case: Case, name: str, buffers: Buffers, made: Prepared) -> Call:
    """Raises LookupError with the reason where there is no such contender here."""
    if name == cases.LIMIT:
        return _memory_alone(group, case, buffers)
    if name == cases.COPIES:
        return _copies_alone(group, case, buffers)
    if name == cases.WIDE:
        if case.dtype == "float32":
            raise LookupError("the case is float32 itself")
        buffers = _buffers(group, case, "float32")
    if name == cases.DIRECT:
        buffers = _registered(group, case, buffers, made)
    if name in (cases.OURS, cases.WIDE, cases.GLOO):
        call = _through_torch(group, case.verb, buffers, group.gloo if name == cases.GLOO else None)
    elif name in (cases.CORE, cases.DIRECT):
        call = _through_core(group, case, buffers)
    elif name == cases.MPI:
        call = _through_mpi(group, case, buffers)
    else:
        raise LookupError(f"no contender {name}; there are {', '.join(cases.NAMES)}")
    _check(group, case, name, buffers, call)
    return call


def _memory_alone(group: BenchGroup, case: Case, buffers: Buffers) -> Call:
    """Without a word between ranks: the longer buffer read and written in place. A gather writes
    what it has not read, so there every part of the result is copied from this rank's input."""
    if case.verb == "all_gather":
        parts = buffers.result.view(group.size, buffers.count)
        return lambda: parts.copy_(buffers.given)
    longer = max((buffers.given, buffers.result), key=len)
    return lambda: longer.mul_(1)


def _copies_alone(group: BenchGroup, case: Case, buffers: Buffers) -> Call:
    """Without a word between ranks: what they have to copy into memory that they share, and to copy
    or add from there, a piece at a time so that it stays in the cache."""
    if case.verb == "all_reduce":
        raise LookupError("the bound of a sum in place is a pass over it")
    given, result, count, torch = buffers.given, buffers.result, buffers.count, group.torch
    step = _PIECE_BYTES // given.element_size()
    spans = [slice(at, at + step) for at in range(0, count, step)]
    room = torch.empty(group.size, step, dtype=given.dtype)

    def gather() -> None:
        for span in spans:
            shared = room[0, : len(given[span])].copy_(given[span])
            parts[:, span].copy_(shared)

    def scatter() -> None:
        for span in spans:
            shared = room[1:, : len(result[span])].copy_(parts[1:, span])
            torch.add(parts[0, span], shared[0], out=result[span])
            for more in shared[1:]:
                result[span].add_(more)

    parts = (result if case.verb == "all_gather" else given).view(group.size, count)
    return gather if case.verb == "all_gather" else scatter


def _through_torch(group: BenchGroup, verb: str, buffers: Buffers, where: Any) -> Call:
    from muster_collectives.torch.compress import group_calls as calls

    dist = group.dist
    if verb == "all_reduce":
        return lambda: dist.all_reduce(buffers.result, group=where)
    call = calls.all_gather_single if verb == "all_gather" else calls.reduce_scatter_single
    return lambda: call(buffers.result, buffers.given, group=where)


def _through_core(group: BenchGroup, case: Case, buffers: Buffers) -> Call:
    verb, run = Verb[case.verb.upper()], group.core.run
    source, target = buffers.given.data_ptr(), buffers.result.data_ptr()
    count, dtype = buffers.count, DTYPES[case.dtype]
    return lambda: run(verb, source=source, target=target, count=count, dtype=dtype, op=Op.SUM)


def _registered(group: BenchGroup, case: Case, buffers: Buffers, made: Prepared) -> Buffers:
    """The same buffers in memory that the ranks have in common."""

    def registered(like: Any) -> Any:
        bytes_ = max(4096, (like.numel() * like.element_size() + 4095) & ~4095)
        try:
            region = group.core.allocate(bytes_)
        except CollectiveError as error:
            raise LookupError(f"no registered memory: {error.message}") from error
        made.regions.append(region)
        return group.torch.frombuffer(region.view, dtype=like.dtype, count=like.numel())

    result = registered(buffers.result)
    given = result if buffers.given is buffers.result else registered(buffers.given)
    return Buffers(given, result, buffers.count)


def _through_mpi(group: BenchGroup, case: Case, buffers: Buffers) -> Call:
    if group.mpi is None:
        raise LookupError("mpirun has not started this run")
    if case.dtype not in _MPI_TYPES:
        raise LookupError(f"MPI has no {case.dtype}")
    kind = getattr(group.mpi, _MPI_TYPES[case.dtype])
    world, given, result = group.mpi.COMM_WORLD, buffers.given.numpy(), buffers.result.numpy()
    if case.verb == "all_reduce":
        place = group.mpi.IN_PLACE
        return lambda: world.Allreduce(place, [result, kind])
    if case.verb == "all_gather":
        return lambda: world.Allgather([given, kind], [result, kind])
    return lambda: world.Reduce_scatter_block([given, kind], [result, kind])


def _check(group: BenchGroup, case: Case, name: str, buffers: Buffers, call: Call) -> None:
    """Every contender does the same work; afterwards all is zero, so that sums stay finite."""
    buffers.given.fill_(group.rank + 1)
    call()
    first, last = buffers.result[0].item(), buffers.result[-1].item()
    total = group.size * (group.size + 1) / 2
    expected = (1, group.size) if case.verb == "all_gather" else (total, total)
    if (first, last) != expected:
        raise ValueError(f"{name} {case.verb} of {case.size_bytes} bytes: {first} and {last} "
                         f"at the ends, {expected} are right")  # fmt: skip
    buffers.given.zero_()
    buffers.result.zero_()
