"""The toolkit's logger."""

from __future__ import annotations

import logging

_FORMAT = "%(asctime)s %(name)-12s %(levelname)-8s %(message)s"


def get_logger() -> logging.Logger:
    return logging.getLogger("sagemaker-training-toolkit")


def configure_logger(level: int, log_format: str = _FORMAT, time_format: str | None = None) -> None:
    """Sets up the root logger, and the one of `get_logger`."""
    logging.basicConfig(format=log_format, datefmt=time_format, level=level)
    get_logger().setLevel(level)
