"""From a layout to the core's own structures, and a group made of them."""

from __future__ import annotations

import ctypes

from muster_collectives.binding import abi
from muster_collectives.runtime.layout import GroupLayout
from muster_collectives.runtime.messages import error_of
from muster_collectives.runtime.tuning import Tuning


def create(
    library: ctypes.CDLL, layout: GroupLayout, timeout_s: float, place: abi.FailurePlace, name: str
) -> ctypes.c_void_p:
    """The core's handle of a new group. Raises CollectiveError: a rank did not come, no memory."""
    nodes = (ctypes.c_uint32 * layout.size)(*layout.nodes)
    raw = abi.McLayout(
        abi=abi.ABI, rank=layout.rank, size=layout.size, node_of=ctypes.addressof(nodes),
        segment_fd=layout.segment_fd, listen_fd=layout.listen_fd, tuning=raw_tuning(layout.tuning),
    )  # fmt: skip
    raw.key[:] = layout.key
    addresses = (abi.McAddress * layout.size)()
    if layout.addresses:
        for at, address in zip(addresses, layout.addresses, strict=True):
            at.family, at.port, at.scope = address.family, address.port, address.scope
            ctypes.memmove(ctypes.addressof(at) + abi.McAddress.bytes.offset, address.packed,
                           len(address.packed))  # fmt: skip
        raw.addresses = ctypes.addressof(addresses)
    place.clear()
    handle = ctypes.c_void_p()
    code = library.mc_create(ctypes.byref(raw), timeout_s, ctypes.byref(handle), place.address)
    if code:
        failure = place.read(code)
        raise error_of(failure, name, layout.rank, layout.size, call="making the group")
    return handle


def raw_tuning(tuning: Tuning) -> abi.McTuning:
    return abi.McTuning(
        slot_bytes=tuning.slot_bytes, one_shot_bytes=tuning.one_shot_bytes,
        chunk_bytes=tuning.chunk_bytes, direct_bytes=tuning.direct_bytes,
        leader_bytes=tuning.leader_bytes, segment_bytes=tuning.segment_bytes,
        wire=int(tuning.wire), checked=int(tuning.checked), spin_s=tuning.spin_s,
    )  # fmt: skip
