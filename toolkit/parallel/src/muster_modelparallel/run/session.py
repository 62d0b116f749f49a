"""The one state of the process: what `init` has made of parameters, ranks and groups.

Everything that is not constant after `init` hangs on the `Session`: the wrapped model and
optimizer, and the microbatch of a step that is at work. There is no other state in this package.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from muster_modelparallel.errors import (
    ModelParallelError,
    NotBuiltError,
    NotStartedError,
    SettingsError,
)
from muster_modelparallel.run.own_variables import OwnVariables, PlanRequest, read_variables
from muster_modelparallel.settings.config import Config, Reading, check_world, read_config
from muster_modelparallel.shape.topology import Topology

if TYPE_CHECKING:
    from muster_modelparallel.model.delayed import Delayed
    from muster_modelparallel.run.job_store import JobStore
    from muster_modelparallel.run.mesh import Mesh
    from muster_modelparallel.run.offload import Offload
    from muster_modelparallel.run.pipeline.steps import CutSteps

_log = logging.getLogger("muster_modelparallel")


class ModelLike(Protocol):
    """What the rest of the package needs of a wrapped model (`wrap.model.DistributedModel`)."""

    @property
    def module(self) -> Any:
        """The user's own module."""

    @property
    def is_cut(self) -> bool:
        """Whether it has several stages, on several ranks."""

    def begin_step(self, microbatches: int) -> None:
        """Called by a step function before its first microbatch."""

    def end_step(self) -> None:
        """Called by a step function after its last microbatch; not where it raised."""

    def state_dict(self) -> dict[str, Any]:
        """The whole model, by the names of the user's module."""

    def local_state_dict(self) -> dict[str, Any]:
        """What this rank holds, marked `_smp_is_partial`."""

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Takes either of the two."""


class OptimizerLike(Protocol):
    """What the rest of the package needs of a wrapped optimizer."""

    def cut(self, sharding: Any) -> None:
        """Called when parameters of the model have been cut over replicas."""

    def leave(self, parameters: Iterable[Any]) -> None:
        """Called when these have become other stages', with what is known of them."""

    def state_dict(self) -> dict[str, Any]:
        """The state of the whole model."""

    def local_state_dict(self, gather_if_shard: bool = True) -> dict[str, Any]:
        """What this rank holds, marked `_smp_is_partial`."""

    @property
    def is_sharded(self) -> bool:
        """Whether replicas hold different states, so that all must give them together."""

    def load_state_dict(self, state_dict: dict[str, Any], masters_only: bool = False) -> None:
        """Takes either of the two; of it the master weights and the loss scale alone."""


@dataclass(frozen=True, slots=True)
class Microbatch:
    """The microbatch that a step function is working on: `index` of `count`."""

    index: int
    count: int


class Saving(NamedTuple):
    """A checkpoint that is being written into `folder`, and what to say where that fails.
    `written`: by all ranks; `done`: it is in its place."""

    what: str
    folder: str
    written: Future[None]
    done: Future[None]


@dataclass(slots=True)
class Session:
    """What holds between `init` and the end of the process.

    `model`, `optimizer` and `microbatch` are set by those who own them: the wrappers and `step`.
    `optimizers`: all that were wrapped, `optimizer` the last one.
    `translate_functions` are pairs (to the other format, from it) that full checkpoints go through.
    `plan`: the model is planned in place of being trained; `topology` is then that of this process
    alone, `config` that of the job. `plan_in`: the file of a plan to cut the model by, "" for none.
    `cut_steps`: what runs the steps of a model of several stages, once there is one. `offload`:
    where activations go between the passes, None where they stay. `saving`: the save in pieces
    that was begun last; its ranks meet in `pieces_group`. `delayed`: the parameters that have no
    memory yet; None where all have theirs. `notes`: what has been said. `calling`: the script's
    call that exchanges objects of its own, "" outside one.
    """

    config: Config
    topology: Topology
    mesh: Mesh
    reading: Reading
    model: ModelLike | None = None
    optimizer: OptimizerLike | None = None
    microbatch: Microbatch | None = None
    plan: PlanRequest | None = None
    plan_in: str = ""
    is_tracing: bool = False
    cut_steps: CutSteps | None = None
    offload: Offload | None = None
    translate_functions: list[Any] = field(default_factory=list)
    optimizers: list[OptimizerLike] = field(default_factory=list)
    saving: Saving | None = None
    pieces_group: Any = None
    delayed: Delayed | None = None
    notes: set[str] = field(default_factory=set)
    calling: str = ""

    def note(self, text: str) -> None:
        """Says it in the log of rank 0, once."""
        if self.mesh.rank == 0 and text not in self.notes:
            self.notes.add(text)
            _log.warning("%s", text)

    def has_delayed(self, parameters: Iterable[Any]) -> bool:
        """Whether any of them has no memory yet."""
        return self.delayed is not None and any(map(self.delayed.has, parameters))

    def cut_optimizers(self, sharding: Any) -> None:
        """All that there are take the parts of parameters that have been cut."""
        for one in self.optimizers:
            one.cut(sharding)


class _Holder:
    """Where the session of the process is. The store outlives it: rank 0's store must not
    end while another rank still reads."""

    session: Session | None = None
    point: JobStore | None = None


def current() -> Session:
    """The session. Raises NotStartedError before `init`."""
    if _Holder.session is None:
        raise NotStartedError(
            "muster_modelparallel was used before it was initialised",
            "call smp.init() at the beginning of the script",
        )
    return _Holder.session


def is_initialized() -> bool:
    """Whether `init` has been called in this process."""
    return _Holder.session is not None


def is_tracing() -> bool:
    """Whether the model is being followed, to find its partition."""
    return _Holder.session is not None and _Holder.session.is_tracing


def init(config: Mapping[str, object] | None = None) -> None:
    """Reads the parameters, meets the other ranks, and makes the groups. All ranks call it.

    `config`: parameters of the script; those of the launcher go before them. A second call with the
    same parameters or none does nothing. Raises SettingsError for parameters that cannot be used,
    that ranks were not given alike, or that differ from those of an earlier call, NotBuiltError for
    those whose work comes with a later release; both on every rank.
    """
    if _Holder.session is not None and config is None:
        return
    if _Holder.session is not None:
        _check_same(_Holder.session.config, _read(config).config)
        return
    import torch

    from muster_modelparallel.run import mesh as meshes
    from muster_modelparallel.run.job_store import job_store
    from muster_modelparallel.run.offload import Offload

    point = _Holder.point = job_store(os.environ, _Holder.point)
    me = point.me
    reading, own = _agree(point, config)
    found, plan = reading.config, own.plan
    if plan and me.size > 1:
        raise SettingsError(
            f"MODELPARALLEL_PLAN_OUT is set in a job of {me.size} ranks, but one process plans",
            f"run one process with MODELPARALLEL_RANKS={me.size}: muster plan SCRIPT --model",
        )
    if not plan or "pipeline_parallel_degree" in reading.given:
        check_world(found, plan.ranks if plan else me.size)
    pipeline = 1 if plan else found.pipeline_parallel_degree
    refuse_unbuilt(found)
    topology = Topology(me.size, pipeline, found.tensor_parallel_degree, found.placement)
    made = meshes.make(point, topology, found.ddp_dist_backend, own.objects_timeout_s)
    session = Session(found, topology, made, reading, plan=plan, plan_in=own.plan_in)
    if found.offload_activations or found.sm_activation_offloading:
        if made.device.type == "cuda" and found.shard_degree > 1:
            raise NotBuiltError(
                "offloaded activations beside parameters that are cut over replicas come with a "
                "later release of muster",
                "leave out offload_activations, or sharded_data_parallel_degree",
            )
        if made.device.type == "cuda":
            session.offload = Offload(made.device, found.activation_loading_horizon)
        elif me.rank == 0:
            _log.warning("activations are not offloaded: they are in the host's memory already")
    if found.random_seed is not None:
        torch.manual_seed(found.random_seed)
    _Holder.session = session
    for note in (*own.notes, *reading.notes):
        session.note(note)


def shutdown() -> None:
    """Forgets the session and ends the groups that `init` has made; without one, nothing. Not
    needed at the end of a script."""
    session, _Holder.session = _Holder.session, None
    if session is None:
        return
    if session.saving is not None:
        with suppress(Exception):  # it has been said
            session.saving.done.result(session.mesh.objects_timeout_s)
    session.mesh.close()


def refuse_unbuilt(config: Config) -> None:
    """Raises NotBuiltError for the first value that the running code cannot do yet."""
    for key, idle in _IDLE.items():
        value = getattr(config, key)
        if value not in idle:
            raise NotBuiltError(
                f"{key} is {value!r}, which comes with a later release of muster",
                f"leave {key} out or set it to {idle[-1]!r}",
            )


# the values with which nothing is to be done that is not done yet; the last one is what we propose
_IDLE: Mapping[str, tuple[object, ...]] = {
    "tensor_parallel_degree": (1,),
}


def _read(config: Mapping[str, object] | None) -> Reading:
    return read_config(os.environ, sys.argv[1:], config)


def _check_same(first: Config, second: Config) -> None:
    for key, (old, new) in _differences(_texts(first), _texts(second)).items():
        raise SettingsError(
            f"smp.init() was called before with {key}={old}, and now with {key}={new}",
            "call it once, or each time with the same parameters",
        )


def _agree(point: JobStore, config: Mapping[str, object] | None) -> tuple[Reading, OwnVariables]:
    """What all ranks have read alike. Raises SettingsError on all of them where they have not."""
    reading: Reading | None = None
    own: OwnVariables | None = None
    problem: ModelParallelError | None = None
    try:
        own = read_variables(os.environ)
        reading = _read(config)
    except ModelParallelError as error:
        problem = error
    mine = {"problem": str(problem or ""), "config": _texts(reading.config) if reading else {}}
    said = [json.loads(word) for word in point.exchange(json.dumps(mine))]
    if problem is not None:
        raise problem
    for rank, word in enumerate(said):
        if word["problem"]:
            raise SettingsError(f"rank {rank} cannot use its parameters: {word['problem']}")
    for rank, word in enumerate(said):
        for key, (first, other) in _differences(said[0]["config"], word["config"]).items():
            raise SettingsError(
                f"the ranks were not given the same parameters: {key} is {first} on rank 0 and "
                f"{other} on rank {rank}",
                "give every rank the same mp_parameters and call smp.init() alike on all of them",
            )
    assert reading is not None and own is not None
    return reading, own


def _texts(config: Config) -> dict[str, str]:
    return {each.name: repr(getattr(config, each.name)) for each in fields(config)}


def _differences(
    first: Mapping[str, str], second: Mapping[str, str]
) -> dict[str, tuple[str | None, str | None]]:
    return {
        key: (first.get(key), second.get(key))
        for key in {**first, **second}
        if first.get(key) != second.get(key)
    }
