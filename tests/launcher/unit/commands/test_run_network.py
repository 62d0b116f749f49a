"""Where the leader of `muster run` listens: on the way to the other hosts, if that is known."""

from __future__ import annotations

import pytest

from muster.elsewhere.network import find_place
from muster.stage.machine import network, probe
from muster.types.engine import Engine
from muster.types.machine import Interface

LISTED = Engine("slurm", 0, 2, names=("n1", "n2"))
OF_DEBIAN = {"n1": ["127.0.1.1"], "n2": ["10.0.0.2"]}
DEFAULT = "192.0.2.1"


@pytest.mark.parametrize(
    ("engine", "resolved", "routes", "interface"),
    [
        (LISTED, {"n1": ["10.0.0.1"]}, {DEFAULT: "192.168.0.9"}, "ib0"),
        (LISTED, OF_DEBIAN, {"10.0.0.2": "10.0.0.1"}, "ib0"),
        (LISTED, OF_DEBIAN, {"10.0.0.2": "10.0.0.1", DEFAULT: "192.168.0.9"}, "ib0"),
        (LISTED, {}, {DEFAULT: "192.168.0.9"}, "eno1"),
        (LISTED, {}, {}, "usb0"),
        (LISTED._replace(names=()), {"node-1": ["10.0.0.2"]}, {"10.0.0.2": "10.0.0.1"}, "usb0"),
        (LISTED._replace(host_index=1), {"n1": ["10.0.0.2"]}, {"10.0.0.2": "10.0.0.1"}, "ib0"),
    ],
)
def test_a_leader_takes_the_interface_that_leads_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
    engine: Engine,
    resolved: dict[str, list[str]],
    routes: dict[str, str],
    interface: str,
) -> None:
    """Its own name, another host's, the default route, a guess; no invented name is looked up."""
    held = {"lo": "127.0.0.1", "usb0": "169.254.3.1", "eno1": "192.168.0.9", "ib0": "10.0.0.1"}
    here = tuple(Interface(name, address) for name, address in held.items())
    monkeypatch.setattr(probe, "interfaces", lambda: here)
    monkeypatch.setattr(network, "resolve", lambda name, _: resolved.get(name, []))
    monkeypatch.setattr(network, "route_source", lambda target: routes.get(target, ""))
    assert find_place(engine).interface == interface
