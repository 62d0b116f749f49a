"""The comparison itself: it must notice what nobody intended and what no longer differs."""

from __future__ import annotations

from tests.launcher.conformance.compare import Difference, differences, judge
from tests.launcher.conformance.scenario import ABSENT, BARE, PYTORCH, Intended

EXIT_CODE = Intended("exit", "1", "3", "the script's own code")


def test_only_facets_that_differ_are_differences_absent_ones_included() -> None:
    found = differences(
        {"same": "1", "exit": "1", "old": "x"}, {"same": "1", "exit": "3", "new": "y"}
    )
    assert found == (
        Difference("exit", "1", "3"),
        Difference("new", ABSENT, "y"),
        Difference("old", "x", ABSENT),
    )


def test_an_intended_difference_is_accepted() -> None:
    verdict = judge([Difference("exit", "1", "3")], [EXIT_CODE], BARE)
    assert verdict == ((), ())


def test_a_difference_that_nobody_intended_is_found() -> None:
    other = Difference("exit", "1", "0")
    assert judge([other], [EXIT_CODE], BARE).unmeant == (other,)


def test_an_intended_difference_that_no_longer_occurs_is_found() -> None:
    assert judge([], [EXIT_CODE], BARE).gone == (EXIT_CODE,)


def test_a_rule_without_a_host_holds_for_every_host_and_rank() -> None:
    found = [Difference("algo-2/exit", "1", "3"), Difference("algo-1/rank1/exit", "1", "3")]
    assert judge(found, [EXIT_CODE], BARE) == ((), ())


def test_a_rule_with_a_host_holds_for_that_host_only() -> None:
    rule = EXIT_CODE._replace(key="algo-2/exit")
    other = Difference("algo-1/exit", "1", "3")
    assert judge([other], [rule], BARE).unmeant == (other,)


def test_a_rule_of_one_incumbent_is_not_asked_of_the_other() -> None:
    rule = EXIT_CODE._replace(oracle=PYTORCH)
    assert judge([], [rule], BARE) == ((), ())
    assert judge([], [rule], PYTORCH).gone == (rule,)


def test_stars_match_and_brackets_are_plain_text() -> None:
    rule = Intended("env.SM_*", '["a*"]', "*", "why")
    assert judge([Difference("env.SM_HOSTS", '["a1"]', "x")], [rule], BARE) == ((), ())
    other = Difference("env.SM_HOSTS", "a", "x")
    assert judge([other], [rule], BARE).unmeant == (other,)


def test_what_a_script_saw_is_compared_only_where_both_ran_it() -> None:
    theirs = {"script.runs": "0", "exit": "1"}
    ours = {"script.runs": "1", "exit": "1", "env.SM_HOSTS": "[]", "script.argv": "[]"}
    assert [one.key for one in differences(theirs, ours)] == ["script.runs"]


def test_what_a_script_saw_is_compared_host_by_host() -> None:
    theirs = {"algo-1/script.runs": "1", "algo-2/script.runs": "0", "algo-1/env.A": "1"}
    ours = {"algo-1/script.runs": "1", "algo-2/script.runs": "1", "algo-2/env.A": "1"}
    assert [one.key for one in differences(theirs, ours)] == ["algo-1/env.A", "algo-2/script.runs"]
