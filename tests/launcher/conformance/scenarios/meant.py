"""The common shapes of what we do otherwise, and how they are tied to scenarios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.launcher.conformance.scenario import ABSENT, Intended, Scenario

_FAILURE = "*Reporting training FAILURE*"
_SUCCESS = "Reporting training SUCCESS"

Meant = tuple[Intended, ...]


def tied(scenarios: Iterable[Scenario], meant: Mapping[str, Meant]) -> tuple[Scenario, ...]:
    """The scenarios with their differences. Raises KeyError when no scenario has the name."""
    named = {scenario.name: scenario for scenario in scenarios}
    for name, differences in meant.items():
        named[name] = named[name]._replace(differences=differences)
    return tuple(named.values())


def differs(reason: str, *facets: tuple[str, str, str], oracle: str = "") -> Meant:
    """One reason for several facets: (name, theirs, ours)."""
    return tuple(Intended(*facet, reason, oracle) for facet in facets)


def accepted(reason: str, exit_code: str = "1") -> Meant:
    """They refuse the job with `exit_code`, ours runs it."""
    return differs(
        reason,
        ("exit", exit_code, "0"),
        ("success", ABSENT, "empty"),
        ("failure", "present", ABSENT),
        ("files.record", "no", "yes"),
        ("log.invocation", "", "*"),
        ("log.report", _FAILURE, _SUCCESS),
        ("script.runs", "0", "1"),
    )


def refused(code: str, reason: str) -> Meant:
    """They run the job, ours refuses it with `code`."""
    return differs(
        reason,
        ("exit", "0", code),
        ("success", "empty", ABSENT),
        ("failure", ABSENT, "present"),
        ("log.invocation", "*", ""),
        ("log.report", _SUCCESS, _FAILURE),
        ("script.runs", "1", "0"),
    )


def said(exit_code: str, code: str, head: str) -> Meant:
    """Both refuse the job; ours says whose fault it is by code and by class."""
    return differs(
        "one code and one class per kind of failure",
        ("exit", exit_code, code),
        ("failure.head", "*", head),
    )


def recorded() -> Meant:
    """Ours had begun a record of the job when it failed."""
    return differs("the record of the job", ("files.record", "no", "yes"))


def real_code(code: str, theirs: str = "1") -> Meant:
    """The container ends with the script's own code."""
    return differs(
        "the script's own code",
        ("exit", theirs, code),
    )  # fmt: skip


NO_FRAMEWORK_ERROR = differs(
    "what happened, not a traceback of the launcher",
    ("failure.words", "Framework Error", ""),
)  # fmt: skip
FITS = differs(
    "at most 1,024 bytes, the cause first",
    ("failure.fits", "no", "yes"),
)  # fmt: skip
