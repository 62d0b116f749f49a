"""A request becomes the command line of `muster run`, and that command line the same request."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from muster.arguments import Parser, UsageError
from muster.commands.parser import main
from muster.elsewhere import command as run_command
from muster.elsewhere.place import is_packed
from muster.local.command import read_job
from muster.local.request import Request
from muster.submit.arguments import run_arguments
from muster.submit.command import label

TEXT = some.text(some.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NAMES = some.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
OPTIONS = some.sampled_from([None, "torch_distributed", {"mpi": {"enabled": True}}])


def base(tmp_path: Path) -> Request:
    (tmp_path / "train.py").write_text("")
    parser = Parser("muster submit", True)
    run_command.add_arguments(parser)
    return read_job(parser.parse([str(tmp_path / "train.py")]))


def read_back(words: list[str]) -> tuple[Request, int | None]:
    parser = Parser("muster run", True)
    run_command.add_arguments(parser)
    args = parser.parse(words)
    assert is_packed(args.source_dir)
    return read_job(args, packed=True), args.count


@given(
    arguments=some.lists(TEXT, max_size=3),
    hyperparameters=some.dictionaries(NAMES.map("my_{}".format), TEXT, max_size=3),
    option=OPTIONS,
    processes=some.sampled_from([None, 1, 3]),
    flags=some.tuples(some.booleans(), some.booleans()),
    hosts=some.integers(1, 1000),
    ranks=some.sampled_from(["", "0,last"]),
)
def test_a_job_comes_back_as_it_was_handed_over(
    tmp_path_factory: pytest.TempPathFactory,
    arguments: list[str],
    hyperparameters: dict[str, str],
    option: object,
    processes: int | None,
    flags: tuple[bool, bool],
    hosts: int,
    ranks: str,
) -> None:
    folder = tmp_path_factory.mktemp("submit")
    asked = base(folder)._replace(
        arguments=tuple(arguments),
        hyperparameters=hyperparameters,
        distribution=option,
        processes_per_host=processes if option else None,
        channels={"train": str(folder.resolve())},
        checkpoint=str(folder.resolve() / "checkpoints"),
        oversubscribe=flags[0],
        verbose=flags[1],
        ranks=ranks,
        hosts=hosts,
    )
    found, count = read_back(run_arguments(asked, "/shared/code.tar.gz", "/shared/run"))
    assert count == hosts
    same = found._replace(
        hosts=hosts, source_dir=asked.source_dir, output=asked.output, ignored=asked.ignored
    )
    assert same == asked


def test_values_of_variables_stand_on_no_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = base(tmp_path)._replace(environ={"TOKEN": "hunter2", "PATH": "/mine"})
    file = tmp_path / "environ.json"
    file.write_text(json.dumps(dict(asked.environ)))
    with_file = run_arguments(asked, "code.tar.gz", None, str(file))
    from_caller = run_arguments(asked, "code.tar.gz")
    assert not any("hunter2" in word for word in with_file + from_caller)
    assert read_back(with_file)[0].environ == asked.environ
    monkeypatch.setenv("TOKEN", "hunter2")
    monkeypatch.setenv("PATH", "/mine")
    assert read_back(from_caller)[0].environ == asked.environ


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "no JSON"), ("[]", "not one object"), ('{"A": 1}', "not one object"),
     ('{"A-B": "x"}', "is not the name"), ('{"A": "\\u0000"}', "no text")],
)  # fmt: skip
def test_a_file_of_variables_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "environ.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=said):
        read_back(["train.py", "--source-dir", "code.tgz", "--env-file", str(file)])


def test_a_variable_that_the_caller_does_not_have_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    with pytest.raises(UsageError, match="NOWHERE: no such variable"):
        read_back(["train.py", "--source-dir", "s3://bucket/code.tar.gz", "--env", "NOWHERE"])


@given(some.text(max_size=80))
def test_every_script_has_a_name_that_every_engine_takes(text: str) -> None:
    name = label(text)
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?", name)
    assert label(name) == name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--on", "nowhere"], "--on nowhere: no such engine"),
        (["--on", "ssh"], "known are slurm, kubernetes, batch, hosts:FILE"),
        (["--on", "slurm:two"], "FILE takes a file of hosts, the other engines take none"),
        (["--on", "slurm", "--timeout", "5"], "only `muster local` has it"),
        (["--on", "slurm", "--json"], "only `muster local` has it"),
        (
            ["--on", "slurm", "--distribution=smp", "--hyperparameter", "mp_parameters=2"],
            "mp_parameters: expected a JSON object",
        ),
        (
            ["--on", "batch", "--image", "x", "--source-dir", "image:/c", "--set", "queue=q"],
            "processors of a node",
        ),
        (["--on", "hosts:nofile"], "--on hosts:nofile: No such file or directory"),
        (["--on", "hosts:twice"], "host 'a' appears twice"),
        (["--on", "hosts:two", "--hosts", "3"], "--hosts 3: two names 2"),
        (["--on", "hosts:two", "--image", "x"], "--image x: on hosts reached by ssh no container"),
        (["--on", "hosts:two", "--kind", "x"], "--kind x: on hosts reached by ssh no container"),
        (["--on", "hosts:two", "--retries", "2"], "--retries 2: a job that a person attends"),
        (["--on", "slurm", "--image", "x", "--kind", "jobset"], "--kind jobset: no way to start"),
        (["--on", "slurm", "--set", "nodes=3"], "--set nodes: muster decides it"),
        (["--on", "kubernetes"], "--image"),
        (["--on", "kubernetes", "--image", "x", "--name", "A_b"], "--name 'A_b' cannot be a name"),
        (["--on", "kubernetes", "--image", "x", "--set", "no.where=1"], "it begins with no"),
        (
            ["--on", "kubernetes", "--image", "x", "--kind", "pod"],
            "--kind pod: no such kind of job",
        ),
        (["--on", "batch", "--image", "x"], "Batch hands no code to nodes"),
    ],
)
def test_what_no_engine_can_be_asked_is_refused_before_anything_is_submitted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"train.py": "", "two": "a\nb\n", "twice": "a\nb\na\n"}.items():
        (tmp_path / name).write_text(text)
    before = sorted(os.listdir())
    assert main(["submit", "train.py", "--output", "run", *options]) == 2
    assert said in capsys.readouterr().err
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("words", [["--follow", "train.py"], ["--status", "train.py"]])
def test_a_script_that_an_option_took_for_a_run_is_no_missing_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    assert main(["submit", "--on", "slurm", *words]) == 2
    said = capsys.readouterr().err
    assert "is a command of its own" in said and "after its SCRIPT" in said, said


@pytest.mark.promise("E05")
@pytest.mark.parametrize(
    ("options", "program"),
    [
        (["--on", "slurm"], "sbatch"),
        (["--on", "kubernetes", "--image", "x"], "kubectl"),
        (["--on", "hosts:two"], "ssh"),
    ],
)
def test_a_desk_without_the_engines_client_can_print_and_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    program: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, text in {"train.py": "", "two": "a\nb\n"}.items():
        (tmp_path / name).write_text(text)
    before = sorted(os.listdir())
    words = ["submit", "train.py", "--output", "run", *options]
    assert main([*words, "--dry-run"]) == 0
    assert "muster" in capsys.readouterr().out
    assert main(words) == 2
    said = capsys.readouterr()
    assert f"there is no {program}" in said.err and not said.out, said
    assert sorted(os.listdir()) == before
