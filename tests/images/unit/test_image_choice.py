"""What `make image` may be asked for, and when two images are the same."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from scripts.images import choice
from scripts.images.choice import choose, pythons
from scripts.images.errors import ImageError
from scripts.images.likeness import Content, differences, entries, likeness
from scripts.images.pins import pins
from scripts.images.targets import reference


@pytest.fixture(autouse=True)
def refreshed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(choice, "REFRESHED", tmp_path / "refreshed")
    return tmp_path / "refreshed"


def test_every_python_has_a_suite_and_a_base_and_one_is_the_usual_one() -> None:
    assert {"3.10", "3.11", "3.12", "3.13", "3.14"} == set(pythons())
    usual = choose("base")
    assert (usual.python, usual.torch, usual.refresh) == (pins()["IMAGE_PYTHON"], "", "")


def test_a_tag_names_python_system_torch_the_day_and_what_else_was_asked_for() -> None:
    asked = ["PYTHON=3.13", "TORCH_VERSION=2.13.0", "REFRESH=20261123"]
    chosen = choose("cpu", asked)
    assert reference("cpu", "abc", chosen).endswith("torch2.13.0-cpu-py313-trixie-abc-r20261123")
    further = reference("base", "abc", choose("base", [*asked, "SSH=0"]))
    assert "-abc-r20261123-v" in further
    assert reference("base", "abc", chosen, "mine") not in (
        further,
        reference("base", "abc", chosen),
    )


def test_what_a_build_was_given_gives_the_same_build_again() -> None:
    """`make test-image` asks for the child by it."""
    chosen = choose("cpu", ["PYTHON=3.13", "REFRESH=20261123.2", "SSH=0"])
    assert choose("cpu", chosen.arguments()) == chosen


@pytest.mark.parametrize(
    ("target", "asked", "says"),
    [
        ("base", "PYTHON=3.9", "no base is pinned for Python 3.9"),
        ("cpu", "TORCH_VERSION=1.0", "torch 1.0 has no lock by hash; there are .*2.13.0"),
        ("cuda-efa", "TORCH_VERSION=2.12.0", "cuda-efa has a lock for one torch only"),
        ("base", "REFRESH=yes", "REFRESH=yes is no day"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_way_out(target: str, asked: str, says: str) -> None:
    with pytest.raises(ImageError, match=says) as refused:
        choose(target, [asked])
    assert refused.value.cure


def test_later_builds_keep_the_day_of_the_refresh(refreshed: Path) -> None:
    """Else the next one would find the older packages in the cache, and take them."""
    day = choose("base", ["REFRESH=1"]).refresh
    assert len(day) == 8 and choose("cpu").refresh == day
    assert choose("base", ["REFRESH=0"]).refresh == choose("cpu").refresh == ""


CONFIG: dict[str, Any] = {
    "created": "now",
    "config": {"Cmd": ["train"]},
    "history": [{"created": "now", "created_by": "RUN"}],
    "rootfs": {"diff_ids": ["sha256:1"]},
}
LATER = {**CONFIG, "created": "later", "history": [{"created": "later", "created_by": "RUN"}]}


def test_images_that_differ_in_their_times_only_are_the_same() -> None:
    assert likeness(CONFIG) == likeness(LATER)
    layer = {"etc": "type 5"}
    assert list(differences(Content(CONFIG, (layer,)), Content(LATER, (dict(layer),)))) == []


@pytest.mark.parametrize("name", ["config", "history", "rootfs"])
def test_images_that_differ_in_anything_else_are_not(name: str) -> None:
    other = {**CONFIG, name: []}
    assert likeness(other) != likeness(CONFIG)
    found = list(
        differences(Content(CONFIG, ({"a": "1", "b": "1"},)), Content(other, ({"a": "2"},)))
    )
    assert [line.partition(":")[0] for line in found] == [
        "layer 0", "layer 0 /a", "layer 0 /b", f"configuration {name}",
    ]  # fmt: skip


def test_entries_that_differ_only_in_how_an_archive_writes_them_are_not_the_same() -> None:
    """The layer's digest is that of the archive, so what a reader makes of it is not enough."""

    def layer(form: int) -> tarfile.TarFile:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w", format=form) as packed:
            packed.addfile(tarfile.TarInfo("venv/x"))
        archive.seek(0)
        return tarfile.open(fileobj=archive)

    with layer(tarfile.USTAR_FORMAT) as one, layer(tarfile.GNU_FORMAT) as other:
        contents = [Content({}, (entries(each),)) for each in (one, other)]
    assert [line.partition(":")[0] for line in differences(*contents)] == ["layer 0 /venv/x"]
