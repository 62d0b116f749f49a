"""README: short, and its commands name what exists."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

from muster.arguments import Parser
from muster.commands.parser import COMMANDS, OF_SCRIPTS

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 900
PICTURES = ROOT / "docs" / "pictures"


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.S)
    return [line.partition(" #")[0].strip() for line in "".join(blocks).splitlines()]


def test_it_is_read_in_one_sitting() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_its_quick_start_has_five_lines() -> None:
    block = README.partition("## Quick start")[2].partition("```sh\n")[2].partition("```")[0]
    assert len(block.splitlines()) == 5


def test_its_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake (?:-s )?([a-z][a-z-]+)", "\n".join(commands())))
    named |= set(re.findall(r"`make ([a-z][a-z-]+)`", README))
    assert {"setup", "image", "demo"} <= named
    assert {name for name in named if not re.search(rf"^{name}:", makefile, re.M)} == set()


def test_its_muster_commands_are_read() -> None:
    ours = [shlex.split(line)[1:] for line in commands() if line.startswith("muster ")]
    assert len(ours) >= 4
    for name, *words in ours:
        parser = Parser(f"muster {name}", name in OF_SCRIPTS)
        import_module(COMMANDS[name]).add_arguments(parser)
        parser.parse(words)  # raises UsageError
        (script,) = [word for word in words if word.endswith(".py")]
        assert (ROOT / script).is_file()


def test_its_pictures_are_there_and_say_what_they_show() -> None:
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", README)
    assert len(pictures) == 2
    for alternative, path in pictures:
        assert len(alternative) > 30
        assert (ROOT / path).is_file()


def test_a_picture_loads_nothing_from_elsewhere() -> None:
    for picture in PICTURES.glob("*.svg"):
        text = picture.read_text(encoding="utf-8").replace("http://www.w3.org/", "")
        assert "http" not in text.replace("https://www.textualize.io", ""), picture.name
        assert "url(" not in text.replace("url(#", "")
