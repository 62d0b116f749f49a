"""A name and a home for a user that the image does not know, such as `docker run --user 4242`."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # where getpass.getuser() looks first


def named(environ: Mapping[str, str], private: str) -> dict[str, str]:
    """The environment, with LOGNAME and a HOME that can be written where this user is in no list of
    users: torch.compile and libraries that keep caches fail without them. The home lies in
    `private`, a folder of this user alone that ends with the job."""
    uid = os.getuid()
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return {**environ, **_name(environ, uid), **_home(environ, private)}
    return dict(environ)


def _name(environ: Mapping[str, str], uid: int) -> dict[str, str]:
    return {} if any(environ.get(name) for name in _NAMES) else {"LOGNAME": f"user-{uid}"}


def _home(environ: Mapping[str, str], private: str) -> dict[str, str]:
    home = environ.get("HOME", "")
    if home and os.access(home, os.W_OK):
        return {}
    made = os.path.join(private, "home")
    try:
        os.mkdir(made, 0o700)
    except OSError:
        return {}
    return {"HOME": made}
