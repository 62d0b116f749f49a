"""A session of this very process, which is then the only rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from muster_modelparallel.run import session
from tests.model_parallel.support.ranks import FORGOTTEN


@contextmanager
def alone(**parameters: object) -> Iterator[session.Session]:
    """While the block lasts; the parameters are those that a script gives to `init`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(FORGOTTEN)}
    with mock.patch.dict(os.environ, kept, clear=True):
        session.init(parameters)
        try:
            yield session.current()
        finally:
            session.shutdown()
