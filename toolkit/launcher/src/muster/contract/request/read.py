"""SageMaker's files and variables -> Job: the one reader of `/opt/ml/input` and the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from muster.contract.findings import Findings
from muster.contract.request.cluster import (
    GROUPS_KEY,
    RESOURCES,
    HostList,
    distribution_positions,
    parse_hosts,
)
from muster.contract.request.distribution import choose_distribution
from muster.contract.request.files import find_paths, load_object
from muster.contract.request.hyperparameters import (
    HYPERPARAMETERS,
    Hyperparameters,
    check_values,
    decode_hyperparameters,
    to_argv,
)
from muster.contract.request.inputs import INPUTS, check_channels
from muster.contract.request.program import (
    check_texts,
    find_job_id,
    find_log_level,
    find_program,
    find_source,
    names_program,
)
from muster.contract.request.settings import (
    ALLOW_CONFLICTS,
    KEEP_SPELLING,
    NEEDED_TO_JOIN,
    flag,
    parse_addresses,
    parse_settings,
    script_arguments,
)
from muster.contract.request.training_module import find_training_function
from muster.contract.spill import check_total
from muster.types.cluster import Cluster
from muster.types.deadlines import Deadlines, parse_deadlines
from muster.types.distribution import Distribution, Single
from muster.types.job import Documents, Job, Paths, Platform, Settings
from muster.types.plain import short
from muster.types.values import NamedTuple

WARM_POOL = "SAGEMAKER_MANAGED_WARMPOOL_CACHE_DIRECTORY"
_PLATFORM_FILES = (
    "checkpointconfig.json",
    "init-config.json",
    "trainingjobconfig.json",
    "metric-definition-regex.json",
    "tensorboardoutputconfig.json",
)


class _Request(NamedTuple):
    """The files as far as they could be read; None stands for one that could not."""

    resource: dict[str, object] | None
    hosts: HostList | None
    parameters: Hyperparameters | None
    inputs: dict[str, object] | None


def read_job(environ: Mapping[str, str]) -> Job:
    """The job on this host. Raises ConfigError with all that is wrong, the most important first.

    Reads the request's files below the base folder and lists the code channel; looks at no device,
    address or user file. Takes less than a second for any input.
    """
    findings = Findings()
    paths = find_paths(environ, findings)
    resource, hosts, read, inputs = _read_files(paths, environ, findings, findings)
    parameters = read or Hyperparameters({}, {}, {}, {})
    function = find_training_function(environ, findings)
    program = ""
    # without hyperparameters the absence of a program says nothing, nor does it beside a function
    if read is not None and (not function or names_program(environ, parameters.fixed)):
        others = (*parameters.framework, *parameters.user)
        program = find_program(environ, parameters.fixed, findings, others)
    conflicts = flag(environ, ALLOW_CONFLICTS, findings)
    several = hosts is not None and len(hosts.hosts) > 1
    distribution = choose_distribution(parameters, conflicts, findings, several=several)
    check_texts(parameters.fixed, findings)
    log_level = find_log_level(parameters.fixed, findings)
    source = find_source(environ, parameters.fixed, paths, findings) if paths else ""
    spelt = parameters.wire if flag(environ, KEEP_SPELLING, findings) else {}
    arguments = to_argv(parameters.user, spelt)
    check_values(arguments, findings)
    arguments += script_arguments(environ, findings)
    if not findings.problems:  # a value that is too large for itself says it all
        check_total(arguments, environ, findings)
    cluster = _cluster(environ, hosts, parameters, distribution, findings)
    settings = parse_settings(environ, findings)
    deadlines = _deadlines(environ, hosts, findings)
    if findings.problems or paths is None or cluster is None or resource is None or inputs is None:
        # secrets of hyperparameters are known here only, not where the error is reported
        raise findings.error(environ, parameters.user, parameters.framework, parameters.fixed)
    platform = _platform(paths, environ, findings)
    if platform is not None and settings.shown.prefix:
        _warn_of_anchors(platform, findings)
    return Job(
        id=find_job_id(environ, parameters.fixed, findings),
        paths=paths,
        cluster=cluster,
        program=program,
        source=source,
        arguments=arguments,
        distribution=distribution,
        documents=Documents(
            resource, inputs, parameters.user, parameters.framework, parameters.fixed
        ),
        log_level=log_level,
        platform=platform,
        settings=settings,
        deadlines=deadlines,
        environ=environ,
        warnings=tuple(findings.warnings),
        origins=findings.origins,
        function=function,
    )


def read_cluster(environ: Mapping[str, str]) -> tuple[Cluster, Settings, Deadlines]:
    """What a host with otherwise bad input needs to join and say so.

    Raises ConfigError when the hosts or the settings that a join needs are bad themselves; other
    bad settings and deadlines have their defaults. Where the hyperparameters are bad too, every
    host counts as taking part.
    """
    findings = Findings()
    unrelated = Findings()  # problems that this caller knows already
    paths = find_paths(environ, findings)
    _, hosts, read, _ = _read_files(paths, environ, findings, unrelated)
    parameters = read or Hyperparameters({}, {}, {}, {})
    distribution = choose_distribution(parameters, True, unrelated)
    cluster = _cluster(environ, hosts, parameters, distribution, findings, unrelated)
    settings = parse_settings(environ, unrelated)
    findings.problems += [p for p in unrelated.problems if p.where in NEEDED_TO_JOIN]
    deadlines = _deadlines(environ, hosts, unrelated)
    if findings.problems or cluster is None:
        raise findings.error(environ)
    return cluster, settings, deadlines


def _read_files(
    paths: Paths | None, environ: Mapping[str, str], findings: Findings, others: Findings
) -> _Request:
    """`others`: collects what is wrong with all but the hosts."""
    if paths is None:
        return _Request(None, None, None, None)
    resource = load_object(paths.config, RESOURCES, findings)
    hosts = None if resource is None else parse_hosts(resource, findings)
    if resource is None and not os.path.isdir(paths.config):
        return _Request(None, None, None, None)  # one missing folder is one problem
    document = load_object(paths.config, HYPERPARAMETERS, others)
    parameters = None
    if document is not None:
        asked = _with_distributed(document, environ, others)
        parameters = decode_hyperparameters(asked, others)
    inputs = load_object(paths.config, INPUTS, others)
    check_channels(inputs or {}, others)
    return _Request(resource, hosts, parameters, inputs)


def _with_distributed(
    document: dict[str, object], environ: Mapping[str, str], findings: Findings
) -> Mapping[str, object]:
    if "SM_DISTRIBUTED_CONFIG" not in environ:  # only jobs of SDK v3 pay for the import
        return document
    from muster.contract.request.modeltrainer import with_distributed

    return with_distributed(document, environ, findings)


def _cluster(
    environ: Mapping[str, str],
    hosts: HostList | None,
    parameters: Hyperparameters,
    distribution: Distribution,
    findings: Findings,
    group_findings: Findings | None = None,
) -> Cluster | None:
    """The cluster, or None without hosts. `group_findings`: collects what is wrong with groups."""
    if hosts is None:
        return None
    positions = tuple(range(len(hosts.hosts)))
    if not isinstance(distribution, Single):
        wanted = parameters.framework.get(GROUPS_KEY)
        positions = distribution_positions(hosts, wanted, group_findings or findings)
    addresses = parse_addresses(environ, tuple(host.name for host in hosts.hosts), findings)
    return Cluster(hosts.hosts, hosts.current, positions, hosts.interface, addresses)


def _deadlines(environ: Mapping[str, str], hosts: HostList | None, findings: Findings) -> Deadlines:
    local_mode = hosts is not None and hosts.instance_type.startswith("local")
    deadlines, problems = parse_deadlines(environ, local_mode)
    findings.problems.extend(problems)
    return deadlines


def _warn_of_anchors(platform: Platform, findings: Findings) -> None:
    """Of metric definitions that cannot match, since no line begins with what ranks write."""
    anchored = [name for name, expression in platform.metrics if expression[:1] == "^"]
    findings.warn_of_each(
        anchored,
        lambda name: (
            f"metric definition {short(name)} begins with ^, and lines with a prefix "
            "(MUSTER_LOG_PREFIX): it matches none; leave out the ^ or the prefix"
        ),
        "metric definitions that begin with ^",
    )


def _platform(paths: Paths, environ: Mapping[str, str], findings: Findings) -> Platform | None:
    """The platform's hints; None, and nothing imported, where it left none."""
    found = tuple(n for n in _PLATFORM_FILES if os.path.lexists(f"{paths.config}/{n}"))
    warm_pool = environ.get(WARM_POOL) or None
    if not found and warm_pool is None:
        return None
    from muster.contract.request.platform import read_platform

    platform = read_platform(paths.config, found, findings)
    return platform._replace(warm_pool_dir=warm_pool)
