"""What a training script uses: `ParameterServer.connect`, `push_pull`, `pull`, `state`, `load`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType

from torch import Tensor

from muster_parameter_server.client.buffers import Buffers, as_tensors, empty_state
from muster_parameter_server.client.ending import AtEnd
from muster_parameter_server.client.exchange import Exchange, Request
from muster_parameter_server.client.joining import join
from muster_parameter_server.errors import SettingsError
from muster_parameter_server.layout import TensorSpec, segments
from muster_parameter_server.memory import spec_of
from muster_parameter_server.options import (
    ASYNC,
    MASTER,
    SYNC,
    Optimizer,
    Registration,
    checked,
    slots_of,
)
from muster_parameter_server.settings import WorkerSettings, read_worker
from muster_parameter_server.wire.frames import Kind

TIMEOUT_S = 300.0
STALENESS = 1  # pushes ahead of the slowest, in async mode
TRANSPORT = "PARAMETER_SERVER_TRANSPORT"  # tcp: never a local socket


class ParameterServer:
    """A worker's connection to all servers; make it with `connect`.

    Not safe for several threads at once. Ends with `close()`, `with`, or the end of the script
    (`ending` tells which ends are good). After an error the connection is closed: the job has
    failed, on every worker.
    """

    def __init__(
        self,
        exchange: Exchange,
        registration: Registration,
        buffers: Buffers,
        rank: int,
        optimizer: Optimizer,
    ) -> None:
        self.rank = rank
        self.workers = registration.workers
        self.slots = registration.slots  # what `state` holds
        self.parameters: list[Tensor] = buffers.tensors
        self.step = 0  # pushes of this worker
        self.version = 0  # updates that server 0 had made when it answered last
        self._exchange = exchange
        self._registration = registration
        self._buffers = buffers
        self._optimizers = [optimizer] * registration.groups
        self._at_end = AtEnd(exchange)

    @classmethod
    def connect(
        cls,
        parameters: Iterable[Tensor] | Iterable[tuple[str, Tensor]],
        optimizer: Optimizer,
        *,
        mode: str = SYNC,
        staleness: float | None = None,
        groups: Sequence[int] | None = None,
        timeout_s: float = TIMEOUT_S,
        environ: Mapping[str, str] | None = None,
    ) -> ParameterServer:
        """Connects to all servers, waits for all workers, and gives all of them rank 0's values.

        parameters: dense tensors of any shape, float32, float64, bfloat16 or float16, on any
        device, no two in the same memory; later they keep shape and dtype. Given with names, as
        `named_parameters()` does, the names are compared across workers; without, tensors of the
        same shape and dtype may change places unnoticed. Rank 0's values count: when `connect`
        returns, every worker's tensors hold them, written in place.
        optimizer: `sgd(...)`, `adam(...)` or `adamw(...)`; the servers apply it. State and master
        copies of half types are float32.
        mode "sync": see `push_pull`. mode "async": a worker is at most `staleness` (0 or more,
        1 when it is left out, `math.inf` for no bound) pushes ahead of the slowest. Sync mode
        takes no staleness.
        groups: for each tensor the number of the group whose hyperparameters are its own; default
        all 0.
        timeout_s: the longest wait for other workers, here and in every call after.
        environ: where the variables of `settings` stand; default the process's own.

        All workers have to give the same, otherwise AgreementError on all of them. Raises every
        class of `errors`.
        """
        given = os.environ if environ is None else environ
        settings = read_worker(given)
        tensors, names = as_tensors(parameters)
        chosen = checked(optimizer)
        specs = _specs(tensors, names, groups)
        told = _registration(settings, specs, chosen, mode, staleness, timeout_s)
        links = join(settings, timeout_s, may_be_local=given.get(TRANSPORT, "") != "tcp")
        exchange = Exchange(links, settings.rank, timeout_s)
        request = Request(Kind.REGISTER, told.to_message(), reply=Kind.READY)
        exchange.ask("connect", [request] * len(links))
        buffers = Buffers(tensors, specs, segments(specs, len(settings.addresses)))
        found = cls(exchange, told, buffers, settings.rank, chosen)
        found.load()
        return found

    def push_pull(
        self,
        gradients: Sequence[Tensor | None],
        optimizers: Sequence[Optimizer] | None = None,
    ) -> list[Tensor]:
        """Pushes one gradient for each parameter, returns the parameters, updated in place.

        gradients: in the order of `parameters`, each of its parameter's shape and dtype, on any
        device; None counts as zeros. optimizers: the hyperparameters of this push for each group,
        when they change (a learning rate schedule); the kind of optimizer stays.

        Promise, sync: returns when all workers have pushed this step. The servers have applied
        the mean of the workers' gradients once, and every worker has the same parameters, bit for
        bit. Hyperparameters have to be equal on all workers.
        Promise, async, with staleness s: the servers apply the gradient alone, at once. When the
        call returns, this worker has made c pushes, the parameters hold all its own, all that
        every other worker made up to its push c - s, and perhaps later ones. Each server's part is
        of one version; parts of different servers may be of different versions.

        Raises WorkerLostError, ServerLostError, AgreementError, DeadlineError; SettingsError for
        gradients that do not fit, and for parameters that the script has written since they came
        (`Tensor._version` tells; writes to `.data` it does not count), before anything is sent.
        """
        self._buffers.require_unchanged()
        runs = self._buffers.gradients(gradients)
        optimizers = self._optimizers if optimizers is None else list(optimizers)
        hyper = [list(checked(optimizer).hyper) for optimizer in optimizers]
        names = {optimizer.name for optimizer in optimizers}
        if len(hyper) != self._registration.groups or names != {self._registration.optimizer}:
            raise SettingsError(
                f"hyperparameters of {len(hyper)} groups and kinds {sorted(names)}, but the "
                f"workers connected with {self._registration.groups} groups and "
                f"{self._registration.optimizer}",
                "change values only",
            )
        self._optimizers = optimizers
        message = {"step": self.step, "hyper": hyper}
        what = f"push of step {self.step}"
        self._ask(what, [Request(Kind.PUSH, message, run) for run in runs])
        self.step += 1
        return self.parameters

    def pull(self) -> list[Tensor]:
        """The newest parameters, written in place; waits for nobody."""
        self._ask("pull", [Request(Kind.PULL, {"what": "parameters"})] * len(self._exchange.links))
        return self.parameters

    def state(self) -> dict[str, list[Tensor]]:
        """The optimizer's state: for each slot one CPU tensor for each parameter, of its shape.

        Slots: momentum_buffer (sgd with momentum), exp_avg and exp_avg_sq (adam, adamw); float64
        for float64 parameters, else float32. Where there are half types also `master`, their
        float32 copies, with empty tensors for other types. `version` says afterwards how many
        updates made it. Any worker may call it alone. In async mode the servers' parts may differ
        in version.
        """
        slots = self._registration.slots
        state = empty_state(self._registration.tensors, slots)
        runs = self._buffers.state(state, slots)
        message = {"what": "state"}
        self._answered("state", [Request(Kind.PULL, message, incoming=run) for run in runs])
        return state

    def load(
        self, state: Mapping[str, Sequence[Tensor]] | None = None, version: int | None = None
    ) -> None:
        """Rank 0's parameters, as they are now, become those of the servers and of all workers.

        state: what `state()` gave, and with it `version` as it was then; only rank 0's count.
        Without them the optimizer begins anew: no moments, version 0, master copies of half types
        from the half values. Every worker has to call it at the same step.
        Raises as `push_pull`; SettingsError for one of `state` and `version` without the other.
        """
        if (state is None) is not (version is None) or (version or 0) < 0:
            raise SettingsError(
                f"load with {'no' if state is None else 'a'} state and version={version}",
                "load(state, version) with what state() gave and server.version, or load()",
            )
        values = [Request(Kind.VALUES, {})] * len(self._exchange.links)
        if self.rank == 0:
            runs = self._buffers.parameters()
            if state is not None:
                kept = self._buffers.checked_state(state, self._registration.slots)
                more = self._buffers.state(kept, self._registration.slots)
                runs = [one + two for one, two in zip(runs, more, strict=True)]
            message = {
                "done": version or 0,
                "slots": state is not None,
                "master": MASTER in (state or {}),
            }
            values = [Request(Kind.VALUES, message, run) for run in runs]
        # first only a word: tensors that no server takes in would wait in the network for the
        # last worker, and a connection on which nothing moves counts as lost
        ask = Request(Kind.LOAD, {}, reply=Kind.READY)
        self._exchange.ask("load", [ask] * len(values))
        self._ask("load", values)

    def close(self) -> None:
        """Says goodbye to all servers; they end when all workers have. May be called twice."""
        self._at_end.cancel()
        self._exchange.goodbye()

    def __enter__(self) -> ParameterServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if kind is None:
            self.close()
        else:
            self._exchange.abort()

    def _ask(self, what: str, requests: Sequence[Request]) -> None:
        """A request whose answer is the parameters."""
        runs = self._buffers.landings()
        self._answered(
            what,
            [one._replace(incoming=run) for one, run in zip(requests, runs, strict=True)],
        )
        self._buffers.landed()

    def _answered(self, what: str, requests: Sequence[Request]) -> None:
        answers = self._exchange.ask(what, requests)
        done = answers[0].get("done")
        self.version = done if isinstance(done, int) else self.version


def _specs(
    tensors: Sequence[Tensor], names: Sequence[str], groups: Sequence[int] | None
) -> tuple[TensorSpec, ...]:
    """Raises SettingsError."""
    numbers = [0] * len(tensors) if groups is None else list(groups)
    if len(numbers) != len(tensors) or any(not 0 <= n < len(tensors) for n in numbers):
        raise SettingsError("groups does not hold one group number for each tensor", "0, 1, ...")
    return tuple(
        spec_of(tensor, number, numbers[number], names[number])
        for number, tensor in enumerate(tensors)
    )


def _bound(staleness: float | None) -> int | None:
    """Of async mode; None: no bound. Raises SettingsError."""
    if staleness is None:
        return STALENESS
    if staleness == math.inf:
        return None
    if isinstance(staleness, bool) or not isinstance(staleness, int) or staleness < 0:
        raise SettingsError(f"staleness={staleness!r} makes no sense", "use 0, more, or math.inf")
    return staleness


def _registration(
    settings: WorkerSettings,
    specs: tuple[TensorSpec, ...],
    optimizer: Optimizer,
    mode: str,
    staleness: float | None,
    timeout_s: float,
) -> Registration:
    """Raises SettingsError."""
    if mode not in (SYNC, ASYNC):
        raise SettingsError(f"mode={mode!r} is unknown", "use 'sync' or 'async'")
    if mode == SYNC and staleness is not None:
        raise SettingsError(
            f"staleness={staleness!r} is given, but mode is 'sync', in which nobody is ahead",
            "leave it out, or use mode='async'",
        )
    if not 0 < timeout_s <= 604_800:
        raise SettingsError(f"timeout_s={timeout_s!r} is no time", "seconds, at most a week")
    return Registration(
        mode,
        0 if mode == SYNC else _bound(staleness),
        float(timeout_s),
        optimizer.name,
        slots_of(optimizer.name, [optimizer.hyper]),
        settings.workers,
        tuple(str(address) for address in settings.addresses),
        specs,
    )
