"""The command line of `muster local` as one frozen value, checked whole before anything starts."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from muster.commands.arguments import UsageError
from muster.local.docker_request import DockerOptions, read_docker

MAX_HOSTS = 100
DEFAULT_GROUP_TYPE = "local"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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

    @property
    def host_names(self) -> tuple[str, ...]:
        return tuple(f"algo-{number}" for number in range(1, self.hosts + 1))


def read_request(args: argparse.Namespace) -> Request:
    """The request behind parsed arguments. Raises UsageError."""
    source_dir, program = find_script(args.script, args.source_dir)
    groups = parse_groups(args.instance_groups) if args.instance_groups else ()
    hosts = sum(group.size for group in groups) or args.hosts or 1
    if groups and args.hosts not in (None, hosts):
        raise UsageError(
            f"--hosts {args.hosts} disagrees with --instance-groups, which name {hosts} hosts",
            "leave out --hosts",
        )
    distribution = parse_distribution(args.distribution)
    hyperparameters = parse_pairs("--hyperparameter", args.hyperparameter)
    enabled = any(key.startswith("sagemaker_") for key in hyperparameters)
    if args.processes_per_host is not None and distribution in (None, "none") and not enabled:
        raise UsageError(
            "--processes-per-host needs a --distribution that starts several processes",
            "for example --distribution torch_distributed",
        )
    if hosts > MAX_HOSTS:
        raise UsageError(f"{hosts} hosts are more than {MAX_HOSTS}, the most that one run can have")
    return Request(
        program=program,
        source_dir=source_dir,
        arguments=tuple(args.script_arguments),
        hosts=hosts,
        processes_per_host=args.processes_per_host,
        distribution=distribution,
        hyperparameters=hyperparameters,
        channels=parse_channels(args.channel),
        groups=groups,
        instance_type=args.instance_type,
        environ=parse_environ(args.env),
        output=os.path.abspath(args.output) if args.output else None,
        isolation=args.isolation,
        timeout_s=args.timeout,
        as_json=args.json,
        docker=read_docker(args),
    )


def find_script(script: str, source_dir: str | None) -> tuple[str, str]:
    """(source folder, program below it). Without a folder it is the script's own."""
    if source_dir is None:
        if not os.path.isfile(script):
            raise UsageError(f"no file {script!r}", _near_file(script))
        path = os.path.abspath(script)
        return os.path.dirname(path), os.path.basename(path)
    folder = os.path.abspath(source_dir)
    if not os.path.isdir(folder):
        raise UsageError(f"--source-dir: no folder {source_dir!r}")
    for candidate in (os.path.join(folder, script), os.path.abspath(script)):
        program = os.path.relpath(candidate, folder)
        if os.path.isfile(candidate) and not program.startswith(".." + os.sep):
            return folder, program
    raise UsageError(
        f"no file {script!r} in --source-dir {source_dir}", _near_file(os.path.join(folder, script))
    )


def _near_file(path: str) -> str:
    from muster.commands.arguments import nearest

    folder, name = os.path.split(path)
    try:
        close = nearest(name, os.listdir(folder or "."))
    except OSError:
        return f"there is no folder {folder!r}"
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


def parse_channels(texts: list[str]) -> dict[str, str]:
    """`name=DIR` texts as channel -> absolute folder, which exists."""
    channels = {}
    for name, folder in parse_pairs("--channel", texts).items():
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"--channel: {name!r} cannot be a channel: letters, digits, . _ - only"
            )
        if not os.path.isdir(folder):
            raise UsageError(f"--channel {name}: no folder {folder!r}", _near_file(folder))
        channels[name] = os.path.realpath(folder)
    return channels


def parse_environ(texts: list[str]) -> dict[str, str]:
    environ = parse_pairs("--env", texts)
    for name in environ:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(f"--env: {name!r} is not the name of a variable")
    return environ


def parse_distribution(text: str | None) -> str | Mapping[str, object] | None:
    """A name, or the SDK's dictionary as JSON."""
    if text is None or not text.lstrip().startswith("{"):
        return text or None
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--distribution is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise UsageError("--distribution: expected a name or a JSON object")
    return document


def parse_groups(text: str) -> tuple[Group, ...]:
    """`NAME:COUNT[:TYPE],...` as groups with distinct names."""
    groups = []
    for item in text.split(","):
        name, _, rest = item.strip().partition(":")
        count, _, instance_type = rest.partition(":")
        if not _NAME.fullmatch(name) or not (count.isascii() and count.isdecimal() and int(count)):
            raise UsageError(
                f"--instance-groups: expected NAME:COUNT or NAME:COUNT:TYPE, got {item.strip()!r}",
                "for example --instance-groups workers:2:ml.c5.xlarge,helpers:1",
            )
        groups.append(Group(name, int(count), instance_type or DEFAULT_GROUP_TYPE))
    if len({group.name for group in groups}) != len(groups):
        raise UsageError("--instance-groups: a name is given twice")
    return tuple(groups)
