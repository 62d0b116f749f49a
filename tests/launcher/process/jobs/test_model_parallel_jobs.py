"""Jobs of smdistributed.modelparallel whose Python lacks the library: muster-compat, which is
installed here, is hidden behind a package of the same name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster

ASKED = {
    "sagemaker_distributed_dataparallel_enabled": "false",
    "mp_parameters": '{"partitions": 1, "ddp": true}',
}


@pytest.mark.parametrize("launcher", ["torch_distributed", "mpi"])
def test_a_job_whose_library_is_missing_ends_on_all_hosts_and_names_it(
    cluster: Callable[..., Cluster], tmp_path: Path, launcher: str
) -> None:
    hidden = tmp_path / "hidden" / "smdistributed"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").touch()
    environ = {"PYTHONPATH": str(hidden.parent)}
    asked = {**ASKED, f"sagemaker_{launcher}_enabled": "true"}
    job = cluster("print('never')\n", 2, hyperparameters=asked, environ=environ)
    results = job.run()
    assert [result.code for result in results.values()] == [100, 100]
    for result in results.values():
        assert result.failure.startswith("ConfigError: smdistributed.modelparallel: this option")
        assert "needs the package smdistributed.modelparallel" in result.failure
        assert "never" not in result.out
