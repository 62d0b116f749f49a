"""A node of a multi-node job of AWS Batch, which says nothing of the others but the main node."""

from __future__ import annotations

from collections.abc import Mapping

from muster.contract.engines.values import Files, Values
from muster.types.engine import Engine
from muster.types.errors import ConfigError

STOP_S = 25.0  # 30 s until SIGKILL
MAIN = "AWS_BATCH_JOB_MAIN_NODE_INDEX"
ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"


def read(environ: Mapping[str, str], files: Files) -> Engine | None:
    """The node's place, counted from the main node: its exit is the job's, so it leads."""
    if "AWS_BATCH_JOB_NUM_NODES" not in environ:
        return None
    values, fix = Values(environ), "let Batch set it, in a multi-node job"
    count = values.needed("count", "AWS_BATCH_JOB_NUM_NODES", least=1, fix=fix)
    index = values.needed("index", "AWS_BATCH_JOB_NODE_INDEX", fix=fix)
    main = values.needed("leader's index", MAIN, fix=fix)
    if index >= count or main >= count:
        what = f"nodes {index} (this) and {main} (main) are not both of {count} nodes"
        raise ConfigError.of("AWS_BATCH_JOB_NODE_INDEX", what, fix)
    leader = values.text("leader", ADDRESS)
    if index != main and not leader:
        raise ConfigError.of(ADDRESS, "not set: the main node cannot be found", fix)
    job = values.text("job", "AWS_BATCH_JOB_ID").partition("#")[0]
    return values.engine(
        "batch",
        (index - main) % count,
        count,
        leader=leader,
        job=f"batch-{job}" if job else "",
        attempt=values.number("attempt", "AWS_BATCH_JOB_ATTEMPT", least=1),
        stop_s=STOP_S,
    )
