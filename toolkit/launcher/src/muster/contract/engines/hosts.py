"""A list of hosts that somebody wrote down (MUSTER_HOSTS), or SkyPilot's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from muster.contract.engines.values import Files, Values, each_once
from muster.types.cluster import address_of
from muster.types.engine import Engine
from muster.types.errors import ConfigError
from muster.types.plain import short

HOSTS, INDEX, LEADER = "MUSTER_HOSTS", "MUSTER_HOST_INDEX", "MUSTER_LEADER"
COUNT = "MUSTER_HOST_COUNT"
STOP_S = 8.0  # docker and ssh leave 10 s
OWN_NAME = "/etc/hostname"
_NUMBER = f"say how many hosts there are by it or --hosts, or list all in {HOSTS} or --host-list"


def read(environ: Mapping[str, str], files: Files) -> Engine | None:
    """Hosts by `a,b`, by `a=10.0.0.1,b=fd00::2`, or by their count and the leader's address."""
    values = Values(environ)
    text = values.text("hosts", HOSTS, "SKYPILOT_NODE_IPS")
    if not text and not {COUNT, INDEX, LEADER} & environ.keys():
        return None
    where = values.origins.get("hosts", "").removeprefix("variable ")
    names, addresses = listed_hosts(text, where)
    fix = f"set {INDEX} (--host-index) on every host, from 0, which leads"
    if names:
        values.origins["count"] = values.origins["hosts"]
    count = len(names) or values.needed("count", COUNT, least=1, fix=_NUMBER)
    leader = values.text("leader", LEADER)
    index = values.number("index", INDEX, "SKYPILOT_NODE_RANK")
    own = files(OWN_NAME).strip()
    if index is None and own in names:
        index, values.origins["index"] = names.index(own), f"{own} of {OWN_NAME}, in {where}"
    if index is None:
        index = 0 if count == 1 else values.needed("index", INDEX, fix=fix)
    if not names and index and not leader:
        what = f"not set: host {index} of {count} cannot find the leader"
        raise ConfigError.of(LEADER, what, f"set its address (--leader), or list all in {HOSTS}")
    return values.engine(
        "hosts",
        index,
        count,
        names=names,
        addresses=addresses,
        leader=leader,
        slots=values.number("slots", "SKYPILOT_NUM_GPUS_PER_NODE") or None,
        job=values.text("job", "MUSTER_JOB_NAME", "SKYPILOT_TASK_ID"),
        attempt=values.number("attempt", "MUSTER_ATTEMPT", least=1),
        stop_s=STOP_S,
    )


def listed_hosts(text: str, where: str) -> tuple[tuple[str, ...], dict[int, str]]:
    """(names, index -> address) of a list with commas or line breaks. An address of IPv4 is its
    host's name, too; one of IPv6 can be none, and its host is called node-N."""
    names, addresses = [], {}
    for index, entry in enumerate(filter(None, re.split(r"[,\s]+", text))):
        name, equals, address = entry.partition("=")
        if not name or (equals and not address_of(address)):
            what = f"{short(entry)} is not NAME=ADDRESS"
            raise ConfigError.of(where, what, "write algo-1=10.0.0.1, or the name alone")
        if address_of(name):
            address, name = name, f"node-{index}" if ":" in name else name
        names.append(name)
        if address:
            addresses[index] = address
    return each_once(tuple(names), where), addresses
