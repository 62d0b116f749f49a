"""Secrets are found by name and masked by value, and innocent text stays (S08)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from muster.types.masking import Masker, is_secret_name

pytestmark = pytest.mark.promise("S08")


@pytest.mark.parametrize(
    "name",
    ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "WANDB_API_KEY", "HF_TOKEN",
     "hf-token", "dbPassword", "DB_PASSWD", "MYSQL_PWD", "apiKey", "github_token", "GITHUBTOKEN",
     "client_secret", "SM_HP_API-KEY", "SSH_PRIVATE_KEY", "key", "token", "password", "passphrase",
     "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN",
     "MUSTER_JOB_SECRET", "registry.credential", "NGC_APIKEY"],
)  # fmt: skip
def test_secret_names_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["tokenizer", "num_tokens", "max_tokens", "TOKENIZERS_PARALLELISM", "key_dim", "num_keys",
     "pad_token", "eos-token", "label_key", "monkey_count", "PWD", "OLDPWD", "SSH_AUTH_SOCK",
     "keyboard", "author", "lr", "", "_", "max_token_length", "keys", "public_key"],
)  # fmt: skip
def test_innocent_names_are_left_alone(name: str) -> None:
    assert not is_secret_name(name)


def test_values_of_secret_names_are_masked_wherever_they_turn_up() -> None:
    masker = Masker.of(
        {"API_KEY": "canary-123", "USER": "someone"}, {"nested": {"token": "deep-canary"}}
    )
    text = masker.mask("someone sent canary-123 (canary-123!) and deep-canary")
    assert text == "someone sent *** (***!) and ***"


def test_a_secret_that_contains_another_is_masked_whole() -> None:
    masker = Masker.of({"A_KEY": "canary", "B_KEY": "canary-longer"})
    assert masker.mask("canary-longer") == "***"


def test_short_values_are_left_alone() -> None:
    assert Masker.of({"TOKEN": "1", "PASSWORD": "true!"}).mask("1 true! 1") == "1 true! 1"


def test_values_that_are_no_text_are_masked_too() -> None:
    masker = Masker.of({"password": 1234567, "api_keys_secret": ["first-one", "second-one"]})
    assert masker.mask("1234567 first-one second-one") == "*** *** ***"


def test_each_line_of_a_private_key_is_masked() -> None:
    key = "-----BEGIN KEY-----\nMIIabcdef\nqrstuvwx\n-----END KEY-----"
    masked = Masker.of({"SSH_PRIVATE_KEY": key}).mask(f"line: qrstuvwx\n{key}\n")
    assert "MIIabc" not in masked and "qrst" not in masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("pip -i https://aws:eyJhb@host/simple/ x", "pip -i https://***@host/simple/ x"),
        ("git+ssh://git:pw@h/r and http://u@h", "git+ssh://***@h/r and http://***@h"),
        ("https://user:p@ss@host/x", "https://***@host/x"),
        ("mail me@example.org about https://h/a@b", "mail me@example.org about https://h/a@b"),
        (
            "get https://b.s3/k?X-Amz-Signature=abc&X-Amz-Date=1&X-Amz-Security-Token=de%2Ff'",
            "get https://b.s3/k?X-Amz-Signature=***&X-Amz-Date=1&X-Amz-Security-Token=***'",
        ),
        ("key AKIAIOSFODNN7EXAMPLE!", "key ***!"),
        ("AKIAIOSFODNN7EXAMPLEandmore", "AKIAIOSFODNN7EXAMPLEandmore"),
    ],
)
def test_credentials_are_masked_whatever_they_came_from(text: str, masked: str) -> None:
    assert Masker().mask(text) == masked


def test_text_without_secrets_comes_back_as_the_same_object() -> None:
    text = "epoch 1 loss 0.5"
    assert Masker.of({"TOKEN": "canary-1"}).mask(text) is text


ODD = "pa\"ss\\wo'rd\nsecond-line ☃"


@pytest.mark.parametrize(
    "write",
    [str, repr, json.dumps, lambda text: json.dumps(text, ensure_ascii=False),
     lambda text: json.dumps(repr(text)), lambda text: repr({"a": text}),
     lambda text: json.dumps({"a": [text]}, indent=2)],
)  # fmt: skip
def test_a_secret_of_odd_characters_is_masked_however_it_is_quoted(
    write: Callable[[str], str],
) -> None:
    masked = Masker.of({"DB_PASSWORD": ODD}).mask(f"before {write(ODD)} after")
    assert "wo" not in masked and "second" not in masked
    assert masked.startswith("before ") and masked.endswith(" after")


@pytest.mark.parametrize(
    ("address", "secret"),
    [
        ("https://user:canary-1@host/simple/", "canary-1"),
        ("postgresql://me:canary-1@db:5432/x?sslmode=require", "canary-1"),
        ("https://user:canary%2F1@host", "canary/1"),
        ("https://u:first-pw@a/ https://u:second-pw@b/", "second-pw"),
        ("https://ghp_0123456789abcdefghij@github.com/x", "ghp_0123456789abcdefghij"),
    ],
)
def test_a_password_of_an_address_is_masked_without_the_address(address: str, secret: str) -> None:
    masker = Masker.of({"PIP_INDEX_URL": address})
    assert masker.mask(f"login with {secret} refused") == "login with *** refused"


def test_a_name_in_an_address_is_no_secret() -> None:
    text = "postgres says no to someone"
    assert Masker.of({"DB": "ssh://postgres@h, https://someone@h/x, me@h"}).mask(text) is text
