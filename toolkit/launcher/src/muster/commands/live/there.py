"""A run that another engine has is asked where its leader runs, by the engine's own client."""

from __future__ import annotations

import argparse
import subprocess

from muster.arguments import UsageError
from muster.local import control_client
from muster.submit import folder
from muster.submit.command import target_of
from muster.submit.follow import in_words, state_of
from muster.submit.values import RUNNING

PASSED_ON = ("ranks", "all_threads", "json")  # options, of any of the commands


def asked_there(args: argparse.Namespace, command: str) -> int | None:
    """The exit code of the same command beside the job's leader; None for a run that can be asked
    here. Raises UsageError for a submitted job that does not run, and what its client says."""
    job = folder.submitted(args.run) if args.run and not args.here else None
    if job is None or control_client.listens_here(job.run):
        return None
    target = target_of(job.engine)
    state = state_of(target, job)
    if state.word != RUNNING:
        raise UsageError(f"{args.run} is not running: {in_words(job, state)}")
    into = target.inside(job)
    if command == "stop":
        target.let_end(job)
    run = job.where.get("run", job.run)
    words = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in vars(args).items()
        if name in PASSED_ON and value
    ]
    if run:  # which has submitted.json there, too: a leader that does not listen yet is not there
        words += ["--here", run]
    argv = [*into, command, *words]
    try:
        return subprocess.run(argv, check=False).returncode
    except OSError as error:
        raise UsageError(f"{argv[0]} cannot be started: {error.strerror}") from None
