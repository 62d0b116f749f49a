"""A request that cannot be run, as a person at a Python prompt reads it."""

from __future__ import annotations

from muster.types.errors import ConfigError


class RequestError(ConfigError):
    """A ConfigError whose text is all that is wrong, each with its fix: nothing else shows them."""

    def __str__(self) -> str:
        lines = []
        for problem in self.problems:
            lines.append(str(problem))
            if problem.fix:
                lines.append(f"  Fix: {problem.fix}")
        return "\n".join(lines)
