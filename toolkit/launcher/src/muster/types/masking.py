"""Secrets out of every text that a person or a file gets to see (S08).

Names decide what is a secret; from then on its value is masked wherever it turns up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MASK = "***"
MIN_SECRET = 6  # characters; what is shorter occurs in innocent text
MIN_BARE_TOKEN = 20  # of what stands alone before the @ of an address: shorter ones are names

_HINTS = ("key", "secret", "token", "passw", "passphrase", "pwd", "cred", "auth")
_SECRET_ENDINGS = ("secret", "secrets", "password", "passwords", "passwd", "passphrase", "apikey")
_CREDENTIALS = ("cred", "creds", "credential", "credentials", "secret", "secrets")
# `tokens` and `keys` count or name things; so do these before `token` and `key`
_PLAIN_TOKENS = ("pad", "eos", "bos", "unk", "mask", "sep", "cls", "special", "next", "start",
                 "end", "stop", "image", "audio", "video", "per", "new", "max", "min")  # fmt: skip
_PLAIN_KEYS = ("label", "image", "sort", "primary", "foreign", "partition", "input", "output",
               "feature", "features", "target", "data", "text", "audio", "video", "group", "metric",
               "state", "column", "query", "id", "index", "prompt", "response", "field", "time",
               "join", "sample", "example", "public")  # fmt: skip
_QUERY = r"(?i)([?&][\w.-]*(?:token|secret|password|signature|credential|key)=)[^&\s'\"]+"
_IN_ADDRESS = r"(?<=://)[^\s/'\"]+(?=@)"
_WORD = r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])"


def is_secret_name(name: str) -> bool:
    """Whether a variable or hyperparameter of this name holds something to hide.

    `WANDB_API_KEY`, `hf-token`, `dbPassword` do; `tokenizer`, `num_tokens`, `key_dim` do not.
    """
    lowered = name.lower()
    if not any(hint in lowered for hint in _HINTS):
        return False
    words = [word.lower() for word in re.findall(_WORD, name)]
    if not words:
        return False
    before, last = ["", *words][-2:]
    if any(word in _CREDENTIALS or word.endswith(_SECRET_ENDINGS) for word in words):
        return True
    if last.endswith("token"):
        return last != "token" or before not in _PLAIN_TOKENS
    if last.endswith("key"):
        return last != "key" or before not in _PLAIN_KEYS
    if last == "pwd":  # PWD and OLDPWD are folders
        return bool(before)
    return "authorization" in words or "access key" in " ".join(words)


class Masker:
    """Replaces secrets in any text by `***`.

    Secrets are recognised as they are and as they look in JSON and in Python's `repr`.
    Also masks credentials inside addresses (`https://user:pw@host`, `?X-Amz-Signature=...`) and
    AWS key identifiers, whatever they came from. Building costs microseconds; expressions are
    compiled on first use.
    """

    __slots__ = ("_secrets",)

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: tuple[str, ...] = ()
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """From now on these are masked, too: some are made only when a job runs."""
        parts = set(self._secrets)
        for secret in secrets:
            parts.add(secret)
            if "\n" in secret:  # a key of several lines is logged line by line
                parts.update(line.strip() for line in secret.splitlines())
        parts.update(look for part in tuple(parts) for look in _looks(part))
        good = (part for part in parts if len(part) >= MIN_SECRET)
        self._secrets = tuple(sorted(good, key=lambda part: (-len(part), part)))

    @classmethod
    def of(cls, *maps: Mapping[str, object]) -> Masker:
        """The masker of all values of secret-looking names in `maps`, nested objects included,
        and of the passwords in addresses (`https://user:password@host`) of any name."""
        found: list[str] = []
        for values in maps:
            _collect(values, found)
        return cls(found)

    def mask(self, text: str) -> str:
        """`text` without secrets; the same object when there was none."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        if "@" in text and "://" in text:
            text = re.sub(_IN_ADDRESS, MASK, text)
        if "?" in text and "=" in text:
            text = re.sub(_QUERY, rf"\1{MASK}", text)
        if "AKIA" in text or "ASIA" in text:
            text = re.sub(r"\bA(?:K|S)IA[A-Z0-9]{16}\b", MASK, text)
        return text


def _collect(values: Mapping[str, object], found: list[str]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            _collect(value, found)
        elif is_secret_name(name):
            items = value if isinstance(value, list | tuple) else [value]
            found.extend(str(item) for item in items)
        elif isinstance(value, str) and "@" in value and "://" in value:
            found.extend(_passwords(value))


def _passwords(text: str) -> Iterable[str]:
    """What stands for a password in the addresses of a text, also with its escapes undone."""
    for credentials in re.findall(_IN_ADDRESS, text):
        user, colon, password = credentials.partition(":")
        if colon or len(user) >= MIN_BARE_TOKEN:
            secret = password if colon else user
            yield secret
            if "%" in secret:
                from urllib.parse import unquote

                yield unquote(secret)


def _looks(secret: str) -> Iterable[str]:
    """How a secret with odd characters is written where quotes and line ends are escaped."""
    if secret.isascii() and secret.isprintable() and not set("\"'\\") & set(secret):
        return ()
    import json

    looks = {json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret)}
    escaped = {look[1:-1] for look in looks}
    return escaped | {json.dumps(look)[1:-1] for look in escaped}  # a repr in JSON
