"""What kind of program the entry point is, and whether it is there. All are ConfigErrors."""

from __future__ import annotations

import os
import re

from muster.types.errors import ConfigError
from muster.types.files import read_text
from muster.types.job import Program
from muster.types.names import TYPED, listed, nearest

_LISTED = 8  # names in a message
_WALKED = 2000  # entries looked at for a message


def decide(code_dir: str, name: str, arguments: tuple[str, ...], where: str, ours: bool) -> Program:
    """The program called `name` in `code_dir`, ready to start.

    `.sh` is a command; a `setup.py`, or a `pyproject.toml` that describes a package, makes a
    module; `.py` is a script; anything else is an executable. `where`: what named the program,
    for messages. `ours`: muster unpacked the folder, so an execute bit that got lost may be set.
    """
    check_name(name, where)
    path = os.path.join(code_dir, name)
    if name.endswith(".sh"):
        _require_file(code_dir, name, where)
        return Program("command", name, code_dir, arguments, interpreter=_interpreter(path))
    if is_package(code_dir, name):
        if name.endswith(".py") and not os.path.isfile(path):
            _require_somewhere(code_dir, name, where)
        return Program("module", module_name(name), code_dir, arguments)
    _require_file(code_dir, name, where)
    if name.endswith(".py"):
        return Program("script", name, code_dir, arguments)
    _require_executable(path, name, where, ours)
    return Program("command", name, code_dir, arguments)


def _interpreter(path: str) -> tuple[str, ...]:
    """What a shell script's first line names, with its one argument, when it is there; else sh.

    Started so, a script needs no execute bit, and nothing is written into its folder.
    """
    with open(path, "rb") as file:
        line = file.readline(256)
    words = line[2:].decode("utf-8", "replace").split(maxsplit=1) if line[:2] == b"#!" else []
    if words and os.access(words[0], os.X_OK):
        return (words[0], *(word.rstrip() for word in words[1:]))
    return ("/bin/sh",)


def check_name(name: str, where: str) -> None:
    """Raises ConfigError for a name that could leave the code folder or pass for an option."""
    parts = name.split("/")
    if not name or name.startswith(("/", "-")) or ".." in parts or "\0" in name:
        raise ConfigError.of(
            where,
            f"program must be relative to the code folder, got {name[:80]!r}",
            "give a path such as train.py, without '..' and leading '-'",
        )


def module_name(name: str) -> str:
    """`pkg/train.py` -> `pkg.train`."""
    return name.removesuffix(".py").replace("/", ".")


def is_package(code_dir: str, name: str) -> bool:
    """Whether the folder is a project to install, and `name` a module of it.

    A `pyproject.toml` counts when it can be built: with a [build-system], or with a [project]
    when the entry point is no file, so that it can only be a module. One that merely lists
    dependencies or settings of tools leaves a script a script, as with the incumbent.
    Raises ConfigError for a [project] without a name.
    """
    if os.path.isfile(os.path.join(code_dir, "setup.py")):
        return True
    text = read_text(os.path.join(code_dir, "pyproject.toml"))
    if not text:
        return False  # what follows compiles expressions, which a plain job need not pay for
    project = _table(text, "project")
    if _table(text, "build-system") is None and (
        project is None or os.path.isfile(os.path.join(code_dir, name))
    ):
        return False
    if project is not None and not re.search(r"^[ \t]*[\"']?name[\"']?[ \t]*=", project, re.M):
        raise ConfigError.of(
            os.path.join(code_dir, "pyproject.toml"),
            "[project] has no name",
            'add a line such as: name = "my-training"',
        )
    return True


def _table(text: str, name: str) -> str | None:
    """The lines of a TOML table, or None. Python 3.10 has no reader, and pip reads it anyway."""
    found = re.search(rf"^[ \t]*\[[ \t]*{re.escape(name)}[ \t]*\]", text, re.M)
    if not found:
        return None
    rest = text[found.end() :]
    following = re.search(r"^[ \t]*\[", rest, re.M)
    return rest[: following.start()] if following else rest


def _require_file(code_dir: str, name: str, where: str) -> None:
    path = os.path.join(code_dir, name)
    if os.path.isdir(path):
        raise ConfigError.of(
            where, f"program {name!r} in {code_dir} is a folder", "name the script inside it"
        )
    if not os.path.isfile(path):
        raise _absent(code_dir, name, where)


def _require_somewhere(code_dir: str, name: str, where: str) -> None:
    """A package's module may lie in any folder of its sources, but it must be there."""
    base = os.path.basename(name)
    names, whole = _walk(code_dir)
    if whole and not any(found.rpartition("/")[2] == base for found in names):
        raise _absent(code_dir, name, where)


def _absent(code_dir: str, name: str, where: str) -> ConfigError:
    names, _ = _walk(code_dir)
    if not names:
        there = "the folder holds no files"
        fix = "set sagemaker_submit_directory, or put the code into the folder"
    else:
        top = sorted({found.partition("/")[0] + "/" * ("/" in found) for found in names})
        there = f"files there: {listed(top, _LISTED)}"
        near = _nearest(name, names)
        fix = f"did you mean {near!r}?" if near else "name a script by its path in the folder"
    return ConfigError.of(where, f"program {name!r} not found in {code_dir}; {there}", fix)


def _nearest(name: str, names: list[str]) -> str:
    """The script that was most likely meant: of the same name elsewhere, else of a similar one."""
    scripts = [found for found in names if found.endswith((".py", ".sh"))] or names
    by_base = {found.rpartition("/")[2]: found for found in reversed(scripts)}
    base = name.rpartition("/")[2]
    if base in by_base:
        return by_base[base]
    of_path = nearest(name, scripts, likeness=TYPED)
    return of_path or by_base.get(nearest(base, by_base, likeness=TYPED), "")


def _walk(code_dir: str) -> tuple[list[str], bool]:
    """Relative paths of files, shallow ones first, and whether these are all."""
    found: list[str] = []
    folders, seen = [""], 0
    while folders:
        folder = folders.pop(0)
        try:
            with os.scandir(os.path.join(code_dir, folder)) as scan:
                batch = sorted(scan, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in batch:
            seen += 1
            if seen > _WALKED:
                return found, False
            path = f"{folder}/{entry.name}" if folder else entry.name
            if not entry.is_dir(follow_symlinks=False):
                found.append(path)
            elif entry.name not in ("__pycache__", ".git"):
                folders.append(path)
    return found, True


def _require_executable(path: str, name: str, where: str, ours: bool) -> None:
    """B19: says what the file is and how it would have been started."""
    with open(path, "rb") as file:
        head = file.read(4)
    startable = head.startswith(b"#!") or head == b"\x7fELF"
    if startable and not os.access(path, os.X_OK) and ours:
        os.chmod(path, os.stat(path).st_mode & 0o777 | 0o111)
    if startable and os.access(path, os.X_OK):
        return
    what = "has no execute permission" if startable else "is not executable: it has no '#!' line"
    raise ConfigError.of(
        where,
        f"program {name!r} {what}; it would be started as ./{name}",
        f"chmod +x {name}" if startable else "name a .py or .sh file, or give it a '#!' line",
    )
