"""`muster sbom`: what it says of packages that it was told of, and of those that are here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from muster.commands.parser import main
from muster.commands.sbom import bill, licenses
from muster.commands.sbom_packages import Library, Package, python_packages

RELEASE = {"ID": "debian", "VERSION_ID": "12", "PRETTY_NAME": "Debian 12"}
DEB = Package("deb", "libstdc++6", "1:12.2-14+deb12u1~a", "", "/copyright", "amd64", "gcc-12")
BUNDLED = Library("/x/libown.so.1", "libown.so.1", "", "ab")
WHEEL = Package("pypi", "Own_Wheel", "1.0", "MIT", "", bundled=(BUNDLED,))


def document(*packages: Package, version: str = "3") -> dict[str, object]:
    text = bill(packages, RELEASE, "mine", version, "2026-01-01T00:00:00Z")
    found: dict[str, object] = json.loads(text)
    return found


def test_debian_s_packages_are_named_as_scanners_match_advisories() -> None:
    system, deb, _ = document(DEB, WHEEL)["components"]  # type: ignore[misc]
    assert (system["type"], system["name"], system["version"]) == (
        "operating-system",
        "debian",
        "12",
    )
    assert deb["purl"] == (
        "pkg:deb/debian/libstdc%2B%2B6@1:12.2-14%2Bdeb12u1~a"
        "?arch=amd64&distro=debian-12&upstream=gcc-12"
    )


def test_a_wheel_s_own_libraries_stand_below_it() -> None:
    wheel = document(WHEEL)["components"][-1]  # type: ignore[index]
    assert wheel["purl"] == "pkg:pypi/own-wheel@1.0"
    assert wheel["licenses"] == [{"license": {"name": "MIT"}}]
    (library,) = wheel["components"]
    assert library["name"] == "libown.so.1" and "version" not in library
    assert library["hashes"] == [{"alg": "SHA-256", "content": "ab"}]


def test_the_same_packages_are_the_same_text_and_others_another() -> None:
    assert document(DEB) == document(DEB)
    assert document(DEB)["serialNumber"] != document(WHEEL)["serialNumber"]
    assert licenses([DEB, WHEEL]).splitlines()[1:] == [
        "deb\tlibstdc++6 1:12.2-14+deb12u1~a\t-\t/copyright",
        "pypi\tOwn_Wheel 1.0\tMIT\t-",
    ]


def test_the_packages_of_this_python_are_found_once_each() -> None:
    names = [one.name for one in python_packages()]
    assert "muster-training" in names and len(names) == len(set(names))


@pytest.fixture
def few_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the tests' environment, whose files would all be looked at."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])


@pytest.mark.usefixtures("few_packages")
def test_it_is_printed_or_written_with_the_name_that_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sbom", "--name", "mine", "--version", "3"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["metadata"]["component"]["name"] == "mine"
    assert main(["sbom", "--output", str(tmp_path / "there")]) == 0
    assert {path.name for path in (tmp_path / "there").iterdir()} == {
        "sbom.cdx.json",
        "licenses.txt",
    }


@pytest.mark.usefixtures("few_packages")
def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["sbom", "--output", str(tmp_path / "file" / "x")]) == 1
    assert f"muster sbom: {tmp_path}/file/x: Not a directory" in capsys.readouterr().err
