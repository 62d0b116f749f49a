"""Runs a Python script or module as `python SCRIPT` does, but for one thing: it can fail.

`python python_main.py script NAME ARGUMENTS...`, or `module NAME ARGUMENTS...`.

A rank that ends with an error while others wait for it inside MPI would never end: the MPI library
ends itself when Python does, and waits there for all ranks (MXNet's kvstore does the same). So
after an uncaught exception or an exit code other than 0 the process does all that Python does at
its end (threads, `atexit`, output) and then leaves without the libraries' own ends. With `python -m
mpi4py`, the incumbent's way, mpirun would kill all ranks at once, and how they ended would be lost.
Source: mpi4py's page on exceptions and deadlocks.
"""

import atexit
import builtins
import os
import sys
import threading
from types import ModuleType

LEAVE_S = 15.0  # for what is registered to run at exit, which may wait for other ranks too


def main() -> None:
    kind, name, *arguments = sys.argv[1:]
    sys.argv[:] = [name, *arguments]
    try:
        if kind == "module":
            run_module(name)
        else:
            run_script(name)
    except SystemExit as stop:
        code = exit_code(stop)
        if code:
            note(stop)
            leave(code)
        raise
    except BaseException as error:
        show(error)
        leave(130 if isinstance(error, KeyboardInterrupt) else 1)


def run_script(name: str) -> None:
    """As the module `__main__`: classes of the script can be pickled, and processes that it starts
    find it."""
    # Python puts the folder of what it was started with there, links followed
    sys.path[0] = os.path.dirname(os.path.realpath(name))
    with open(name, "rb") as file:
        code = compile(file.read(), os.path.abspath(name), "exec", dont_inherit=True)
    module = ModuleType("__main__")
    module.__dict__.update(
        __file__=os.path.abspath(name), __builtins__=builtins, __annotations__={}, __cached__=None,
        __loader__=sys.modules["__main__"].__loader__,
    )  # fmt: skip
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def run_module(name: str) -> None:
    import runpy

    sys.path[0] = os.getcwd()
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def show(error: BaseException) -> None:
    """The traceback as Python prints it, without the frames of this file at its beginning."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        trace = trace.tb_next
    note(error.with_traceback(trace))
    sys.excepthook(type(error), error, trace)


def note(error: BaseException) -> None:
    """Where Python notes what ended a script: what runs at exit may look there."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__


def exit_code(stop: SystemExit) -> int:
    """What Python would make of it; a text is shown."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def leave(code: int) -> None:
    """Ends with the code after what Python does at its end, or after `LEAVE_S` of it."""
    if os.environ.get("WORLD_SIZE") != "1":  # alone it waits for no other rank
        limit = threading.Timer(LEAVE_S, give_up, (code,))
        limit.daemon = True
        limit.start()
    flush()
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does
        atexit._run_exitfuncs()
    finally:
        flush()
        os._exit(code)


def give_up(code: int) -> None:
    text = f"muster: what runs at this script's exit took over {LEAVE_S:g} s: it ends without it\n"
    os.write(2, text.encode())
    os._exit(code)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # the script closed or replaced it


if __name__ == "__main__":
    _OWN = sys.modules["__main__"]  # lives on when the script's module takes the name
    main()
