"""The environment that a host's `train` is started with; the same for every launcher."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from tests.launcher.conformance.launchers import Launcher
from tests.launcher.conformance.processes import MARK
from tests.launcher.conformance.scenario import Scenario
from tests.launcher.conformance.tree import PROBE


class Place(NamedTuple):
    """The folders of one host of one run."""

    host: str
    root: Path

    @property
    def base(self) -> Path:
        return self.root / "ml"

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    def make(self) -> None:
        for name in ("ml", "reports", "home", "tmp", "site"):
            (self.root / name).mkdir(parents=True)


class Ports(NamedTuple):
    control: int
    store: int


def environment(
    scenario: Scenario, launcher: Launcher, place: Place, mark: str, ports: Ports, wheels: Path
) -> dict[str, str]:
    """What the container engine would set, and what lets hosts live on one machine."""
    return {
        "PATH": f"{place.root}/tools:{launcher.bin}:/usr/local/bin:/usr/bin:/bin",
        "HOME": f"{place.root}/home",
        "TMPDIR": f"{place.root}/tmp",
        "LANG": "C.UTF-8",
        "TRAINING_JOB_NAME": "conformance",
        "AWS_EC2_METADATA_DISABLED": "true",
        **_installing(place.root / "site", wheels),
        **({} if scenario.isolated else _one_machine(scenario, place, ports)),
        **launcher.environ,
        **{
            name: text.replace("<base>", str(place.base)) for name, text in scenario.environ.items()
        },
        MARK: mark,
        "CONFORMANCE_REPORTS": str(place.reports),
        "CONFORMANCE_PYTHON": launcher.python,
        "CONFORMANCE_PROBE": str(PROBE),
    }


def _installing(site: Path, wheels: Path) -> dict[str, str]:
    """pip finds tiny wheels only and installs into the run's own folder."""
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_TARGET": str(site),
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's way of saying "no isolation"
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PYTHONPATH": str(site),
    }


def _one_machine(scenario: Scenario, place: Place, ports: Ports) -> dict[str, str]:
    """Another base folder, and no need to resolve names: the incumbent would try for 15 minutes."""
    found = {"SAGEMAKER_BASE_DIR": str(place.base), "SM_STUDIO_LOCAL_MODE": "true"}
    if len(scenario.hosts) == 1:
        return found
    addresses = {name: f"127.0.0.{number}" for number, name in enumerate(scenario.hosts, 1)}
    return {
        **found,
        "MUSTER_HOST_ADDRESSES": json.dumps(addresses),
        "MUSTER_JOB_SECRET": "conformance-secret-of-one-run",
        "MUSTER_CONTROL_PORT": str(ports.control),
        "MUSTER_STORE_PORT": str(ports.store),
        "MUSTER_JOIN_S": "20",
    }
