"""What tells an image's reader on which machine it was built: indexes, mirrors, paths."""

from __future__ import annotations

import re
from collections.abc import Iterable

from scripts.images.base_image import sources
from scripts.images.inputs import INDEXES, pip_settings
from scripts.images.pins import CHECKOUT

_HOST = re.compile(r"https?://(?:[^@/\s]+@)?([^/:\s]+)")


def traces() -> list[str]:
    """The checkout's path, pip's folders of wheels, and the hosts of pip's indexes and of apt."""
    settings = pip_settings()
    addresses = [settings.get(name, "") for name in INDEXES]
    addresses += [address for address, _ in sources()]
    folders = settings.get("find-links", "").split()
    return sorted({str(CHECKOUT), *folders, *_hosts(addresses)})


def _hosts(addresses: Iterable[str]) -> set[str]:
    return {host for address in addresses for host in _HOST.findall(address)}
