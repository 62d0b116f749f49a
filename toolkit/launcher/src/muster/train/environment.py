"""What staging makes of the environment of a rank: the layers up to `contract` of
`types.environment`, for `train` and `muster plan` alike."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

from muster.types.environment import (
    AT_START,
    CONTRACT,
    MACHINE,
    MUSTER,
    REQUIREMENTS,
    RUN_FACTS,
    USER,
    Environment,
)
from muster.types.errors import LaunchError
from muster.types.job import Job, Program
from muster.types.machine import Machine
from muster.types.run_files import (
    COLLECTIVES,
    COLLECTIVES_VARIABLES,
    host_folder,
    of_an_outer_record,
)

# Never passed to a rank, a launcher or an installer: the job secret is among them, and a `train` or
# `muster local` started by a script is to be a job of its own.
_OURS_ALONE = "MUSTER_"
# Made for one process of a job around this one.
_OF_A_RANK = ("RANK_AGENT", RUN_FACTS)
_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # where getpass.getuser() looks first


def of_children(environ: Mapping[str, str], folder: str) -> Environment:
    """What any process of the job gets of the environment of `train`.

    A user that is in no list of users, as with `docker run --user 4242`, gets LOGNAME and a HOME
    that can be written: torch.compile and libraries that keep caches fail without them. The home
    lies in `folder`, which is this user's alone and ends with the job; where that is "", nothing is
    made and the variable stays empty.
    """
    own = Environment.of(without_own_variables(environ), USER)
    uid = os.getuid()
    try:
        pwd.getpwuid(uid)
    except KeyError:
        name = {} if any(own.get(name) for name in _NAMES) else {"LOGNAME": f"user-{uid}"}
        named = own.plus(name, f"{MACHINE}: this user has no name")
        return named.plus(_home(own, folder), AT_START)
    return own


def without_own_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables of muster."""
    outer = {*_OF_A_RANK, *of_an_outer_record(environ)}
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_OURS_ALONE) and name not in outer
    }


def with_requirements(environ: Environment, target: str) -> Environment:
    """With what was installed into `target` found first; "" for nothing."""
    from muster.stage.python.install import with_target

    found = with_target(environ, target)
    changed = {name: value for name, value in found.items() if environ.get(name) != value}
    return environ.plus(changed, f"{REQUIREMENTS}: {target} first")


def with_contract(
    environ: Environment, job: Job, machine: Machine, program: Program, folder: str
) -> tuple[Environment, tuple[str, ...]]:
    """With the contract's variables and the code folder importable, and warnings.

    What is too large for the kernel goes to files in `folder`; where that is "", none is written
    and their variables stay empty. Raises LaunchError when a file cannot be written.
    """
    from muster.contract.environ import exports
    from muster.contract.spill import spill

    whole = environ.plus(exports(job, machine, program), CONTRACT)
    recorded = {name: path for name, path in _of_collectives(job).items() if name not in whole}
    whole = whole.plus(recorded, f"{MUSTER}: into the record")
    paths = os.pathsep.join(filter(None, (program.code_dir, whole.get("PYTHONPATH", ""))))
    whole = whole.plus({"PYTHONPATH": paths}, f"{CONTRACT}: the code folder first")
    where = os.path.join(folder, "spilled") if folder else ""
    try:
        fitting, warnings = spill(whole, where, program.arguments)
    except OSError as error:
        raise LaunchError(
            f"variables too large for the kernel cannot be kept in {where}: {error.strerror}",
            "give /tmp more room, or set TMPDIR to a folder with room",
        ) from error
    moved = {name: path for name, path in fitting.items() if whole.get(name) != path}
    return whole.less(whole.keys() - fitting.keys()).plus(moved, AT_START), warnings


def _of_collectives(job: Job) -> dict[str, str]:
    """Where muster_collectives leaves what its groups did, and their last calls at a failure. It
    makes the folder, and does without where it cannot."""
    folder = host_folder(job)
    return dict.fromkeys(COLLECTIVES_VARIABLES, os.path.join(folder, COLLECTIVES)) if folder else {}


def _home(environ: Mapping[str, str], folder: str) -> dict[str, str]:
    home = environ.get("HOME", "")
    if home and os.access(home, os.W_OK):
        return {}
    if not folder:
        return {"HOME": ""}
    made = os.path.join(folder, "home")
    try:
        os.mkdir(made, 0o700)
    except OSError:
        return {}
    return {"HOME": made}
