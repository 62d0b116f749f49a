"""resourceconfig.json -> the hosts of the job (B06)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.contract.findings import ENOUGH, Findings
from muster.types.cluster import Host
from muster.types.names import listed
from muster.types.plain import short
from muster.types.values import NamedTuple

RESOURCES = "resourceconfig.json"
DEFAULT_GROUP = "homogeneousCluster"
DEFAULT_INTERFACE = "eth0"
GROUPS_KEY = "sagemaker_distribution_instance_groups"
_EACH_ONCE = f"name every host once in {RESOURCES}"


class HostList(NamedTuple):
    """All hosts in the order of the file, and the groups with their hosts' positions."""

    hosts: tuple[Host, ...]
    current: int
    interface: str
    groups: Mapping[str, tuple[int, ...]]
    instance_type: str  # of this host


_Group = tuple[str, str, tuple[str, ...]]  # name, instance type, names of hosts


def parse_hosts(document: Mapping[str, object], findings: Findings) -> HostList | None:
    """The hosts, or None after telling what is wrong with them."""
    before = len(findings.problems)
    names = _names(document.get("hosts"), findings)
    current = document.get("current_host")
    if names and current not in names:
        what = "missing" if current is None else f"{short(current)} is not one of {listed(names)}"
        findings.problem("current_host", what, f"fix current_host in {RESOURCES}")
    groups = _groups(document.get("instance_groups"), names, findings)
    own_type = _text(document, "current_instance_type", "local", findings)
    own_group = _text(document, "current_group_name", DEFAULT_GROUP, findings)
    interface = _text(document, "network_interface_name", DEFAULT_INTERFACE, findings)
    if len(findings.problems) > before or current not in names:
        return None
    group_of = {host: group for group in groups for host in group[2]}
    default: _Group = (own_group, own_type, ())
    hosts = tuple(
        Host(name, host_index, *group_of.get(name, default)[:2])
        for host_index, name in enumerate(names)
    )
    place = {name: host_index for host_index, name in enumerate(names)}
    return HostList(
        hosts,
        place[current],
        interface,
        {name: tuple(place[host] for host in members) for name, _, members in groups},
        own_type,
    )


def _names(value: object, findings: Findings) -> list[str]:
    """Good host names, in order; [] after a problem."""
    if not isinstance(value, list) or not value or not all(isinstance(x, str) for x in value):
        what = f"need a non-empty list of names, got {short(value)}"
        findings.problem("hosts", what, f"fix hosts in {RESOURCES}")
        return []
    problems = len(findings.problems)
    seen: set[str] = set()
    for index, name in enumerate(value):
        if name in seen:
            findings.problem("hosts", f"{short(name)} appears twice", _EACH_ONCE)
        elif not _is_host_name(name):
            what = f"{short(name)} is not a host name"
            findings.problem(f"hosts[{index}]", what, f"rename it in {RESOURCES}")
        seen.add(name)
        if len(findings.problems) - problems >= ENOUGH:
            break
    return value if len(findings.problems) == problems else []


def _is_host_name(name: str) -> bool:
    return len(name) <= 253 and all(
        0 < len(label) <= 63
        and not label.startswith("-")
        and not label.endswith("-")
        and label.isascii()
        and label.replace("-", "").replace("_", "0").isalnum()
        for label in name.split(".")
    )


def _groups(value: object, names: Sequence[str], findings: Findings) -> list[_Group]:
    if value is None:
        return []
    if not isinstance(value, list):
        findings.expected("instance_groups", "a list", value, f"fix it in {RESOURCES}")
        return []
    problems = len(findings.problems)
    known = set(names)
    groups: dict[str, _Group] = {}
    taken: dict[str, str] = {}
    for index, item in enumerate(value):
        where = f"instance_groups[{index}]"
        group = _group(where, item, findings)
        if group is not None:
            what = _host_error(group, groups, known, taken)
            groups[group[0]] = group
            if what:
                findings.problem(where, what, f"fix {where} in {RESOURCES}")
        if len(findings.problems) - problems >= ENOUGH:
            break
    return list(groups.values())


def _host_error(
    group: _Group, others: Mapping[str, _Group], known: set[str], taken: dict[str, str]
) -> str:
    """What keeps a group from standing beside the others, or ""; its hosts are `taken` then."""
    name, _, hosts = group
    if name in others:
        return f"a second group named {name!r}"
    for host in hosts:
        if known and host not in known:
            return f"unknown host {short(host)}"
        if host in taken:
            return f"host {host!r} is in group {taken[host]!r} already"
        taken[host] = name
    return ""


def _group(where: str, item: object, findings: Findings) -> _Group | None:
    entry = item if isinstance(item, dict) else {}
    name, hosts = entry.get("instance_group_name"), entry.get("hosts")
    if not isinstance(item, dict):
        what = f"expected an object, got {short(item)}"
    elif not isinstance(name, str) or not name.isprintable() or not name:
        what = f"instance_group_name: expected a name, got {short(name)}"
    elif not isinstance(hosts, list) or not hosts or not all(isinstance(x, str) for x in hosts):
        what = f"need a non-empty list of hosts, got {short(hosts)}"
    else:
        return name, str(item.get("instance_type") or ""), tuple(hosts)
    findings.problem(where, what, f"fix {where} in {RESOURCES}")
    return None


def _text(document: Mapping[str, object], key: str, default: str, findings: Findings) -> str:
    value = document.get(key)
    if value is None or value == "":
        return default
    if not isinstance(value, str) or not value.isprintable():
        findings.expected(key, "a string", value, f"fix {key} in {RESOURCES}")
        return default
    return value


def distribution_positions(hosts: HostList, wanted: object, findings: Findings) -> tuple[int, ...]:
    """The hosts that take part in the distribution, group by group in the order of the file.

    `wanted`: the value of `sagemaker_distribution_instance_groups`, None when it was not sent.
    Several groups and no such value is a problem: SDK v2 drops the one group that a user names
    beside torch_distributed, and the incumbent then runs a separate job in every group.
    """
    everybody = tuple(range(len(hosts.hosts)))
    if wanted is None:
        if len(hosts.groups) > 1:
            findings.problem(
                "distribution groups",
                f"{len(hosts.groups)} instance groups and none of them is named; "
                f"known: {listed(tuple(hosts.groups))}",
                f"add the hyperparameter {GROUPS_KEY}, such as {list(hosts.groups)[:1]}",
            )
        return everybody
    names = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(names, list) or not names or not all(isinstance(x, str) for x in names):
        known = f"known: {listed(tuple(hosts.groups))}"
        findings.expected(GROUPS_KEY, "a list of group names", wanted, known)
        return everybody
    if not hosts.groups:
        return everybody  # local mode sends no groups
    for name in names:
        if name not in hosts.groups:
            what = f"no group named {short(name)}; known: {listed(tuple(hosts.groups))}"
            findings.problem("distribution groups", what, f"fix {GROUPS_KEY}")
    chosen = tuple(
        host_index for name, group in hosts.groups.items() if name in names for host_index in group
    )
    return chosen or everybody
