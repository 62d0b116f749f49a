"""`muster sdk metric-definitions`: what a client passes so that the platform shows metrics."""

from __future__ import annotations

import argparse
import json
import sys

from muster.arguments import UsageError, one_of
from muster.sdk.metric_definitions import metric_definitions
from muster.sdk.refusal import RequestError

WHAT = "metric-definitions"
EXAMPLES = """\
examples:
  muster sdk metric-definitions loss accuracy
  muster sdk metric-definitions loss --format json > definitions.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the metric definitions for lines of muster.metrics, for both SageMaker SDKs."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("what", type=one_of(WHAT), metavar=WHAT)
    parser.add_argument("names", nargs="+", metavar="NAME", help="a metric's name, such as loss")
    parser.add_argument(
        "--format", type=one_of("all", "v2", "v3", "json"), default="all", metavar="FORMAT",
        help="v2, v3 (Python for that SDK), json, or all: both SDKs (default)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Prints the list."""
    try:
        made = metric_definitions(args.names)
    except RequestError as error:
        first = error.problems[0]
        raise UsageError(first.what, first.fix) from error
    if args.format == "json":
        sys.stdout.write(json.dumps(made, indent=2) + "\n")
        return 0
    if args.format in ("all", "v2"):
        sys.stdout.write(_as_v2(made))
    if args.format in ("all", "v3"):
        sys.stdout.write(_as_v3(made))
    return 0


def _as_v2(made: list[dict[str, str]]) -> str:
    entries = "".join(f'    {{"Name": "{e["Name"]}", "Regex": r"{e["Regex"]}"}},\n' for e in made)
    use = "# SDK v2: Estimator(..., metric_definitions=metric_definitions)"
    return f"{use}\nmetric_definitions = [\n{entries}]\n"


def _as_v3(made: list[dict[str, str]]) -> str:
    entries = "".join(
        f'    MetricDefinition(name="{e["Name"]}", regex=r"{e["Regex"]}"),\n' for e in made
    )
    return (
        "# SDK v3: ModelTrainer(...).with_metric_definitions(metric_definitions)\n"
        "from sagemaker.train.configs import MetricDefinition\n\n"
        f"metric_definitions = [\n{entries}]\n"
    )
