"""The agent in a rank's Python: a thread that says where the rank is when the supervisor asks.

One line of `muster-agent.pth` runs this file before the script, only in the process that RANK_AGENT
names as `<pid>:<fd>,<fd>,...`: what the rank starts has none. Under `muster local` a space and how
the rank is debugged follow, see `debugging.py`. It imports nothing of muster by name,
which a script's own file may shadow, and next to nothing at all. It reads no local variable.

A request is a line of words: its number, then what is asked for (`stacks`, `threads`: of all
threads, `calls`, `waits`: long ones, `arrivals`). An answer is a line of JSON with that number; the
first line comes unasked and names the signal for which faulthandler writes all stacks to the second
descriptor, for a rank whose C code keeps the interpreter. The thread rests while the process forks,
so that no child finds a lock of it held, and from the end of the interpreter on.

A script may close what it did not open, and its next file then has that number: no descriptor is
used before a look whether it is still the agent's. In a forked process nothing here does anything.
"""

import _signal  # type: ignore[import-not-found]  # typeshed knows only `signal`
import _thread
import atexit
import faulthandler
import os
import sys
import time
from _thread import start_new_thread  # by name: gevent and the like put theirs in its place
from os import read, write
from select import POLLIN, POLLOUT, poll

TYPE_CHECKING = False  # as of typing, whose import takes time
if TYPE_CHECKING:
    from types import CodeType, FrameType, ModuleType, TracebackType
    from typing import Any

VARIABLE = "RANK_AGENT"
MPI = "mpi4py.MPI"
NUMBER = _signal.SIGRTMIN + 5
FRAMES = 100  # of a thread: the innermost ones
THREADS = 256
NAME_LETTERS = 400  # of a file or function
REST_S = 1.0  # for how long a fork or the end of the interpreter waits for an answer under way
GONE_TRIES = 1000
HIGH = 1000  # from here on are its descriptors, if the rank may have so many
HIGH_TRIES = 64


class Agent:
    """Answers on `fd`. `has_signal`: whether faulthandler has the signal, and writes to `dump`."""

    def __init__(self, fd: int, dump: int, folder: str, has_signal: bool) -> None:
        self._fd = fd
        self._dump = dump
        self._folder = folder
        self._has_signal = has_signal
        # a pipe, of which the thread notices that a script has closed it
        self._wake, self._waker = map(high, os.pipe())
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        self._mine = {one: identity(one) for one in (fd, dump, self._wake, self._waker)}
        self._pid = os.getpid()  # 0 once forgotten
        self._runs = _thread.allocate_lock()  # held by the thread
        self._native = 0
        self._resting = 0  # forks under way, and the end of the interpreter
        self._inbox = b""
        self._records: Any = None  # of calls.py, once somebody asks

    def begin(self) -> None:
        """Starts the thread; where there can be none, there is no agent."""
        if not self._has(self._fd, self._wake, self._waker):
            return
        if not self._runs.acquire(False):
            return  # it did not rest in time, and goes once its answer is said
        try:
            read(self._wake, 4096)
        except BlockingIOError:
            pass  # it is the first one
        try:
            # by now another thread may fork: then its wake-up was read here, and it begins again
            if not self._resting:
                start_new_thread(self._serve, ())
                return
        except RuntimeError:
            pass
        self._runs.release()

    def rest(self) -> None:
        """Returns once the thread is at its end, or busy for too long."""
        self._resting += 1
        if not self._has(self._wake, self._waker):
            return  # it is at its end, or of another process
        try:
            write(self._waker, b"\n")
        except BlockingIOError:
            pass  # it is told already
        if self._runs.acquire(timeout=REST_S):
            self._runs.release()

    def rest_for_fork(self) -> None:
        """Python counts the threads at a fork, and this one lives on for a moment."""
        self.rest()
        task, tries = f"/proc/self/task/{self._native}", 0
        while self._native and tries < GONE_TRIES and os.path.exists(task):
            tries += 1
            os.sched_yield()

    def resume(self) -> None:
        """After the fork of one thread; another may still be in its own."""
        self._resting -= 1
        if not self._resting:
            self.begin()

    def forget(self) -> None:
        """In a child of the process: what is answered here is about its parent."""
        self._pid = os.getpid()
        if self._owns_signal:  # else it would take the script's own handler away
            faulthandler.unregister(NUMBER)
        for fd in self._mine:
            if self._has(fd):
                os.close(fd)
        self._pid = 0

    def _has(self, *descriptors: int) -> bool:
        """Whether these are open, and what they were when the agent began."""
        if self._pid != os.getpid():
            return False
        return all(self._mine[fd] == identity(fd) for fd in descriptors)

    def _serve(self) -> None:
        try:
            # a signal is for the script's threads, and a supervisor that is gone is no SIGPIPE
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
            self._native = _thread.get_native_id()
            events = poll()
            events.register(self._fd, POLLIN)
            events.register(self._wake, POLLIN)
            ready: list[int] = []
            while self._wake not in ready:
                ready = [fd for fd, _ in events.poll()]
                if self._fd in ready:  # first: a rank that forks all the time answers, too
                    if not self._has(self._fd):
                        return
                    data = read(self._fd, 4096)
                    if not data:
                        return
                    *lines, self._inbox = (self._inbox + data).split(b"\n")
                    for line in lines:
                        self.say(self._answer(line.decode().split()))
        except Exception:  # whatever it is: the script must not notice
            pass
        finally:
            self._runs.release()

    def say(self, text: str) -> None:
        """Writes a line, whole unless the thread is to rest and nobody reads. What was cut off
        before ends with the first letter of this one. Raises OSError."""
        data = f"\n{text}\n".encode()
        events = poll()
        events.register(self._fd, POLLOUT)
        events.register(self._wake, POLLIN)
        while data and self._has(self._fd):
            try:
                data = data[write(self._fd, data) :]
            except BlockingIOError:
                if any(fd == self._wake for fd, _ in events.poll()):
                    return

    def _answer(self, words: "list[str]") -> str:
        # first, and before the interpreter can be lost: who holds a frame holds what it refers to
        stacks, code, at = stacks_of("threads" in words) if "stacks" in words else ([], None, 0)
        if code is not None and MPI in sys.modules:
            stacks[0] = self._with_native(stacks[0], code, at)
        parts = [f'"id":{int(words[0])}', f'"signal":{self.signal}']
        if stacks:
            parts.append(f'"threads":[{",".join(stacks)}]')
        kind = next((word for word in ("calls", "waits") if word in words), "")
        if kind and not is_ending():
            parts.append(f'"calls":{encoded(self._evidence(kind) or [])}')
        if "arrivals" in words and not is_ending():
            parts.append(f'"arrivals":{encoded(self._evidence("arrivals"))}')
        progress = step_and_rate()
        if progress is not None:
            parts.append(f'"step":{progress[0]},"rate":{encoded(progress[1])}')
        return "{" + ",".join(parts) + "}"

    @property
    def signal(self) -> int:
        """The signal that writes the stacks, 0 once the script has taken it."""
        return NUMBER if self._owns_signal and self._has(self._dump) else 0

    @property
    def _owns_signal(self) -> bool:
        return bool(self._has_signal and _signal.getsignal(NUMBER) == _signal.SIG_DFL)

    def _evidence(self, what: str) -> object:
        """What that function of calls.py gives."""
        try:
            return getattr(self._loaded(), what)()
        except Exception:  # no evidence is better than a wrong one
            return None

    def _with_native(self, stack: str, code: "CodeType", at: int) -> str:
        """The main thread's stack, with the function of MPI in which it is."""
        try:
            name = self._loaded().native_call(code, at)
            file = str(sys.modules[MPI].__file__)
        except Exception:  # as above
            return stack
        return f"{stack[:-2]},[{quoted(file)},0,{quoted(name)}]]}}" if name else stack

    def _loaded(self) -> "Any":
        if self._records is None:
            module = loaded("muster_rank_calls", self._folder + "/calls.py")
            self._records = module.Records(BEGAN_S)
        return self._records


def identity(fd: int) -> "tuple[int, int] | None":
    """What a descriptor is open on; None for one that is not open."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def high(fd: int) -> int:
    """The descriptor under a high number, or as it was: scripts look at the low ones, and close
    them."""
    for number in range(HIGH, HIGH + HIGH_TRIES):
        if identity(number) is None:
            try:
                os.dup2(fd, number, inheritable=False)
            except OSError:
                break  # beyond the limit
            os.close(fd)
            return number
    return fd


def loaded(name: str, path: str) -> "ModuleType":
    """The file as a module; by its path, for a script's modules may have any name."""
    import _frozen_importlib as importing
    import _frozen_importlib_external as loaders

    loader = loaders.SourceFileLoader(name, path)
    spec = importing.ModuleSpec(loader.name, loader, origin=path)
    spec.has_location = True
    module: ModuleType = importing.module_from_spec(spec)
    loader.exec_module(module)
    return module


def stacks_of(of_all: bool) -> "tuple[list[str], CodeType | None, int]":
    """The threads as JSON, the main one first; strings, for containers would call the collector.
    And the main thread's innermost code, with the instruction at which it is."""
    main, own, found, at = MAIN, _thread.get_ident(), [], 0
    inner: CodeType | None = None
    frames = sys._current_frames()
    for ident in sorted(frames, key=lambda one: one != main)[:THREADS]:
        if ident == own or not (of_all or ident == main):
            continue
        lines: list[str] = []
        frame: FrameType | None = frames[ident]
        if ident == main and frame is not None:
            inner, at = frame.f_code, frame.f_lasti
        while frame is not None and len(lines) < FRAMES:
            code = frame.f_code
            lines.append(
                f"[{quoted(code.co_filename)},{frame.f_lineno or 0},{quoted(code.co_name)}]"
            )
            frame = frame.f_back
        frame = None
        lines.reverse()
        is_main = "true" if ident == main else "false"
        name = quoted(thread_name(ident))
        found.append(f'{{"name":{name},"main":{is_main},"frames":[{",".join(lines)}]}}')
    return found, inner, at


def thread_name(ident: int) -> str:
    """Its name, where the script has loaded `threading` and started it by that."""
    threading = sys.modules.get("threading")
    thread = getattr(threading, "_active", {}).get(ident)
    name = getattr(thread, "_name", "")
    return name if isinstance(name, str) else ""


def step_and_rate() -> "tuple[int, float | None] | None":
    """What `muster.metrics` was last told, where the script calls it."""
    try:
        step, rate = sys.modules["muster.runtime.metrics"].progress()
        return int(step), None if rate is None else float(rate)
    except Exception:  # it was never called, or is another module of that name
        return None


def is_ending() -> bool:
    """Whether the interpreter ends: what calls are read from may go at any moment."""
    threading = sys.modules.get("threading")
    return threading is not None and not threading.main_thread().is_alive()


def encoded(value: object) -> str:
    """As JSON. `json` costs its import, which may wait for one that the script is in."""
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value) if value - value == 0 else "null"  # no infinity, no NaN
    if isinstance(value, dict):
        pairs = (f"{quoted(str(name))}:{encoded(item)}" for name, item in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(encoded, value)) + "]"
    return quoted(str(value))


def quoted(text: str) -> str:
    """As a string of JSON in ASCII."""
    plain = text[-NAME_LETTERS:]
    if plain.isascii() and plain.isprintable() and '"' not in plain and "\\" not in plain:
        return f'"{plain}"'
    units = plain.encode("utf-16-be", "surrogatepass")
    pairs = (units[at : at + 2] for at in range(0, len(units), 2))
    return '"' + "".join(f"\\u{pair.hex()}" for pair in pairs) + '"'


def start() -> None:
    """Starts this process's agent, then what `muster local` asks for beside it. Never raises."""
    numbers, _, debug = os.environ.pop(VARIABLE, "").partition(" ")
    start_agent(numbers)
    try:
        if debug:
            debug_as_asked(*debug.split(" ", 2))
    except Exception:  # the script runs without
        pass


def start_agent(words: str) -> None:
    """Never raises."""
    try:
        _, _, descriptors = words.partition(":")
        fd, dump, *facts = map(int, descriptors.split(","))
        if [*(identity(fd) or ()), *(identity(dump) or ())] != facts:
            return  # files of the script's own have their numbers
        os.set_inheritable(fd, False)
        os.set_inheritable(dump, False)
        os.set_blocking(fd, False)
        is_free = _signal.getsignal(NUMBER) == _signal.SIG_DFL
        if is_free:
            faulthandler.register(NUMBER, file=dump, all_threads=True, chain=False)
        agent = Agent(fd, dump, os.path.dirname(__file__), is_free)
        agent.say(f'{{"signal":{agent.signal}}}')
        agent.begin()
        os.register_at_fork(
            before=agent.rest_for_fork, after_in_parent=agent.resume, after_in_child=agent.forget
        )
        atexit.register(agent.rest)
    except Exception:  # no descriptors, no thread, no /proc: the script runs without
        pass


def debug_as_asked(mode: str, rank: str, folder: str) -> None:
    """Of `muster local` alone. A hint costs nothing until a `breakpoint()` needs it."""

    def debugging() -> "ModuleType":
        return loaded("muster_rank_debugging", os.path.dirname(__file__) + "/debugging.py")

    def say_how(*arguments: object, **named: object) -> object:
        if is_unanswered():
            debugging().say_how(rank)
        return sys.__breakpointhook__(*arguments, **named)

    if mode == "hold":
        own, earlier = os.getpid(), sys.excepthook

        def hold(kind: type, error: BaseException, trace: "TracebackType | None") -> None:
            earlier(kind, error, trace)
            if os.getpid() == own and isinstance(error, Exception):
                debugging().hold(rank, folder, error, trace)

        sys.excepthook = hold
        mode = "hint"
    if mode not in ("hint", "pass"):
        debugging().begin(mode, rank, folder)
    elif "PYTHONBREAKPOINT" not in os.environ and sys.breakpointhook is sys.__breakpointhook__:
        sys.breakpointhook = say_how if mode == "hint" else lambda *_arguments, **_named: None


def is_unanswered() -> bool:
    """Whether pdb would read the null device at a `breakpoint()`: the script has no other input,
    no other debugger (pytest and the like put theirs into pdb), and did not say otherwise."""
    setter = getattr(sys.modules.get("pdb"), "set_trace", None)
    if "PYTHONBREAKPOINT" in os.environ or getattr(setter, "__module__", "pdb") != "pdb":
        return False
    null = os.stat(os.devnull)
    return sys.stdin is sys.__stdin__ and identity(0) == (null.st_dev, null.st_ino)


MAIN = _thread.get_ident()  # of the thread that runs the script
BEGAN_S = time.monotonic()
start()
