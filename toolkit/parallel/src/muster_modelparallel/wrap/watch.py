"""What is known of the backward passes of a step: how many, and whether one went past the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class BackwardWatch:
    """Counts calls of `model.backward`, and sees gradients that came without it.

    For the latter it looks at three parameters: a hook on each would cost more than it tells.
    """

    def __init__(self, parameters: Callable[[], Iterable[Any]]) -> None:
        self._parameters = parameters
        self._looked_at: tuple[int, ...] = ()
        self._hooks: list[Any] = []
        self._is_ours = False
        self._microbatch = -1
        self._calls = 0
        self._most = 0
        self.is_stray = False

    @property
    def has_begun(self) -> bool:
        """Whether backward was called since `begin`."""
        return self._microbatch >= 0

    def begin(self) -> None:
        """A step begins."""
        self._microbatch, self._calls, self.is_stray = -1, 0, False
        needing = [each for each in self._parameters() if each.requires_grad]
        chosen = [needing[place] for place in {0, len(needing) // 2, -1}] if needing else []
        identity = tuple(sorted(id(each) for each in chosen))
        if identity != self._looked_at:
            for hook in self._hooks:
                hook.remove()
            self._hooks = [each.register_post_accumulate_grad_hook(self._look) for each in chosen]
            self._looked_at = identity

    @contextmanager
    def backward(self, microbatch: int) -> Iterator[bool]:
        """While the model's backward runs. Says whether it is to be the microbatch's last one,
        going by the most that one had so far."""
        if microbatch != self._microbatch:
            self._microbatch, self._calls = microbatch, 0
        self._calls += 1
        is_last = self._calls == self._most
        self._most = max(self._most, self._calls)
        self._is_ours = True
        try:
            yield is_last
        finally:
            self._is_ours = False

    def _look(self, parameter: Any) -> None:
        self.is_stray |= not self._is_ours
