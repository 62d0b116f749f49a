"""The size and shape of this repository, against the limits in limits.txt beside this file.

`scripts/house` prints a line per figure, what it counts, and exits with 1 if one is beyond its
limit; `--check` prints only those. Limits only get stricter: when a figure improves, change its
limit too.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

MOST_FILES = 20  # side by side in one folder
WHEELS = {
    "launcher": "toolkit/launcher/src",
    "collectives": "toolkit/parallel/src/muster_collectives",
    "parameter server": "toolkit/parallel/src/muster_parameter_server",
    "model parallelism": "toolkit/parallel/src/muster_modelparallel",
    "compat": "toolkit/compat/src",
    "core in C": "toolkit/parallel/csrc",
}
RUN = "toolkit/launcher/src/muster/run/"
# Words of an early private vocabulary. Only those that mean nothing else in this repository.
WORDS = frozenset(
    re.findall(
        r"\w+",
        "arena arenas bereft birth companion companions conductor council cure cures door entrust "
        "errand errands farewell greeting guest meeting mend mended mends nursery remarks seat "
        "seats slurp starved strays unborn untold whoever",
    )
)
_LAYOUT = {
    tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
}  # fmt: skip
_C = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
# A backend of `muster local` is a folder with these two modules: it is imported by these names.
_INTERFACE = re.compile(r"/muster/local/backends/\w+/(backend|start)\.py$")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


class File(NamedTuple):
    """`code`, `prose`: how many lines hold code, or nothing but comments and docstrings. `words`:
    what its names and messages are made of. `uses`: the files that it imports or includes."""

    code: int
    prose: int
    words: Counter[str]
    classes: tuple[str, ...] = ()
    uses: frozenset[str] = frozenset()


def read_python(path: str, text: str, modules: Mapping[str, str]) -> File:
    """`modules`: dotted name -> path of every module that an import may mean."""
    tree = ast.parse(text)
    prose: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                prose.update(range(first.lineno, (first.end_lineno or 0) + 1))
    code: set[int] = set()
    names: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            prose.add(token.start[0])
        elif token.type not in _LAYOUT and token.start[0] not in prose:
            code.update(range(token.start[0], token.end[0] + 1))
            names.append(token.string)
    public = [one.name for one in tree.body if isinstance(one, ast.ClassDef)]
    return File(
        len(code),
        len(prose - code),
        words(names),
        tuple(name for name in public if not name.startswith("_")),
        frozenset(_imports(tree, modules)) - {path},
    )


def _imports(tree: ast.AST, modules: Mapping[str, str]) -> Iterable[str]:
    """Also those inside functions, but none that only types need."""
    if isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test):
        return
    if isinstance(tree, ast.Import):
        yield from (modules[one.name] for one in tree.names if one.name in modules)
    elif isinstance(tree, ast.ImportFrom) and tree.module:
        for one in tree.names:
            found = modules.get(f"{tree.module}.{one.name}") or modules.get(tree.module)
            if found:
                yield found
    for node in ast.iter_child_nodes(tree):
        yield from _imports(node, modules)


def read_c(path: str, text: str, files: Iterable[str]) -> File:
    """Comments are blanked, strings stay: they are messages."""
    bare = _C.sub(lambda found: found[0] if found[0][0] in "\"'" else _blank(found[0]), text)
    code = sum(bool(line.strip()) for line in bare.splitlines())
    whole = sum(bool(line.strip()) for line in text.splitlines())
    wanted = re.findall(r'^\s*#\s*include\s+"([^"]+)"', bare, re.MULTILINE)
    uses = {one for one in files for name in wanted if one.endswith("/" + name)}
    return File(code, whole - code, words(re.findall(r"\w+", bare)), (), frozenset(uses) - {path})


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def words(texts: Iterable[str]) -> Counter[str]:
    """How often each of WORDS is a part of the texts: `SeatMap`, `seat_map`, "the seat"."""
    parts = (part.lower() for text in texts for part in _PART.findall(text))
    return Counter(part for part in parts if part in WORDS)


def circles(uses: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The sets of two or more that all lead to each other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        queue = [start]
        while queue:
            new = set(uses.get(queue.pop(), ())) - seen
            seen |= new
            queue += new
        return seen

    ways = {one: reached(one) for one in uses}
    groups = {
        tuple(sorted(two for two in ways[one] if one in ways.get(two, ()))) for one in uses
    } - {()}
    return [list(group) for group in sorted(groups) if len(group) > 1]


def unit(path: str) -> str:
    """A .c and its .h are one: what includes the header uses both."""
    return str(Path(path).with_suffix("")) if path.endswith((".c", ".h")) else path


def arrows(uses: Mapping[str, Iterable[str]], below: str) -> set[tuple[str, str]]:
    """(from, to) of the folders of `below` whose files use each other; a file there is a room."""
    pairs = ((one, two) for one, used in uses.items() for two in used)
    inside = ((one, two) for one, two in pairs if one.startswith(below) and two.startswith(below))
    rooms = {
        (one[len(below) :].split("/")[0], two[len(below) :].split("/")[0]) for one, two in inside
    }
    return {(one, two) for one, two in rooms if one != two}


def modules_of_one_name(paths: Iterable[str]) -> list[list[str]]:
    """Modules of one name in different folders below one and the same package of a wheel, except
    those whose name is an interface."""
    found: dict[tuple[str, ...], list[str]] = {}
    for path in paths:
        if _INTERFACE.search(path):
            continue
        package, *inner = path.partition("/src/")[2].split("/")[1:] or [""]
        if inner and path.endswith(".py") and not Path(path).stem.startswith("__"):
            found.setdefault((package, inner[-1]), []).append(path)
    return [same for same in found.values() if len(same) > 1]


def measure(root: Path, paths: Sequence[str]) -> tuple[dict[str, float], list[str]]:
    """Every figure by name, and a line for each finding that a person would look for."""
    figures: dict[str, float] = {}
    notes: list[str] = []
    uses: dict[str, set[str]] = {}
    found: Counter[str] = Counter()
    for wheel, top in WHEELS.items():
        files = _read(root, [path for path in paths if path.startswith(top + "/")])
        code, prose = sum(one.code for one in files.values()), sum(x.prose for x in files.values())
        figures[f"{wheel}: lines of code"] = code
        figures[f"{wheel}: prose, % of lines"] = round(100 * prose / max(1, code + prose), 1)
        classes = Counter(name for one in files.values() for name in one.classes)
        twice = [name for name, count in classes.items() if count > 1]
        figures[f"{wheel}: class names used twice"] = len(twice)
        notes += [f"class {name} more than once in {wheel}" for name in twice]
        same = modules_of_one_name(files)
        figures[f"{wheel}: module names used twice in a package"] = len(same)
        notes += [f"modules of one name: {' '.join(paths)}" for paths in same]
        for path, one in files.items():
            others = {unit(other) for other in one.uses} - {unit(path)}
            uses.setdefault(unit(path), set()).update(others)
            found += one.words
            notes += [f"word {word!r} x{count}: {path}" for word, count in one.words.items()]
    tests = Counter(
        Path(path).name for path in paths if re.search(r"^tests/.*/test_\w+\.py$", path)
    )
    same_tests = [name for name, count in tests.items() if count > 1]
    figures["test modules of one name"] = len(same_tests)  # pytest cannot collect them together
    notes += [f"test module of one name: {name}" for name in same_tests]
    rings = circles(uses)
    figures["circles between files"] = len(rings)
    notes += [f"circle: {' '.join(ring)}" for ring in rings]
    figures["arrows between rooms of run/"] = len(arrows(uses, RUN))
    figures["words of the old vocabulary"] = sum(found.values())
    for folder, count in sorted(Counter(str(Path(path).parent) for path in paths).items()):
        if count > MOST_FILES:
            figures[f"files in {folder}/"] = count
    return figures, notes


def _read(root: Path, paths: Sequence[str]) -> dict[str, File]:
    modules = {_dotted(path): path for path in paths if path.endswith(".py")}
    files = {}
    for path in paths:
        if path.endswith(".py"):
            files[path] = read_python(path, (root / path).read_text(), modules)
        elif path.endswith((".c", ".h")):
            files[path] = read_c(path, (root / path).read_text(), paths)
    return files


def _dotted(path: str) -> str:
    name = path.partition("/src/")[2].removesuffix(".py").replace("/", ".")
    return name.removesuffix(".__init__")


def read_limits(text: str) -> dict[str, tuple[str, float]]:
    """`name <= figure  # why` or `name >= figure`, a line each."""
    limits = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        name, sign, figure = re.split(r"\s+(<=|>=)\s+", line)
        limits[name] = (sign, float(figure))
    return limits


def is_beyond(figure: float, limit: tuple[str, float] | None) -> bool:
    """Whether it is worse than its limit; without one it may only be 0."""
    sign, bound = limit or ("<=", 0.0)
    return figure > bound if sign == "<=" else figure < bound


def main() -> int:
    root = Path(__file__).parents[2]
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True)
    paths = [path for path in sorted(set(done.stdout.splitlines())) if (root / path).is_file()]
    figures, notes = measure(root, paths)
    limits = read_limits(Path(__file__).with_name("limits.txt").read_text())
    wrong = [name for name, figure in figures.items() if is_beyond(figure, limits.get(name))]
    if "--check" not in sys.argv:
        print("\n".join(notes))
    for name in wrong if "--check" in sys.argv else figures:
        sign, bound = limits.get(name, ("<=", 0.0))
        print(f"{name:60} {figures[name]:>8g}  {sign} {bound:g}{'  BEYOND' * (name in wrong)}")
    if wrong:
        print("house: see scripts/house for what is counted, scripts/measure/limits.txt for why")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
