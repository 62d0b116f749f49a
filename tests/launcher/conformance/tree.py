"""Writes the files that SageMaker gives one host of a scenario."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tests.launcher.conformance.scenario import Group, Scenario

PROBE = Path(__file__).with_name("probe.py")


def write_tree(scenario: Scenario, host: str, base: Path, wheels: Path) -> None:
    """The request, the code folder and everything else that `scenario` puts below `base`."""

    def filled(text: str) -> str:
        return text.replace("<base>", str(base)).replace("<wheels>", str(wheels))

    for folder in ("input/config", "input/data", "model", "output/data"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    for name, content in _request(scenario, host).items():
        if name not in scenario.without:
            text = filled(json.dumps(content, ensure_ascii=False))
            (base / "input/config" / name).write_text(text, encoding="utf-8")
    for name, text in scenario.tree.items():
        _write(base / name, filled(text))
    for name, text in scenario.files.items():
        _write(base / "code" / name, filled(text))
    for name, members in scenario.archives.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _archive(path, {member: filled(text) for member, text in members.items()})


def _request(scenario: Scenario, host: str) -> dict[str, object]:
    groups = scenario.groups
    if groups == ():
        groups = (Group("homogeneousCluster", scenario.hosts),)
    resource: dict[str, object] = {
        "current_host": host,
        "hosts": list(scenario.hosts),
        "current_instance_type": "local" if groups is None else _group(groups, host).instance_type,
        "network_interface_name": "lo",
    }
    if groups is not None:
        resource["current_group_name"] = _group(groups, host).name
        resource["instance_groups"] = [
            {
                "instance_group_name": group.name,
                "instance_type": group.instance_type,
                "hosts": list(group.hosts),
            }
            for group in groups
        ]
    return {
        "hyperparameters.json": dict(scenario.hyperparameters),
        "resourceconfig.json": {**resource, **scenario.resource},
        "inputdataconfig.json": {name: dict(value) for name, value in scenario.channels.items()},
    }


def _group(groups: tuple[Group, ...], host: str) -> Group:
    return next(group for group in groups if host in group.hosts)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(with_probe(path.name, text), encoding="utf-8")
    if path.suffix != ".py" and text.startswith("#!"):
        path.chmod(0o755)


def _archive(path: Path, members: Mapping[str, str]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members.items():
            content = with_probe(name, text).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def with_probe(name: str, text: str) -> str:
    """`text` with its line `#probe` replaced by the report that suits the kind of file."""
    if name.endswith(".py"):
        call = PROBE.read_text().partition('\nif __name__ == "__main__":')[0]
        return text.replace("#probe\n", call + "\nimport sys\nreport(sys.argv)\ndel report\n")
    return text.replace("#probe\n", '"$CONFORMANCE_PYTHON" "$CONFORMANCE_PROBE" "$0" "$@"\n')
