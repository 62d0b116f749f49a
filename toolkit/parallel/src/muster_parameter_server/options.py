"""What the script chooses, and how it travels (pure): optimizer, mode, staleness, tensors.

Every worker registers the same; `differences` says in words what is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from muster_parameter_server.errors import ProtocolError, SettingsError
from muster_parameter_server.layout import TensorSpec
from muster_parameter_server.wire.frames import DTYPES, PAYLOAD_LIMIT_BYTES

SYNC = "sync"
ASYNC = "async"
FIELDS: Mapping[str, tuple[str, ...]] = {
    "sgd": ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    "adam": ("lr", "beta1", "beta2", "eps", "weight_decay"),
    "adamw": ("lr", "beta1", "beta2", "eps", "weight_decay"),
}
SLOTS: Mapping[str, tuple[str, ...]] = {
    "sgd": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
}
MASTER = "master"  # in a state beside the slots: the float32 copies of half types
Hyper = tuple[float, ...]  # values in the order of FIELDS


class Optimizer(NamedTuple):
    """What a server does with a gradient: `name` of FIELDS and its values."""

    name: str
    hyper: Hyper

    def values(self) -> dict[str, float]:
        return dict(zip(FIELDS[self.name], self.hyper, strict=True))


def sgd(
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> Optimizer:
    """Like torch.optim.SGD. Raises SettingsError."""
    return checked(Optimizer("sgd", (lr, momentum, dampening, weight_decay, float(nesterov))))


def adam(
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Like torch.optim.Adam. Raises SettingsError."""
    return checked(Optimizer("adam", (lr, *betas, eps, weight_decay)))


def adamw(
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> Optimizer:
    """Like torch.optim.AdamW. Raises SettingsError."""
    return checked(Optimizer("adamw", (lr, *betas, eps, weight_decay)))


def checked(optimizer: Optimizer) -> Optimizer:
    """The same with plain floats. Raises SettingsError for a value that makes no sense."""
    try:
        found = Optimizer(optimizer.name, tuple(float(value) for value in optimizer.hyper))
        values = found.values()
    except (TypeError, ValueError, KeyError) as error:
        raise SettingsError(f"{optimizer} is no optimizer", "use sgd(), adam() or adamw()"
                            ) from error  # fmt: skip
    for name, value in values.items():
        highest = 1.0 if name.startswith("beta") else float("inf")
        if not isfinite(value) or value < 0 or value >= highest:
            raise SettingsError(f"{found.name}: {name}={value!r} makes no sense", f"correct {name}")
    if values.get("nesterov") and (not values["momentum"] or values["dampening"]):
        raise SettingsError("sgd: nesterov needs momentum and no dampening", "set momentum=0.9")
    return found


class Registration(NamedTuple):
    """What all workers say alike. `staleness` None: unbounded; 0 in sync mode."""

    mode: str
    staleness: int | None
    timeout_s: float
    optimizer: str
    slots: tuple[str, ...]
    workers: int
    servers: tuple[str, ...]
    tensors: tuple[TensorSpec, ...]

    @property
    def groups(self) -> int:
        return 1 + max((tensor.group for tensor in self.tensors), default=0)

    def to_message(self) -> dict[str, object]:
        tensors = [[one.dtype, list(one.shape), one.group, one.label] for one in self.tensors]
        return {**self._asdict(), "tensors": tensors}


def slots_of(name: str, groups: Sequence[Hyper]) -> tuple[str, ...]:
    """What the server has to remember for each element; momentum only where it is used."""
    return SLOTS[name] if any(uses_slots(name, hyper) for hyper in groups) else ()


def uses_slots(name: str, hyper: Hyper) -> bool:
    return name != "sgd" or hyper[FIELDS["sgd"].index("momentum")] != 0


def registration_of(message: Mapping[str, object]) -> Registration:
    """What a REGISTER frame says. Raises ProtocolError unless every part is possible."""
    try:
        found = Registration(
            mode=_text(message["mode"]),
            staleness=None if message["staleness"] is None else _count(message["staleness"]),
            timeout_s=_seconds(message["timeout_s"]),
            optimizer=_text(message["optimizer"]),
            slots=tuple(_text(slot) for slot in _list(message["slots"])),
            workers=_count(message["workers"]),
            servers=tuple(_text(server) for server in _list(message["servers"])),
            tensors=tuple(_tensor(tensor) for tensor in _list(message["tensors"])),
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"a registration that cannot be: {error}") from error
    known = SLOTS.get(found.optimizer)
    if found.mode not in (SYNC, ASYNC) or known is None or found.slots not in ((), known):
        raise ProtocolError(f"a registration that cannot be: {found._replace(tensors=())}")
    if sum(tensor.size_bytes for tensor in found.tensors) > PAYLOAD_LIMIT_BYTES:
        raise ProtocolError("a registration of more bytes than any machine has")
    if found.groups > max(1, len(found.tensors)):
        raise ProtocolError("a registration with more groups than tensors")
    return found


def hyper_of(message: Mapping[str, object], found: Registration) -> tuple[Hyper, ...]:
    """The hyperparameters that a push carries, for each group. Raises ProtocolError."""
    try:
        groups = tuple(
            checked(Optimizer(found.optimizer, tuple(_number(v) for v in _list(group)))).hyper
            for group in _list(message["hyper"])
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"hyperparameters that cannot be: {error}") from error
    if len(groups) != found.groups:
        raise ProtocolError(f"hyperparameters of {len(groups)} groups instead of {found.groups}")
    if set(slots_of(found.optimizer, groups)) - set(found.slots):
        raise ProtocolError(
            "momentum was 0 when the workers connected and is not now",
            "connect with the momentum that will be used",
        )
    return groups


def number_of(message: Mapping[str, object], name: str) -> int:
    """A count of a message. Raises ProtocolError."""
    try:
        return _count(message[name])
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"a message without a number {name!r}") from error


def differences(first: Registration, second: Registration) -> Iterator[tuple[str, str, str]]:
    """What differs: its name, and what each of the two says."""
    for name in Registration._fields:
        mine, theirs = getattr(first, name), getattr(second, name)
        if mine == theirs:
            continue
        if name != "tensors":
            yield name, repr(mine), repr(theirs)
        elif len(mine) != len(theirs):
            yield "number of tensors", str(len(mine)), str(len(theirs))
        else:
            number = next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
            yield f"tensor {number}", str(mine[number]), str(theirs[number])


def _tensor(value: object) -> TensorSpec:
    dtype, shape, group, label = _list(value)
    if _text(dtype) not in DTYPES:
        raise ValueError(f"dtype {dtype!r}")
    sizes = tuple(_count(size) for size in _list(shape))
    found = TensorSpec(_text(dtype), sizes, _count(group), _text(label))
    if len(sizes) > 64 or found.size_bytes > PAYLOAD_LIMIT_BYTES:
        raise ValueError(f"shape {sizes}")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 300:
        raise ValueError(f"{value!r:.60} is no short text")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.60} is no list")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 48:
        raise ValueError(f"{value!r:.60} is no count")
    return value


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"{value!r:.60} is no number")
    return float(value)


def _seconds(value: object) -> float:
    found = _number(value)
    if not 0 < found <= 604_800:
        raise ValueError(f"{value!r} s is no time from 0 to a week")
    return found
