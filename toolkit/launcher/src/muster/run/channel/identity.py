"""Who this host says it is when it joins, and what all hosts of a job must agree on."""

from __future__ import annotations

from collections.abc import Mapping

from muster.run.channel.messages import shortened
from muster.types.values import NamedTuple

PROTOCOL = 1
SHOWN = 200  # characters of a value that hosts disagree on
BRIEF_BYTES = 300  # of a text in a hello, as JSON


class Identity(NamedTuple):
    """Who a host is in its job.

    `agreed`: what must be equal on every host, by name, as short texts; empty on a host whose
    request is bad and that joins only to say so. `secret`: shared by all hosts, or empty; it never
    travels.
    """

    job: str
    name: str
    host_index: int
    agreed: Mapping[str, str]
    secret: bytes


class Hello(NamedTuple):
    """What a follower says of itself. `resume`: it has the job key from an earlier connection.

    `job` and the texts of `agreed` are `brief`, so that a hello has a largest size.
    """

    protocol: int
    job: str
    host_index: int
    name: str
    agreed: Mapping[str, str]
    nonce: str
    proof: str
    resume: bool
    received: int


def brief(text: str) -> str:
    """The text, or the beginning of a long one with a hash of the whole: equal texts give equal
    ones, different texts different ones. At most BRIEF_BYTES as JSON."""
    if len(text) * 12 <= BRIEF_BYTES or shortened(text, BRIEF_BYTES) == text:
        return text
    import hashlib

    whole = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{shortened(text, BRIEF_BYTES - 100)}... (SHA-256 {whole})"


def briefs(agreed: Mapping[str, str]) -> dict[str, str]:
    """`agreed` as it travels in a hello."""
    return {name: brief(text) for name, text in agreed.items()}


def disagreement(mine: Mapping[str, str], theirs: Mapping[str, str], me: str, them: str) -> str:
    """What two hosts disagree on: `algo-2 has toolkit 1.2, algo-1 has 1.3`; "" when they agree."""
    if not mine or not theirs:
        return ""
    for name in sorted({*mine, *theirs}):
        a, b = mine.get(name, "nothing"), theirs.get(name, "nothing")
        if a != b:
            return f"{them} has {name[:SHOWN]} {str(b)[:SHOWN]}, {me} has {a[:SHOWN]}"
    return ""
