"""`make pictures`: the simulated step of the example, out of the page that its plan leaves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PICTURE = CHECKOUT / "docs" / "pictures" / "model-plan.svg"
SCRIPT = CHECKOUT / "examples" / "modelparallel" / "train.py"
PARAMETERS = {"partitions": 4, "microbatches": 8}


def record() -> str:
    """The page of a plan for four ranks."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [f"{sys.prefix}/bin/muster", "plan", str(SCRIPT), "--model", "--hosts", "4"]
        command += ["--distribution", "smp", "--output", f"{scratch}/run"]
        command += ["--hyperparameter", f"mp_parameters={json.dumps(PARAMETERS)}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (found,) = Path(scratch).rglob("model-plan.html")
        return found.read_text(encoding="utf-8")


def draw(page: str) -> str:
    """The drawing of one step alone, with the page's colours."""
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    (svg,) = re.findall(r"<svg[^>]*><title>Timeline of one step</title>.*?</svg>", page, re.S)
    opening = f'<svg xmlns="http://www.w3.org/2000/svg"{svg[4 : svg.index(">")]}>'
    return f"{opening}<style>{style}</style>{svg[svg.index('>') + 1 :]}\n"


def main() -> None:
    PICTURE.write_text(draw(record()), encoding="utf-8")
    print(PICTURE.relative_to(CHECKOUT))


if __name__ == "__main__":
    main()
