"""A torch optimizer whose update happens on the servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from muster_parameter_server.client.worker import TIMEOUT_S, ParameterServer
from muster_parameter_server.errors import SettingsError
from muster_parameter_server.options import FIELDS, MASTER, SYNC, Optimizer, checked


class ServerOptimizer(torch.optim.Optimizer):  # type: ignore[misc]  # torch is untyped here
    """`step()` pushes every parameter's `.grad` and pulls the parameters.

    A torch.optim.Optimizer to its users: `zero_grad`, `param_groups` (so learning rate schedulers
    work), `state_dict` in the form of torch.optim.SGD, Adam and AdamW. Differences: a parameter
    whose `.grad` is None counts as one with a gradient of zeros; parameters that need no gradient
    when it connects stay as they are and are not shared; groups are fixed once connected; one for
    each process; no maximize, no amsgrad; `state_dict` asks the servers; `load_state_dict` has to
    be called by all workers at the same step, and rank 0's parameters and state count.
    Consistency: `ParameterServer.push_pull`.

        optimizer = ServerOptimizer(model.parameters(), sgd(lr=0.1, momentum=0.9))
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer: Optimizer,
        *,
        mode: str = SYNC,
        staleness: float | None = None,
        timeout_s: float = TIMEOUT_S,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """params: tensors, (name, tensor) pairs, or groups `{"params": ..., "lr": ...}`.

        Connects; when it returns, every worker's parameters hold rank 0's values. The rest, and
        what it raises: `ParameterServer.connect`.
        """
        self._name = checked(optimizer).name
        self._server: ParameterServer | None = None
        given, names = _unnamed(params)
        super().__init__(given, _defaults(optimizer))
        members = [(p, g) for g, group in enumerate(self.param_groups) for p in group["params"]]
        self._frozen = {n: p for n, (p, _) in enumerate(members) if not p.requires_grad}
        self._shared = [number for number, (p, _) in enumerate(members) if p.requires_grad]
        self._group_of = [members[number][1] for number in self._shared]
        self._used = sorted(set(self._group_of))  # their places are group numbers without gaps
        self._server = ParameterServer.connect(
            [(names.get(id(p), ""), p) for p in (members[number][0] for number in self._shared)],
            # the first group with momentum decides that the servers keep room for it
            max(self._optimizers(), key=lambda one: one.values().get("momentum", 0.0)),
            mode=mode,
            staleness=staleness,
            groups=[self._used.index(group) for group in self._group_of],
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
        """One push and pull; the closure's loss, where one is given. Raises as `push_pull`;

        SettingsError for a parameter that was frozen at the start and has a gradient now.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, parameter in self._frozen.items():
            if parameter.grad is not None:
                raise SettingsError(
                    f"parameter {number} has a gradient, but needed none when the optimizer "
                    "connected, so the servers do not have it",
                    "set requires_grad before making the ServerOptimizer; lr 0 in a group of its "
                    "own keeps a parameter still until then",
                )
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
        steps = float(self.server.version)
        kept = {}
        for place, number in enumerate(self._shared):
            plain = self.param_groups[self._group_of[place]].get("momentum", 1.0) == 0
            half = self.server.parameters[place].element_size() == 2
            # what torch.optim would keep of this parameter; and the copy that is not rounded
            slots = [slot for slot in state if (half if slot == MASTER else not plain)]
            kept[number] = {slot: state[slot][place] for slot in slots}
            if self._name != "sgd":
                # a tensor for each: torch.optim counts on in the very tensors that it is given
                kept[number]["step"] = torch.tensor(steps)
        return {**found, "state": {number: one for number, one in kept.items() if one}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Call it on all workers at the same step; parameters and state of rank 0 count.

        Takes what `state_dict`, or torch.optim's optimizer of the same name, gave.
        Raises SettingsError when it is of other parameters or another optimizer.
        """
        self._require_loadable(state_dict)
        super().load_state_dict({**state_dict, "state": {}})
        kept = [state_dict["state"].get(number) for number in self._shared]
        if not any(kept):
            self.server.load()
            return
        names = {slot for one in kept if one for slot, value in one.items() if value is not None}
        names |= set(self.server.slots)  # torch.optim keeps none of a parameter without gradients
        state = {
            slot: [
                _absent(slot, p) if one is None or one.get(slot) is None else one[slot]
                for one, p in zip(kept, self.server.parameters, strict=True)
            ]
            for slot in names - {"step"}
        }
        steps = max(int(one.get("step", 1)) for one in kept if one)
        self.server.load(state, steps)

    def _require_loadable(self, state_dict: Mapping[str, Any]) -> None:
        sizes = [len(group["params"]) for group in self.param_groups]
        theirs = [len(group["params"]) for group in state_dict["param_groups"]]
        if sizes != theirs:
            raise SettingsError(
                f"the state has groups of {theirs} parameters, this optimizer of {sizes}",
                "load what the same optimizer has saved",
            )
        for group in state_dict["param_groups"]:
            _of_group(self._name, group)

    def _optimizers(self) -> list[Optimizer]:
        """For each group its hyperparameters as they are now."""
        return [_of_group(self._name, group) for group in self.param_groups]


def _absent(slot: str, parameter: torch.Tensor) -> torch.Tensor:
    """What stands in a state for a parameter of which nothing was saved."""
    if slot != MASTER:
        return torch.zeros_like(parameter)
    return parameter.detach().float() if parameter.element_size() == 2 else torch.zeros(0)


def _unnamed(params: Iterable[Any]) -> tuple[list[Any], dict[int, str]]:
    """The same without names, and the names by the tensors' ids."""
    names: dict[int, str] = {}

    def bare(one: Any) -> Any:
        if isinstance(one, dict) and not isinstance(one["params"], torch.Tensor):
            return {**one, "params": [bare(member) for member in one["params"]]}
        if isinstance(one, tuple):
            names[id(one[1])] = str(one[0])
            return one[1]
        return one

    return [bare(one) for one in params], names


def _defaults(optimizer: Optimizer) -> dict[str, Any]:
    """In the words of torch.optim."""
    values: dict[str, Any] = dict(checked(optimizer).values())
    if "beta1" in values:
        values["betas"] = (values.pop("beta1"), values.pop("beta2"))
    if "nesterov" in values:
        values["nesterov"] = bool(values["nesterov"])
    return values


def _of_group(name: str, group: Mapping[str, Any]) -> Optimizer:
    """Raises SettingsError for what the servers cannot do."""
    values = dict(group)
    for refused in ("maximize", "amsgrad"):
        if values.get(refused):
            raise SettingsError(f"{name}: {refused} is not supported", f"leave {refused} out")
    if values.get("decoupled_weight_decay", name == "adamw") is not (name == "adamw"):
        raise SettingsError(
            f"{name}: decoupled_weight_decay={values['decoupled_weight_decay']!r}",
            "adamw has decoupled weight decay, adam has not",
        )
    if "betas" in values:
        values["beta1"], values["beta2"] = values["betas"]
    missing = [field for field in FIELDS[name] if field not in values]
    if missing:
        raise SettingsError(f"{name}: a group without {', '.join(missing)}", "load its own state")
    return checked(Optimizer(name, tuple(float(values[field]) for field in FIELDS[name])))
