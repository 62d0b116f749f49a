"""A torch optimizer whose update happens on the servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from muster_parameter_server.errors import SettingsError
from muster_parameter_server.options import FIELDS, SYNC, Optimizer, checked
from muster_parameter_server.worker import TIMEOUT_S, ParameterServer


class ServerOptimizer(torch.optim.Optimizer):  # type: ignore[misc]  # torch is untyped here
    """`step()` pushes every parameter's `.grad` and pulls the parameters.

    A torch.optim.Optimizer to its users: `zero_grad`, `param_groups` (so learning rate schedulers
    work), `state_dict` in the form of torch.optim.SGD, Adam and AdamW. Differences: a parameter
    whose `.grad` is None counts as one with a gradient of zeros; parameters that need no gradient
    stay as they are and are not shared; groups are fixed once connected; `state_dict` asks the
    servers; `load_state_dict` has to be called by all workers at the same step, and rank 0's
    parameters and state count. Consistency: `ParameterServer.push_pull`.

        optimizer = ServerOptimizer(model.parameters(), sgd(lr=0.1, momentum=0.9))
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer: Optimizer,
        *,
        mode: str = SYNC,
        staleness: int | None = 1,
        timeout_s: float = TIMEOUT_S,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """params: tensors, (name, tensor) pairs, or groups `{"params": ..., "lr": ...}`.

        Connects; when it returns, every worker's parameters hold rank 0's values. The rest, and
        what it raises: `ParameterServer.connect`.
        """
        self._name = checked(optimizer).name
        self._server: ParameterServer | None = None
        super().__init__(_unnamed(params), _defaults(optimizer))
        members = [(p, g) for g, group in enumerate(self.param_groups) for p in group["params"]]
        self._shared = [number for number, (p, _) in enumerate(members) if p.requires_grad]
        self._group_of = [members[number][1] for number in self._shared]
        self._server = ParameterServer.connect(
            [members[number][0] for number in self._shared],
            # the first group with momentum decides that the servers keep room for it
            max(self._optimizers(), key=lambda one: one.values().get("momentum", 0.0)),
            mode=mode,
            staleness=staleness,
            groups=self._groups(),
            timeout_s=timeout_s,
            environ=environ,
        )

    @property
    def server(self) -> ParameterServer:
        """The connection."""
        if self._server is None:
            raise SettingsError("the optimizer is not connected", "construct it first")
        return self._server

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One push and pull; the closure's loss, where one is given. Raises as `push_pull`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = self._optimizers()
        self.server.push_pull(
            [parameter.grad for parameter in self.server.parameters],
            [found[group] for group in self._used],
        )
        return loss

    def close(self) -> None:
        """Says goodbye to the servers."""
        self.server.close()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only while constructing. Raises SettingsError afterwards."""
        if self._server is not None:
            raise SettingsError("groups cannot be added once connected", "give all at the start")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Groups and the servers' state, as torch's optimizer of the same name would give it."""
        found: dict[str, Any] = super().state_dict()
        state = self.server.state()
        if not self.server.version:
            return found
        more = {} if self._name == "sgd" else {"step": torch.tensor(float(self.server.version))}
        plain = [group.get("momentum", 1.0) == 0 for group in self.param_groups]  # keeps no slots
        kept = {
            number: {**{slot: one[place] for slot, one in state.items()}, **more}
            for place, number in enumerate(self._shared)
            if not plain[self._group_of[place]]
        }
        return {**found, "state": kept if state else {}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Call it on all workers at the same step; parameters and state of rank 0 count.

        Takes what `state_dict`, or torch.optim's optimizer of the same name, gave.
        Raises SettingsError when it is of other parameters or another optimizer.
        """
        super().load_state_dict({**state_dict, "state": {}})
        kept = [state_dict["state"].get(number) for number in self._shared]
        if not any(kept):
            self.server.load()
            return
        names = {slot for one in kept if one for slot, value in one.items() if value is not None}
        state = {
            slot: [
                torch.zeros_like(p) if one is None or one.get(slot) is None else one[slot]
                for one, p in zip(kept, self.server.parameters, strict=True)
            ]
            for slot in names - {"step"}
        }
        steps = max(int(one.get("step", 1)) for one in kept if one)
        self.server.load(state, steps)

    def _groups(self) -> list[int]:
        """Group numbers without gaps; `_used` holds the groups that have a number."""
        self._used = sorted(set(self._group_of))
        return [self._used.index(group) for group in self._group_of]

    def _optimizers(self) -> list[Optimizer]:
        """For each group its hyperparameters as they are now."""
        return [_of_group(self._name, group) for group in self.param_groups]


def _unnamed(params: Iterable[Any]) -> list[Any]:
    return [one[1] if isinstance(one, tuple) else one for one in params]


def _defaults(optimizer: Optimizer) -> dict[str, Any]:
    """In the words of torch.optim."""
    values: dict[str, Any] = dict(checked(optimizer).values())
    if "beta1" in values:
        values["betas"] = (values.pop("beta1"), values.pop("beta2"))
    if "nesterov" in values:
        values["nesterov"] = bool(values["nesterov"])
    return values


def _of_group(name: str, group: Mapping[str, Any]) -> Optimizer:
    values = dict(group)
    if "betas" in values:
        values["beta1"], values["beta2"] = values["betas"]
    return checked(Optimizer(name, tuple(float(values[field]) for field in FIELDS[name])))
