"""A process that may not read another's memory: as under a system that forbids process_vm_readv."""

from __future__ import annotations

import ctypes
import platform
import struct

SYSCALL = {"x86_64": 310, "aarch64": 270}  # process_vm_readv
EPERM = 1
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF: the word at; ==; the verdict
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def forbid_reading() -> None:
    """From here on process_vm_readv is EPERM, for all threads to come; there is no way back."""
    steps = (
        (_LOAD, 0, 0, 0),  # the number of the call
        (_JUMP_IF_EQUAL, 0, 1, SYSCALL[platform.machine()]),
        (_RETURN, 0, 0, _ERRNO | EPERM),
        (_RETURN, 0, 0, _ALLOW),
    )
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    whole = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    for given in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER, whole, 0, 0)):
        if libc.prctl(*given):
            raise OSError(ctypes.get_errno(), f"prctl {given[0]}")
