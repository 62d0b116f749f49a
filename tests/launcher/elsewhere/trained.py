"""The examples that train real data on two hosts, whatever started these: one truth for all."""

from __future__ import annotations

import re
from pathlib import Path

# the distribution -> the folder of its example
EXAMPLES = {
    "torch_distributed": "digits",
    "mpi": "digits",
    "smdistributed.dataparallel": "digits",
    "parameter_server": "parameter_server_pytorch",
}
GOOD = 0.7  # of all digits are read right after three epochs


def script(distribution: str) -> str:
    folder = Path(__file__).parents[3] / "examples" / EXAMPLES[distribution]
    return (folder / "train.py").read_text()


def options(distribution: str) -> tuple[str, ...]:
    return ("--hyperparameter", "epochs=3", "--distribution", distribution)


def accuracy(log: str) -> float:
    """After the last epoch, which rank 0 alone prints."""
    (line,) = re.findall(r"epoch=3/3 .*", log)
    return float(line.rpartition("accuracy=")[2])
