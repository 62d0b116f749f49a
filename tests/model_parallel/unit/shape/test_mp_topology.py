"""Ranks on the mesh: the documented examples by hand, and what must hold for all degrees."""

from __future__ import annotations

from itertools import permutations

import pytest

from muster_modelparallel.shape.topology import GroupKind, Place, Topology

PLACEMENTS = ["".join(letters) for letters in permutations("DPT")]
# every pair of degrees that divides the ranks
SHAPES = [
    (size, pipeline, tensor)
    for size in (1, 2, 3, 4, 6, 8, 12, 16)
    for pipeline in range(1, size + 1)
    for tensor in range(1, size // pipeline + 1)
    if size % (pipeline * tensor) == 0
]
EVERY = [Topology(*shape, placement) for shape in SHAPES for placement in PLACEMENTS]


@pytest.mark.parametrize(
    ("placement", "rows"),
    [  # rdp, pp and tp of ranks 0 to 7, from the tables of the public documentation
        ("DPT", ["000", "001", "010", "011", "100", "101", "110", "111"]),
        ("PTD", ["000", "100", "001", "101", "010", "110", "011", "111"]),
    ],
)
def test_the_documented_tables(placement: str, rows: list[str]) -> None:
    topology = Topology(8, 2, 2, placement)
    for rank, row in enumerate(rows):
        rdp, pp, tp = map(int, row)
        assert topology.place(rank) == Place(pp, tp, rdp)
        found = topology.rdp_rank(rank), topology.pp_rank(rank), topology.tp_rank(rank)
        assert found == (rdp, pp, tp)


def test_the_documented_groups_of_two_partitions_on_eight_ranks() -> None:
    spread, cluster = Topology(8, 2, 1, "TPD"), Topology(8, 2, 1, "DPT")
    assert spread.all_groups(GroupKind.MP) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert spread.all_groups(GroupKind.DP) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert (spread.dp_rank(6), spread.mp_rank(3), spread.mp_rank(4)) == (2, 0, 1)
    assert cluster.all_groups(GroupKind.MP) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert cluster.all_groups(GroupKind.DP) == ((0, 2, 4, 6), (1, 3, 5, 7))


def test_three_axes_of_different_lengths_by_hand() -> None:
    """24 ranks, P 3, T 2, D 4, placed TDP: stages are neighbours, replicas 3 apart, slices 12."""
    topology = Topology(24, 3, 2, "TDP")
    assert (topology.rdp_size, topology.dp_size, topology.mp_size) == (4, 8, 6)
    assert topology.place(17) == Place(pp=2, tp=1, rdp=1)
    assert topology.rank_of(Place(pp=2, tp=1, rdp=1)) == 17
    assert topology.pp_group(17) == (15, 16, 17)
    assert topology.rdp_group(17) == (14, 17, 20, 23)
    assert topology.tp_group(17) == (5, 17)
    assert topology.mp_group(17) == (3, 4, 5, 15, 16, 17)
    assert topology.dp_group(17) == (2, 5, 8, 11, 14, 17, 20, 23)
    assert (topology.mp_rank(17), topology.dp_rank(17)) == (5, 5)


def test_the_documented_identities_hold_for_all_degrees() -> None:
    for one in EVERY:
        assert one.mp_size * one.rdp_size == one.size
        assert one.pipeline * one.dp_size == one.size
        assert one.pipeline * one.tensor * one.rdp_size == one.size


def test_places_and_ranks_are_one_to_one() -> None:
    for one in EVERY:
        places = [one.place(rank) for rank in range(one.size)]
        assert len(set(places)) == one.size
        assert [one.rank_of(place) for place in places] == list(range(one.size))


def test_the_right_most_axis_joins_neighbours_and_the_left_most_the_furthest() -> None:
    for one in EVERY:
        groups = {"D": one.rdp_group(0), "P": one.pp_group(0), "T": one.tp_group(0)}
        slow, middle, fast = (groups[letter] for letter in one.placement)
        assert fast == tuple(range(len(fast)))
        assert middle == tuple(len(fast) * at for at in range(len(middle)))
        assert slow == tuple(len(fast) * len(middle) * at for at in range(len(slow)))


def test_groups_of_each_kind_are_a_partition_of_the_ranks() -> None:
    sizes = {
        GroupKind.WORLD: lambda one: one.size,
        GroupKind.MP: lambda one: one.mp_size,
        GroupKind.DP: lambda one: one.dp_size,
        GroupKind.PP: lambda one: one.pipeline,
        GroupKind.TP: lambda one: one.tensor,
        GroupKind.RDP: lambda one: one.rdp_size,
    }
    for one in EVERY:
        for kind in GroupKind:
            groups = one.all_groups(kind)
            assert sorted(rank for group in groups for rank in group) == list(range(one.size))
            assert {len(group) for group in groups} == {sizes[kind](one)}
            assert list(groups) == sorted(groups)
            assert all(list(group) == sorted(group) for group in groups)


def test_a_rank_is_in_its_group_at_its_coordinate() -> None:
    for one in EVERY:
        groups = {kind: one.all_groups(kind) for kind in GroupKind}
        for rank in range(one.size):
            place = one.place(rank)
            assert one.pp_group(rank)[place.pp] == rank
            assert one.tp_group(rank)[place.tp] == rank
            assert one.rdp_group(rank)[place.rdp] == rank
            assert one.mp_group(rank)[one.mp_rank(rank)] == rank
            assert one.dp_group(rank)[one.dp_rank(rank)] == rank
            # tensor-parallel ranks belong to both
            assert set(one.tp_group(rank)) <= set(one.mp_group(rank)) & set(one.dp_group(rank))
            for kind in GroupKind:
                assert one.group(kind, rank) in groups[kind]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((8, 3, 1, "DPT"), "pipeline 3 x tensor 1 does not divide 8 ranks"),
        ((8, 4, 4, "DPT"), "pipeline 4 x tensor 4 does not divide 8 ranks"),
        ((0, 1, 1, "DPT"), "does not divide 0 ranks"),
        ((4, 0, 1, "DPT"), "pipeline 0 x tensor 1"),
        ((4, -1, -1, "DPT"), "pipeline -1 x tensor -1"),
        ((4, 1, 1, "DPD"), "'DPD' is no permutation"),
        ((4, 1, 1, "cluster"), "'cluster' is no permutation"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(arguments: tuple[int, int, int, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Topology(*arguments)


def test_what_is_outside_the_mesh_is_refused() -> None:
    topology = Topology(8, 2, 2)
    for rank in (-1, 8):
        with pytest.raises(IndexError):
            topology.place(rank)
        with pytest.raises(IndexError):
            topology.dp_group(rank)
    for place in (Place(2, 0, 0), Place(0, 2, 0), Place(0, 0, 2), Place(-1, 0, 0)):
        with pytest.raises(IndexError):
            topology.rank_of(place)
