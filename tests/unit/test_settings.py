"""MUSTER_* variables: read once, checked, and an unknown one is not lost in silence."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from muster.contract.findings import Findings
from muster.contract.settings import parse_addresses, parse_settings
from muster.spec.job import Settings

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
            "MUSTER_RUN_DIR": "/run",
            "MUSTER_RECORD": "full",
            "MUSTER_LOG_LIMIT": "100",
            "MUSTER_INSTALL_TARGET": "/site",
            "MUSTER_OVERSUBSCRIBE": "1",
            "MUSTER_ALLOW_CONFLICTS": "1",
            "MUSTER_JOIN_S": "5",
            "MUSTER_HOST_ADDRESSES": "algo-1=127.0.0.1",
        }
    )
    assert not findings.problems and not findings.warnings
    assert settings == Settings(
        9001, 9002, "s" * 16, True, True, "/run", "full", 100, "/site", True
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
    "text",
    ["algo-1=127.0.0.1,algo-2=127.0.0.2", '{"algo-1": "127.0.0.1", "algo-2": "127.0.0.2"}',
     " algo-1 = 127.0.0.1, algo-2 = 127.0.0.2, "],
)  # fmt: skip
def test_addresses_come_as_pairs_or_as_json(text: str) -> None:
    findings = Findings()
    addresses = parse_addresses({"MUSTER_HOST_ADDRESSES": text}, HOSTS, findings)
    assert addresses == {"algo-1": "127.0.0.1", "algo-2": "127.0.0.2"}
    assert not findings.problems


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("algo-1", "expected a JSON object or name=address pairs, got 'algo-1'"),
        ("{", "expected a JSON object or name=address pairs, got '{'"),
        ('{"algo-1": 1}', "expected a JSON object or name=address pairs"),
        ("algo-3=127.0.0.1", "unknown host 'algo-3', did you mean 'algo-2'?"),
        ("algo-1=localhost", "algo-1: expected an IPv4 address, got 'localhost'"),
        ("algo-1=1.2.3.256", "algo-1: expected an IPv4 address, got '1.2.3.256'"),
    ],
)
def test_bad_addresses_are_problems(text: str, what: str) -> None:
    findings = Findings()
    parse_addresses({"MUSTER_HOST_ADDRESSES": text}, HOSTS, findings)
    assert findings.problems[0].what.startswith(what)
