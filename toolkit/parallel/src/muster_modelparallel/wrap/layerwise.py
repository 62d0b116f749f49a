"""Optimizers whose step is scaled for each tensor: LAMB and NovoGrad.

They take the arguments of the fused kernels that scripts use them in place of; nothing is fused.
Source: You et al. 2019, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
algorithm 2; Ginsburg et al. 2019, "Stochastic Gradient Methods with Layer-wise Adaptive Moments for
Training of Deep Networks", algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from muster_modelparallel.errors import SettingsError

_Betas = tuple[float, float]


class _Layerwise(torch.optim.Optimizer):  # type: ignore[misc]
    """What the two share: the checks, and the loop over parameters.

    `whole_norm`: of all gradients of a model, where the next step updates a part of it."""

    def __init__(self, params: Any, defaults: dict[str, Any], set_grad_none: bool) -> None:
        for name in ("lr", "eps", "weight_decay"):
            if defaults[name] < 0:
                raise SettingsError(f"{name}={defaults[name]} of {type(self).__name__} is below 0")
        if not all(0 <= beta < 1 for beta in defaults["betas"]):
            raise SettingsError(f"betas={defaults['betas']} are not both from 0 to below 1")
        super().__init__(params, defaults)
        self.whole_norm: Tensor | None = None
        self._set_to_none = set_grad_none

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        super().zero_grad(self._set_to_none if set_to_none is None else set_to_none)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters that have a gradient. Returns what `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scale = self._scale([p.grad for p in self._with_grad()])
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                if param.grad.is_sparse:
                    raise SettingsError(f"{type(self).__name__} takes no sparse gradients")
                self._update(param, param.grad * scale, self.state[param], group)
        return loss

    def _with_grad(self) -> Iterable[Tensor]:
        for group in self.param_groups:
            yield from (each for each in group["params"] if each.grad is not None)

    def _scale(self, grads: list[Tensor]) -> float | Tensor:
        """What all gradients are multiplied by."""
        return 1.0

    def _update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        raise NotImplementedError


class FusedLAMB(_Layerwise):
    """LAMB: Adam's direction, scaled for each tensor to the tensor's own norm.

    max_grad_norm: gradients are clipped to this norm of all of them together; 0 or None: not.
    use_nvlamb: tensors without weight decay are scaled too. adam_w_mode False: weight decay is
    added to the gradient. grad_averaging False: the first moment sums gradients.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: _Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float | None = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        _refuse_amsgrad(amsgrad, "FusedLAMB")
        defaults = {
            "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
            "weight_decay": weight_decay, "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
        }  # fmt: skip
        super().__init__(params, defaults, set_grad_none)
        self._decoupled = adam_w_mode
        self._scale_all = use_nvlamb

    def _scale(self, grads: list[Tensor]) -> float | Tensor:
        most = self.defaults["max_grad_norm"]
        if not most or not grads:
            return 1.0
        norm = self.whole_norm
        if norm is None:
            norms = [torch.linalg.vector_norm(_wide(each)) for each in grads]
            norm = torch.linalg.vector_norm(torch.stack(norms))
        return torch.clamp(most / (norm + 1e-6), max=1.0)

    def _update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        decay = group["weight_decay"]
        weight, slope = _wide(param), _wide(grad)
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(param, dtype=slope.dtype)
            state["exp_avg_sq"] = torch.zeros_like(param, dtype=slope.dtype)
        state["step"] += 1
        if decay and not self._decoupled:
            slope = slope.add(weight, alpha=decay)
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.mul_(beta1).add_(slope, alpha=1 - beta1 if group["grad_averaging"] else 1.0)
        second.mul_(beta2).addcmul_(slope, slope, value=1 - beta2)
        late1, late2 = _corrections(group, state["step"])
        move = (first / late1) / ((second / late2).sqrt_().add_(group["eps"]))
        if decay and self._decoupled:
            move.add_(weight, alpha=decay)
        ratio: float | Tensor = 1.0
        if decay or self._scale_all:
            size, length = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(move)
            ratio = torch.where((size > 0) & (length > 0), size / length, torch.ones_like(size))
        param.copy_(weight - group["lr"] * ratio * move)


class FusedNovoGrad(_Layerwise):
    """NovoGrad: momentum over gradients that are divided by a moving norm of their tensor.

    norm_type: 2, or 0 for the largest absolute value. init_zero: the moving norm begins at zero,
    and bias_correction undoes that; else it begins at the first gradient's norm, as in the paper.
    reg_inside_moment: weight decay is part of the momentum, as in the paper; else it is added to
    each step.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: _Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        norm_type: int = 2,
        init_zero: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        _refuse_amsgrad(amsgrad, "FusedNovoGrad")
        if norm_type not in (0, 2):
            raise SettingsError(f"norm_type={norm_type} of FusedNovoGrad is neither 2 nor 0")
        defaults = {
            "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
            "weight_decay": weight_decay, "grad_averaging": grad_averaging,
            "norm_type": norm_type, "init_zero": init_zero,
        }  # fmt: skip
        super().__init__(params, defaults, set_grad_none)
        self._inside = reg_inside_moment

    def _update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        weight, slope = _wide(param), _wide(grad)
        norm = torch.linalg.vector_norm(slope, ord=group["norm_type"] or math.inf)
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(param, dtype=slope.dtype)
            state["exp_avg_sq"] = torch.zeros_like(norm) if group["init_zero"] else norm.square()
        state["step"] += 1
        second = state["exp_avg_sq"]
        if state["step"] > 1 or group["init_zero"]:
            second.mul_(beta2).add_(norm.square(), alpha=1 - beta2)
        late1, late2 = _corrections(group, state["step"])
        size = (second / late2 if group["init_zero"] else second).sqrt()
        move = slope / (size + group["eps"])
        if self._inside:
            move.add_(weight, alpha=group["weight_decay"])
        first = state["exp_avg"]
        first.mul_(beta1).add_(move, alpha=1 - beta1 if group["grad_averaging"] else 1.0)
        change = first / late1
        if not self._inside:
            change.add_(weight, alpha=group["weight_decay"])
        param.copy_(weight - group["lr"] * change)


def _corrections(group: dict[str, Any], step: int) -> tuple[float, float]:
    """By what the two moments are too small after so many steps from zero."""
    if not group["bias_correction"]:
        return 1.0, 1.0
    beta1, beta2 = group["betas"]
    return 1 - beta1**step if group["grad_averaging"] else 1.0, 1 - beta2**step


def _wide(tensor: Tensor) -> Tensor:
    """The tensor in at least 32 bits, in which moments are kept too."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _refuse_amsgrad(amsgrad: bool, name: str) -> None:
    if amsgrad:
        raise SettingsError(f"{name} has no AMSGrad variant", "leave amsgrad out")
