"""The variables that are ours: COLLECTIVES_*, read once from an environment (pure).

A name that begins with COLLECTIVES_ and is not known is named once, with the near one; one that was
removed, with what to use instead. Variables of the library whose scripts run here unchanged
(SMDATAPARALLEL_*, SMDDP_*) are accepted: what has a meaning here is taken, the rest is said once to
have none.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

PREFIX = "COLLECTIVES_"
_T = TypeVar("_T")

KNOWN: Mapping[str, str] = {
    "COLLECTIVES_ADDRESS": "the IP address on which this rank listens for ranks of other nodes",
    "COLLECTIVES_ADOPT_BYTES": "of what is summed or sent again and again so much is registered",
    "COLLECTIVES_ASYNC": "lane or lazy: a thread runs asynchronous calls, or who waits",
    "COLLECTIVES_CHECKED": "1: every frame between nodes carries a checksum",
    "COLLECTIVES_CHUNK_BYTES": "chunk of the piped algorithms in a node",
    "COLLECTIVES_CORE": "path of the compiled core",
    "COLLECTIVES_DEVICE_ALL_GATHER": "auto, world or hierarchical: how CUDA tensors are gathered",
    "COLLECTIVES_DEVICE_ALL_REDUCE": "auto, world, hierarchical or host: how they are reduced",
    "COLLECTIVES_DEVICE_LEAST_BYTES": "calls of CUDA tensors below it are made by the world group",
    "COLLECTIVES_DEVICE_REDUCE_SCATTER": "auto, world or hierarchical: how they are scattered",
    "COLLECTIVES_DEVICE_SEGMENT_BYTES": "hierarchical and host-staged calls are cut into these",
    "COLLECTIVES_DIRECT_BYTES": "registered buffers of at least this are reduced in place",
    "COLLECTIVES_EAGER_BYTES": "larger messages in a node stay with their sender until received",
    "COLLECTIVES_FLIGHT_DIR": "folder for the last operations of each rank when a call fails",
    "COLLECTIVES_GLOO": "1: CPU tensors of torch go to gloo, without the core",
    "COLLECTIVES_HUGE_PAGES": "0: registered memory takes none of the huge pages that are reserved",
    "COLLECTIVES_INTERFACE": "the network interface on which this rank listens",
    "COLLECTIVES_ISA": "avx512, avx2, neon or plain: at most this instruction set",
    "COLLECTIVES_KEY": "secret in hexadecimal digits, the same on all ranks: who has it may join",
    "COLLECTIVES_LEADER_BYTES": "between nodes, at most this: one rank of each node talks",
    "COLLECTIVES_NODE": "name of this rank's node; ranks of other names are in other nodes",
    "COLLECTIVES_ONE_SHOT_BYTES": "ranks of the node x bytes at most this: one-shot",
    "COLLECTIVES_RECORDS": "last operations kept and, with a FLIGHT_DIR, written by each group",
    "COLLECTIVES_SEGMENT_BYTES": "between nodes, larger calls are cut into pieces of this",
    "COLLECTIVES_SLOT_BYTES": "one staging place in the node's segment; a rank has four",
    "COLLECTIVES_SPIN_S": "busy waiting in seconds (COLLECTIVES_SPIN_US in microseconds)",
    "COLLECTIVES_SPIN_US": "busy waiting in microseconds before the processor is given away",
    "COLLECTIVES_STRAGGLER_S": "seconds between two looks for a rank that holds the others up",
    "COLLECTIVES_STREAMS": "TCP connections between two nodes, which their ranks share",
    "COLLECTIVES_SUMMARY_DIR": "folder for a summary of each group when it ends",
    "COLLECTIVES_TIMEOUT_S": "deadline of a call in seconds",
    "COLLECTIVES_WIRE": "same, fp16, bf16 or int8: form of fp32 sums between nodes",
}
# what takes the place of each variable that has no effect any more
GONE: Mapping[str, str] = {
    "COLLECTIVES_ERROR_FEEDBACK": "int8 sums keep no rounding errors; Int8State and int8_hook of "
    "muster_collectives.torch.hooks keep them for each gradient",
    "COLLECTIVES_PURE": "collectives need the compiled core; COLLECTIVES_GLOO=1 does without in "
    "torch",
}
ALIASES: Mapping[str, str] = {"SMDDP_INTER_DTYPE": "COLLECTIVES_WIRE"}
WITHOUT_MEANING = (
    "SMDATAPARALLEL_OPTIMIZE_SDP",
    "SMDATAPARALLEL_USE_SINGLENODE",
    "SMDATAPARALLEL_USE_HOMOGENEOUS",
    "SMDATAPARALLEL_SERVER_ADDR",
    "SMDATAPARALLEL_SERVER_PORT",
)


@dataclass(frozen=True, slots=True)
class Variables:
    """What the environment says to us: `values` by our names, and `notes` to be said once."""

    values: Mapping[str, str]
    notes: tuple[str, ...]

    def get(self, name: str) -> str:
        """The value without surrounding space; "" where it is not set."""
        return self.values.get(PREFIX + name, "")

    def parsed(self, name: str, parse: Callable[..., _T], default: _T, *more: object) -> _T:
        """The value as `parse(text, variable, *more)` reads it; `default` where it is not set."""
        text = self.get(name)
        return parse(text, PREFIX + name, *more) if text else default


def read(environ: Mapping[str, str]) -> Variables:
    """All of ours in `environ`; never raises."""
    ours = [name for name in sorted(environ) if name.startswith(PREFIX)]
    said = {name: environ[name].strip() for name in ours if name in KNOWN}
    values = {name: text for name, text in said.items() if text}
    unknown = [name for name in ours if name not in KNOWN]
    notes = [_unknown(name) for name in unknown]
    for alias, name in ALIASES.items():
        value = environ.get(alias, "").strip()
        if value and name not in values:
            values[name] = value
    ignored = [name for name in WITHOUT_MEANING if name in environ]
    if ignored:
        notes.append(f"{', '.join(ignored)}: accepted, without a meaning here")
    return Variables(values, tuple(notes))


def _unknown(name: str) -> str:
    if name in GONE:
        return f"{name} has no effect any more: {GONE[name]}"
    near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(KNOWN)}"
    return f"{name} is no variable of ours and is ignored{hint}"
