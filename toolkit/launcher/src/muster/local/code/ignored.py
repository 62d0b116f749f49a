"""What of a source folder is not code: what git ignores there, or what `.musterignore` names.

git itself is asked, so that its rules are git's: what it tracks is packed.
"""

from __future__ import annotations

import os

from muster.arguments import UsageError
from muster.types.names import listed
from muster.types.values import NamedTuple

OWN = ".musterignore"
ASK_S = 60.0
SHOWN = 3
_LIST = ("ls-files", "--others", "--ignored", "--directory", "-z")


class Ignored(NamedTuple):
    """Paths below the source folder, those of folders with a slash at the end. `by`: whose rules.
    `problem`: why git's are not known."""

    paths: frozenset[str] = frozenset()
    by: str = ""
    problem: str = ""

    def holds(self, path: str) -> bool:
        return path in self.paths or f"{path}/" in self.paths

    def but_for(self, program: str) -> Ignored:
        """The program is packed whatever the rules say, with the folder that it is in."""
        kept = {path for path in self.paths if f"{program}/".startswith(path.rstrip("/") + "/")}
        return self._replace(paths=self.paths - kept)

    def in_words(self, uninteresting: frozenset[str] = frozenset()) -> str:
        """A sentence about what is left out, "" for nothing worth one."""
        if self.problem:
            return f"everything is packed, since git does not say what it ignores: {self.problem}"
        names = sorted(
            path for path in self.paths if not uninteresting & set(path.strip("/").split("/"))
        )
        if not names:
            return ""
        shown = listed((name if len(name) < 40 else f"...{name[-36:]}" for name in names), SHOWN)
        way_out = "" if self.by == OWN else f"; a {OWN} decides instead"
        return f"not packed, by {self.by}: {shown}{way_out}"


NOTHING = Ignored()


def find_ignored(folder: str) -> Ignored:
    """By `.musterignore` where the source folder has one, else by git's rules in a work tree.

    Raises UsageError where `.musterignore` cannot be obeyed.
    """
    if os.path.isfile(os.path.join(folder, OWN)):
        import tempfile

        with tempfile.TemporaryDirectory(prefix="muster-ignore-") as temp:
            problem, _ = _git(temp, "init", "-q", ".")
            where = (f"--git-dir={temp}/.git", f"--work-tree={folder}")
            if not problem:
                problem, listed = _git(folder, *where, *_LIST, f"--exclude-per-directory={OWN}")
        if problem:
            raise UsageError(
                f"{folder} has a {OWN}, which git has to read: {problem}",
                f"install git, or remove {OWN} and name a folder with --source-dir",
            )
        return Ignored(listed, OWN)
    if not _in_a_work_tree(folder):
        return NOTHING
    if not _git(folder, "check-ignore", "-q", ".")[0]:
        return NOTHING  # the whole folder is none of git's
    problem, listed = _git(folder, *_LIST, "--exclude-standard")
    return Ignored(listed, ".gitignore", problem)


def _in_a_work_tree(folder: str) -> bool:
    while not os.path.lexists(os.path.join(folder, ".git")):
        folder, name = os.path.split(folder)
        if not name:
            return False
    return True


def _git(cwd: str, *words: str) -> tuple[str, frozenset[str]]:
    """(what went wrong, the paths that git printed)."""
    import subprocess

    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ("git", *words),
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_S,
            check=False,
        )
    except FileNotFoundError:
        return "git is not installed", frozenset()
    except (OSError, subprocess.SubprocessError) as error:
        return f"git: {error}", frozenset()
    if done.returncode:
        lines = done.stderr.decode(errors="replace").splitlines()
        return next(iter(lines), f"git ended with {done.returncode}"), frozenset()
    return "", frozenset(os.fsdecode(path) for path in done.stdout.split(b"\0") if path)
