"""The environment of a process as it comes about: layer over layer, and where each value is from.

The environment of a rank has these layers. A later one wins, and nothing else adds to it:

1. `user`: what `train` was started with, without muster's own variables;
2. `machine`: a name and a home for a user that the image does not know;
3. `requirements`: folders of packages that were installed beside the interpreter;
4. `contract`: SM_* and the like, the code folder on PYTHONPATH (`train.environment` up to here);
5. what the plan takes out and sets, each with its reason (`plan.variables.compose`);
6. `launcher`: what torchrun or mpirun makes, then what the plan sets for each rank, then what is
   made when processes start (`LaunchPlan.rank_environment`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

USER, MACHINE, REQUIREMENTS, CONTRACT = "user", "machine", "requirements", "contract"
LAUNCHER, MUSTER = "launcher", "muster"
AT_START = f"{MUSTER}: made when processes start"
RUN_FACTS = "RUN_FACTS"  # of each rank: the file that `muster.runtime` reads


class Environment(Mapping[str, str]):
    """The variables of a process, each with its origin. Never changed: layers make a new one."""

    __slots__ = ("_origins", "_values")

    def __init__(self, values: Mapping[str, str], origins: Mapping[str, str]) -> None:
        self._values = values
        self._origins = origins

    @classmethod
    def of(cls, values: Mapping[str, str], origin: str = USER) -> Environment:
        """`values` themselves where they know their origins, else all of them with this one."""
        return values if isinstance(values, cls) else cls({}, {}).plus(values, origin)

    def plus(self, values: Mapping[str, str], origin: str) -> Environment:
        """With one more layer over it."""
        return Environment(
            {**self._values, **values}, {**self._origins, **dict.fromkeys(values, origin)}
        )

    def less(self, names: Iterable[str]) -> Environment:
        """Without the variables of these names."""
        left_out = frozenset(names)
        kept = {name: value for name, value in self._values.items() if name not in left_out}
        return Environment(kept, self._origins)

    def origin(self, name: str) -> str:
        """Where the value of a variable comes from: a layer, and after a colon the reason."""
        return self._origins[name]

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
