"""Small defects of a revision's code: one token or statement that becomes another."""

from __future__ import annotations

import ast
import io
import random
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

CORE = "toolkit/parallel/csrc"
WIRE = "toolkit/parallel/src/**"
# each group has its share of the mutations in every revision, however much code is in it
TARGETS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "run": (0.5, ("toolkit/launcher/src/muster/run/**/*.py",)),
    "wire": (0.1, (f"{WIRE}/wire*.py", f"{WIRE}/wire/*.py", f"{WIRE}/frames.py",
                   f"{WIRE}/handshake.py")),
    "core": (0.4, (f"{CORE}/**/*.c",)),
}  # fmt: skip
_SWAPS = {
    "==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "and": "or", "or": "and",
    "True": "False", "False": "True", "&&": "||", "||": "&&",
}  # fmt: skip
_C_SKIPPED = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*',
    re.DOTALL | re.MULTILINE,
)
_C_TOKEN = re.compile(r"==|!=|<=|>=|&&|\|\||(?<![<-])<(?!<)|(?<![>-])>(?!>)|(?<![\w.])\d+(?![\w.])")
_C_STATEMENT = re.compile(r"^[ \t]+([\w.\[\]>*-]+ *(?:[-+|&]?=|\()[^;{}\n]*;) *$", re.MULTILINE)


class Mutation(NamedTuple):
    """`before` at that offset of the file becomes `after`."""

    group: str
    path: str
    line: int
    offset: int
    before: str
    after: str

    def apply(self, text: str) -> str:
        return text[: self.offset] + self.after + text[self.offset + len(self.before) :]


def picked(tree: Path, count: int, seed: int) -> list[Mutation]:
    """That many of the revision, of each group its share; always the same for a seed."""
    chance, found = random.Random(seed), list[Mutation]()
    for group, (share, globs) in TARGETS.items():
        paths = sorted({str(one.relative_to(tree)) for glob in globs for one in tree.glob(glob)})
        every = [x for path in paths for x in mutations_of(group, path, (tree / path).read_text())]
        found += chance.sample(every, min(round(share * count), len(every)))
    chance.shuffle(found)
    return found


def mutations_of(group: str, path: str, text: str) -> list[Mutation]:
    """All that can be made of one file, in order."""
    sites = _python_sites(text) if path.endswith(".py") else _c_sites(text)
    return [
        Mutation(group, path, text.count("\n", 0, start) + 1, start, text[start:end], after)
        for start, end, after in sorted(set(sites))
    ]


def _python_sites(text: str) -> Iterator[tuple[int, int, str]]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        row, column = token.start
        start = starts[row - 1] + column
        if token.type == tokenize.NUMBER and token.string.isdigit():
            yield start, start + len(token.string), str(int(token.string) + 1)
        elif token.type in (tokenize.OP, tokenize.NAME) and token.string in _SWAPS:
            yield start, start + len(token.string), _SWAPS[token.string]
    for node in ast.walk(ast.parse(text)):
        call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if (call or isinstance(node, ast.Assign | ast.AugAssign)) and text.isascii():
            assert isinstance(node, ast.stmt) and node.end_lineno and node.end_col_offset
            start = starts[node.lineno - 1] + node.col_offset
            yield start, starts[node.end_lineno - 1] + node.end_col_offset, "pass"


def _c_sites(text: str) -> Iterator[tuple[int, int, str]]:
    bare = _C_SKIPPED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    for found in _C_TOKEN.finditer(bare):
        word = found[0]
        yield found.start(), found.end(), _SWAPS.get(word) or str(int(word) + 1)
    for found in _C_STATEMENT.finditer(bare):
        if not found[1].startswith(("return", "MC_FAULT_POINT")):  # the latter is for tests
            yield found.start(1), found.end(1), ";"
