"""The environment that children of `train` get: without muster's variables, and with a name and a
home for a user that the image does not know, such as `docker run --user 4242`."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

# Never passed to a rank, a launcher or an installer: the job secret is among them, and a `train` or
# `muster local` started by a script is to be a job of its own.
_OURS_ALONE = "MUSTER_"
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


def for_children(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables of muster."""
    return {k: v for k, v in environ.items() if not k.startswith(_OURS_ALONE)}


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
