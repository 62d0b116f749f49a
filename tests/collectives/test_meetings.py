"""How ranks come together without torch: what one of them cannot do is told to all, at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.collectives.jobs import SOURCES
from tests.support import ranks

LONG_S = 60.0  # the ranks' deadline: what is told at once is told long before
AT_ONCE_S = 20.0
MEETS = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from muster_collectives.core import CollectiveError, init
began, said = time.monotonic(), {"kind": ""}
try:
    init(timeout_s=float(sys.argv[2])).close()
except CollectiveError as error:
    said = {"kind": type(error).__name__, "text": str(error), "ranks": list(error.ranks)}
print(json.dumps({**said, "took_s": time.monotonic() - began}), flush=True)
"""


def meet(
    each: Sequence[Mapping[str, str]], env: Mapping[str, str], timeout_s: float = LONG_S
) -> list[dict[str, Any]]:
    """What each rank's `init` ended with; `each` has the variables of each rank."""
    argv = ["-I", "-S", "-c", MEETS, str(SOURCES), str(timeout_s)]
    ended = ranks.run(len(each), argv, env=env, each_env=each, timeout_s=90)
    assert [one.code for one in ended] == [0] * len(each), ranks.shown(ended)
    return [json.loads(one.output.strip().rpartition("\n")[2]) for one in ended]


@pytest.mark.parametrize("wrong", [0, 2])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("COLLECTIVES_INTERFACE", "ib7", id="no such interface"),
        pytest.param("COLLECTIVES_ADDRESS", "192.0.2.7", id="another host's address"),
    ],
)
def test_a_rank_that_cannot_listen_is_named_with_its_variable_on_all_ranks_at_once(
    name: str, value: str, wrong: int
) -> None:
    each = [{name: value} if rank == wrong else {} for rank in range(3)]
    for said in meet(each, {}):
        assert (said["kind"], said["ranks"]) == ("SettingsError", [wrong]), said
        assert f"rank {wrong} cannot take part: {name}='{value}'" in said["text"], said
        assert said["text"].count("Fix: ") == 1, said
        assert said["took_s"] < AT_ONCE_S, said


def test_several_ranks_that_cannot_listen_are_all_named() -> None:
    each = [{}, {"COLLECTIVES_INTERFACE": "ib7"}, {"COLLECTIVES_INTERFACE": "ib8"}]
    for said in meet(each, {}):
        assert (said["kind"], said["ranks"]) == ("SettingsError", [1, 2]), said


def test_what_a_rank_cannot_do_is_told_though_another_does_not_come() -> None:
    argv = ["-I", "-S", "-c", MEETS, str(SOURCES), str(LONG_S)]
    each = [{"RANK": "0"}, {"RANK": "1", "COLLECTIVES_INTERFACE": "ib7"}]
    ended = ranks.run(2, argv, env={"WORLD_SIZE": "3"}, each_env=each, timeout_s=90)
    for one in ended:
        assert '"kind": "SettingsError"' in one.output, ranks.shown(ended)
