"""`--debug` and `--pdb`: what can be written, and what each rank is told."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from muster.arguments import Parser, UsageError
from muster.local.command import add_arguments
from muster.local.debugger import asked
from muster.local.debugger.asked import DebugRequest, check_debug, read_debug
from muster.local.debugger.desk import listen
from muster.local.request import Request, read_request
from muster.types.debug import Debug, parse_debug


@pytest.mark.parametrize(
    ("debug", "pdb", "meant"),
    [
        ([], [], None),
        (["3"], [], DebugRequest("wait", 3)),
        (["3:5679"], [], DebugRequest("wait", 3, 5679)),
        ([], ["0"], DebugRequest("pdb", 0)),
    ],
)
def test_a_rank_and_perhaps_a_port(
    debug: Sequence[str], pdb: Sequence[str], meant: DebugRequest | None
) -> None:
    assert read_debug(debug, pdb, None) == meant


@pytest.mark.parametrize(
    ("debug", "pdb", "said"),
    [
        (["x"], [], "--debug: expected RANK or RANK:PORT, got 'x'"),
        (["-1"], [], "expected RANK or RANK:PORT"),
        (["3:"], [], "expected RANK or RANK:PORT"),
        (["3:0"], [], "--debug: no port 0"),
        (["3:65536"], [], "--debug: no port 65536"),
        (["1", "2"], [], "--debug takes one rank, got 1 and 2"),
        ([], ["1,2"], "--pdb takes one rank, got 1,2"),
        ([], ["1:5678"], "--pdb: expected RANK, got '1:5678'"),
        (["1"], ["1"], "different ways"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    debug: Sequence[str], pdb: Sequence[str], said: str
) -> None:
    with pytest.raises(UsageError, match=r".+") as caught:
        read_debug(debug, pdb, None)
    assert said in str(caught.value)
    assert caught.value.fix


def test_the_first_failure_has_no_rank_yet() -> None:
    assert read_debug([], [], None, on_failure=True) == DebugRequest("hold", None)
    with pytest.raises(UsageError, match="different ways"):
        read_debug(["1"], [], None, on_failure=True)
    with pytest.raises(UsageError, match="while you debug the rank that failed"):
        read_debug([], [], 5.0, on_failure=True)
    assert DebugRequest("hold", None).setting == "hold"
    assert [parse_debug("hold").of(rank) for rank in (0, 1)] == [" hold 0 ", " hold 1 "]


def test_a_time_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="--timeout would end the job while you debug rank 3"):
        read_debug(["3"], [], 60.0)


def test_a_rank_that_the_job_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="--debug: the job has no rank 4") as caught:
        check_debug(DebugRequest("wait", 4), 4, True, "docker")
    assert caught.value.fix == "its ranks are 0 to 3"
    check_debug(DebugRequest("wait", 4), 4, False, "docker")  # a device each may get one


def test_without_debugpy_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs debugpy") as caught:
        check_debug(DebugRequest("wait", 0), 1, True, "process")
    assert caught.value.fix == "pip install 'muster-training[debug]'"
    check_debug(DebugRequest("wait", 0), 1, True, "docker")  # the image's counts


def test_without_a_terminal_there_is_none_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.isatty", lambda fd: False)
    with pytest.raises(UsageError, match="there is none here") as caught:
        check_debug(DebugRequest("pdb", 1), 2, True, "process")
    assert "--debug 1" in caught.value.fix


def test_the_usual_port_gives_way_and_another_one_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} cannot be listened on"):
            listen(DebugRequest("wait", 0, port))
    found = listen(DebugRequest("wait", 0))
    assert found is not None
    another = listen(DebugRequest("wait", 0))
    assert another is not None
    assert another.getsockname()[1] not in (5678, found.getsockname()[1])
    found.close()
    another.close()
    assert listen(DebugRequest("pdb", 0)) is None


def test_the_options_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    monkeypatch.chdir(tmp_path)
    assert read("train.py", "--debug", "1:6000").debug == DebugRequest("wait", 1, 6000)
    assert read("train.py", "--pdb", "1").debug == DebugRequest("pdb", 1)
    assert read("train.py").debug is None


def read(*argv: str) -> Request:
    parser = Parser("muster local", script_arguments=True)
    add_arguments(parser)
    return read_request(parser.parse(argv))


def test_each_rank_is_told_its_part() -> None:
    told = parse_debug("wait:1")._replace(folder="/run dir/algo-1")
    assert [told.of(rank) for rank in (0, 1)] == [
        " pass 0 /run dir/algo-1", " wait 1 /run dir/algo-1",
    ]  # fmt: skip
    assert parse_debug("hint").of(7) == " hint 7 "
    assert Debug().of(0) == ""  # outside `muster local`
    for wrong in ("", "wait", "wait:x", "hint:1", "pass:1", "pdb:-1"):
        with pytest.raises(ValueError, match="expected hint"):
            parse_debug(wrong)
