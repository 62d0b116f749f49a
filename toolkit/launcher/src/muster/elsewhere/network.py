"""What hosts are called and by which address and interface this one takes part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from muster.types.cluster import address_of
from muster.types.engine import Engine
from muster.types.values import NamedTuple

# addresses that no host has: the way to them is the default route
_FAR = ("192.0.2.1", "2001:db8::1")
DEFAULT_INTERFACE = "eth0"


class Whereabouts(NamedTuple):
    """`names` of all hosts; `addresses` by name, as far as they are known; `interface`: the one
    that leads to the leader, on the leader its name's, else the one that leads to the next host,
    else the default route's."""

    names: tuple[str, ...]
    addresses: Mapping[str, str]
    interface: str


def host_names(engine: Engine) -> tuple[str, ...]:
    """The engine's names, else the leader's if it has one and node-1, node-2, ..."""
    if engine.names:
        return engine.names
    first = engine.leader if engine.leader and not address_of(engine.leader) else "node-0"
    return (first, *(f"node-{index}" for index in range(1, engine.host_count)))


def find_place(engine: Engine) -> Whereabouts:
    """Sends nothing, but may ask the resolver for the names of the leader and the next host."""
    from muster.stage.machine.network import resolve, route_source
    from muster.stage.machine.probe import interfaces

    names = host_names(engine)
    addresses = {names[index]: address for index, address in engine.addresses.items()}
    if address_of(engine.leader):
        addresses[names[0]] = engine.leader
    if engine.host_count == 1:
        return Whereabouts(names, {}, DEFAULT_INTERFACE)
    here = interfaces()
    held = {one.address: one.name for one in here}

    def ways() -> Iterator[str]:
        if engine.host_index:
            yield from map(route_source, resolve(names[0], addresses) or _FAR)
            return
        yield from resolve(names[0], addresses)
        if engine.names:  # the leader's own may be at 127.0.1.1, as Debian has it
            yield from map(route_source, resolve(names[1], addresses))
        yield from map(route_source, _FAR)

    real = [one.address for one in here if not one.address.startswith("127.")]
    known = (address for address in ways() if held.get(address, "lo") != "lo")
    own = next(chain(known, real), "")
    me = names[engine.host_index]
    if engine.nameless and own and (engine.host_index or not engine.leader or addresses):
        addresses.setdefault(me, own)
    own = addresses.get(me, own)
    return Whereabouts(names, addresses, held.get(own, DEFAULT_INTERFACE))
