"""Keys and settings of ssh between the hosts of one job, made at the first start of sshd.

The image holds no key. Source: reliability.md S01, sdk-and-local-mode.md 2.2.
"""

from __future__ import annotations


class SshError(Exception):
    """sshd cannot be started as asked; the message says what, where, what was got, and the fix."""
