"""Values and names that a shell, an interpreter or a launcher might take for something else
(promises S04, S05)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest

from tests.launcher.support.cluster import Cluster

Make = Callable[..., Cluster]

NASTY = {
    "quotes": 'it\'s "quoted" \'\'""',
    "newline": "first\nsecond\r\n\n",
    "dollar": "$HOME ${PATH} $(touch pwned) $((1+1)) $'x'",
    "semicolon": "a; touch pwned; b && touch pwned || touch pwned & touch pwned |",
    "backticks": "`touch pwned`",
    "leading": "-rf --help -c -m",
    "dashes": "--",
    "glob": "* ? [a-z] ~ {a,b} !!",
    "redirect": "> pwned < /etc/passwd 2>&1",
    "backslash": "\\ \\n \\\\ \\x00 \\",
    "blanks": "  \t two  blanks\t ",
    "unicode": "é ☃ \U0001f600 \u202e \u2028 \x7f",
    "escape": "\x1b[31m\x07\x08",
    "percent": "%s %d %(x)s {0} {x}",
    "c": "touch pwned",  # names of one letter become `-c value`
    "m": "pdb",
    "i": "x",
    "help": "x",
    "version": "x",
    "no_python": "x",
}
PYTHON = """\
import json, os, sys
open(os.path.join(os.environ['TEST_FOLDER'], 'got-' + os.environ['SM_CURRENT_HOST']), 'w').write(
    json.dumps([os.fsencode(one).decode() for one in sys.argv[1:]]))
"""
SHELL = """\
#!/bin/sh
printf '%s\\0' "$@" > "$TEST_FOLDER/got-$SM_CURRENT_HOST"
"""
TORCHRUN = {
    "sagemaker_torch_distributed_enabled": "true",
    "sagemaker_instance_type": "ml.c5.xlarge",
}


def got(job: Cluster, name: str) -> dict[str, str]:
    """The arguments that the script of a host got, as pairs."""
    data = (job.folder / f"got-{name}").read_bytes()
    in_json = data.startswith(b"[")
    words: list[str] = json.loads(data) if in_json else data.decode().split("\0")[:-1]
    names = [word.lstrip("-") for word in words[::2]]
    assert all(word.startswith("-") for word in words[::2]), words[::2]
    return dict(zip(names, words[1::2], strict=True))


def run(
    cluster: Make, values: Mapping[str, str], kind: str, hosts: int = 1
) -> tuple[Cluster, dict[str, str]]:
    program = "run.sh" if kind == "shell" else "train.py"
    job = cluster(SHELL if kind == "shell" else PYTHON, hosts=hosts, program=program)
    job.expect(code_writes=("__pycache__/*",))
    job.environ["TEST_FOLDER"] = str(job.folder)
    job.set_hyperparameters(
        {"sagemaker_program": program, **(TORCHRUN if kind == "torchrun" else {}), **values}
    )
    results = job.run(90)
    assert {result.code for result in results.values()} == {0}
    assert not list(job.folder.rglob("pwned"))
    return job, got(job, "algo-1")


KINDS = [
    "python",
    "shell",
    pytest.param("torchrun", marks=pytest.mark.torch),
]


@pytest.mark.promise("S04")
@pytest.mark.parametrize("kind", KINDS)
def test_values_reach_the_script_as_they_are(cluster: Make, kind: str) -> None:
    _, arguments = run(cluster, NASTY, kind)
    assert arguments == NASTY


@pytest.mark.promise("S04")
def test_a_hundred_long_values_reach_the_scripts_of_all_hosts_as_they_are(cluster: Make) -> None:
    texts = list(NASTY.values())
    long = {f"value-{i}": (texts[i % len(texts)] * 2500)[:2500] for i in range(100)}
    job, arguments = run(cluster, long, "python", hosts=2)
    assert arguments == got(job, "algo-2") == long


@pytest.mark.promise("S05")
@pytest.mark.parametrize("name", ["--help", "-c", ".//-x.py"])
def test_a_program_that_looks_like_an_option_is_refused(cluster: Make, name: str) -> None:
    job = cluster(PYTHON, hosts=1)
    job.set_hyperparameters({"sagemaker_program": name})
    (job.base("algo-1") / "code" / name.rpartition("/")[2]).write_text(PYTHON)
    result = job.run()["algo-1"]
    assert result.code == 100
    assert "program must be relative to the code folder" in result.first_line
    assert "usage" not in (result.out + result.err).lower()


@pytest.mark.promise("S05")
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_in_a_folder_may_be_called_like_an_option(cluster: Make, kind: str) -> None:
    """It runs as the file that it is."""
    text, name = (SHELL, "sub/--help.sh") if kind == "shell" else (PYTHON, "sub/--help.py")
    job = cluster(PYTHON, hosts=1)
    job.expect(code_writes=("__pycache__/*",))
    job.environ["TEST_FOLDER"] = str(job.folder)
    extra = TORCHRUN if kind == "torchrun" else {}
    job.set_hyperparameters({"sagemaker_program": name, "x": "1", **extra})
    path = job.base("algo-1") / "code" / name
    path.parent.mkdir()
    path.write_text(text)
    assert job.run(90)["algo-1"].code == 0
    assert got(job, "algo-1") == {"x": "1"}
