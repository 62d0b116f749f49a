"""What a conformance run starts from, as frozen values.

A scenario is a job request with the user's code, told in the contract's own files; it names no
launcher.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

BARE = "bare"  # sagemaker-training alone
PYTORCH = "pytorch"  # sagemaker-training with sagemaker-pytorch-training as its module
ABSENT = "(absent)"


class Group(NamedTuple):
    name: str
    hosts: tuple[str, ...]
    instance_type: str = "ml.m5.xlarge"


class Intended(NamedTuple):
    """One way in which we mean to differ from the incumbent.

    `key`: a facet of the observation, `*` as in file names; without a host prefix it holds for
    every host. `theirs`, `ours`: the facet's text, `*` as in file names. `oracle`: the incumbent
    that it holds for, "" for both.
    """

    key: str
    theirs: str
    ours: str
    reason: str
    oracle: str = ""


class Stop(NamedTuple):
    """A signal to `train` of the first host once the script reported that it runs."""

    number: int


class Scenario(NamedTuple):
    """One job. `files` is the code folder, `tree` more files relative to the base folder.

    `hyperparameters` is the file's content: on the wire every value is a string. In texts
    `<base>` stands for the base folder and `<wheels>` for the folder of tiny wheels.
    `tools`: stand-ins on PATH, by name. `site`: modules that come before those of the launcher.
    `patience_s`: facet `in_time` says whether `train` ended
    before it. `without`: files of the request that are not written. `isolated`: every host gets
    namespaces of its own, where /opt/ml is real and names resolve.
    """

    name: str
    hyperparameters: Mapping[str, object]
    files: Mapping[str, str]
    hosts: tuple[str, ...] = ("algo-1",)
    groups: tuple[Group, ...] | None = ()  # (): one homogeneous group; None: local mode has none
    resource: Mapping[str, object] = {}
    channels: Mapping[str, Mapping[str, str]] = {}
    environ: Mapping[str, str] = {}
    tree: Mapping[str, str] = {}
    archives: Mapping[str, Mapping[str, str]] = {}
    without: tuple[str, ...] = ()
    tools: Mapping[str, str] = {}
    site: Mapping[str, str] = {}
    oracles: tuple[str, ...] = (BARE, PYTORCH)
    stop: Stop | None = None
    isolated: bool = False
    patience_s: float = 30.0
    differences: tuple[Intended, ...] = ()
