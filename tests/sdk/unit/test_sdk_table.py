"""The subset of SDK jobs that `make test-all` runs covers what it is to cover."""

from __future__ import annotations

from tests.sdk.local_mode.table import COVERING, v2_cases, v3_cases

CASES = {case.name: case for case in (*v2_cases(), *v3_cases())}


def test_what_test_all_runs_is_of_the_table() -> None:
    assert CASES.keys() >= COVERING


def test_each_sdk_each_way_of_asking_and_each_option_is_covered_on_one_host_and_on_two() -> None:
    chosen = [CASES[name] for name in COVERING]
    for sdk in ("v2", "v3"):
        assert {case.hosts for case in chosen if case.name.startswith(sdk)} == {1, 2}
    wanted = {
        "v2": {"none", "torch_distributed", "mpi", "pytorchddp", "smdistributed.dataparallel"},
        "v3": {"Torchrun", "MPI", "image-command", "command-train", "Muster-torch_distributed",
               "Muster-mpi"},
    }  # fmt: skip
    for sdk, options in wanted.items():
        for option in options:
            covering = [name for name in COVERING if name.startswith(sdk) and f"-{option}-" in name]
            assert covering, f"no job of make test-all has {option} of {sdk}"
