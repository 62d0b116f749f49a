"""What will run: on this host in full, on the others as far as all hosts must agree."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from muster.types.values import NamedTuple


class _CommandFields(NamedTuple):
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str


class Command(_CommandFields):
    """One process to start. Raises ValueError for an empty argv or a NUL anywhere."""

    __slots__ = ()

    def __new__(cls, argv: tuple[str, ...], env: Mapping[str, str], cwd: str) -> Command:
        if not argv:
            raise ValueError("a command needs a program")
        if any("\0" in text for text in (*argv, cwd)):
            raise ValueError("a command line cannot hold a NUL character")
        if any("\0" in name or "\0" in value or "=" in name for name, value in env.items()):
            raise ValueError("an environment cannot hold a NUL, nor a name with '='")
        return super().__new__(cls, argv, env, cwd)


class Addition(NamedTuple):
    """One variable that the plan sets for the scripts of this host, and why."""

    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}: {self.reason}"


class RankSlot(NamedTuple):
    """One rank: its number, its host's index in the cluster, its number on that host."""

    rank: int
    host: int
    local_rank: int


class Service(NamedTuple):
    """A process that serves the ranks of a job and runs no rank itself: a parameter server, say.

    It starts with the ranks of its host and is ended with the job. `may_end`: it knows when its
    work is done and may end by itself with 0; any other end fails the job.
    """

    name: str  # "server-0": for lines, logs and failures
    command: Command
    may_end: bool = True


class Daemon(NamedTuple):
    """This host's launch daemon, started when the leader's launcher asks for it.

    A request is the daemon's command line as the launcher would have it, of which only values
    count: `asked` are those that it must bring and that are passed on, `known` those that it may
    bring and that are dropped, both name -> regular expression of the whole value. `flags` may
    stand alone and are dropped, `switches` stand before a name and its value. Anything else is
    refused. `command`: what is started, followed by the values that were asked for.
    """

    command: Command
    programs: tuple[str, ...]  # the daemon's name in a request
    switches: tuple[str, ...]
    asked: Mapping[str, str]
    known: Mapping[str, str]
    flags: frozenset[str]


class Scratch(NamedTuple):
    """Variables that are to name a private folder of this host, which goes with the job.

    `launcher`: of the launcher or launch daemon, for its files; `ranks`: of the scripts, for what
    they share in memory.
    """

    launcher: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()


class RankNames(NamedTuple):
    """The variables in which a launcher gives a process its rank."""

    rank: str = "RANK"
    local_rank: str = "LOCAL_RANK"
    world_size: str = "WORLD_SIZE"


OWN_NAMES = RankNames()
NO_SCRATCH = Scratch()


def port_variable(name: str) -> str:
    """The variable that sets a port of a plan: `ps-3`, of several, counts on from `ps`."""
    return f"MUSTER_{name.partition('-')[0].upper()}_PORT"


class _LaunchPlanFields(NamedTuple):
    option: str
    world_size: int
    ranks: tuple[RankSlot, ...]
    leader: int
    master_addr: str
    ports: Mapping[str, int]
    launcher: Command | None
    launcher_outlives_ranks: bool
    script: Command
    script_is_python: bool
    rank_env: tuple[str, ...]
    agreed: tuple[str, ...]
    notes: tuple[str, ...]
    additions: tuple[Addition, ...]
    rank_names: RankNames
    per_rank: Mapping[int, Mapping[str, str]]
    services: tuple[Service, ...]
    daemon: Daemon | None
    daemon_hosts: Mapping[str, int]
    ends_with_rank0: bool
    kill_launcher_on_failure: bool
    secret_variable: str
    scratch: Scratch
    peer_loss_exit_codes: Mapping[int, str]
    warnings: tuple[str, ...]


class LaunchPlan(_LaunchPlanFields):  # built by name only
    """The plan of a job. It is the same on every host but for what is said to be this host's.

    `ranks`: every process of the job that runs the user's script, hosts without a distribution
    role included (their ranks are numbered from `world_size` on). `launcher`: the process that
    starts this host's rank shims (torchrun), or None: the supervisor starts them itself.
    `launcher_outlives_ranks`: it has work of its own when its last rank has ended (it compiles),
    and its exit status counts; other launchers are ended with their ranks.
    `script`: argv, environment and folder of one rank; `rank_env` lists names and prefixes
    (ending in `*`) of the variables that a launcher makes and that are added over it.
    `agreed`: argv and values that must be equal on all hosts, with placeholders for what is a
    host's own. `notes`, `warnings`: lines for the log and `muster plan`; they, `additions`,
    `script`, `services` and `daemon` are this host's. `per_rank`: variables that one rank of this
    host gets over its script's environment. `services`: what serves the ranks here. `daemon`: what
    starts the rank shims of this host when the leader's launcher asks for it; `daemon_hosts`, on
    the leader: the name that its launcher gives a host -> the host's index. `ends_with_rank0`: the
    work is over when rank 0 has ended well; ranks that then do nothing are ended.
    `kill_launcher_on_failure`: it takes its time when ranks have failed, and nothing of value
    comes of it: it is ended with them. `secret_variable`: in which scripts and services of this
    host get a secret of the job, "" for none; it is made when they start, so no plan and no digest
    holds it.
    `scratch`: which variables get private folders, for the same reason. `peer_loss_exit_codes`:
    exit codes of ranks that say nothing themselves, by which the launcher's library ends those
    that lost another rank or the launcher, with words for them.
    Raises ValueError when the ranks do not fit the world size or two ports are equal.
    """

    __slots__ = ()

    def __new__(
        cls,
        option: str,
        world_size: int,
        ranks: tuple[RankSlot, ...],
        leader: int,
        master_addr: str,
        ports: Mapping[str, int],
        launcher: Command | None,
        launcher_outlives_ranks: bool,
        script: Command,
        script_is_python: bool,
        rank_env: tuple[str, ...],
        agreed: tuple[str, ...],
        notes: tuple[str, ...] = (),
        additions: tuple[Addition, ...] = (),
        rank_names: RankNames = OWN_NAMES,
        per_rank: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
        services: tuple[Service, ...] = (),
        daemon: Daemon | None = None,
        daemon_hosts: Mapping[str, int] = MappingProxyType({}),
        ends_with_rank0: bool = False,
        kill_launcher_on_failure: bool = False,
        secret_variable: str = "",
        scratch: Scratch = NO_SCRATCH,
        peer_loss_exit_codes: Mapping[int, str] = MappingProxyType({}),
        warnings: tuple[str, ...] = (),
    ) -> LaunchPlan:
        if sorted(slot.rank for slot in ranks) != list(range(len(ranks))):
            raise ValueError("ranks are not numbered 0, 1, 2, ...")
        if not 1 <= world_size <= len(ranks):
            raise ValueError(f"world size {world_size} does not fit {len(ranks)} ranks")
        if len(set(ports.values())) != len(ports):
            raise ValueError(f"two ports of the plan are equal: {dict(ports)}")
        return super().__new__(
            cls, option, world_size, ranks, leader, master_addr, ports, launcher,
            launcher_outlives_ranks, script, script_is_python, rank_env, agreed, notes, additions,
            rank_names, per_rank, services, daemon, daemon_hosts, ends_with_rank0,
            kill_launcher_on_failure, secret_variable, scratch, peer_loss_exit_codes, warnings,
        )  # fmt: skip

    def ranks_of(self, host: int) -> tuple[RankSlot, ...]:
        """The ranks of one host, by local rank."""
        return tuple(slot for slot in self.ranks if slot.host == host)

    def with_secret(self, secret: str) -> LaunchPlan:
        """The plan to start from: the secret is in the environment of what is to know it."""
        given = {self.secret_variable: secret}
        return self._replace(
            script=self.script._replace(env={**self.script.env, **given}),
            services=tuple(
                one._replace(command=one.command._replace(env={**one.command.env, **given}))
                for one in self.services
            ),
        )

    @property
    def launched(self) -> bool:
        """Whether a launcher starts the rank shims of this host."""
        return self.launcher is not None or self.daemon is not None

    @property
    def digest(self) -> str:
        """Equal on two hosts exactly when they are about to run the same thing."""
        import hashlib  # only jobs of several hosts compare digests
        import json

        content = [
            self.option,
            self.world_size,
            self.ranks,
            self.leader,
            sorted(self.ports.items()),
            self.agreed,
        ]
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()
