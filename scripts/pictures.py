"""`make pictures`: a real run with a failing rank, as the terminal shows it, in docs/pictures/."""

from __future__ import annotations

import html
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

CHECKOUT = Path(__file__).resolve().parents[1]
PICTURE = CHECKOUT / "docs" / "pictures" / "failing-rank.svg"
SCRIPT = Path("examples", "digits", "train.py")
ARGUMENTS = ["--hosts", "2", "--distribution", "torch_distributed"]
ARGUMENTS += ["--hyperparameter", "fail-rank=1"]
WIDTH = 102
# what differs between two runs, or with another line of the example
_CHANGES = [
    (r"\d+\.\d", "#"), (r"\d{8}-\d{6}", "#"), (r"line \d+", "line #"), (r"(?<=\.py:)\d+", "#"),
    (r"^( +algo-1 +0) .*", r"\1 ..."), (r"^\d ranks? .*stopped.*", "..."), (r" +", " "),
]  # fmt: skip


def record() -> str:
    """The end of the run's output, colours included: from the line that says how it ended."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        (folder / SCRIPT).parent.mkdir(parents=True)
        shutil.copy(CHECKOUT / SCRIPT, folder / SCRIPT)
        shown = _in_terminal([f"{sys.prefix}/bin/muster", "local", str(SCRIPT), *ARGUMENTS], folder)
    end = shown[shown.rindex("\x1b[J") + 3 :] if "\x1b[J" in shown else shown
    _, found, rest = end.partition("muster local: failed")
    if not found:
        raise SystemExit(f"the run did not fail as it was to:\n{shown}")
    return (found + rest).replace("\r\n", "\n").replace(str(folder), "~/muster").rstrip()


def _in_terminal(command: list[str], folder: Path) -> str:
    """What a command writes on a terminal of its own."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:  # EIO: the other side is closed
            pass
        os.close(ours)
    return b"".join(parts).decode()


def draw(recorded: str) -> str:
    """The recorded text below its command, as an SVG that loads nothing from elsewhere."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        command = (
            f"$ muster local {SCRIPT} {' '.join(ARGUMENTS[:4])} \\\n    {' '.join(ARGUMENTS[4:])}"
        )
        console.print(Text(f"{command}\n...", style="bold"))
        console.print(Text.from_ansi(recorded), soft_wrap=True)
        svg = console.export_svg(title="a rank fails", theme=MONOKAI, unique_id="muster")
    return re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.S)


def texts(svg: str) -> list[str]:
    """The lines of text in a picture."""
    lines: dict[int, str] = {}
    for number, text in re.findall(r'<text[^>]*-line-(\d+)\)">(.*?)</text>', svg):
        lines[int(number)] = lines.get(int(number), "") + html.unescape(text).replace("\xa0", " ")
    return [lines[number] for number in sorted(lines)]


def steady(line: str) -> str:
    """The line less what differs from run to run."""
    for pattern, to in _CHANGES:
        line = re.sub(pattern, to, line)
    return line.strip()


def main() -> None:
    PICTURE.write_text(draw(record()), encoding="utf-8")
    print(PICTURE.relative_to(CHECKOUT))


if __name__ == "__main__":
    main()
