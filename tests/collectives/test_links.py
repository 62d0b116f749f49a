"""Nodes with networks of their own and slow links between them; a link that is cut."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence

import pytest

from benchmarks.collectives_links import LinksError, interface, links, node, shape, why_not
from tests.collectives.fault_worker import SHORT_S
from tests.collectives.jobs import clean, job
from tests.collectives.test_faults import SLACK_S
from tests.collectives.test_nodes import TUNED, assert_alike

MBIT_PER_S = 200
CUT_S = 20.0


@pytest.fixture
def slow() -> Iterator[None]:
    """Two nodes, `a` and `b`, with links of 200 Mbit/s."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    try:
        with links(2):
            shape(2, MBIT_PER_S)
            yield
    except LinksError as error:
        pytest.skip(f"no shaped links here: {error}")


def placed(nodes: str) -> Callable[[int], Sequence[str]]:
    """The words that put a rank into the network of its node."""

    def words(rank: int) -> Sequence[str]:
        number = "ab".index(nodes[rank])
        name = f"COLLECTIVES_INTERFACE={interface(number)}"
        return ["ip", "netns", "exec", node(number), "env", name]

    return words


@pytest.mark.parametrize("nodes", ["aabb", "abab"])
def test_every_verb_is_right_over_slow_links_in_either_order_of_ranks(
    slow: None, nodes: str
) -> None:
    with job(
        "nodes_worker", 4, "edges", environ=TUNED, nodes=list(nodes), prefix=placed(nodes)
    ) as started:
        said = clean(started.ends())
    assert_alike(said)
    assert all(each["nodes"] == [0 if name == "a" else 1 for name in nodes] for each in said)


@pytest.mark.promise("F40")
def test_a_cut_link_is_a_timeout_that_names_those_behind_it_on_both_sides(slow: None) -> None:
    nodes = "aab"
    with job("fault_worker", 3, "cut", "2", nodes=list(nodes), prefix=placed(nodes)) as started:
        for rank in range(3):
            started.wait_for(f"ready-{rank}")
        subprocess.run(
            ["ip", "netns", "exec", node(1), "ip", "link", "set", interface(1), "down"],
            check=True, timeout=CUT_S,
        )  # fmt: skip
        started.mark("cut")
        said = clean(started.ends())
    for rank, others in ((0, {2}), (1, {2}), (2, {0, 1})):
        each = said[rank]
        assert each["kind"] == "CollectiveTimeout", each
        assert each["took_s"] < SHORT_S + SLACK_S, each
        assert set(each["ranks"]) <= others and each["ranks"], each
