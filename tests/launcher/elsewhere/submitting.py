"""`muster submit` as a person starts it, and the documents that it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from muster.arguments import Parser
from muster.local.command import add_job_options, read_job
from muster.local.request import Request
from tests.support.venvs import CHECKOUT, UnavailableError, locked_environment
from tests.support.waiting import within

LIMIT_S = 60.0
LOCK = CHECKOUT / "constraints" / "kubernetes.txt"
SCRIPT = "print('hello')\n"


class Said(NamedTuple):
    code: int
    out: str
    err: str


def submit(folder: Path, *words: str, environ: dict[str, str] | None = None) -> Said:
    """`muster submit train.py WORDS` in the folder, which gets a script where it has none."""
    script = folder / "code" / "train.py"
    script.parent.mkdir(exist_ok=True)
    if not script.exists():
        script.write_text(SCRIPT)
    about = ("--status", "--cancel", "--follow")
    there = any(word.startswith(("image:", "s3:")) for word in words)
    first = () if words and words[0] in about else ("train.py" if there else str(script),)
    argv = [sys.executable, "-m", "muster", "submit", *first, *words]
    around = {**os.environ, "HOME": str(folder), **(environ or {})}
    done = subprocess.run(
        argv,
        cwd=folder,
        env=around,
        capture_output=True,
        text=True,
        check=False,
        timeout=within(LIMIT_S),
    )
    return Said(done.returncode, done.stdout, done.stderr)


def documents(text: str) -> list[dict[str, Any]]:
    """The documents of a YAML stream that are JSON each."""
    return [json.loads(part) for part in text.split("---\n") if part]


def printed(folder: Path, *words: str) -> list[dict[str, Any]]:
    """What `--dry-run` prints for Kubernetes."""
    said = submit(folder, "--on", "kubernetes", "--image", "train:1", "--dry-run", *words)
    assert said.code == 0, said.err
    return documents(said.out)


def problems(*pairs: tuple[str, dict[str, Any]]) -> list[str]:
    """What upstream's schemas have against (version, object); skips where they cannot be had."""
    try:
        python = locked_environment("kubernetes", LOCK) / "bin" / "python"
    except UnavailableError as error:
        pytest.skip(f"no schemas of Kubernetes here: {error}")
    argv = [str(python), str(Path(__file__).parent / "kubernetes" / "schemas.py")]
    done = subprocess.run(
        argv,
        input=json.dumps(pairs),
        capture_output=True,
        text=True,
        check=False,
        timeout=within(LIMIT_S),
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def request_of(**more: object) -> Request:
    """A request for two hosts whose code is in the image."""
    words = ["train.py", "--source-dir", "image:/opt/ml/code"]
    parser = Parser("")
    parser.add_argument("script")
    add_job_options(parser)
    return read_job(parser.parse_args(words), packed=True, far=True, script_arguments=())._replace(
        hosts=2, **more
    )
