"""What a rank of `muster local` does for the person who debugs it; the agent loads this file.

`wait`: debugpy listens in the rank, which goes on once a debugger has attached; a child carries its
connections to a unix socket in the record, since the host may have a network of its own. `hold`:
the same, once the rank has failed. `pdb`: the rank's standard input, and what `breakpoint()`
prompts, are a connection to such a socket, whose other end is a terminal. `hint`: `breakpoint()`
says which option it needs, since nobody could answer it; `pass`, of the ranks beside one that is
debugged: it does nothing. What the rank starts has none of that, but for its standard input.
"""

import os
import socket
import sys

TYPE_CHECKING = False  # as of typing, whose import takes time
if TYPE_CHECKING:
    from types import TracebackType

SOCKET = "debugger"  # `types.run_files.DEBUGGER`, in the folder of the host in the record
HELD = "held"  # in the run folder: locked by the rank that is held, whose number it has
ATTACH_S = 60.0  # for the terminal of `muster local`, which is there already
NONE = 71  # the exit code of a rank that cannot be debugged as was asked


def begin(mode: str, rank: str, folder: str) -> None:
    """Returns once a debugger has attached, or the terminal is there; at once for a hint."""
    try:
        if mode == "wait":
            wait_for_debugger(folder)
        elif mode == "pdb":
            take_terminal(folder)
    except Exception as error:
        # before the script begins: the rank was asked to wait, and would not
        text = f"muster: rank {rank} cannot be debugged: {type(error).__name__}: {error}\n"
        os.write(2, text.encode())
        os._exit(NONE)


def wait_for_debugger(folder: str) -> None:
    """Raises RuntimeError without debugpy, and what listening raises: the caller knows whether the
    rank may go on all the same."""
    try:
        import debugpy
    except ImportError:
        fix = "pip install 'muster-training[debug]'"
        raise RuntimeError(
            f"there is no debugpy in {sys.executable}, which runs this rank: {fix}"
        ) from None
    listener = bound(folder)
    debugpy.configure(subProcess=False)
    # what debugpy starts outlives the rank, and must not keep the rank's output open; what it says
    # of frozen modules is about the standard library
    null, kept = os.open(os.devnull, os.O_WRONLY), [os.dup(1), os.dup(2)]
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        _, port = debugpy.listen(("127.0.0.1", 0))
        carry(listener, port)
        debugpy.wait_for_client()
    finally:
        for fd, own in enumerate(kept, start=1):
            os.dup2(own, fd)
            os.close(own)
        os.close(null)


def hold(rank: str, folder: str, error: Exception, trace: "TracebackType | None") -> None:
    """The first rank of the job that fails waits for a debugger and shows it its frames; those that
    fail meanwhile wait for that to be over, since the job ends with the first that ends."""
    import fcntl

    sys.stderr.flush()
    try:
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(os.path.dirname(folder), HELD)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # until this one ends
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.read(lock, 1):
            return
        os.write(lock, rank.encode())
        text = f"muster: rank {rank} failed, and is held with its frames until a debugger leaves\n"
        os.write(2, text.encode())
        wait_for_debugger(folder)
        stop_at(error, trace)
    except Exception as problem:  # it fails as it would have
        os.write(2, f"muster: rank {rank} cannot be held: {problem!r}\n".encode())


def stop_at(error: Exception, trace: "TracebackType | None") -> None:
    """Returns once the debugger goes on or leaves. debugpy itself stops so, at errors that the
    person has ticked; here all are wanted."""
    import threading

    import pydevd

    frames = {}
    while trace is not None:
        frames[id(trace.tb_frame)] = last = trace.tb_frame
        trace = trace.tb_next
    debugger, thread = pydevd.get_global_debugger(), threading.current_thread()
    info = debugger.set_additional_thread_info(thread)
    info.is_tracing += 1
    info.pydev_message = type(error).__name__
    try:
        raised = (type(error), error, error.__traceback__)
        debugger.do_stop_on_unhandled_exception(thread, last, frames, raised)
    finally:
        info.is_tracing -= 1


def carry(listener: socket.socket, port: int) -> None:
    """Starts the relay from the socket to the port; it ends with the rank, as all below it does.
    Not by a fork, which debugpy follows."""
    relay = os.path.join(os.path.dirname(__file__), "debug_relay.py")
    words = [sys.executable, "-I", "-S", relay, "3", str(port)]
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    kept = (os.POSIX_SPAWN_DUP2, listener.fileno(), 3)
    os.waitpid(os.posix_spawn(words[0], words, os.environ, file_actions=[*null, kept]), 0)
    listener.close()


def take_terminal(folder: str) -> None:
    """Standard input is the terminal's from here on, and `breakpoint()` talks to it."""
    listener = bound(folder)
    listener.settimeout(ATTACH_S)
    terminal, _ = listener.accept()
    listener.close()
    os.unlink(os.path.join(folder, SOCKET))
    terminal.settimeout(None)
    os.dup2(terminal.fileno(), 0)
    answers = terminal.makefile("w", encoding="utf-8")

    def stop(*_arguments: object, **_named: object) -> None:
        import pdb

        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pdb.Pdb(stdin=sys.stdin, stdout=answers).set_trace(sys._getframe(1))

    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = stop


def say_how(rank: str) -> None:
    """What a `breakpoint()` that nobody can answer ends with. Raises RuntimeError."""
    frame = sys._getframe(2)
    place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    raise RuntimeError(
        f"breakpoint() at {place}: rank {rank} has no terminal; run it with "
        f"`muster local ... --pdb {rank}` in one, or with `--debug {rank}` for an editor"
    )


def bound(folder: str) -> socket.socket:
    """A listening socket; over /proc, since a path of one has 108 bytes at most."""
    os.makedirs(folder, exist_ok=True)
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener, made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), f".{SOCKET}.{os.getpid()}"
    try:
        listener.bind(f"/proc/self/fd/{at}/{made}")
        os.chmod(os.path.join(folder, made), 0o600)
        listener.listen(4)
        # who looks for it connects at once
        os.rename(os.path.join(folder, made), os.path.join(folder, SOCKET))
    finally:
        os.close(at)
    return listener
