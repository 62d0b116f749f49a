"""The wheel of muster-parallel, with the core where there is a compiler; what the core includes."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

PROJECT = Path(__file__).resolve().parents[3] / "toolkit" / "parallel"
CORE = "muster_collectives/_native/libmuster_core.so"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project with one small source in place of the core's."""
    copy = tmp_path / "parallel"
    shutil.copytree(PROJECT, copy, symlinks=False, ignore=shutil.ignore_patterns(
        "csrc", "_native", "__pycache__", "torch", "tensorflow"))  # fmt: skip
    (copy / "csrc").mkdir()
    (copy / "csrc" / "one.c").write_text("unsigned mc_abi(void);\nunsigned mc_abi(void)"
                                         " { return 1; }\n")  # fmt: skip
    return copy


def build(project: Path, env: Mapping[str, str], kind: str = "wheel") -> tuple[str, str, set[str]]:
    """The name of what was built, what was said, what is in it."""
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith("MUSTER_") and name != "CC"}  # fmt: skip
    into = project.parent / "dist"
    shutil.rmtree(into, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)],
        cwd=project, env={**clean, **env}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [made] = into.iterdir()
    names = set(zipfile.ZipFile(made).namelist()) if kind == "wheel" else set()
    return made.name, done.stderr, names


def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", PROJECT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_with_a_compiler_the_wheel_has_the_core_and_a_platform(project: Path) -> None:
    name, _, files = build(project, {})
    assert "-py3-none-linux_" in name
    assert CORE in files and "muster_parameter_server/version.py" in files
    name, _, _ = build(project, {"MUSTER_PLATFORM": "manylinux_2_17_x86_64"})
    assert name.endswith("-py3-none-manylinux_2_17_x86_64.whl")


def test_without_a_compiler_the_wheel_is_pure_and_says_so_in_a_line(project: Path) -> None:
    name, said, files = build(project, {"MUSTER_CC": "/nowhere/cc"})
    assert name.endswith("-py3-none-any.whl") and CORE not in files
    assert "muster_collectives/core.py" in files
    [line] = [line for line in said.splitlines() if "muster-parallel" in line]
    assert "without the compiled core" in line and "no C compiler" in line


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_a_source_that_does_not_compile_is_said_and_is_an_error_where_the_core_is_required(
    project: Path,
) -> None:
    (project / "csrc" / "two.c").write_text("int broken(\n")
    name, said, _ = build(project, {})
    assert name.endswith("-py3-none-any.whl") and "error" in said
    with pytest.raises(AssertionError, match="install a C compiler"):
        build(project, {"MUSTER_CORE": "required"})
    name, said, _ = build(project, {"MUSTER_CORE": "skip"})
    assert name.endswith("-py3-none-any.whl") and "MUSTER_CORE=skip" in said


def test_a_core_that_an_editable_install_has_left_is_never_packed(project: Path) -> None:
    left = project / "src" / CORE
    left.parent.mkdir()
    left.write_bytes(b"old")
    _, _, files = build(project, {"MUSTER_CORE": "skip"})
    assert CORE not in files and not left.exists()


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_an_editable_install_keeps_a_core_that_is_there_where_that_is_asked_for(
    project: Path,
) -> None:
    core = project / "src" / CORE
    for there in (False, True):
        build(project, {"MUSTER_CORE": "keep"}, "wheel:editable")
        assert (core.read_bytes() == b"old") is there
        core.write_bytes(b"old")
    build(project, {}, "wheel:editable")
    assert core.read_bytes() != b"old"


def test_the_sdist_carries_the_sources_of_the_core(project: Path) -> None:
    import tarfile

    name, _, _ = build(project, {}, "sdist")
    with tarfile.open(project.parent / "dist" / name) as archive:
        names = {entry.partition("/")[2] for entry in archive.getnames()}
    assert {"csrc/one.c", "hatch_build.py", "src/muster_collectives/version.py"} <= names


def test_the_compiler_and_the_platform_follow_the_variables() -> None:
    module = hook()
    assert module.compiler_of({"MUSTER_CC": f"{sys.executable} -m ziglang cc", "CC": "x"})[1:] == [
        "-m", "ziglang", "cc",
    ]  # fmt: skip
    assert module.compiler_of({"CC": "/nowhere/cc"}) == []
    for environ, platform in (
        ({"MUSTER_TARGET": "aarch64-linux-gnu.2.17"}, "manylinux_2_17_aarch64"),
        ({"MUSTER_TARGET": "aarch64-linux-gnu"}, "linux_aarch64"),
        ({"MUSTER_PLATFORM": "any"}, "any"),
    ):
        assert module.platform_of(environ) == platform
    assert "-march=native" not in module.COMPILING and "-ffp-contract=off" in module.COMPILING


# --- which folder of the core includes which

CSRC = PROJECT / "csrc"
# from the bottom up: a folder includes what is named here, itself and muster_core.h
ALLOWED = {
    "kernels": set(),
    "group": set(),
    "shm": {"kernels", "group"},
    "net": {"kernels", "group"},
    "inter": {"kernels", "group", "shm", "net"},
    "p2p": {"kernels", "group", "net"},
    "api": {"kernels", "group", "shm", "net", "inter", "p2p"},
}
LONGEST, MOST = 400, 20


def includes(root: Path) -> Iterator[tuple[str, str]]:
    """File and what it includes, both as paths below `root`."""
    for path in sorted(root.rglob("*.[ch]")):
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            yield str(path.relative_to(root)), name


def wrong(root: Path) -> list[str]:
    found = []
    for source, target in includes(root):
        ours, theirs = Path(source).parts[0], Path(target).parts[0]
        if not (root / target).is_file():
            found.append(f"{source}: no file {target}")
        elif len(Path(target).parts) > 1 and theirs not in ALLOWED[ours] | {ours}:
            found.append(f"{source} must not include {target}")
    return found


def test_folders_include_only_what_lies_below_them() -> None:
    assert {path.name for path in CSRC.iterdir() if path.is_dir()} == set(ALLOWED)
    assert not wrong(CSRC)
    TopologicalSorter(ALLOWED).prepare()


def test_no_header_includes_itself_by_way_of_others() -> None:
    arrows: dict[str, set[str]] = {}
    for source, target in includes(CSRC):
        arrows.setdefault(source, set()).add(target)
    TopologicalSorter(arrows).prepare()


def test_files_and_folders_are_small() -> None:
    for folder in (CSRC, *(CSRC / name for name in ALLOWED)):
        files = [path for path in folder.iterdir() if path.is_file()]
        assert 0 < len(files) <= MOST, folder
        for path in files:
            assert len(path.read_text().splitlines()) <= LONGEST, path


def test_an_arrow_upwards_and_a_circle_are_found(tmp_path: Path) -> None:
    for name, text in (
        ("kernels/a.h", '#include "api/b.h"\n'),
        ("api/b.h", '#include "kernels/a.h"\n#include "api/none.h"\n'),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    assert wrong(tmp_path) == [
        "api/b.h: no file api/none.h",
        "kernels/a.h must not include api/b.h",
    ]
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()
