"""Optimizers of Keras, whose gradients are reduced over all ranks before they are applied.

A LossScaleOptimizer applies the gradients only where they are finite. So it must see the reduced
ones, which are the same on all ranks, and the reduction comes before it: if it came in it, a rank
whose own gradients overflow would leave the others alone in a collective.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

Reduce = Callable[[list[Any]], list[Any]]
_KERAS = ("keras", "tf_keras")


def keras_optimizer(optimizer: Any, reduce: Reduce, name: str | None) -> Any:
    """A new optimizer of a class derived from that of `optimizer`, or from LossScaleOptimizer."""
    config = optimizer.get_config()
    if name is not None:
        config["name"] = name
    scaler = _scaler_of(optimizer)
    if scaler is None:
        result: Any = _distributed(type(optimizer), reduce).from_config(config)
    else:
        inner = type(optimizer).from_config
        kind = type(scaler(inner(dict(config))))  # Keras 2 chooses one of its classes
        result = _distributed(kind, reduce)(inner(config))
        result._muster_scaled = False
    result._muster_complete = True
    return result


def _scaler_of(optimizer: Any) -> Any:
    """The LossScaleOptimizer that `compile` would put around this one; None if it would not."""
    roots = [each.__module__.partition(".")[0] for each in type(optimizer).__mro__]
    family = next((root for root in roots if root in _KERAS), None)
    if family is None:
        return None
    precision = importlib.import_module(family).mixed_precision
    mixed = precision.global_policy().name == "mixed_float16"
    scaler = precision.LossScaleOptimizer
    return scaler if mixed and not isinstance(optimizer, scaler) else None


def _distributed(base: Any, reduce: Reduce) -> Any:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        reduced = reduce(list(grads))
        if self._muster_scaled:
            return base.apply(self, reduced, trainable_variables)
        # a loop of one's own that does not scale its loss: there is nothing to scale back
        return self.inner_optimizer.apply(reduced, trainable_variables)

    def apply_pairs(self: Any, grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
        gradients, variables = zip(*grads_and_vars, strict=True)
        pairs = zip(reduce(list(gradients)), variables, strict=True)
        return base.apply_gradients(self, list(pairs), *arguments, **options)

    def scale_loss(self: Any, loss: Any) -> Any:
        self._muster_scaled = True
        return base.scale_loss(self, loss)

    def set_attribute(self: Any, name: str, value: Any) -> None:
        # all that a loss scale tells the optimizer that it is put around: of Keras 3, of Keras 2
        scaled = name == "loss_scale_factor" and value is None
        if self._muster_complete and (scaled or name == "_is_wrapped_by_loss_scale_optimizer"):
            raise ValueError(_OUTSIDE)
        base.__setattr__(self, name, value)

    # Keras 3 applies through `apply`, Keras 2 through `apply_gradients`
    own: dict[str, Any] = {"apply_gradients": apply_pairs}
    if hasattr(base, "apply"):
        own = {"apply": apply, "scale_loss": scale_loss}
    # the module too is the base's, so that a model that was saved finds the base when it is loaded
    place = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    state = {"_muster_scaled": True, "_muster_complete": False, "__setattr__": set_attribute}
    return type(base)(base.__name__, (base,), {**place, **state, **own})


_OUTSIDE = (
    "an optimizer was put around a DistributedOptimizer (compile does so for a model whose own "
    "policy is mixed_float16), and ranks would part where the gradients of one overflow: write "
    "DistributedOptimizer(LossScaleOptimizer(optimizer))"
)
