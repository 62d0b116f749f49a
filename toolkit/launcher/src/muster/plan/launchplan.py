"""What will run: on this host in full, on the others as far as all hosts must agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType

from muster.types.environment import AT_START, LAUNCHER, MUSTER, RUN_FACTS, Environment
from muster.types.names import runs, runs_in_words
from muster.types.values import Bare, NamedTuple


class Command(NamedTuple):
    """One process to start. Raises ValueError for an empty argv or a NUL anywhere."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str

    def check(self) -> None:
        if not self.argv:
            raise ValueError("a command needs a program")
        if any("\0" in text for text in (*self.argv, self.cwd)):
            raise ValueError("a command line cannot hold a NUL character")
        if any("\0" in name or "\0" in value or "=" in name for name, value in self.env.items()):
            raise ValueError("an environment cannot hold a NUL, nor a name with '='")

    def with_variables(self, values: Mapping[str, str]) -> Command:
        """With these over its environment."""
        return Command(self.argv, {**self.env, **values}, self.cwd)


class Addition(NamedTuple):
    """One variable that the plan sets for the scripts of this host, why, and on whose behalf."""

    name: str
    value: str
    reason: str
    source: str = MUSTER

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


class LaunchedRanks(NamedTuple):
    """What ranks have of the launcher that starts them.

    `makes`: names, and prefixes ending in `*`, of the variables that it makes for them; they are
    added over the script's environment. `scratch`: which variables get private folders; they are
    made at the start, so no plan and no digest holds them.
    """

    names: RankNames = RankNames()
    makes: tuple[str, ...] = ()
    scratch: Scratch = Scratch()


class Direct(Bare):
    """No launcher: the supervisor starts the rank shims of this host itself."""


class Launcher(NamedTuple):
    """The process that starts this host's rank shims, or those of all hosts: torchrun or mpirun.

    `daemon_hosts`: the name that it gives a host when it asks for its launch daemon -> the host's
    index.
    """

    command: Command
    ranks: LaunchedRanks
    daemon_hosts: Mapping[str, int] = MappingProxyType({})


class Daemon(NamedTuple):
    """This host's launch daemon, which starts its rank shims. It is started when the leader's
    launcher asks for it.

    A request is the daemon's command line as the launcher would have it, of which only values
    count: `asked` are those that it must bring and that are passed on, `known` those that it may
    bring and that are dropped, both name -> regular expression of the whole value. `flags` may
    stand alone and are dropped, `switches` stand before a name and its value. Anything else is
    refused. `command`: what is started, followed by the values that were asked for.
    """

    command: Command
    ranks: LaunchedRanks
    programs: tuple[str, ...]  # the daemon's name in a request
    switches: tuple[str, ...]
    asked: Mapping[str, str]
    known: Mapping[str, str]
    flags: frozenset[str]


Starter = Direct | Launcher | Daemon


class WorkEnds(Enum):
    """When the work of a job is over."""

    WITH_RANKS = "all ranks have ended; their launcher is ended with them"
    WITH_RANK_0 = "rank 0 has ended well; ranks that then do nothing are ended"
    WITH_LAUNCHER = "the launcher has ended, after its ranks; its exit status counts (it compiles)"


class EndPolicy(NamedTuple):
    """What the ends of ranks and launchers mean.

    `kill_launcher_on_failure`: it takes its time when ranks have failed, and nothing of value
    comes of it: it is ended with them. `peer_loss_exit_codes`: exit codes of ranks that say nothing
    themselves, by which the launcher's library ends those that lost another rank or the launcher,
    with words for them.
    """

    work_ends: WorkEnds = WorkEnds.WITH_RANKS
    kill_launcher_on_failure: bool = False
    peer_loss_exit_codes: Mapping[int, str] = MappingProxyType({})


RUN_ID = "MUSTER_RUN_ID"  # by which processes of this run are found


def port_variable(name: str) -> str:
    """The variable that sets a port of a plan: `ps-3`, of several, counts on from `ps`."""
    return f"MUSTER_{name.partition('-')[0].upper()}_PORT"


class LaunchPlan(NamedTuple):
    """The plan of a job. It is the same on every host but for what is said to be this host's.

    `ranks`: every process of the job that runs the user's script, hosts without a distribution
    role included (their ranks are numbered from `world_size` on). `script`: argv, environment and
    folder of one rank. `agreed`: argv and values that must be equal on all hosts, with placeholders
    for what is a host's own. `starter`: what starts the rank shims here. `services`: what serves
    the ranks here. `per_rank`: variables that one rank of this host gets over its script's
    environment. `secret_variable`: in which scripts and services of this host get a secret of the
    job, "" for none; it is made when they start, so no plan and no digest holds it. `notes`,
    `warnings`: lines for the log and `muster plan`; they, `additions`, `script`, `starter` and
    `services` are this host's.
    Raises ValueError when the ranks do not fit the world size or two ports are equal.
    """

    option: str
    world_size: int
    ranks: tuple[RankSlot, ...]
    leader: int
    master_addr: str
    ports: Mapping[str, int]
    script: Command
    script_is_python: bool
    agreed: tuple[str, ...]
    starter: Starter = Direct()
    ends: EndPolicy = EndPolicy()
    services: tuple[Service, ...] = ()
    per_rank: Mapping[int, Mapping[str, str]] = MappingProxyType({})
    secret_variable: str = ""
    additions: tuple[Addition, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def check(self) -> None:
        if sorted(slot.rank for slot in self.ranks) != list(range(len(self.ranks))):
            raise ValueError("ranks are not numbered 0, 1, 2, ...")
        if not 1 <= self.world_size <= len(self.ranks):
            raise ValueError(f"world size {self.world_size} does not fit {len(self.ranks)} ranks")
        if len(set(self.ports.values())) != len(self.ports):
            raise ValueError(f"two ports of the plan are equal: {dict(self.ports)}")

    def ranks_of(self, host: int) -> tuple[RankSlot, ...]:
        """The ranks of one host, by local rank."""
        return tuple(slot for slot in self.ranks if slot.host == host)

    def in_words(self, names: Sequence[str]) -> dict[str, object]:
        """Its main facts for the record; of each host, by name, its ranks as `0-7` or `0,3`."""
        ranks: dict[int, list[int]] = {}
        for slot in self.ranks:
            ranks.setdefault(slot.host, []).append(slot.rank)
        of_hosts = {names[host]: runs_in_words(runs(found)) for host, found in ranks.items()}
        return {"option": self.option, "world_size": self.world_size, "ranks": of_hosts}

    @property
    def launched(self) -> LaunchedRanks | None:
        """What the ranks of this host have of their launcher; None where they have none."""
        return None if isinstance(self.starter, Direct) else self.starter.ranks

    def rank_environment(
        self, rank: int, started_with: Mapping[str, str], at_start: Mapping[str, str]
    ) -> Environment:
        """The whole environment of one rank of this host.

        `started_with`: the environment of its shim, of which only what its launcher made counts.
        `at_start`: what the supervisor has made meanwhile, see `made_at_start`.
        """
        makes = self.launched.makes if self.launched is not None else ()
        names = frozenset(makes)
        prefixes = tuple(name[:-1] for name in makes if name.endswith("*"))
        made = {
            name: value
            for name, value in started_with.items()
            if name in names or name.startswith(prefixes)
        }
        environ = Environment.of(self.script.env).plus(made, LAUNCHER)
        own = self.per_rank.get(rank, {})
        return environ.plus(own, f"{MUSTER}: which rank it is").plus(at_start, AT_START)

    @property
    def made_at_start(self) -> tuple[str, ...]:
        """Names, and prefixes ending in `*`, of variables of ranks that no plan knows: what their
        launcher makes, private folders, a secret, the mark of the run, the file of its facts."""
        launched = self.launched or LaunchedRanks()
        secret = (self.secret_variable,) if self.secret_variable else ()
        names = (*launched.makes, *launched.scratch.ranks, *secret, RUN_ID, RUN_FACTS)
        return tuple(name for name in names if name not in self.script.env)

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
