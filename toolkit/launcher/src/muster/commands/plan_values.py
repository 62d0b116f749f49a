"""What `muster plan` shows, as values: found by `preview`, rendered by `plan_view`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from muster.plan.launchplan import LaunchPlan
from muster.types.environment import Environment
from muster.types.job import Job
from muster.types.machine import Machine
from muster.types.masking import Masker
from muster.types.values import NamedTuple

SHOWN_HOSTS = 8


class Row(NamedTuple):
    """One thing that was understood, and where it comes from."""

    name: str
    value: str
    source: str


class Preview(NamedTuple):
    """What there is to show. `plans`: host index -> plan, of the hosts to show and of this one.

    `exports`: the SM_* variables of this host. `environ`: the whole environment of its scripts.
    """

    job: Job
    masker: Masker
    facts: tuple[Row, ...]
    assumptions: tuple[str, ...]
    plans: Mapping[int, LaunchPlan]
    exports: Mapping[str, str]
    environ: Environment


class DryRun(NamedTuple):
    """What a run of `muster local` shows beside the plan.

    `environ`: of the first host, whose base folder `base` stands for. `machine`: this machine ->
    what a host of the run sees of it. `names_resolve`: hosts find one another by name. `rows` take
    the place of those of their name. `shown`: a text about the temporary folder -> the same about
    the real one.
    """

    environ: dict[str, str]
    base: str
    names_resolve: bool
    machine: Callable[[Machine], Machine]
    rows: tuple[Row, ...]
    assumptions: tuple[str, ...]
    shown: Callable[[str], str]

    def improved(self, rows: Iterable[Row]) -> tuple[Row, ...]:
        better = {row.name: row for row in self.rows}
        found = (better.get(row.name, row) for row in rows)
        return tuple(row._replace(value=self.shown(row.value)) for row in found)
