"""MUSTER_* variables: read once, checked, and an unknown one is not lost in silence."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from muster.contract.findings import Findings
from muster.contract.request.settings import parse_addresses, parse_settings, script_arguments
from muster.types.deadlines import RANGES, Deadlines, parse_deadlines, variable
from muster.types.job import Settings
from muster.types.shown import Shown, parse_ranks

HOSTS = ("algo-1", "algo-2")


def settings_of(environ: Mapping[str, str]) -> tuple[Settings, Findings]:
    findings = Findings()
    return parse_settings(environ, findings), findings


def test_nothing_set_gives_the_defaults() -> None:
    settings, findings = settings_of({"PATH": "/bin"})
    assert settings == Settings()
    assert not findings.problems and not findings.warnings


def test_every_variable_is_taken() -> None:
    settings, findings = settings_of(
        {
            "MUSTER_CONTROL_PORT": "9001",
            "MUSTER_STORE_PORT": "9002",
            "MUSTER_JOB_SECRET": "s" * 16,
            "MUSTER_INSECURE_JOIN": "1",
            "MUSTER_LOG_PREFIX": "true",
            "MUSTER_QUIET": "1",
            "MUSTER_LIVE": "yes",
            "MUSTER_SHOW_RANKS": "0,last",
            "MUSTER_RUN_DIR": "/run",
            "MUSTER_RECORD": "full",
            "MUSTER_LOG_LIMIT": "100",
            "MUSTER_INSTALL_TARGET": "/site",
            "MUSTER_REPLACE_TORCH": "1",
            "MUSTER_OVERSUBSCRIBE": "1",
            "MUSTER_ALLOW_CONFLICTS": "1",
            "MUSTER_JOIN_S": "5",
            "MUSTER_HOST_ADDRESSES": "algo-1=127.0.0.1",
        }
    )
    assert not findings.problems and not findings.warnings
    shown = Shown(True, True, True, parse_ranks("0,last"))
    assert settings == Settings(
        9001, 9002, "s" * 16, True, shown, "/run", "full", 100, "/site", True, True
    )


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("MUSTER_CONTROL_PORT", "0", "expected a port from 1 to 65535, got '0'"),
        ("MUSTER_CONTROL_PORT", "70000", "expected a port from 1 to 65535, got '70000'"),
        ("MUSTER_STORE_PORT", "http", "expected a port from 1 to 65535, got 'http'"),
        ("MUSTER_LOG_PREFIX", "maybe", "expected 1 or 0, got 'maybe'"),
        ("MUSTER_RUN_DIR", "runs", "expected an absolute path, got 'runs'"),
        ("MUSTER_RECORD", "ful", "expected off, tail or full, got 'ful', did you mean 'full'?"),
        ("MUSTER_LOG_LIMIT", "-1", "expected a number of bytes from 1 to 1099511627776, got '-1'"),
    ],
)
def test_a_value_that_cannot_be_used_is_a_problem(name: str, value: str, what: str) -> None:
    _, findings = settings_of({name: value})
    assert [(p.where, p.what) for p in findings.problems] == [(name, what)]
    assert findings.problems[0].fix


def test_the_two_ports_must_differ() -> None:
    _, findings = settings_of({"MUSTER_CONTROL_PORT": "7777"})
    assert findings.problems[0].what == "the store port is 7777 too"


@pytest.mark.promise("B47")
@pytest.mark.promise("S08")
def test_a_short_secret_is_refused_without_showing_it() -> None:
    settings, findings = settings_of({"MUSTER_JOB_SECRET": "hunter2-hunter2"})
    assert settings.secret == ""
    assert "15 bytes" in findings.problems[0].what
    assert "hunter2" not in str(findings.problems)


def test_an_unknown_variable_is_a_warning_with_the_nearest_name() -> None:
    _, findings = settings_of({"MUSTER_JOINS": "1", "MUSTER_XYZZY": "1"})
    assert findings.warnings == [
        "unknown variable MUSTER_JOINS, did you mean 'MUSTER_JOIN_S'?",
        "unknown variable MUSTER_XYZZY is ignored",
    ]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MUSTER_JION_S", "MUSTER_JOIN_S"),
        ("MUSTER_STOPGRACE_S", "MUSTER_STOP_GRACE_S"),
        ("MUSTER_JOB_SECERT", "MUSTER_JOB_SECRET"),
        ("MUSTER_LOGLIMIT", "MUSTER_LOG_LIMIT"),
    ],
)
def test_a_misspelt_variable_is_one_warning_with_what_was_meant(name: str, meant: str) -> None:
    _, findings = settings_of({name: "1", "MUSTER_LOG_PREFIX": "1"})
    assert findings.warnings == [f"unknown variable {name}, did you mean {meant!r}?"]
    assert not findings.problems


def test_what_muster_itself_leaves_in_the_environment_is_no_warning() -> None:
    _, findings = settings_of({"MUSTER_RUN_ID": "0123", "MUSTER_SHIM": "/s token"})
    assert not findings.warnings


def test_of_many_unknown_variables_the_first_are_named_and_the_others_counted() -> None:
    _, findings = settings_of(
        {f"MUSTER_X{i}": "1" for i in range(50)} | {"MUSTER_" + "Y" * 300: ""}
    )
    assert len(findings.warnings) == 21
    assert findings.warnings[-1] == "... and 31 more unknown MUSTER_* variables"


@pytest.mark.promise("B45")
@pytest.mark.parametrize("local_mode", [False, True])
@pytest.mark.parametrize("grace", ["0", "0.5", "7", "100", "86400"])
def test_a_stop_grace_never_reaches_the_end_of_the_stop(grace: str, local_mode: bool) -> None:
    limits, problems = parse_deadlines({"MUSTER_STOP_GRACE_S": grace}, local_mode)
    assert not problems
    assert limits.stop_grace_s == float(grace)
    assert limits.stop_grace_s < limits.stop_drain_s < limits.stop_verdict_s < limits.stop_total_s
    plain = parse_deadlines({}, local_mode)[0]
    assert limits.stop_total_s - limits.stop_grace_s == pytest.approx(
        plain.stop_total_s - plain.stop_grace_s
    )


@pytest.mark.promise("F28")
def test_a_silence_of_ten_seconds_is_warned_of_by_default() -> None:
    assert Deadlines().warn_after_s == 10
    assert Deadlines().lost_after_s > Deadlines().warn_after_s


@pytest.mark.promise("B45")
@pytest.mark.parametrize("name", RANGES)
def test_both_ends_of_a_range_are_inside(name: str) -> None:
    for value in RANGES[name]:
        beside = {"MUSTER_LOST_AFTER_S": "3600"} if name == "heartbeat_s" else {}
        beside = {"MUSTER_HEARTBEAT_S": "0.05"} if name == "lost_after_s" else beside
        limits, problems = parse_deadlines({variable(name): f"{value:f}", **beside}, False)
        assert not problems
        assert getattr(limits, name) == value


@pytest.mark.promise("B45")
def test_refused_deadlines_leave_ones_that_can_be_used() -> None:
    bad = {variable(name): "soon" for name in RANGES}
    limits, problems = parse_deadlines(bad, False)
    assert limits == Deadlines()
    assert len(problems) == len(RANGES)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "7", '"x"', '["a", 1]', "--key s3cr3t-value"])
def test_arguments_that_are_no_list_of_texts_are_refused_unseen(text: str) -> None:
    findings = Findings()
    assert script_arguments({"MUSTER_SCRIPT_ARGUMENTS": text}, findings) == ()
    assert [p.what for p in findings.problems] == ["expected a JSON list of strings"]


@pytest.mark.parametrize(
    ("item", "what"),
    [
        ("\\u0000", "[1]: the value holds a NUL character at position 0"),
        ("a\\ud800", "[1]: the value holds a lone surrogate at position 1"),
        ("x" * 140_000, "[1]: 140000 characters, the kernel allows one argument 128 KiB"),
    ],
)
def test_an_argument_that_no_program_takes_is_known_by_its_place(item: str, what: str) -> None:
    findings = Findings()
    script_arguments({"MUSTER_SCRIPT_ARGUMENTS": f'["--token", "{item}"]'}, findings)
    assert [(p.where, p.what) for p in findings.problems] == [("MUSTER_SCRIPT_ARGUMENTS", what)]


@pytest.mark.parametrize(
    "text",
    ["algo-1=127.0.0.1,algo-2=127.0.0.2", '{"algo-1": "127.0.0.1", "algo-2": "127.0.0.2"}',
     " algo-1 = 127.0.0.1, algo-2 = 127.0.0.2, "],
)  # fmt: skip
def test_addresses_come_as_pairs_or_as_json(text: str) -> None:
    findings = Findings()
    addresses = parse_addresses({"MUSTER_HOST_ADDRESSES": text}, HOSTS, findings)
    assert addresses == {"algo-1": "127.0.0.1", "algo-2": "127.0.0.2"}
    assert not findings.problems


def test_addresses_may_be_of_ipv6() -> None:
    """In the form in which the kernel names them, so that they can be compared."""
    findings = Findings()
    text = "algo-1=fd00:0:0::0A,algo-2=10.0.0.2"
    addresses = parse_addresses({"MUSTER_HOST_ADDRESSES": text}, HOSTS, findings)
    assert addresses == {"algo-1": "fd00::a", "algo-2": "10.0.0.2"}
    assert not findings.problems


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("algo-1", "expected a JSON object or name=address pairs, got 'algo-1'"),
        ("{", "expected a JSON object or name=address pairs, got '{'"),
        ('{"a":' * 50_000, "expected a JSON object or name=address pairs, got "),
        ('{"algo-1": 1}', "expected a JSON object or name=address pairs"),
        ("algo-3=127.0.0.1", "unknown host 'algo-3', did you mean 'algo-2'?"),
        ("algo-1=localhost", "algo-1: expected an IPv4 or IPv6 address, got 'localhost'"),
        ("algo-1=fd00::1::2", "algo-1: expected an IPv4 or IPv6 address, got 'fd00::1::2'"),
        ("algo-1=fe80::1%eth0", "algo-1: expected an IPv4 or IPv6 address, got 'fe80::1%eth0'"),
        ("algo-1=1.2.3.256", "algo-1: expected an IPv4 or IPv6 address, got '1.2.3.256'"),
    ],
)
def test_bad_addresses_are_problems(text: str, what: str) -> None:
    findings = Findings()
    parse_addresses({"MUSTER_HOST_ADDRESSES": text}, HOSTS, findings)
    assert findings.problems[0].what.startswith(what)


@pytest.mark.parametrize(
    ("given", "meant"), [("010.0.00.1", "10.0.0.1"), ("::ffff:1.02.3.4", "::ffff:1.2.3.4")]
)
def test_an_address_with_leading_zeros_is_refused_with_the_reason_and_the_fix(
    given: str, meant: str
) -> None:
    findings = Findings()
    parse_addresses({"MUSTER_HOST_ADDRESSES": f"algo-1={given}"}, HOSTS, findings)
    (problem,) = findings.problems
    told = f"algo-1: a number of {given!r} begins with 0: octal to some systems"
    assert (problem.what, problem.fix) == (told, f"write {meant} if that is meant")
