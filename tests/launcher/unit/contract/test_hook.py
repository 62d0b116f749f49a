"""The hook for images that keep the incumbent's `train`: it returns or raises, and never exits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from muster.contract import hook
from muster.types.outcome import Failed, Stopped, Succeeded


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], Any]], None]:
    """Puts a launcher with the given `run` in the place of the real one."""

    def install(run: Callable[[Any], Any]) -> None:
        module = ModuleType("muster.train")
        vars(module)["run"] = run
        monkeypatch.setitem(sys.modules, "muster.train", module)

    return install


def test_success_returns(launcher: Callable[..., None]) -> None:
    launcher(lambda environ: Succeeded())
    hook.main()


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Failed(42, "UserScriptError: x", "y"), "UserScriptError: x"),
        (Stopped("SIGTERM"), "stopped by SIGTERM"),
    ],
)
def test_other_ends_raise_what_the_incumbent_reports_as_failure(
    launcher: Callable[..., None], outcome: object, text: str
) -> None:
    launcher(lambda environ: outcome)
    with pytest.raises(hook.TrainingFailedError, match=text) as caught:
        hook.main()
    assert not hasattr(caught.value, "errno")


@pytest.mark.promise("F13")
@pytest.mark.promise("F12")
@pytest.mark.parametrize(
    "error", [SystemExit(3), SystemExit(0), KeyboardInterrupt(), OSError("x"), OSError(28, "x")]
)
def test_no_way_out_of_the_launcher_looks_like_success(
    launcher: Callable[..., None], error: BaseException
) -> None:
    def run(environ: object) -> None:
        raise error

    launcher(run)
    with pytest.raises(hook.TrainingFailedError) as caught:
        hook.main()
    assert type(error).__name__ in str(caught.value)
    assert not hasattr(caught.value, "errno")


@pytest.mark.promise("S08")
def test_secrets_do_not_leave_through_the_exception(
    launcher: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "canary-123456")

    def run(environ: object) -> None:
        raise RuntimeError("canary-123456")

    launcher(run)
    with pytest.raises(hook.TrainingFailedError) as caught:
        hook.main()
    assert "canary" not in str(caught.value)
    assert caught.value.__suppress_context__, "a printed traceback shows the masked text only"
