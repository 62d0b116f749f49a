"""Variables too large for the kernel go to files (B34)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from muster.contract.findings import Findings
from muster.contract.request.hyperparameters import HYPERPARAMETERS
from muster.types.files import write_private
from muster.types.names import listed

# Linux execve: one string with its closing NUL, and the least and most of all strings together.
MAX_STRING_BYTES = 128 << 10
MIN_TOTAL_BYTES = 128 << 10
MAX_TOTAL_BYTES = 6 << 20
POINTER_BYTES = 8
HEADROOM_BYTES = 64 << 10  # for what launchers add

PREFIX = "SM_"  # only these are moved; arguments cannot be
SUFFIX = "_FILE"


def spill(
    environ: Mapping[str, str], folder: str, argv: Sequence[str] = ()
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment with every oversized SM_* value in a file, and one warning if there is any.

    `NAME` is then absent and `NAME_FILE` holds the path. Values over 128 KiB go first, then the
    largest until the whole fits beside `argv`. The same input gives the same files, mode 600 in
    `folder`, which must not be there and is made with mode 700; where that is "", nothing is
    written and the paths are "". Raises OSError when a file cannot be written.
    """
    names = _oversized(environ, argv)
    if not names:
        return dict(environ), ()
    if folder:
        os.mkdir(folder, 0o700)
    result = dict(environ)
    for name in names:
        text, path = result.pop(name), f"{folder}/{_file_name(name)}"
        if folder:
            write_private(path, text)
        result[name + SUFFIX] = path if folder else ""
    return result, (
        f"variables too large for the kernel, moved to the files that {SUFFIX[1:]} variables "
        f"name ({names[0]}{SUFFIX}): {listed(names)}",
    )


def check_total(argv: Sequence[str], environ: Mapping[str, str], findings: Findings) -> None:
    """Arguments that no process can be started with, also when all that can be is moved (B34)."""
    arguments = sum(_size(text) + POINTER_BYTES for text in argv)
    if arguments <= MIN_TOTAL_BYTES - HEADROOM_BYTES:
        return
    kept = sum(_size(n) + _size(v) + POINTER_BYTES for n, v in environ.items() if not _movable(n))
    room = total_limit() - HEADROOM_BYTES - kept
    if arguments > room:
        findings.problem(
            HYPERPARAMETERS,
            f"arguments of {arguments} bytes in all, the kernel leaves room for {max(0, room)}",
            "pass large values as a file in a channel, or raise the stack limit (ulimit -s)",
        )


def total_limit() -> int:
    """Bytes that the kernel allows for all arguments and variables of a new process."""
    import resource

    soft = resource.getrlimit(resource.RLIMIT_STACK)[0]
    quarter = MAX_TOTAL_BYTES if soft == resource.RLIM_INFINITY else soft // 4
    return max(MIN_TOTAL_BYTES, min(quarter, MAX_TOTAL_BYTES))


def _oversized(environ: Mapping[str, str], argv: Sequence[str]) -> list[str]:
    """Names to move, in the order of moving."""
    sizes = {name: _size(name) + _size(value) for name, value in environ.items()}
    names = sorted(
        name for name, size in sizes.items() if size > MAX_STRING_BYTES and _movable(name)
    )
    total = sum(sizes[name] + POINTER_BYTES for name in sizes if name not in names)
    total += sum(_size(text) + POINTER_BYTES for text in argv)
    if total <= MIN_TOTAL_BYTES - HEADROOM_BYTES:
        return names  # fits whatever the stack limit: the usual case
    budget = total_limit() - HEADROOM_BYTES
    rest = sorted(filter(_movable, sizes.keys() - set(names)), key=lambda n: (-sizes[n], n))
    for name in rest:
        if total <= budget:
            break
        total -= sizes[name]
        names.append(name)
    return names


def _size(text: str) -> int:
    """Bytes with the separator or closing NUL after it."""
    return (len(text) if text.isascii() else len(text.encode(errors="surrogateescape"))) + 1


def _movable(name: str) -> bool:
    return name.startswith(PREFIX) and not name.endswith(SUFFIX)


def _file_name(name: str) -> str:
    """The variable's name; what is no plain name gets the code of each odd character."""
    plain = "".join(
        c if c.isascii() and (c.isalnum() or c in "_-") else f"%{ord(c):x}" for c in name
    )
    if len(plain) <= 200:
        return plain
    import hashlib

    return plain[:100] + "-" + hashlib.sha256(name.encode(errors="replace")).hexdigest()[:16]
