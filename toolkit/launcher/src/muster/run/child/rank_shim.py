"""The waiting parent of one script, launcher or installer, started by `rank_shim_main`.

It connects to its host's supervisor, hands over the read ends of the script's output, starts
the script in a session of its own, reports its true status, and exits only when it is released,
so that neither torchrun nor mpirun ever decides an outcome. It is a child subreaper: whatever the
script leaves behind stays below it and ends with it. When the supervisor's socket closes, the
supervisor is gone: the whole tree is killed, exit 137; if it was killed, the folders that it can
no longer remove go too, secrets among them.

It runs once per rank, so it imports C modules only (`socket` costs 8 ms, `signal` 5, `ctypes` 4)
and nothing of muster. Messages both ways: 4 bytes of length, then fields joined by NUL.
"""

import _signal  # type: ignore[import-not-found]  # typeshed knows only `signal`
import _socket
import errno
import os
import select
import sys
import time

TYPE_CHECKING = False  # as of typing, whose import takes time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

IGNORED = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2)
SHARED = b"MUSTER_SHARED"
AGENT = b"RANK_AGENT"  # of an order: the script shall have its agent
HIGH = 1000  # from here on are an agent's descriptors, if the script may have so many
HIGH_TRIES = 64
PREFIX = "muster-"  # of the name of a supervisor's private folder
SOCKET = "s"  # in it
PR_SET_CHILD_SUBREAPER = 36
POLL_MS = 5
GROUP_POLL_MS = 20
ENDING_S = 2.0
KILL_LIMIT_S = 10.0
GONE = 137  # the exit code when the supervisor is


def reap(ended: "Callable[[int, int], None]") -> bool:
    """Calls `ended(pid, code)` for every child that ended; False when no child is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        ended(pid, os.waitstatus_to_exitcode(status))


def framed(fields: list[bytes]) -> bytes:
    """One message as it travels."""
    payload = b"\0".join(fields)
    return len(payload).to_bytes(4, "big") + payload


def send(sock: _socket.socket, fields: list[bytes], descriptors: tuple[int, ...] = ()) -> None:
    """Sends one message; descriptors travel with its first bytes."""
    data = framed(fields)
    if descriptors:
        rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in descriptors)
        sent = sock.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        data = data[sent:]
    while data:
        data = data[sock.send(data) :]


def receive(sock: _socket.socket) -> "list[bytes] | None":
    """The fields of the next message, or None when the supervisor is gone."""
    header = receive_exactly(sock, 4)
    payload = receive_exactly(sock, int.from_bytes(header, "big")) if header else None
    return None if payload is None else payload.split(b"\0")


def receive_exactly(sock: _socket.socket, size: int) -> "bytes | None":
    data = b""
    while len(data) < size:
        try:
            piece = sock.recv(size - len(data))
        except OSError:
            return None
        if not piece:
            return None
        data += piece
    return data


def become_subreaper() -> bool:
    """Orphans below this process become its children; whether the kernel agreed."""
    from _ctypes import call_function, dlopen, dlsym

    prctl = dlsym(dlopen(None, 0), "prctl")  # type: ignore[arg-type]  # None: of this program
    return bool(call_function(prctl, (PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0)


def agent_ends() -> tuple[int, ...]:
    """What a rank's agent is asked and answers by, and what its signal handler writes to: the
    supervisor's two ends, then the rank's. () where descriptors are short: it goes without."""
    made: list[int] = []
    try:
        made += (end.detach() for end in _socket.socketpair())
        made += os.pipe()
    except OSError:
        close(made)
        return ()
    os.set_blocking(made[3], False)  # a signal handler that waits would stop the rank
    return made[0], made[2], made[1], made[3]


def agent_words(pid: int, agent: tuple[int, ...]) -> bytes:
    """`<pid>:<fd>,<fd>`, then device and inode of each: a shell that becomes Python may have opened
    a file of its own at such a number."""
    facts = [os.fstat(fd) for fd in agent]
    numbers = [*agent, *(number for one in facts for number in (one.st_dev, one.st_ino))]
    return b"%d:%b" % (pid, b",".join(b"%d" % number for number in numbers))


def high(fd: int) -> int:
    """The descriptor under a high number, or as it was: what a shell script opens as 9 and hands to
    its Python (`exec 9>lock`) is not to be taken for the agent's."""
    for number in range(HIGH, HIGH + HIGH_TRIES):
        try:
            os.fstat(number)
        except OSError:
            try:
                os.dup2(fd, number)
            except OSError:
                break  # beyond the limit
            os.close(fd)
            return number
    return fd


def close(descriptors: "Iterable[int]") -> None:
    for fd in descriptors:
        os.close(fd)


def start(
    argv: list[bytes],
    environ: dict[bytes, bytes],
    cwd: bytes,
    output: int,
    errors: int,
    agent: tuple[int, ...] = (),
    debug: bytes = b"",
) -> tuple[int, int]:
    """Forks and executes; returns (pid, 0) or (pid, errno of the step that failed). `agent`: what
    the script's Python may answer by; the variable names the one process that it is meant for.
    `debug` ends it."""
    failed_r, failed_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(output, 1)
            os.dup2(errors, 2)
            for number in (*IGNORED, _signal.SIGPIPE, _signal.SIGXFSZ):
                _signal.signal(number, _signal.SIG_DFL)
            agent = tuple(map(high, agent))
            for fd in agent:
                os.set_inheritable(fd, True)
            if agent:
                environ[AGENT] = agent_words(os.getpid(), agent) + debug
            os.chdir(cwd)
            os.execvpe(argv[0], argv, environ)
        except OSError as error:
            os.write(failed_w, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(failed_w)
    text = os.read(failed_r, 16)
    os.close(failed_r)
    return pid, int(text or b"0")


def parents() -> dict[int, int]:
    """pid -> parent pid of every process, zombies included."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/" + name + "/stat", "rb") as file:
                stat = file.read()
        except OSError:
            continue
        found[int(name)] = int(stat[stat.rindex(b")") + 2 :].split()[1])
    return found


def descendants(*roots: int) -> list[int]:
    """All processes below them."""
    by_parent: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        by_parent.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = list(roots)
    while queue:
        below = by_parent.get(queue.pop(), [])
        found += below
        queue += below
    return found


def children() -> list[int]:
    """The direct children of this process, which has one thread; zombies included."""
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without that file
        return [pid for pid, parent in parents().items() if parent == me]


def kill(pids: "Iterable[int]") -> None:
    """SIGKILL to each that is still there."""
    for pid in pids:
        try:
            os.kill(pid, _signal.SIGKILL)
        except OSError:
            pass


def end_tree(
    reap: "Callable[[], bool]", left: "Callable[[], Iterable[int]]", limit_s: float
) -> None:
    """SIGKILL to all that `left` names, again and again, because children of those that end become
    this process's own; until `reap`, which takes the ended, finds none left, or for `limit_s`."""
    limit = time.monotonic() + limit_s
    while reap() and time.monotonic() < limit:
        kill(left())
        if not reap():
            return
        select.poll().poll(POLL_MS)


def is_abandoned(folder: str) -> bool:
    """Whether this is the folder of a supervisor that was killed: the socket in it is there, and
    nobody listens."""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    path = folder + "/" + SOCKET
    try:
        sock.setblocking(False)
        return (
            os.path.basename(folder).startswith(PREFIX)
            and os.lstat(path).st_mode & 0o170000 == 0o140000  # a socket: a file refuses us, too
            and sock.connect_ex(path) == errno.ECONNREFUSED
        )
    except OSError:
        return False
    finally:
        sock.close()


def remove(folder: bytes) -> None:
    """Removes the folder and all in it, as far as that goes."""
    if not folder:
        return
    try:
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                remove(entry.path)
            else:
                os.unlink(entry.path)
        os.rmdir(folder)
    except OSError:
        pass


class Shim:
    def __init__(self, sock: _socket.socket, script: int) -> None:
        self.sock = sock
        self.script = script
        self.running = True
        self.status = 0
        self.reported = False
        self.group_signalled = False

    def say(self, *fields: object) -> None:
        try:
            send(self.sock, [str(field).encode() for field in fields])
        except OSError:
            pass  # the supervisor is gone; the next read says so

    def ended(self, pid: int, code: int) -> None:
        """A child ended: the script, or an orphan, which is reported."""
        if pid == self.script:
            self.running, self.status = False, code
        else:
            self.say("orphan", pid, code)

    def report(self) -> None:
        """Says once that the script ended; after a signal to its group, once that is empty."""
        if self.running or self.reported:
            return
        if self.group_signalled:
            try:
                os.killpg(self.script, 0)
                return
            except OSError:
                pass
        self.reported = True
        self.say("ended", self.status)

    def signal(self, number: int, whole_group: bool) -> None:
        if not self.running and not whole_group:
            return
        try:
            if whole_group:
                self.group_signalled = True
                os.killpg(self.script, number)
            else:
                os.kill(self.script, number)
        except OSError:
            pass

    def kill_tree(self) -> None:
        """Ends everything below."""
        self.group_signalled = False
        end_tree(lambda: reap(self.ended), children, KILL_LIMIT_S)
        self.report()

    def obey(self, message: "list[bytes] | None") -> "int | None":
        """One message of the supervisor; returns the exit code when this process is to end."""
        if message is None:
            self.kill_tree()
            return GONE
        kind = message[0]
        if kind == b"signal":
            self.signal(int(message[1]), message[2] == b"group")
        elif kind == b"kill":
            self.kill_tree()
        elif kind == b"release":
            self.kill_tree()
            return 0
        return None


def watch(shim: Shim, wake: int) -> int:
    poll = select.poll()
    poll.register(shim.sock, select.POLLIN)
    poll.register(wake, select.POLLIN)
    while True:
        reap(shim.ended)
        shim.report()
        waits_for_group = shim.group_signalled and not shim.running and not shim.reported
        for fd, _ in poll.poll(GROUP_POLL_MS if waits_for_group else None):
            if fd == wake:
                if _signal.SIGTERM in os.read(wake, 512):
                    shim.say("signalled", int(_signal.SIGTERM))
                continue
            code = shim.obey(receive(shim.sock))
            if code is not None:
                return code


def main() -> int:
    role = sys.argv[1] if len(sys.argv) > 1 else "rank"
    path, _, token = os.environ.get("MUSTER_SHIM", "").partition(" ")
    for number in IGNORED:
        _signal.signal(number, _signal.SIG_IGN)
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError as error:
        sys.stderr.write(
            f"muster: only `train` starts this process; cannot connect to {path!r}: {error}\n"
        )
        tidy(path)
        return 106
    out_r, out_w = os.pipe()
    err_r, err_w = os.pipe()
    hello = [b"hello", role.encode(), token.encode(), str(os.getpid()).encode()]
    hello += [name + b"=" + value for name, value in os.environb.items() if name != b"MUSTER_SHIM"]
    agent = agent_ends() if role.partition(":")[0] in ("rank", "spare") else ()
    try:
        send(sock, hello, (out_r, err_r, *agent[:2]))
    except OSError:  # too many descriptors are under way to it
        send(sock, hello, (out_r, err_r))
    close((out_r, err_r, *agent[:2]))
    become_subreaper()
    order = receive(sock)
    if order is None:
        tidy(path)
    if order is None or order[0] != b"start":
        return GONE
    count = int(order[2])
    argv, entries = order[3 : 3 + count], order[3 + count :]
    environ = {name: value for name, _, value in (entry.partition(b"=") for entry in entries)}
    shared = environ.pop(SHARED, b"")
    debug = environ.pop(AGENT, None)
    if debug is None:
        close(agent[2:])
        agent = ()
    code = run(sock, argv, environ, order[1], (out_w, err_w, *agent[2:]), debug or b"")
    if code == GONE:
        tidy(path, shared)
    return code


def tidy(path: str, shared: bytes = b"") -> None:
    """Removes what the supervisor cannot any more: the folder of its socket, and `shared`, one in
    memory; nothing while it lives. Of one that is being ended our socket may close first. Another
    shim may have removed the first folder already."""
    folder = os.path.dirname(path)
    limit = time.monotonic() + ENDING_S
    while os.path.exists(path) and not is_abandoned(folder) and time.monotonic() < limit:
        select.poll().poll(POLL_MS)
    is_left = is_abandoned(folder)
    if is_left or not os.path.exists(path):
        remove(shared)
    if is_left:
        remove(os.fsencode(folder))


def run(
    sock: _socket.socket,
    argv: list[bytes],
    environ: dict[bytes, bytes],
    cwd: bytes,
    descriptors: tuple[int, ...],
    debug: bytes = b"",
) -> int:
    """Starts the script and watches it to the end; this process's exit code. `descriptors`: for its
    output, its errors and, if it has one, its agent."""
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    _signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
    try:
        output, errors, *agent = descriptors
        pid, failed = start(argv, environ, cwd, output, errors, tuple(agent), debug)
    except OSError as error:
        pid, failed = 0, error.errno or errno.EAGAIN
    close(descriptors)
    # heard and not obeyed: the supervisor is told that the script had it, too
    _signal.signal(_signal.SIGTERM, lambda number, frame: None)
    shim = Shim(sock, pid)
    if failed:
        shim.running, shim.reported = False, True
        shim.say("failed", failed)
    else:
        shim.say("started", pid)
    return watch(shim, wake_r)
