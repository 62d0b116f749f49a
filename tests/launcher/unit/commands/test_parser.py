"""The command line of `muster`: what is answered, and with which exit code."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from muster.arguments import (
    HelpShown,
    Parser,
    UsageError,
    one_of,
    seconds,
    whole_number,
)
from muster.commands.parser import COMMANDS, HELP, main
from muster.types.names import nearest


@pytest.fixture
def parser() -> Parser:
    parser = Parser("muster try", script_arguments=True)
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("--source-dir")
    parser.add_argument("--hosts", type=whole_number(1, 9))
    parser.add_argument("--isolation", type=one_of("netns", "process"))
    parser.add_argument("--env", action="append", default=[])
    return parser


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_without_a_command_the_help_is_printed(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 0
    assert capsys.readouterr().out == HELP


def test_a_folder_that_is_gone_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["history"]) == 2
    assert "the current folder is gone" in capsys.readouterr().err


def test_the_help_fits_one_screen_and_names_every_command_and_exit_code() -> None:
    lines = HELP.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert lines.index("examples:") < lines.index("commands:") < lines.index("exit codes:")
    for word in (*COMMANDS, "100", "101", "102", "105", "106", "124", "143"):
        assert f" {word} " in HELP


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["locl"], "did you mean 'local'?"),
        (["docter", "--json"], "did you mean 'doctor'?"),
        (["--hlep"], "did you mean '--help'?"),
        (["train.py"], "muster local train.py"),
        (["local", "t.py", "--host", "2"], "did you mean '--hosts'?"),
        (["local", "t.py", "--hosts", "two"], "--hosts: expected a whole number from 1 to 100"),
        (["local", "t.py", "--isolation", "netn"], "did you mean 'netns'?"),
        (["local"], "SCRIPT is missing"),
        (["local", "t.py", "--timeout", "-1"], "--timeout"),
        (["doctor", "--", "x"], "nothing may follow --"),
        (["plan", "--hosst"], "unknown option --hosst"),
        (["plan", "--jsn"], "did you mean '--json'?"),
        (["plan", "--base_dr=x"], "did you mean '--base-dir'?"),
        (["plan", "--base-dir"], "--base-dir: expected one argument"),
        (["plan", "opt/ml"], "no file 'opt/ml'"),
        (["doctor", "opt/ml"], "one argument too many: 'opt/ml'"),
        (["doctor", "-v"], "unknown option -v"),
        (["PLAN"], "did you mean 'plan'?"),
        (["trian"], "'trian' is not a command"),
        (["start", "train.py"], "'start' is not a command"),
        ([""], "'' is not a command"),
    ],
)
def test_a_slip_is_answered_in_two_lines_and_exit_code_2(
    argv: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert answer in captured.err
    assert len(captured.err.splitlines()) <= 2
    assert captured.out == ""


@pytest.mark.parametrize("spelling", ["--source-dir", "--source_dir"])
@pytest.mark.parametrize("joined", [True, False])
def test_both_spellings_of_a_long_option_are_one(
    parser: Parser, spelling: str, joined: bool
) -> None:
    given = [f"{spelling}=a_b"] if joined else [spelling, "a_b"]
    assert parser.parse(["t.py", *given]).source_dir == "a_b"


def test_the_beginning_of_an_option_is_not_taken_for_it(parser: Parser) -> None:
    with pytest.raises(UsageError, match="unknown option --source, did you mean '--source-dir"):
        parser.parse(["t.py", "--source", "x"])


def test_options_stand_before_and_after_the_script(parser: Parser) -> None:
    before = parser.parse(["--hosts", "2", "t.py"])
    after = parser.parse(["t.py", "--hosts", "2"])
    assert (before.script, before.hosts) == (after.script, after.hosts) == ("t.py", 2)


def test_all_behind_two_dashes_is_the_scripts_own(parser: Parser) -> None:
    args = parser.parse(["t.py", "--hosts", "2", "--", "--hosts", "--", "-x", "a b"])
    assert args.hosts == 2
    assert args.script_arguments == ("--hosts", "--", "-x", "a b")


def test_an_unknown_option_never_makes_its_value_the_script(parser: Parser) -> None:
    with pytest.raises(UsageError, match="unknown option --epochs") as caught:
        parser.parse(["--epochs", "3", "t.py"])
    assert caught.value.fix.endswith("muster try SCRIPT -- --epochs 3")


def test_a_second_script_is_refused(parser: Parser) -> None:
    with pytest.raises(UsageError, match=r"one argument too many: 'b\.py'"):
        parser.parse(["a.py", "b.py"])


def test_a_negative_number_is_a_value(parser: Parser) -> None:
    with pytest.raises(UsageError, match="whole number"):
        parser.parse(["t.py", "--hosts", "-1"])


def test_help_of_a_command_does_not_leave_the_process(
    parser: Parser, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(HelpShown):
        parser.parse(["--help"])
    assert "--source-dir" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["0", "-3", "nan", "inf", "soon", ""])
def test_a_time_is_a_number_above_0(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        seconds(text)


def test_a_beginning_of_an_option_names_the_whole_of_it() -> None:
    parser = Parser("muster try")
    parser.add_argument("--distribution")
    with pytest.raises(UsageError, match="unknown option --dist, did you mean '--distribution'"):
        parser.parse(["--dist", "x"])


def test_nothing_is_suggested_for_a_word_like_no_other() -> None:
    assert nearest("zzz", COMMANDS) == ""
    assert nearest("LOCAL", COMMANDS) == "local"


def test_help_imports_no_command_and_no_argparse(tmp_path: Path) -> None:
    code = (
        "import sys; from muster.commands.parser import main; main(['--help']);"
        "heavy = {'argparse', 'subprocess', 'muster.local', 'difflib', 'rich'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
