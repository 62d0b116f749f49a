"""The host supervisor of plain processes."""

from __future__ import annotations

import pytest

from muster.local.backends.process.start import start
from muster.local.orders import Orders
from muster.run.child import rank_shim


def test_no_host_starts_where_orphans_could_not_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_shim, "PR_SET_CHILD_SUBREAPER", -1)
    with pytest.raises(OSError, match="orphans") as caught:
        start(Orders("process", ()), -1)
    assert caught.value.filename == "prctl"
