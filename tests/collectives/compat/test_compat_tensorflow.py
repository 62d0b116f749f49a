"""The legacy TensorFlow API with real TensorFlow, in an environment of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster_collectives.summary import read_folders
from tests.collectives.compat.test_compat import LEGACY, OPEN_MPI, PATHS, UNSET
from tests.collectives.support import ranks
from tests.support.frameworks import framework_environment, python_of
from tests.support.venvs import UnavailableError

# the environment may have to be made
pytestmark = [pytest.mark.dev, pytest.mark.timeout(900)]
JOB_S = 240.0  # TensorFlow alone takes ten seconds to import on busy processors
WORKER = Path(__file__).with_name("tensorflow_worker.py")
MODELS = Path(__file__).with_name("tensorflow_models_worker.py")


def _two_ranks_end_well(worker: Path, *arguments: str, **variables: str) -> None:
    try:
        python = python_of(framework_environment("tensorflow"))
    except UnavailableError as reason:
        pytest.skip(f"tensorflow cannot be installed here: {reason}")
    environ = {**LEGACY, **UNSET, "PYTHONPATH": PATHS, "TF_NUM_INTRAOP_THREADS": "1", **variables}
    ended = ranks.run(
        2, [str(python), str(worker), *arguments], env=environ, each_env=OPEN_MPI, timeout_s=JOB_S
    )
    assert [each.code for each in ended] == [0, 0], ranks.shown(ended)
    assert all("done" in each.output for each in ended), ranks.shown(ended)


@pytest.mark.parametrize("check", [
    "an_overflow_is_skipped_by_all_ranks",
    "an_overflow_under_the_tape_is_seen_by_all_ranks",
    "a_loss_that_is_not_scaled_is_not_unscaled",
    "a_loss_scale_around_is_refused",
    "a_saved_model_loads",
    "a_hook_runs_the_broadcast_alone",
    "many_reductions_of_a_graph_keep_their_order",
])  # fmt: skip
def test_models_on_two_ranks(check: str) -> None:
    _two_ranks_end_well(MODELS, check, COLLECTIVES_TIMEOUT_S="40")


def test_the_legacy_tensorflow_api_trains_on_two_ranks(tmp_path: Path) -> None:
    _two_ranks_end_well(WORKER, COLLECTIVES_SUMMARY_DIR=str(tmp_path))
    found = read_folders([tmp_path]).found
    assert sorted((each.layer, each.group, each.rank) for each in found) == [
        ("tensorflow", "world", 0), ("tensorflow", "world", 1),
    ]  # fmt: skip
    assert all(each.verbs["all_reduce"].calls > 10 for each in found)
