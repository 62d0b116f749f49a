"""Real processes on one machine; every job is checked for survivors afterwards."""

from tests.support.fixtures import cluster

__all__ = ["cluster"]
