"""What is known of the backward passes of a step: how many, and whether one went past the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class BackwardWatch:
    """Counts calls of `model.backward`, and sees gradients that came without it.

    For the latter it looks at three parameters: a hook on each would cost more than it tells.
    """

    def __init__(
        self, parameters: Callable[[], Iterable[Any]], is_ours: Callable[[], bool] | None = None
    ) -> None:
        """is_ours: says of a gradient that comes now whether it is; by default, what comes in
        `backward` is."""
        self._parameters = parameters
        self._asked = is_ours
        self._looked_at: list[Any] = []
        self._hooks: list[Any] = []
        self._is_ours = False
        self._microbatch = -1
        self._calls = 0
        self._most = 0
        self.is_stray = False  # since `begin`
        self.is_unaveraged = False  # a stray one that no averaging has taken in

    @property
    def has_begun(self) -> bool:
        """Whether backward was called since `begin`."""
        return self._microbatch >= 0

    def begin(self) -> None:
        """A step begins."""
        self._microbatch, self._calls, self.is_stray = -1, 0, False
        self.look()

    def look(self) -> None:
        """Looks at the parameters that need gradients now."""
        needing = [each for each in self._parameters() if each.requires_grad]
        chosen = [needing[place] for place in (0, len(needing) // 2, -1)] if needing else []
        if [*map(id, chosen)] != [*map(id, self._looked_at)]:
            for hook in self._hooks:
                hook.remove()
            self._hooks = [each.register_post_accumulate_grad_hook(self.see) for each in chosen]
            self._looked_at = chosen

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

    def see(self, _: object) -> None:
        """A gradient came."""
        if not (self._is_ours if self._asked is None else self._asked()):
            self.is_stray = self.is_unaveraged = True
