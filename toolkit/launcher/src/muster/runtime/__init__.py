"""What a training script sees of its run. Every function works without any job, too."""

from muster.runtime.facts import RunFacts, facts

__all__ = ["RunFacts", "facts"]
