"""Who is named and with which code (protocol.md, Failures and End)."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.run.channel.messages import HostError, RankEnd
from muster.run.job.verdict import Loss, decide, exit_code, first_failure
from muster.types.errors import RESERVED_EXIT_CODES
from muster.types.outcome import Failed, RankFailure, Stopped, Succeeded, signal_name

OWN = RankFailure("algo-1", 0, 7, 10.0, "ValueError: x", "tail")
LATER = RankFailure("algo-2", 1, 9, 11.0, "KeyError: y", "tail")
VICTIM = RankFailure("algo-3", 2, 1, 5.0, "Connection reset", "tail", peer_lost=True)
SIGNALLED = RankFailure("algo-4", 3, -15, 4.0, "TypeError: z", "tail", signalled=True)
LOSS = Loss("algo-9", 10.5, "no heartbeat for 30 s")
EARLY_LOSS = LOSS._replace(at_s=9.0)
HOST_ERROR = HostError("LaunchError", 106, "the launcher ended", "fix", "")


WAITED = 'File "/v/torch/distributed/distributed_c10d.py", line 3, in all_reduce'


def end(rank: int, forced: bool = False, stopped: bool = False) -> tuple[str, RankEnd]:
    made = RankEnd(rank=rank, status=0, duration_s=1.0, stopped=stopped, forced=forced)
    return f"algo-{rank + 1}", made


@pytest.mark.parametrize(
    ("failures", "losses", "errors", "stopped_by", "code", "says"),
    [
        ([], [], [], "", 0, "all ranks exited 0"),
        ([OWN], [], [], "", 7, "ValueError: x (algo-1 rank 0, exit code 7)"),
        ([LATER, OWN], [], [], "", 7, "ValueError: x (algo-1 rank 0, exit code 7) and 1 more"),
        ([VICTIM, LATER, OWN], [], [], "", 7, "ValueError: x"),
        ([VICTIM], [], [], "", 1, "Connection reset (algo-3 rank 2, exit code 1)"),
        ([SIGNALLED, VICTIM], [], [], "", 1, "TypeError: z (algo-4 rank 3, exit code 1)"),
        ([SIGNALLED, OWN], [], [], "", 7, "ValueError: x"),
        ([OWN], [LOSS], [], "", 7, "ValueError: x"),
        ([OWN], [EARLY_LOSS], [], "", 102, "PeerError: lost algo-9 (no heartbeat for 30 s)"),
        ([VICTIM], [LOSS], [], "", 102, "PeerError: lost algo-9"),
        ([SIGNALLED], [LOSS], [], "", 102, "PeerError: lost algo-9"),
        ([], [LOSS, EARLY_LOSS._replace(host="algo-8")], [], "", 102, "PeerError: lost algo-8"),
        ([], [EARLY_LOSS], [], "SIGTERM", 102, "PeerError: lost algo-9"),
        ([], [], [HOST_ERROR], "", 106, "LaunchError: the launcher ended"),
        ([OWN], [], [HOST_ERROR], "", 106, "LaunchError: the launcher ended"),
        ([], [], [], "SIGTERM on algo-2", 143, ""),
        ([OWN], [], [], "SIGTERM on algo-2", 143, ""),
        ([OWN], [], [HOST_ERROR], "SIGTERM on algo-2", 143, ""),
    ],
)
def test_who_is_named(
    failures: list[RankFailure],
    losses: list[Loss],
    errors: list[HostError],
    stopped_by: str,
    code: int,
    says: str,
) -> None:
    outcome = decide(failures, losses, errors, stopped_by, [], 100.0)
    assert outcome.exit_code == code
    assert says in outcome.headline
    assert isinstance(outcome, Failed if code not in (0, 143) else (Succeeded, Stopped))


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (1, 1),
        (42, 42),
        (99, 99),
        (107, 107),
        (127, 127),
        (200, 200),
        (255, 255),
        (-signal.SIGKILL, 137),
        (-signal.SIGSEGV, 139),
        (-signal.SIGABRT, 134),
        (-signal.SIGTERM, 1),
        (-signal.SIGINT, 130),
        *((reserved, 1) for reserved in sorted(RESERVED_EXIT_CODES)),
    ],
)
def test_the_code_is_the_rank_s_own_unless_muster_alone_says_it(status: int, code: int) -> None:
    assert exit_code(OWN._replace(status=status)) == code


@given(st.integers(-64, 255).filter(bool))
def test_a_failure_never_ends_with_success_nor_with_a_code_of_ours(status: int) -> None:
    code = exit_code(OWN._replace(status=status))
    assert 1 <= code <= 255
    assert code not in RESERVED_EXIT_CODES


@given(st.permutations([OWN, LATER, VICTIM, SIGNALLED]))
def test_the_first_failure_does_not_depend_on_the_order_of_reports(
    failures: list[RankFailure],
) -> None:
    assert first_failure(failures) == OWN


@pytest.mark.parametrize(
    ("failure", "headline"),
    [
        (
            OWN._replace(status=-11, summary=""),
            "UserScriptError: killed by signal 11 SIGSEGV (algo-1 rank 0, exit code 139)",
        ),
        (
            OWN._replace(status=-40, summary=""),
            "UserScriptError: killed by signal 40 (algo-1 rank 0, exit code 168)",
        ),
        (
            OWN._replace(status=-6),
            "UserScriptError: ValueError: x [SIGABRT] (algo-1 rank 0, exit code 134)",
        ),
        (
            OWN._replace(status=-9, note="killed by the kernel: memory limit reached"),
            "UserScriptError: killed by the kernel: memory limit reached "
            "(algo-1 rank 0, exit code 137)",
        ),
        (
            OWN._replace(status=102, summary=""),
            "UserScriptError: it ended without an error message "
            "(algo-1 rank 0, exit code 102 of the script, reported as 1)",
        ),
    ],
)
def test_the_first_line(failure: RankFailure, headline: str) -> None:
    assert decide([failure], [], [], "", [], 100.0).headline == headline


@pytest.mark.promise("F04")
def test_ranks_that_had_to_be_killed_are_named_up_to_three() -> None:
    ends = [end(i, forced=i < 5) for i in range(8)]
    outcome = decide([], [], [], "SIGTERM", ends, 100.0)
    assert outcome.headline == (
        "StoppedError: 5 of 8 ranks did not stop in 100 s "
        "(algo-1 rank 0, algo-2 rank 1, algo-3 rank 2 and 2 more)"
    )
    assert decide([], [], [], "SIGTERM", [end(0)], 100.0).headline == ""


@pytest.mark.parametrize(
    ("failures", "losses", "errors"),
    [([OWN], [], []), ([], [LOSS], []), ([], [], [HOST_ERROR])],
    ids=str,
)
def test_ranks_that_muster_stopped_are_counted_as_the_table_of_ranks_says(
    failures: Any, losses: Any, errors: Any
) -> None:
    """Whatever failed: a rank of its own, a host, a launcher or server."""
    ends = [end(0, stopped=True), end(1, stopped=True), end(2)]
    outcome = decide(failures, losses, errors, "", ends, 100.0)
    assert isinstance(outcome, Failed)
    assert outcome.stopped_ranks == 2


def test_a_rank_that_left_early_is_named_instead_of_the_one_that_lost_it() -> None:
    victim = VICTIM._replace(tail=f"[rank2]:   {WAITED}\n")
    early, late = RankEnd(0, 0, 3.21, False, False), RankEnd(1, 0, 9.0, False, False)
    ends = [("algo-1", early), ("algo-2", late), ("algo-3", RankEnd(2, 1, 3.9, False, False))]
    outcome = decide([victim], [], [], "", ends, 100.0)
    assert outcome.headline == (
        "UserScriptError: rank 0 on algo-1 exited with 0 after 3.2 s while rank 2 was still in "
        "all_reduce (algo-3 rank 2, exit code 1)"
    )
    assert isinstance(outcome, Failed)
    assert "same calls" in outcome.fix
    # who was ended by us, ended later or failed itself is no cause
    for other in (early._replace(stopped=True), late):
        outcome = decide([victim], [], [], "", [("algo-1", other), ends[2]], 100.0)
        assert "Connection reset (algo-3 rank 2" in outcome.headline
    assert "ValueError: x" in decide([OWN, victim], [], [], "", ends, 100.0).headline
    # a host beside the distribution was never in the call
    outcome = decide([victim], [], [], "", ends, 100.0, frozenset({"algo-1"}))
    assert "Connection reset (algo-3 rank 2" in outcome.headline


def test_signals_have_names() -> None:
    assert signal_name(11) == "SIGSEGV"
    assert signal_name(99) == "signal 99"
