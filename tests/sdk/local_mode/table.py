"""Every combination of SDK, way of asking, distribution and number of hosts that is run for real.

`make test-all` runs those marked COVERING and a failing host of each SDK: each SDK, each option,
and 1 and 2 hosts at least once. `make test-long` runs them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from muster.sdk import hyperparameters

CODE, DATA = "@code", "@data"  # replaced by folders of the job
GREETING = "it's hello"
OPTIONS = {"custom_mpi_options": f'-x GREETING="{GREETING}"'}
ON = {"enabled": True}
LR = {"lr": 0.1}
STAGES = {"partitions": 2, "microbatches": 2, "ddp": True}
MODEL_PARALLEL = {"modelparallel": {**ON, "parameters": STAGES}}

COVERING = {
    "v2-Estimator-none-1",
    "v2-Estimator-mpi-2",
    "v2-PyTorch-pytorchddp-1",
    "v2-PyTorch-torch_distributed-2",
    "v2-PyTorch-smdistributed.dataparallel-2",
    "v2-PyTorch-smdistributed.modelparallel-1",
    "v2-PyTorch-smdistributed.modelparallel-torch_distributed-2",
    "v3-Torchrun-1",
    "v3-Torchrun-smp-1",
    "v3-MPI-1",
    "v3-image-command-1",
    "v3-command-train-2",
    "v3-Muster-torch_distributed-1",
    "v3-Muster-mpi-1",
    "v3-Muster-smp-2",
}


class Case(NamedTuple):
    """`world`: ranks that find each other; 1 where each host's script is alone.

    `ours`: `train` runs the script, not a driver of the SDK. `greeting`: what custom MPI options
    have set for the ranks.
    """

    name: str
    hosts: int
    request: Mapping[str, Any]
    world: int = 1
    ours: bool = True
    greeting: str = ""

    @property
    def ranks(self) -> int:
        return self.world if self.world > 1 else self.hosts


def v2_cases() -> Iterator[Case]:
    for hosts in (1, 2):
        for kind in ("Estimator", "PyTorch"):
            for option, distribution in _distributions().items():
                greeting = GREETING if option not in {"none", "torch_distributed"} else ""
                per_host = 2 if option == "mpi" else 1
                world = 1 if option == "none" else hosts * per_host
                make = _generic if kind == "Estimator" else _framework
                yield Case(
                    f"v2-{kind}-{option}-{hosts}", hosts, make(distribution, hosts), world,
                    greeting=greeting,
                )  # fmt: skip
        distribution = {"smdistributed": MODEL_PARALLEL, "mpi": {**ON, "processes_per_host": 2}}
        request = _framework(distribution, hosts)
        yield Case(f"v2-PyTorch-smdistributed.modelparallel-{hosts}", hosts, request, 2 * hosts)
    distribution = {"smdistributed": MODEL_PARALLEL, "torch_distributed": ON}  # a stage on each
    name = "v2-PyTorch-smdistributed.modelparallel-torch_distributed-2"
    yield Case(name, 2, _framework(distribution, 2), 2)


def _distributions() -> dict[str, dict[str, Any]]:
    return {
        "none": {},
        "torch_distributed": {"torch_distributed": ON},
        "mpi": {"mpi": {**ON, "processes_per_host": 2, **OPTIONS}},
        "pytorchddp": {"pytorchddp": {**ON, **OPTIONS}},
        "smdistributed.dataparallel": {"smdistributed": {"dataparallel": {**ON, **OPTIONS}}},
    }


def _framework(distribution: Mapping[str, Any], hosts: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {"entry_point": "job.py", "source_dir": CODE}
    if distribution:
        arguments["distribution"] = distribution
    return {
        "class": "PyTorch", "hosts": hosts, "arguments": arguments, "hyperparameters": LR,
        "inputs": {"train": f"file://{DATA}"},
    }  # fmt: skip


def _generic(distribution: Mapping[str, Any], hosts: int) -> dict[str, Any]:
    """On one host with an entry point, on two with the code as a channel: the SDK encodes the
    hyperparameters of the first and takes `str()` of the second's."""
    keys = {**LR, **hyperparameters(distribution)}
    request = {"class": "Estimator", "hosts": hosts, "hyperparameters": keys}
    if hosts == 1:
        arguments = {"entry_point": "job.py", "source_dir": CODE}
        return {**request, "arguments": arguments, "inputs": {"train": f"file://{DATA}"}}
    channels = {"train": f"file://{DATA}", "code": f"file://{CODE}"}
    return {
        **request, "hyperparameters": {**keys, "sagemaker_program": "job.py"}, "inputs": channels,
    }  # fmt: skip


def v3_cases() -> Iterator[Case]:
    entry = {"source_dir": CODE, "entry_script": "job.py"}
    command = {**entry, "command": "train"}
    yield Case("v3-entry-script-1", 1, _trainer(1, entry), ours=False)
    for hosts in (1, 2):
        stock = {"class": "Torchrun", "arguments": {"process_count_per_node": 2}}
        yield Case(
            f"v3-Torchrun-{hosts}", hosts, _trainer(hosts, entry, stock), 2 * hosts, ours=False
        )
    stock = {
        "class": "Torchrun",
        "arguments": {"process_count_per_node": 2, "smp": {"hybrid_shard_degree": 1}},
    }
    yield Case("v3-Torchrun-smp-1", 1, _trainer(1, entry, stock), 2, ours=False)
    # on several hosts the SDK's driver counts wrong and names an interface that does not exist
    mpi = {"class": "MPI", "arguments": {"process_count_per_node": 2}}
    yield Case("v3-MPI-1", 1, _trainer(1, entry, mpi), 2, ours=False)
    for hosts in (1, 2):
        keys = hyperparameters("torch_distributed")
        request = _trainer(hosts, command, hyperparameters=keys)
        yield Case(f"v3-command-train-{hosts}", hosts, request, hosts)
        yield Case(f"v3-command-train-MPI-{hosts}", hosts, _trainer(hosts, command, mpi), 2 * hosts)
        stock = {"class": "Torchrun", "arguments": {}}
        request = _trainer(hosts, command, stock)
        yield Case(f"v3-command-train-Torchrun-{hosts}", hosts, request, hosts)
        yield Case(f"v3-image-command-{hosts}", hosts, _image_command(hosts), 2 * hosts)
        yield from _muster(hosts)


def _muster(hosts: int) -> Iterator[Case]:
    entry = {"source_dir": CODE, "entry_script": "job.py"}
    for option, (arguments, world, greeting) in {
        "none": ({"distribution": "none"}, 1, ""),
        "torch_distributed": (
            {"distribution": "torch_distributed", "processes_per_host": 2}, 2 * hosts, "",
        ),
        "mpi": (
            {"distribution": "mpi", "processes_per_host": 2, **OPTIONS}, 2 * hosts, GREETING,
        ),
        "smddp": ({"distribution": "smddp", **OPTIONS}, hosts, GREETING),
        "pytorchddp": ({"distribution": {"pytorchddp": ON}}, hosts, ""),
        "parameter_server": ({"distribution": "parameter_server"}, hosts, ""),
        "smp": (
            {"distribution": {"smdistributed": MODEL_PARALLEL, "torch_distributed": ON},
             "processes_per_host": 2 // hosts}, 2, "",
        ),
    }.items():  # fmt: skip
        request = _trainer(hosts, entry, {"class": "Muster", "arguments": arguments})
        yield Case(f"v3-Muster-{option}-{hosts}", hosts, request, world, greeting=greeting)


def _trainer(
    hosts: int,
    source: Mapping[str, Any] | None,
    distributed: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    keys = {**LR, **more.pop("hyperparameters", {})}
    return {
        "hosts": hosts, "source_code": source, "distributed": distributed,
        "hyperparameters": keys, "inputs": {"train": DATA}, **more,
    }  # fmt: skip


def _image_command(hosts: int) -> dict[str, Any]:
    """No source code: the image's own command, `train`, gets all by hyperparameters."""
    keys = {**hyperparameters("mpi", processes_per_host=2), "sagemaker_program": "job.py"}
    return _trainer(hosts, None, hyperparameters=keys, inputs={"train": DATA, "code": CODE})
