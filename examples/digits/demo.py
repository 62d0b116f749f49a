"""What `make demo` runs: trains the digits on two hosts of this machine and checks every rank.

    make demo DISTRIBUTION=smdistributed.dataparallel    # over the backend smddp, under mpirun
    make demo DISTRIBUTION=smdistributed.modelparallel   # a small GPT on Python's manual

Its last line is `demo: ok accuracy=0.9722 hosts=2 ranks=2 seconds=41.3`, or `demo: failed: why`
with a non-zero exit code.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from muster.arguments import USAGE_EXIT_CODE, HelpShown, Parser, UsageError, one_of
from muster.contract.request.distribution import SMDDP
from muster.sdk.distribution import to_hyperparameters

CHECKOUT = Path(__file__).resolve().parents[2]
HOSTS = 2
DEFAULT = "torch_distributed"
MODEL_PARALLEL = ("smdistributed.modelparallel", "smp")
# the options under which both hosts train one model together
DISTRIBUTIONS = (
    DEFAULT, "torchrun", "mpi", "pytorchddp", "smdistributed.dataparallel", "smddp", *MODEL_PARALLEL
)  # fmt: skip


class Example(NamedTuple):
    """A script, the least accuracy on what it was not trained on, and options of `muster local`."""

    script: Path
    enough: float
    options: tuple[str, ...] = ()


DIGITS = Example(Path(__file__).with_name("train.py"), 0.95)
GPT = Example(  # of the next characters
    CHECKOUT / "examples/modelparallel/train.py", 0.45,
    ("--hyperparameter", 'mp_parameters={"microbatches": 4, "ddp": true}'),
)  # fmt: skip


class DemoError(Exception):
    """Why the demo is not ok, in one line."""


class RankResult(NamedTuple):
    host: str
    rank: int
    world_size: int
    accuracy: float
    seconds: float
    backend: str


def main(argv: Sequence[str]) -> int:
    try:
        distribution = parse(argv)
    except HelpShown:
        return 0
    except UsageError as error:
        print(f"demo: {error.message}", file=sys.stderr)
        return USAGE_EXIT_CODE
    began = time.monotonic()
    folder = CHECKOUT / "muster-runs" / time.strftime("demo-%Y%m%d-%H%M%S")
    try:
        train(folder, distribution)
        ranks = read_ranks(folder)
        accuracy = check(folder, ranks, distribution)
    except DemoError as failure:
        print(f"demo: failed: {failure}")
        return 1
    show(folder, ranks)
    hosts = len({result.host for result in ranks})
    seconds = time.monotonic() - began
    print(
        f"demo: ok accuracy={accuracy:.4f} hosts={hosts} ranks={len(ranks)} seconds={seconds:.1f}"
    )
    return 0


def parse(argv: Sequence[str]) -> str:
    """The distribution that is asked for. Raises UsageError and HelpShown."""
    parser = Parser("examples/digits/demo.py", "Train the digits on two hosts of this machine.")
    parser.add_argument(
        "--distribution", metavar="NAME", type=one_of(*DISTRIBUTIONS), default=DEFAULT,
        help=f"one of {', '.join(DISTRIBUTIONS)} (default {DEFAULT})",
    )  # fmt: skip
    return str(parser.parse(argv).distribution)


def example_of(distribution: str) -> Example:
    return GPT if distribution in MODEL_PARALLEL else DIGITS


def train(folder: Path, distribution: str) -> None:
    """Runs the job with its output passed through live."""
    example = example_of(distribution)
    command = [
        sys.executable, "-m", "muster", "local", str(example.script), *example.options,
        "--hosts", str(HOSTS), "--distribution", distribution, "--output", str(folder),
    ]  # fmt: skip
    code = subprocess.run(command, cwd=CHECKOUT, check=False).returncode
    if code != 0:
        raise DemoError(f"muster local ended with exit code {code}; the record is {folder}")


def read_ranks(folder: Path) -> list[RankResult]:
    """What every rank wrote on its own host, by rank."""
    ranks = []
    for path in folder.glob("algo-*/opt/ml/output/data/metrics-rank*.json"):
        found = json.loads(path.read_text())
        host = path.relative_to(folder).parts[0]
        values = (found[name] for name in RankResult._fields[1:])
        ranks.append(RankResult(host, *values))
    return sorted(ranks, key=lambda result: result.rank)


def check(folder: Path, ranks: list[RankResult], distribution: str = DEFAULT) -> float:
    """The accuracy that all ranks agree on. Raises DemoError for anything that is not right."""
    outcome = json.loads((folder / "summary.json").read_text()).get("outcome")
    result = outcome.get("result") if isinstance(outcome, dict) else outcome
    if result != "Succeeded":
        raise DemoError(f"the outcome in {folder / 'summary.json'} is {result}")
    if [result.rank for result in ranks] != list(range(HOSTS)):
        raise DemoError(f"expected ranks 0 to {HOSTS - 1}, found {[one.rank for one in ranks]}")
    if {result.world_size for result in ranks} != {HOSTS}:
        raise DemoError(f"ranks saw world sizes {sorted({one.world_size for one in ranks})}")
    if len({result.host for result in ranks}) != HOSTS:
        raise DemoError("the ranks were not on different hosts")
    backends = {result.backend for result in ranks}
    if to_hyperparameters(distribution).get(SMDDP) == "true" and backends != {"smddp"}:
        raise DemoError(f"{distribution} is to train over smddp, ranks used {sorted(backends)}")
    accuracies = {result.accuracy for result in ranks}
    if len(accuracies) != 1:
        raise DemoError(f"ranks measured different accuracies: {sorted(accuracies)}")
    accuracy = accuracies.pop()
    enough = example_of(distribution).enough
    if accuracy < enough:
        raise DemoError(f"accuracy {accuracy:.4f} is below {enough}")
    if not model(folder).is_file():
        raise DemoError(f"no model at {model(folder)}")
    return accuracy


def show(folder: Path, ranks: list[RankResult]) -> None:
    print(f"\n{'host':<8} {'rank':>4} {'world size':>10} {'accuracy':>9} {'training':>9}  backend")
    for one in ranks:
        print(
            f"{one.host:<8} {one.rank:>4} {one.world_size:>10} {one.accuracy:>9.4f} "
            f"{one.seconds:>7.1f} s  {one.backend}"
        )
    print(f"\nmodel:  {shown(model(folder))}\nrecord: {shown(folder)}\n")


def model(folder: Path) -> Path:
    return folder / "model/model.pt"


def shown(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
