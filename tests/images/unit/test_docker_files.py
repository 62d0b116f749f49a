"""What stands in docker/ and in docker-bake.hcl: every pin once, nothing unpinned, clean files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.images.buildx import PLUGIN
from scripts.images.choice import choose, pythons
from scripts.images.errors import ImageError
from scripts.images.pins import CHECKOUT, pins, read_env, version
from scripts.images.targets import TARGETS, Target, reference

DOCKER = CHECKOUT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
BAKE = (CHECKOUT / "docker-bake.hcl").read_text()
SCRIPTS = sorted((DOCKER / "install").glob("*.sh"))
LOCKS = sorted((DOCKER / "constraints").glob("*.txt"))
SHELL = [path for folder in ("scripts", ".ci") for path in sorted((CHECKOUT / folder).iterdir())]


def tool(name: str) -> str:
    """A program of .venv. Skips where another Python runs the tests."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent)]))
    return found or pytest.skip(f"no {name} beside {sys.executable}")


def test_every_default_of_the_dockerfile_is_the_pin_of_versions_env() -> None:
    usual = choose("base")
    known = {
        **pins(), "PYTHON": usual.python, "SUITE": usual.suite, "BASE_IMAGE": usual.base,
        "SSH": "1", "TESTED": "cpu",
    }  # fmt: skip
    defaults = re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert len(defaults) >= 10
    assert [(name, known.get(name)) for name, _ in defaults] == defaults


def test_bake_has_the_same_defaults() -> None:
    known = {**pins(), "VERSION": version(), "PYTHON": pins()["IMAGE_PYTHON"]}
    defaults = dict(re.findall(r'^variable "(\w+)" \{ default = "([^"]*)" \}$', BAKE, re.MULTILINE))
    assert {"PYTHON", "TORCH_VERSION", "VERSION"} <= defaults.keys()
    for name, value in defaults.items():
        if name in known:
            assert value == known[name], name
    bases = re.findall(r'^    "([\d.]+)" = \["(\w+)", "(\S+)"\]$', BAKE, re.MULTILINE)
    assert {python: (suite, base) for python, suite, base in bases} == pythons()


@pytest.mark.promise("S14")
def test_the_base_is_pinned_by_digest_and_nothing_is_latest() -> None:
    for suite, base in pythons().values():
        assert re.search(rf"-?slim(-{suite})?@sha256:[0-9a-f]{{64}}$", base), base
    texts = {path.name: path.read_text() for path in (DOCKER / "Dockerfile", *SCRIPTS)}
    texts |= {"versions.env": (DOCKER / "versions.env").read_text(), "bake": BAKE}
    for name, text in texts.items():
        code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        assert not re.search(r"\b(latest|master)\b", code), name


@pytest.mark.promise("S14")
@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_package_of_a_lock_has_a_version_and_a_hash(lock: Path) -> None:
    text = lock.read_text().replace("\\\n", " ")
    rows = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert rows
    for row in rows:
        assert re.match(r"[\w.-]+(\[\w+\])?==[\w.+!]+\s", row), row
        assert "--hash=sha256:" in row, row
    assert "index-url" not in text
    assert "://" not in text


def test_torch_s_lock_is_of_the_pinned_version() -> None:
    torch = pins()["TORCH_VERSION"]
    assert f"torch=={torch}+cpu" in (DOCKER / "constraints" / f"torch-{torch}.txt").read_text()


def test_pip_installs_by_hash_or_from_our_own_wheels_only() -> None:
    for path in (*SCRIPTS, DOCKER / "Dockerfile"):
        text = path.read_text().replace("\\\n", " ")
        for line in text.splitlines():
            if re.search(r"\bpip\b.* install\b", line):
                assert "--require-hashes" in line or "--no-index" in line, (path.name, line)


@pytest.mark.promise("S14")
def test_what_has_to_be_built_is_built_with_packages_of_a_lock() -> None:
    """pip's own isolation would take the newest ones from the index, without a hash."""
    text = (DOCKER / "install" / "venv.sh").read_text()
    calls = re.findall(r'^ *(pip .*-r "?(?:\$lock|/build/torchvision.txt)"?)$', text, re.MULTILINE)
    assert len(calls) == 3
    for call in calls:
        assert "--only-binary :all:" in call or "--no-build-isolation" in call, call


def test_public_upstreams_stand_in_versions_env_only() -> None:
    named = re.findall(r"https?://[^/\s\"]+", DOCKERFILE + BAKE)
    assert set(named) <= set(re.findall(r"https?://[^/\s]+", (DOCKER / "versions.env").read_text()))
    for path in SCRIPTS:
        assert not re.search(r"https?://[\w.-]+\.(com|org|io|net)\b", path.read_text()), path.name


def test_images_start_in_exec_form_below_tini_and_have_no_health_check() -> None:
    assert not re.search(r"^(HEALTHCHECK|USER|EXPOSE|VOLUME)\b", DOCKERFILE, re.MULTILINE)
    assert 'ENTRYPOINT ["/usr/bin/tini", "--"]\nCMD ["train"]\n' in stage("os")
    for name in TARGETS:
        assert "ENTRYPOINT" not in stage(name) and "CMD [" not in stage(name), name


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_labels_agree_with_the_pins_and_take_only_arguments_that_the_stage_has(
    target: Target,
) -> None:
    """An argument that a stage does not declare is empty there, and nothing says so."""
    common, text = stage("os"), stage(target.name)
    said = dict(re.findall(r'([\w.-]+)="([^"]*)"', common + text.partition("ONBUILD")[0]))
    prefix = "org.opencontainers.image."
    assert said[f"{prefix}title"] == f"muster {target.name}"
    assert said[f"{prefix}licenses"] == "Apache-2.0"
    for label, argument in (
        (f"{prefix}version", "VERSION"), (f"{prefix}revision", "REVISION"),
        (f"{prefix}base.name", "BASE_IMAGE"), ("ml.muster.python", "PYTHON"),
    ):  # fmt: skip
        assert said[label] == f"${{{argument}}}"
        assert re.search(rf"^ARG {argument}\b", common, re.MULTILINE), argument
    assert said["ml.muster.os"] == "debian-${SUITE}"
    assert said.get("ml.muster.framework", "") == (
        f"pytorch-${{{target.pin}}}" if target.pin else ""
    )
    assert not target.pin or re.search(rf"^ARG {target.pin}\b", text, re.MULTILINE)


def test_an_image_that_is_built_on_ours_has_none_of_our_titles() -> None:
    """Labels are inherited: it would be called by our name, version and commit."""
    ours = set(re.findall(r"(org\.opencontainers\.[\w.]+)=", stage("os") + stage("base")))
    for name in TARGETS:
        emptied = re.findall(r'([\w.]+)=""', stage(name).partition("ONBUILD LABEL")[2])
        assert set(emptied) == ours, name


def stage(name: str) -> str:
    found = re.search(rf"^FROM \S+ AS {name}$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.M | re.S)
    assert found, name
    return found[1]


@pytest.mark.promise("S01")
def test_no_image_sets_a_variable_that_breaks_other_machines() -> None:
    for line in re.findall(r"^(?:ENV| {4})\s*(\w+)=", DOCKERFILE, re.MULTILINE):
        assert not line.startswith(("FI_", "RDMAV_", "NCCL_DEBUG", "LD_PRELOAD")), line


@pytest.mark.dev
def test_the_dockerfile_is_clean_for_hadolint() -> None:
    argv = [tool("hadolint"), "--config", str(DOCKER / "hadolint.yaml"), str(DOCKER / "Dockerfile")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.dev
def test_shell_scripts_are_clean_for_shellcheck_and_short() -> None:
    ours = [
        path
        for path in (*SHELL, *SCRIPTS)
        if path.is_file() and path.read_text().startswith("#!/usr/bin/env bash")
    ]
    assert len(ours) > 10
    done = subprocess.run(
        [tool("shellcheck"), *map(str, ours)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert [path.name for path in ours if len(_code(path)) > 50] == []


def _code(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


@pytest.mark.dev
@pytest.mark.parametrize("python", pythons())
def test_bake_prints_what_make_image_builds_with_every_python(python: str) -> None:
    printed = baked(REVISION="abc", PYTHON=python)
    assert set(printed) == set(TARGETS)
    chosen = choose("base", [f"PYTHON={python}"])._replace(refresh="")
    for name, target in printed.items():
        assert target["target"] == name
        assert target["dockerfile"] == "docker/Dockerfile"
        assert target["tags"] == [reference(name, "abc", chosen)]
        assert target["args"]["BASE_IMAGE"] == chosen.base
        assert {f"{word}={target['args'][word]}" for word in ("PYTHON", "SUITE")} == {
            *chosen.arguments()
        }


@pytest.mark.dev
def test_bake_makes_no_tag_that_moves() -> None:
    assert all("tags" not in target for target in baked().values())
    other = choose("cpu", ["TORCH_VERSION=2.13.0"])._replace(torch="9.9", refresh="20261123")
    cpu = baked(REVISION="abc", TORCH_VERSION="9.9", REFRESH="20261123")["cpu"]
    assert cpu["tags"] == [reference("cpu", "abc", other)]
    assert (cpu["args"]["TORCH_VERSION"], cpu["args"]["REFRESH"]) == ("9.9", "20261123")


@pytest.mark.dev
def test_bake_gives_what_is_not_as_usual_a_tag_of_its_own_that_of_make_image() -> None:
    usual = choose("cpu")
    assert baked(REVISION="abc", BASE_IMAGE=usual.base)["cpu"]["tags"] == [
        reference("cpu", "abc", usual)
    ]
    without = choose("cpu", ["SSH=0"])
    for base in ("", "debian:mine"):
        cpu = baked(REVISION="abc", SSH="0", BASE_IMAGE=base)["cpu"]
        assert cpu["tags"] == [reference("cpu", "abc", without, base)]


def baked(**variables: str) -> dict[str, Any]:
    """The targets that bake would build."""
    if not PLUGIN.is_file():
        pytest.skip("no docker buildx in .cache (python -m scripts.images buildx)")
    words = [str(PLUGIN), "bake", "--file", "docker-bake.hcl", "--print", *TARGETS]
    done = subprocess.run(
        words, cwd=CHECKOUT, env={**os.environ, **variables, "HOME": str(PLUGIN.parent)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["target"]
    return found


def test_a_line_that_is_no_pin_is_named_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "versions.env").write_text("# fine\nTORCH=1\nlatest torch\n")
    with pytest.raises(ImageError, match=r"versions\.env:3: expected NAME=value"):
        read_env(tmp_path / "versions.env")
