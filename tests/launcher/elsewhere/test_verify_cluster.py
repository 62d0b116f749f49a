"""`scripts/verify-cluster` on a stand-in for a cluster that the real kubectl talks to."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.launcher.elsewhere.fault_engines import image
from tests.launcher.elsewhere.faults import FAULTS
from tests.launcher.elsewhere.kubernetes.api_server import api_server
from tests.launcher.elsewhere.kubernetes.running_cluster import RunningCluster
from tests.support.hosts import networks, skip_without_networks
from tests.support.venvs import CHECKOUT
from tests.support.waiting import within

SCRIPT = CHECKOUT / "scripts" / "verify-cluster"
WORDS = "exit or stop or killed"


def test_the_faults_befall_jobs_of_a_cluster(tmp_path: Path) -> None:
    if not shutil.which("kubectl"):
        pytest.skip("there is no kubectl on this machine")
    skip_without_networks()
    images = {"train:1": image(tmp_path, FAULTS[0])}
    with networks(["node-0", "node-1"], whole=True) as nodes:
        kind = partial(RunningCluster, networks=nodes, folder=tmp_path, images=images)
        with api_server(tmp_path, kind) as cluster:
            try:
                done = verify("kubernetes", "--image", "train:1", cluster=cluster)
            finally:
                cluster.close()
    assert done.returncode == 0 and " 4 passed" in done.stdout, done.stdout + done.stderr
    assert not [key for key in cluster.kept if key[0] != "pods"]


def verify(*words: str, cluster: RunningCluster) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, *words, "--", "-x", "-n", "0", "-k", WORDS],
        cwd=CHECKOUT,
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=within(300),
        check=False,
    )


def test_words_that_are_not_known_are_refused() -> None:
    done = subprocess.run([SCRIPT, "nomad"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "verify-cluster kubernetes --image" in done.stderr
