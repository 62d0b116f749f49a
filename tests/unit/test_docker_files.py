"""What stands in docker/ and in docker-bake.hcl: every pin once, nothing unpinned, clean files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.images.buildx import PLUGIN
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
    known = pins()
    defaults = re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert len(defaults) >= 10
    assert [(name, known.get(name)) for name, _ in defaults] == defaults


def test_bake_has_the_same_defaults() -> None:
    known = {**pins(), "VERSION": version()}
    defaults = dict(re.findall(r'^variable "(\w+)" \{ default = "([^"]*)" \}$', BAKE, re.MULTILINE))
    assert {"BASE_IMAGE", "VERSION"} <= defaults.keys()
    for name, value in defaults.items():
        if name in known:
            assert value == known[name], name


@pytest.mark.promise("S14")
def test_the_base_is_pinned_by_digest_and_nothing_is_latest() -> None:
    assert re.search(r"@sha256:[0-9a-f]{64}$", pins()["BASE_IMAGE"])
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
    text = (DOCKER / "constraints" / "cpu-torch.txt").read_text()
    assert f"torch=={pins()['TORCH_VERSION']}+cpu" in text


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
    calls = re.findall(r'^ *(pip .*-r "\$lock")$', text, re.MULTILINE)
    assert len(calls) == 2
    for call in calls:
        assert "--only-binary :all:" in call or "--no-build-isolation" in call, call


def test_public_upstreams_stand_in_versions_env_only() -> None:
    named = re.findall(r"https?://[^/\s\"]+", DOCKERFILE + BAKE)
    assert set(named) <= set(re.findall(r"https?://[^/\s]+", (DOCKER / "versions.env").read_text()))
    for path in SCRIPTS:
        assert not re.search(r"https?://[\w.-]+\.(com|org|io|net)\b", path.read_text()), path.name


def test_images_start_in_exec_form_below_tini_and_have_no_health_check() -> None:
    assert not re.search(r"^(HEALTHCHECK|USER|EXPOSE|VOLUME)\b", DOCKERFILE, re.MULTILINE)
    for name in TARGETS:
        text = stage(name)
        assert 'ENTRYPOINT ["/usr/bin/tini", "--"]\nCMD ["train"]\n' in text, name
        assert 8 >= len(re.findall(r"ml\.muster\.", text)) >= 4, name
        assert f"FROM {name} AS {name}-test\n" in DOCKERFILE, name


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_labels_agree_with_the_pins_and_take_only_arguments_that_the_stage_has(
    target: Target,
) -> None:
    """An argument that a stage does not declare is empty there, and nothing says so."""
    text = stage(target.name)
    said = dict(re.findall(r'([\w.-]+)="([^"]*)"', text))
    prefix = "org.opencontainers.image."
    assert said[f"{prefix}title"] == f"muster {target.name}"
    assert said[f"{prefix}licenses"] == "Apache-2.0"
    for label, argument in (
        ("version", "VERSION"), ("revision", "REVISION"), ("base.name", "BASE_IMAGE"),
    ):  # fmt: skip
        assert said[f"{prefix}{label}"] == f"${{{argument}}}"
        assert re.search(rf"^ARG {argument}\b", text, re.MULTILINE), argument
    python = pins()["IMAGE_PYTHON"].replace(".", "-")
    torch = pins()[target.pin].split(".")[:2] if target.pin else None
    assert [name for name in said if ".python." in name] == [f"ml.muster.python.{python}"]
    assert [name for name in said if ".framework." in name] == (
        [f"ml.muster.framework.pytorch.{'-'.join(torch)}"] if torch else []
    )


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
def test_bake_prints_what_make_image_builds() -> None:
    if not PLUGIN.is_file():
        pytest.skip("no docker buildx in .cache (python -m scripts.images buildx)")
    words = [str(PLUGIN), "bake", "--file", "docker-bake.hcl", "--print", *TARGETS]
    done = subprocess.run(
        words, cwd=CHECKOUT, env={**os.environ, "REVISION": "abc", "HOME": str(PLUGIN.parent)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)["target"]
    assert set(printed) == set(TARGETS)
    for name, target in printed.items():
        assert target["target"] == name
        assert target["dockerfile"] == "docker/Dockerfile"
        assert target["tags"] == [reference(name, "abc")]
        assert target["args"]["BASE_IMAGE"] == pins()["BASE_IMAGE"]


def test_a_line_that_is_no_pin_is_named_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "versions.env").write_text("# fine\nTORCH=1\nlatest torch\n")
    with pytest.raises(ImageError, match=r"versions\.env:3: expected NAME=value"):
        read_env(tmp_path / "versions.env")
