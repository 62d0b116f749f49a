"""muster: SageMaker-compatible distributed training that runs anywhere.

`muster.local` is imported when it is first used.
"""


def __getattr__(name: str) -> object:
    if name == "local":
        from importlib import import_module

        return import_module("muster.local")
    raise AttributeError(f"module 'muster' has no attribute {name!r}")
