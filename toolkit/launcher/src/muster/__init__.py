"""muster: SageMaker-compatible distributed training that runs anywhere.

In a training script: `muster.metrics(step=10, loss=0.25)` and `muster.runtime.facts()`; to run one:
`muster.local.run("train.py")`. All are imported when they are first used.
"""

TYPE_CHECKING = False  # as of typing, whose import takes time
if TYPE_CHECKING:
    from muster import local as local
    from muster import runtime as runtime
    from muster.runtime.metrics import metrics as metrics


def __getattr__(name: str) -> object:
    if name in ("local", "runtime"):
        from importlib import import_module

        return import_module(f"muster.{name}")
    if name == "metrics":
        from muster.runtime.metrics import metrics

        globals()[name] = metrics  # a script calls it at each step
        return metrics
    raise AttributeError(f"module 'muster' has no attribute {name!r}")
