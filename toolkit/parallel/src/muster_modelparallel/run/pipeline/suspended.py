"""Calls that stop in the middle and go on later: step functions, at each call of the model.

A call that has to wait runs on a thread of its own, of which only one works at a time; what holds
for threads alone (gradients on or off, autocast, devices, contexts of variables) so stays what it
was at the point of a stop. Each stop costs two switches of threads, so a call whose questions can
be answered at once runs straight on, on the thread of who drives it.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import torch

from muster_modelparallel.run.pipeline.protocols import Autocast

_ENDS_S = 5.0
_STUBBORN = 20  # times that a call is told to end
NOTHING = nullcontext()
_AUTOCAST = ("cpu", "cuda")


class Modes(NamedTuple):
    """Of torch, in one thread. `stream`: the current one of the current GPU, where there is one."""

    grad: bool
    autocast: tuple[Autocast, ...]
    default_device: torch.device | None = None
    stream: Any = None

    @classmethod
    def now(cls) -> Modes:
        found = [
            Autocast(device, True, torch.get_autocast_dtype(device))
            for device in (_AUTOCAST if torch._C._is_any_autocast_enabled() else ())
            if torch.is_autocast_enabled(device)
        ]
        stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None
        # a default device is a mode on this stack; to ask for it takes longer than all else here
        device = torch.get_default_device() if torch._C._len_torch_function_stack() else None
        return cls(torch.is_grad_enabled(), tuple(found), device, stream)

    def held(self) -> AbstractContextManager[None]:
        """Inside, they are as they were."""
        return NOTHING if self == Modes.now() else self._changed()  # nearly always the first

    @contextmanager
    def _changed(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.stream is not None:  # a new thread is on the first GPU
                stack.enter_context(torch.cuda.stream(self.stream))
            if self.default_device is not None and self.default_device.type != "cpu":
                stack.enter_context(self.default_device)
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for one in Modes.now().autocast:
                stack.enter_context(torch.autocast(one.device, enabled=False))
            for one in self.autocast:
                stack.enter_context(torch.autocast(one.device, one.dtype, one.enabled))
            yield


class Outside(NamedTuple):
    """What holds around a call that runs straight, for what is done in the midst of it: nothing
    reaches that from the call's own code, as if this were on a thread of its own."""

    modes: Modes
    inference: bool
    hooks: Any  # on tensors that are saved for backward; those outside of them are not in use

    @classmethod
    def now(cls) -> Outside:
        return cls(Modes.now(), torch.is_inference_mode_enabled(), _hooks())

    def held(self) -> AbstractContextManager[None]:
        """Inside, it is as it was."""
        return NOTHING if self == Outside.now() else self._changed()

    @contextmanager
    def _changed(self) -> Iterator[None]:
        inner = []
        while (hooks := _hooks()) is not None and hooks != self.hooks:
            inner.append(hooks)
            torch._C._autograd._pop_saved_tensors_default_hooks()
        ends = torch.is_inference_mode_enabled() and not self.inference
        try:
            with torch.inference_mode(False) if ends else NOTHING, self.modes.held():
                yield
        finally:
            for pack, unpack in reversed(inner):
                torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def _hooks() -> Any:
    """The innermost ones of this thread; None without any."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


class Ended(NamedTuple):
    """The call has returned."""

    value: Any


class _Raised(NamedTuple):
    error: BaseException


class AbandonedError(BaseException):
    """Ends a call that is not to go on; not an Exception, which user code might catch."""


class StraightCall:
    """A call that runs on this thread, from beginning to end: `answer` is asked at once. What that
    raises ends the call, whose code sees an AbandonedError, and is raised by `run`."""

    def __init__(self, function: Callable[[], Any], answer: Callable[[Any], Any]) -> None:
        self._function = function
        self._answer = answer
        self._error: BaseException | None = None

    def run(self) -> Ended:
        """The whole call. Raises what it raises, the very object."""
        value = None
        try:
            value = contextvars.copy_context().run(self._function)
        except BaseException:
            if self._error is None:
                raise
        if self._error is not None:
            raise self._error
        return Ended(value)

    def ask(self, question: Any) -> Any:
        """The answer."""
        if self._error is None:
            try:
                return self._answer(question)
            except BaseException as error:
                self._error = error
        raise AbandonedError

    def abandon(self) -> None:
        """It has ended."""


class _Worker:
    """A thread that does one call after another."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Any] = SimpleQueue()
        self.said: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="step function").start()

    def _work(self) -> None:
        while True:
            self.said.put(self.tasks.get()())


class SuspendedCalls:
    """Calls, each on a thread that is kept for later ones."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []

    def begin(self, function: Callable[[], Any]) -> SuspendedCall:
        """A call of `function`. It starts at the first `go_on`."""
        return SuspendedCall(self._idle, function)


class SuspendedCall:
    """One call. Who drives it uses `go_on` and `abandon`; `ask` is for the code that it runs."""

    def __init__(self, idle: list[_Worker], function: Callable[[], Any]) -> None:
        self._idle = idle
        self._function = function
        self._worker: _Worker | None = None
        self._has_ended = False

    @property
    def has_begun(self) -> bool:
        return self._worker is not None or self._has_ended

    def go_on(self, answer: Any = None) -> Any:
        """Runs the call to its next `ask`, and returns what that asked, or to its end: Ended.
        Raises what the call raises, the very object."""
        if self._worker is None:
            self._worker = self._idle.pop() if self._idle else _Worker()
            context, modes = contextvars.copy_context(), Modes.now()
            self._worker.tasks.put(lambda: context.run(self._run, modes))
        else:
            self._worker.tasks.put(answer)
        return self._taken(self._worker.said.get())

    def ask(self, question: Any) -> Any:
        """Stops here until `go_on`, whose answer this returns."""
        worker = self._worker
        assert worker is not None
        worker.said.put(question)
        answer = worker.tasks.get()
        if isinstance(answer, AbandonedError):
            raise answer
        return answer

    def abandon(self) -> None:
        """Ends the call where it stands; its `finally` blocks run. One that does not end within
        seconds is left to itself."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        for _ in range(_STUBBORN):
            worker.tasks.put(AbandonedError())
            try:
                said = worker.said.get(timeout=_ENDS_S)
            except Empty:
                return
            if isinstance(said, (Ended, _Raised)):
                self._idle.append(worker)
                return

    def _run(self, modes: Modes) -> Ended | _Raised:
        """On the worker's thread, in the modes that held where the step was called."""
        try:
            with modes.held():
                return Ended(self._function())
        except BaseException as error:
            return _Raised(error)

    def _taken(self, said: Any) -> Any:
        """Gives the worker back where the call has ended."""
        if isinstance(said, (Ended, _Raised)):
            self._has_ended = True
            assert self._worker is not None
            self._idle.append(self._worker)
            self._worker = None
        if isinstance(said, _Raised):
            raise said.error
        return said
