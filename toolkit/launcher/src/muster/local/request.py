"""The command line of `muster local` as one frozen value, checked whole before anything starts."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from muster.arguments import UsageError
from muster.local.backends.docker.options import DockerOptions, read_docker
from muster.local.code.ignored import NOTHING, Ignored, find_ignored
from muster.local.paths import is_below
from muster.types.names import TYPED, nearest
from muster.types.plain import whole_number
from muster.types.shown import parse_ranks
from muster.types.values import NamedTuple

if TYPE_CHECKING:
    from muster.local.debugger.asked import DebugRequest
    from muster.local.faults.spec import Fault

MAX_HOSTS = 100
DEFAULT_GROUP_TYPE = "local"
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"


class Group(NamedTuple):
    name: str
    size: int
    instance_type: str


class Request(NamedTuple):
    """What one run is to be. Paths are absolute; `program` is relative to `source_dir`.

    `groups` is empty unless instance groups were asked for. `distribution` is a name or the SDK's
    dictionary, None for none. `output` None: a new folder below `muster-runs`. `isolation` None:
    the best that the kernel allows. `hyperparameters` hold values as the user typed them.
    """

    program: str
    source_dir: str
    arguments: tuple[str, ...]
    hosts: int
    processes_per_host: int | None
    distribution: str | Mapping[str, object] | None
    hyperparameters: Mapping[str, str]
    channels: Mapping[str, str]
    groups: tuple[Group, ...]
    instance_type: str
    environ: Mapping[str, str]
    output: str | None
    isolation: str | None
    timeout_s: float | None
    as_json: bool
    docker: DockerOptions | None = None  # with isolation docker, and only then
    oversubscribe: bool = False
    overwrite: bool = False
    verbose: bool = False
    ranks: str = ""  # whose output reaches the screen, see `types.shown`; "" for all
    checkpoint: str | None = None  # a folder for the checkpoints of all hosts, kept; may be missing
    memory_bytes: int | None = None  # of each host
    ignored: Ignored = NOTHING  # of the source folder; the program is packed all the same
    internet: bool = False
    module: str = ""  # which `program` starts; that file is not in the source folder
    model_plan: bool = False  # see `model_plan.planned`
    faults: tuple[Fault, ...] = ()  # done to the job, see `faults.spec`
    debug: DebugRequest | None = None  # of one rank

    @property
    def host_names(self) -> tuple[str, ...]:
        return host_names(self.hosts)

    @property
    def ranks_at_least(self) -> int:
        """As many as were asked for; a distribution may start one for each device."""
        return self.hosts * (self.processes_per_host or 1)


def host_names(hosts: int) -> tuple[str, ...]:
    """Of a job of so many hosts."""
    return tuple(f"algo-{number}" for number in range(1, hosts + 1))


def read_request(args: argparse.Namespace) -> Request:
    """The request that parsed arguments make. Raises UsageError."""
    source_dir, program = _find_code(args)
    groups = parse_groups(args.instance_groups) if args.instance_groups else ()
    hosts = sum(group.size for group in groups) or args.hosts or 1
    if groups and args.hosts not in (None, hosts):
        raise UsageError(
            f"--hosts {args.hosts} disagrees with --instance-groups, which name {hosts} hosts",
            "leave out --hosts",
        )
    distribution = parse_distribution(args.distribution)
    hyperparameters = parse_pairs("--hyperparameter", args.hyperparameter)
    _refuse_misspelt(hyperparameters)
    enabled = any(key.startswith("sagemaker_") for key in hyperparameters)
    if args.processes_per_host is not None and distribution in (None, "none") and not enabled:
        raise UsageError(
            "--processes-per-host needs a --distribution that starts several processes",
            "for example --distribution torch_distributed",
        )
    if hosts > MAX_HOSTS:
        raise UsageError(f"{hosts} hosts are more than {MAX_HOSTS}, the most that one run can have")
    far = getattr(args, "far", False)
    channels = parse_channels(args.channel, far)
    if args.output:
        script = os.path.join(source_dir, program)
        own = {"the code in": source_dir, "the script": os.path.realpath(script)}
        own |= {f"--channel {name}": folder for name, folder in channels.items()}
        _refuse_in_output(own, args.output)
    return Request(
        program=program,
        source_dir=source_dir,
        arguments=tuple(args.script_arguments),
        hosts=hosts,
        processes_per_host=args.processes_per_host,
        distribution=distribution,
        hyperparameters=hyperparameters,
        channels=channels,
        groups=groups,
        instance_type=args.instance_type,
        environ=read_environ(args.env_file, args.env, os.environ),
        output=os.path.abspath(args.output) if args.output else None,
        isolation=args.isolation,
        timeout_s=args.timeout,
        as_json=args.json,
        docker=read_docker(args),
        oversubscribe=args.oversubscribe,
        overwrite=args.overwrite,
        checkpoint=args.checkpoint if far else parse_checkpoint(args.checkpoint, args.output),
        memory_bytes=args.memory,
        ignored=find_ignored(source_dir).but_for(program) if os.path.isdir(source_dir) else NOTHING,
        internet=args.internet,
        module=args.module or "",
        verbose=args.verbose,
        ranks=check_ranks(args.ranks),
        faults=check_faults(getattr(args, "fault", ()), hosts),
        debug=check_debug(args),
    )


def _refuse_misspelt(names: Iterable[str]) -> None:
    """A misspelt key would train in another size than was asked for."""
    from muster.contract.request.hyperparameters import intended

    for name in names:
        if meant := intended(name):
            raise UsageError(
                f"--hyperparameter: {name!r} is not a key that muster knows",
                f"did you mean {meant}? A hyperparameter of your own needs a less similar name",
            )


def _find_code(args: argparse.Namespace) -> tuple[str, str]:
    """(source folder, program below it) of a script or a module; `muster run` also takes a packed
    folder (`args.packed`), which holds the program."""
    if getattr(args, "packed", False):
        if args.module is not None:
            raise UsageError("-m needs a folder, not a packed one", "name the file that starts it")
        return args.source_dir, args.script
    if args.module is None:
        return find_script(args.script, args.source_dir)
    from muster.local.code.module import check_module, entry_point

    if args.script is not None:
        raise UsageError(
            f"-m {args.module} and SCRIPT {args.script} are two different requests",
            "name one of them; arguments for your script go after --",
        )
    folder = args.source_dir or "."
    if not os.path.isdir(folder):
        raise UsageError(f"--source-dir: no folder {folder!r}", _near_file(folder))
    check_module(args.module, os.path.abspath(folder))
    return os.path.abspath(folder), entry_point(args.module)[0]


def find_script(script: str, source_dir: str | None) -> tuple[str, str]:
    """(source folder, program below it). Without a folder it is the script's own."""
    if script != script.encode(errors="replace").decode():
        raise UsageError(f"the name {script!r} is not UTF-8, as the job's files are", "rename it")
    if source_dir is None:
        if os.path.isdir(script):
            raise UsageError(f"{script!r} is a folder, not a script", _script_in(script))
        if not os.path.isfile(script):
            raise UsageError(f"no file {script!r}", _near_file(script))
        path = os.path.abspath(script)
        return os.path.dirname(path), os.path.basename(path)
    folder = os.path.abspath(source_dir)
    if not os.path.isdir(folder):
        _refuse_file("--source-dir", source_dir, "the folder that holds the script")
        raise UsageError(f"--source-dir: no folder {source_dir!r}", _near_file(source_dir))
    for candidate in (os.path.join(folder, script), os.path.abspath(script)):
        program = os.path.relpath(candidate, folder)
        if os.path.isfile(candidate) and not program.startswith(".." + os.sep):
            return folder, program
    raise UsageError(
        f"no file {script!r} in --source-dir {source_dir}", _near_file(os.path.join(folder, script))
    )


def _refuse_file(option: str, path: str, what: str) -> None:
    if os.path.isfile(path):
        folder = os.path.dirname(path) or "."
        raise UsageError(f"{option}: {path!r} is a file", f"name {what}: {folder}")


def _script_in(folder: str) -> str:
    """What to write in place of a folder's name."""
    scripts = sorted(name for name in os.listdir(folder) if name.endswith((".py", ".sh")))
    usual = [name for name in ("train.py", "main.py") if name in scripts]
    if chosen := (usual or scripts)[:1]:
        return f"name a script in it, such as {os.path.join(folder, chosen[0])}"
    return "name a script"


def _near_file(path: str) -> str:
    folder, name = os.path.split(path)
    try:
        close = nearest(name, os.listdir(folder or "."), likeness=TYPED)
    except OSError:
        return f"there is not a folder {folder!r}"
    return f"did you mean {os.path.join(folder, close)}?" if close else ""


def parse_pairs(option: str, texts: list[str]) -> dict[str, str]:
    """`k=v` texts as a dictionary; the same key twice is refused."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{option}: expected NAME=VALUE, got {text!r}")
        if key in pairs:
            raise UsageError(f"{option}: {key} is given twice")
        pairs[key] = value
    return pairs


def parse_channels(texts: list[str], far: bool = False) -> dict[str, str]:
    """`name=DIR` texts as channel -> absolute folder, which exists; `far`: of another machine, as
    it was typed."""
    channels = {}
    for name, folder in parse_pairs("--channel", texts).items():
        if not re.fullmatch(_NAME, name):
            raise UsageError(
                f"--channel: {name!r} cannot be a channel: letters, digits, . _ - only"
            )
        if far:
            channels[name] = folder
            continue
        if not os.path.isdir(folder):
            _refuse_file(f"--channel {name}", folder, "the folder that holds it")
            raise UsageError(f"--channel {name}: no folder {folder!r}", _near_file(folder))
        channels[name] = os.path.realpath(folder)
    return channels


def check_faults(texts: Sequence[str], hosts: int) -> tuple[Fault, ...]:
    """The faults of `--fault`, for a job of so many hosts. Raises UsageError."""
    if not texts:
        return ()
    from muster.local.faults.plan import read_faults

    return read_faults(texts, host_names(hosts))


def check_debug(args: argparse.Namespace) -> DebugRequest | None:
    """What --debug, --debug-on-failure and --pdb ask for. Raises UsageError."""
    debug, pdb = getattr(args, "debug", ()), getattr(args, "pdb", ())
    on_failure = getattr(args, "debug_on_failure", False)
    if not (debug or pdb or on_failure):
        return None
    from muster.local.debugger.asked import read_debug

    return read_debug(debug, pdb, args.timeout, on_failure)


def check_ranks(text: str | None) -> str:
    """What `train` will take. Raises UsageError."""
    try:
        if text is not None:
            parse_ranks(text)
    except ValueError as error:
        raise UsageError(f"--ranks: {error}", "for example --ranks 0,last or --ranks 0-3") from None
    return text or ""


def parse_checkpoint(folder: str | None, output: str | None) -> str | None:
    """The folder's real path. It may be one that is still to be made."""
    if folder is None:
        return None
    path = os.path.realpath(folder)
    if os.path.lexists(path) and not os.path.isdir(path):
        raise UsageError(f"--checkpoint: {folder!r} is not a folder")
    if output is not None:
        _refuse_in_output({"--checkpoint": folder}, output)
    return path


def _refuse_in_output(paths: Mapping[str, str], output: str) -> None:
    """Raises UsageError for what the run needs and would delete. `paths`: by what they are."""
    for what, path in paths.items():
        if is_below(os.path.realpath(path), [os.path.realpath(output)]):
            raise UsageError(
                f"{what} {path} lies in the run folder, --output {output}",
                "name another --output: what lies in it goes when the next run takes it",
            )


def read_environ(path: str | None, texts: list[str], caller: Mapping[str, str]) -> dict[str, str]:
    """The variables of a file, then `K=V` texts, or `K` for what the caller's environment has, so
    that no value need stand on a command line. Raises UsageError."""
    found: dict[str, str] = {}
    if path is not None:
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no JSON"
            raise UsageError(f"--env-file {path}: {why}") from None
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            example = """{"NAME": "text"}"""
            raise UsageError(f"--env-file {path}: not one object of texts", f"such as {example}")
    for name in texts:
        if "=" not in name and name not in caller:
            fix = f"write --env {name}=VALUE, or set it"
            raise UsageError(f"--env {name}: no such variable is set here", fix)
    full = [text if "=" in text else f"{text}={caller[text]}" for text in texts]
    found = {**found, **parse_pairs("--env", full)}
    for name, value in found.items():
        if not re.fullmatch(_VARIABLE, name) or "\0" in value:
            raise UsageError(f"--env: {name!r} is not the name of a variable, or its value no text")
    return found


def parse_distribution(text: str | None) -> str | Mapping[str, object] | None:
    """A name, or the SDK's dictionary as JSON."""
    if text is None or not text.lstrip().startswith("{"):
        return text or None
    document = _json_or_python(text)
    if not isinstance(document, dict):
        raise UsageError("--distribution: expected a name or a JSON object")
    return document


def _json_or_python(text: str) -> object:
    """The SDK's dictionary, also as it stands in a Python file."""
    import ast

    try:
        return json.loads(text)
    except ValueError as error:
        why = str(error)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise UsageError(
            f"--distribution is neither JSON nor a Python dictionary: {why}",
            """write --distribution '{"torch_distributed": {"enabled": true}}', or its name""",
        ) from None


def parse_groups(text: str) -> tuple[Group, ...]:
    """`NAME:COUNT[:TYPE],...` as groups with distinct names."""
    groups = []
    for item in text.split(","):
        name, _, rest = item.strip().partition(":")
        count, _, instance_type = rest.partition(":")
        size = whole_number(count, 1)
        if not re.fullmatch(_NAME, name) or size is None:
            raise UsageError(
                f"--instance-groups: expected NAME:COUNT or NAME:COUNT:TYPE, got {item.strip()!r}",
                "for example --instance-groups workers:2:ml.c5.xlarge,helpers:1",
            )
        groups.append(Group(name, size, instance_type or DEFAULT_GROUP_TYPE))
    if len({group.name for group in groups}) != len(groups):
        raise UsageError("--instance-groups: a name is given twice")
    return tuple(groups)
