"""How ranks, places and times are written in the sentences of a roll call. Pure.

Names of files and functions come from scripts: they are shown as text, on one line, shortened.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from muster.run.observe.looks import Call, RankLook, StackFrame, ThreadStack
from muster.types.names import runs, runs_in_words
from muster.types.outcome import signal_name
from muster.types.plain import printable, shortened

IDLE_SHARE = 0.05  # of a processor: less is nothing
BUSY_SHARE = 0.9
TEXT = 80  # characters of a name, of a path twice as many
RANGES = 12  # of ranks that a sentence names
_HIDDEN = (
    "/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ", "/muster_collectives/",
    "/muster_modelparallel/", "/muster_parameter_server/", "/muster/rank_bootstrap/",
)  # fmt: skip
MPI = " of MPI"  # ends what `library_call` gives for it
_LIBRARIES = (  # parts of files, those of an inner frame first
    ("/mpi4py/MPI.", "MPI"), ("/torch/distributed/distributed_c10d.py", "torch"),
    ("/muster_parameter_server/", "the parameter server"),
)  # fmt: skip
_SAVES = ("save", "checkpoint", "serialize", "export", "upload")
_EVALUATES = ("eval", "valid", "test_epoch", "test_step", "predict", "inference")


def text_of(value: str, most: int = TEXT) -> str:
    """Foreign text on one line."""
    return shortened(printable(value[: 8 * most]).replace("\n", " ").replace("\t", " "), most)


def ranges(ranks: Iterable[int]) -> str:
    """`0, 2-3`; of very many ranges the first, and how many ranks there are more."""
    found = runs(sorted(set(ranks)))
    left = sum(high - low + 1 for low, high in found[RANGES:])
    return runs_in_words(found[:RANGES], ", ") + (f" and {left} more" if left else "")


def of_ranks(ranks: Sequence[int]) -> str:
    """`rank 1` or `ranks 0, 2-3`."""
    return f"rank{'s' if len(ranks) != 1 else ''} {ranges(ranks)}"


def seconds(time_s: float) -> str:
    """`38 s`, `5 min`, `3.5 h`."""
    if time_s < 120:
        return f"{time_s:.0f} s"
    return f"{time_s / 60:.0f} min" if time_s < 7200 else f"{time_s / 3600:.1f} h"


def main_thread(look: RankLook) -> ThreadStack | None:
    """The thread that runs the script, else the first of those that were seen."""
    threads = look.answer.threads
    return next((one for one in threads if one.is_main), threads[0] if threads else None)


def is_users(frame: StackFrame) -> bool:
    """Neither of the standard library nor of a package."""
    return not any(part in frame.file for part in _HIDDEN)


def where(look: RankLook) -> StackFrame | None:
    """The line of the user's code in which the main thread is, else its innermost one."""
    thread = main_thread(look)
    if thread is None or not thread.frames:
        return None
    return next((one for one in reversed(thread.frames) if is_users(one)), thread.frames[-1])


def place(frame: StackFrame) -> str:
    """`data.py:12`."""
    line = f":{frame.line}" if frame.line else ""
    return text_of(os.path.basename(frame.file) or frame.file or "?") + line


def call_in_words(call: Call, world: int) -> str:
    """`all_reduce no. 6 of world`. `world`: how many ranks there are."""
    group = f"group {text_of(call.group, 40)} ({of_ranks(call.ranks)})"
    of = "world" if len(call.ranks) == world else group
    return f"{text_of(call.op, 40)} no. {call.number} of {of}"


def spot(thread: ThreadStack) -> tuple[tuple[str, int, str], ...]:
    """Where a thread is, the same on hosts with folders of their own."""
    return tuple((os.path.basename(f.file), f.line, f.function) for f in thread.frames)


def task(look: RankLook) -> str:
    """`saves` or `evaluates`, as its functions are called; "" when they say neither."""
    thread = main_thread(look)
    for frame in reversed(thread.frames if thread is not None else ()):
        name = frame.function.lower()
        if any(word in name for word in _SAVES):
            return "saves"
        if is_users(frame) and any(word in name for word in _EVALUATES):
            return "evaluates"
    return ""


def is_stopped(look: RankLook) -> bool:
    """Whether a signal holds the process: SIGSTOP, a debugger, a terminal."""
    return look.ended is None and look.process.state in ("T", "t")


def is_gone(look: RankLook) -> bool:
    """Whether its process has ended."""
    seen = look.process.pid != 0 and look.process.state in ("", "Z", "X")
    return look.ended is not None or seen


def library_call(look: RankLook) -> str:
    """The call of a library in which its main thread is, by its stack, and which may wait for other
    ranks: `Allreduce of MPI`, `recv of torch`; "" for none."""
    thread = main_thread(look)
    for frame in reversed(thread.frames if thread is not None else ()):
        for part, library in _LIBRARIES:
            if part in frame.file:
                return f"{text_of(frame.function, 40)} of {library}"
        if is_users(frame):
            break
    return ""


def is_idle(look: RankLook) -> bool:
    """Whether its processes use no processor at this moment, or wait: MPI does by polling."""
    if library_call(look).endswith(MPI):
        return not is_gone(look)
    return look.process.cpu_share < IDLE_SHARE and look.process.state != "R"


def is_busy(look: RankLook) -> bool:
    """Whether it does what takes long and may well end: it computes, saves or evaluates. Where
    processors are short, whoever computes has little of one."""
    if is_stopped(look) or is_gone(look):
        return False
    return bool(task(look)) or not (is_idle(look) or look.process.state in ("D", "?"))


def doing(look: RankLook) -> str:
    """What the rank does, as the end of a sentence: `is at data.py:12, reading /data/7`."""
    process = look.process
    if look.ended is not None:
        if look.ended < 0:
            return f"was ended by {signal_name(-look.ended)}"
        return f"has ended with exit code {look.ended}"
    if is_gone(look):
        return "has ended"
    if is_stopped(look):
        return f"is stopped (SIGSTOP; `kill -CONT {process.pid}` there continues it)"
    frame, does = where(look), task(look)
    found = [f"is at {place(frame)}"] if frame is not None else []
    if frame is not None and does:
        found = [f"{does} at {place(frame)}"]
    if process.waits_for:
        found.append(text_of(process.waits_for, 2 * TEXT))
    if look.answer.how == "signal":
        found.append("in C code that holds Python's lock (the GIL)")
    if call := library_call(look):
        found.append(f"in {call}")
    if process.state == "D":
        found.append(f"waiting for a disk or a mount{_in_kernel(look)}")
    elif call.endswith(MPI):
        pass  # it polls
    elif process.cpu_share >= BUSY_SHARE or process.state == "R":
        found.append("computing")
    elif not is_idle(look) and process.state != "?":
        found.append(f"working ({100 * process.cpu_share:.0f} % of a processor)")
    elif not found and process.state == "?":
        return "could not be looked at"
    elif not found:
        found.append(f"is idle{_in_kernel(look)}")
    said = ", ".join(found)
    return said if said.startswith(("is ", "saves", "evaluates")) else f"is {said}"


def _in_kernel(look: RankLook) -> str:
    known = look.process.wchan not in ("", "0")
    return f" (in the kernel's {text_of(look.process.wchan, 40)})" if known else ""
