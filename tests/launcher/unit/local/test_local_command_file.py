"""The command line that a run keeps: without secrets, and enough to run again."""

from __future__ import annotations

import pytest

from muster.arguments import UsageError
from muster.local.record.command_file import for_a_new_run, with_secrets, without_secrets


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        (["t.py", "--env", "HF_TOKEN=abc"], ["t.py", "--env", "HF_TOKEN=***"]),
        (["t.py", "--env=HF_TOKEN=abc"], ["t.py", "--env=HF_TOKEN=***"]),
        (["t.py", "--hyperparameter", "api-key=a=b"], ["t.py", "--hyperparameter", "api-key=***"]),
        (["t.py", "--", "--password", "x"], ["t.py", "--", "--password", "***"]),
        (["t.py", "--", "--password=x"], ["t.py", "--", "--password=***"]),
        (
            ["t.py", "--env", "TOKENIZER=abc", "--json"],
            ["t.py", "--env", "TOKENIZER=abc", "--json"],
        ),
        (["t.py", "--env=API_TOKEN=abc=="], ["t.py", "--env=API_TOKEN=***"]),
        (["t.py", "--env=API_TOKEN=ab=cd"], ["t.py", "--env=API_TOKEN=***"]),
        (
            ["t.py", "--hyperparameter=password=x=y"],
            ["t.py", "--hyperparameter=password=***"],
        ),
        (["t.py", "--", "--api-key=abc="], ["t.py", "--", "--api-key=***"]),
        (["t.py", "--env", "OPTS=--token=abc"], ["t.py", "--env", "OPTS=***"]),
        (["t.py", "--env", "DB=postgres://u:pw@h"], ["t.py", "--env", "DB=***"]),
        (["t.py", "--env=DB=postgres://u:pw@h/?a=b"], ["t.py", "--env=DB=***"]),
        (["t.py", "--", "--db", "postgres://u:pw@h/?a=b"], ["t.py", "--", "--db", "***"]),
        (["t.py", "--env=OPTS=-a=b=c"], ["t.py", "--env=OPTS=-a=b=c"]),
        (["t.py", "--channel", "train=a=b"], ["t.py", "--channel", "train=a=b"]),
    ],
)
def test_secrets_are_not_kept(argv: list[str], kept: list[str]) -> None:
    assert without_secrets(argv) == kept


def test_values_of_variables_come_from_the_environment_again() -> None:
    argv = ["t.py", "--env", "HF_TOKEN=***", "--env=API_KEY=***", "--env", "A=1"]
    environ = {"HF_TOKEN": "abc", "API_KEY": "k=v"}
    expected = ["t.py", "--env", "HF_TOKEN=abc", "--env=API_KEY=k=v", "--env", "A=1"]
    assert with_secrets(argv, environ) == expected


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["t.py", "--env", "HF_TOKEN=***"], "export HF_TOKEN"),
        (["t.py", "--env=DB=***"], "export DB"),
        (["t.py", "--hyperparameter", "api-key=***"], "type the command anew"),
        (["t.py", "--", "--password", "***"], "type the command anew"),
    ],
)
def test_a_secret_that_is_nowhere_is_asked_for(argv: list[str], answer: str) -> None:
    with pytest.raises(UsageError) as caught:
        with_secrets(argv, {"api-key": "x"})
    assert answer in caught.value.fix


def test_a_new_run_gets_a_folder_of_its_own() -> None:
    argv = ["--output", "a", "t.py", "--output=b", "--overwrite", "--json", "--", "--output", "c"]
    assert for_a_new_run(argv) == ["t.py", "--json", "--", "--output", "c"]
