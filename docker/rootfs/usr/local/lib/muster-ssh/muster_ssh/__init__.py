"""Keys and settings of ssh between the hosts of one job, made at the first start of sshd.

The image holds no key (promise S01).
"""

from __future__ import annotations


class SshError(Exception):
    """sshd cannot be started as asked; the message says what, where, what was got, and the fix."""
