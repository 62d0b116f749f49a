"""A request as the command line of `muster run`. Pure."""

from __future__ import annotations

import json

from muster.local.request import Request

IMAGE, S3 = "image:", "s3://"


def code_elsewhere(source_dir: str) -> str:
    """Where hosts find code that this machine does not hand over, as --source-dir names it:
    image:/opt/ml/code or s3://BUCKET/CODE.tar.gz. "" for a folder of this machine."""
    if source_dir.startswith(S3):
        return source_dir
    return source_dir.removeprefix(IMAGE) if source_dir.startswith(f"{IMAGE}/") else ""


def run_arguments(
    request: Request, source: str, output: str | None = None, environ: str | None = None
) -> list[str]:
    """What follows `muster run` on every host: all but values of --env, since command lines can be
    read by everybody.

    `source`: where a host finds the packed code. `output`: its run folder, None for /opt/ml.
    `environ`: the file with the script's variables, None where each host has them already.
    """
    source = code_elsewhere(request.source_dir) or source
    words = [request.program, "--source-dir", source, "--hosts", str(request.hosts)]
    if output is not None:
        words += ["--output", output]
    if request.distribution is not None:
        option = request.distribution
        words += ["--distribution", option if isinstance(option, str) else json.dumps(option)]
    single = {
        "--processes-per-host": request.processes_per_host,
        "--instance-type": request.instance_type or None,
        "--checkpoint": request.checkpoint,
        "--ranks": request.ranks or None,
    }
    for option, value in single.items():
        if value is not None:
            words += [option, str(value)]
    for key, text in request.hyperparameters.items():
        words += ["--hyperparameter", f"{key}={text}"]
    for channel, folder in request.channels.items():
        words += ["--channel", f"{channel}={folder}"]
    if environ is None:
        words += [word for name in request.environ for word in ("--env", name)]
    elif request.environ:
        words += ["--env-file", environ]
    words += ["--oversubscribe"] * request.oversubscribe + ["--verbose"] * request.verbose
    if request.arguments:
        words += ["--", *request.arguments]
    return words
