"""`muster plan`: what `train` would do, for a script with the options of `muster local` or for a
folder of SageMaker's files; it starts nothing of it, but for `--model`, which runs the script up
to its first step.

It reads and probes as `train` does, but fetches no code and asks no other host: the others are
assumed to be like this machine, and the output says so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping

from muster.arguments import Parser, UsageError
from muster.commands.plan_values import SHOWN_HOSTS, DryRun
from muster.commands.plan_view import as_json, as_text, error_json, error_text
from muster.types.errors import MusterError
from muster.types.masking import Masker

USAGE = """muster plan SCRIPT [OPTIONS OF muster local] [-- ARGUMENTS OF THE SCRIPT]
       muster plan SCRIPT --engine NAME [OPTIONS OF muster run] [-- ARGUMENTS OF THE SCRIPT]
       muster plan SCRIPT --model [OPTIONS OF muster local] [-- ARGUMENTS OF THE SCRIPT]
       muster plan --base-dir DIR --model [OPTIONS OF muster local THAT DO NOT DESCRIBE THE JOB]
       muster plan [--base-dir DIR]"""
OF_THE_JOB = ("--source-dir", "--hosts", "--instance-groups", "--processes-per-host",
              "--distribution", "--hyperparameter", "--channel", "--instance-type")  # fmt: skip
EXAMPLES = """\
examples:
  muster plan train.py --hosts 2 --distribution torch_distributed     a run of `muster local`
  srun -N 1 muster plan train.py --engine slurm --output runs/1       one of `muster run`, here
  muster plan --base-dir muster-runs/latest/algo-1/opt/ml             a folder of SageMaker's files
"""


def add_arguments(parser: Parser) -> None:
    from muster.elsewhere.command import add_engine_options
    from muster.local.command import SCRIPT_HELP, add_options

    parser.usage = USAGE
    parser.description = EXAMPLES
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help=SCRIPT_HELP)
    parser.add_argument(
        "--base-dir",
        metavar="DIR",
        default="",
        help="without SCRIPT: the folder with input/config (default: SAGEMAKER_BASE_DIR, else "
        "/opt/ml)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    parser.add_argument(
        "--environment",
        action="store_true",
        help="also list every variable of a rank of this host, and where its value comes from",
    )
    parser.add_argument(
        "--model",
        action="store_true",
        help="run the script as one process up to the first step of its model, and plan the split "
        "of the model for the job: as `muster local --model-plan`",
    )
    add_options(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the plan on stdout and returns 0, or what is wrong and the code of `train`.

    Raises UsageError for a command line that cannot be obeyed.
    """
    if args.model and args.environment:
        raise UsageError("--environment and --model are two different plans", "ask for one")
    if args.script is not None or args.module is not None:
        return _run_for_script(args)
    _refuse_options_of_a_run(args)
    if args.model and not args.base_dir:
        raise UsageError("--model needs a SCRIPT or --base-dir DIR", "muster plan SCRIPT --model")
    environ = dict(os.environ)
    if args.base_dir:
        if not os.path.isdir(args.base_dir):
            raise UsageError(
                f"--base-dir: {args.base_dir!r} is no folder",
                "name a folder that holds input/config; a script of yours needs none: "
                "muster plan SCRIPT",
            )
        environ["SAGEMAKER_BASE_DIR"] = os.path.abspath(args.base_dir)
    if args.model:
        return _plan_model_of_folder(args, environ)
    return _show(args, environ, asked=bool(args.base_dir))


def _run_for_script(args: argparse.Namespace) -> int:
    from muster.commands.dry_run import dry_run, on_engine
    from muster.contract.engines.values import SECRET_FILE

    if args.base_dir:
        raise UsageError("--base-dir and SCRIPT are two different requests", "name one of them")
    if args.script and os.path.isdir(os.path.join(args.script, "input/config")):
        raise UsageError(
            f"{args.script!r} is not a script but a folder with input/config",
            f"did you mean --base-dir {args.script}?",
        )
    if args.model:
        from muster.local.command import launched

        return launched(args, model_plan=True)
    try:
        with on_engine(args) if _of_engine(args) else dry_run(args) as dry:
            return _show(args, dry.environ, dry=dry)
    except MusterError as error:
        # the file's name is no secret
        environ = {name: text for name, text in os.environ.items() if name != SECRET_FILE}
        return _refused(args, environ, error)


def _plan_model_of_folder(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """As for SCRIPT, with the options that say what the folder's files say."""
    from muster.commands.preview import local_code
    from muster.contract.request.read import read_job
    from muster.local.command import launched

    try:
        job = read_job(environ)
    except MusterError as error:
        return _refused(args, environ, error)
    code, _ = local_code(job)
    if not os.path.isdir(code) or not job.program:
        what = f"the code of the job is not here: {job.source or job.function or job.paths.code}"
        raise UsageError(what, f"unpack it into {job.paths.code}, or name its SCRIPT")
    documents = job.documents
    sent = {**documents.hyperparameters, **documents.framework_parameters}
    channels = {name: os.path.join(job.paths.data, name) for name in documents.input_data_config}
    described = {
        "script": job.program,
        "source_dir": code,
        "hosts": len(job.cluster.distribution),
        "hyperparameter": [f"{name}={json.dumps(value)}" for name, value in sent.items()],
        "channel": [f"{name}={path}" for name, path in channels.items() if os.path.isdir(path)],
    }
    return launched(argparse.Namespace(**{**vars(args), **described}), model_plan=True)


def _of_engine(args: argparse.Namespace) -> bool:
    """Whether the plan is of `muster run`. Raises UsageError for options that make hosts, too."""
    from muster.elsewhere.command import add_engine_options
    from muster.local.command import add_job_options, options_given

    given = options_given(args, add_engine_options)
    if not given:
        return False
    of_job = ("--hosts", *options_given(args, add_job_options))
    if others := [name for name in options_given(args) if name not in of_job]:
        what = f"{given[0]} is of `muster run`, {others[0]} of `muster local`"
        raise UsageError(what, f"leave out {others[0]}: the engine makes the hosts")
    return True


def _refuse_options_of_a_run(args: argparse.Namespace) -> None:
    """Without SCRIPT the folder's files say all that they would say; `--model` runs it."""
    from muster.elsewhere.command import add_engine_options
    from muster.local.command import options_given

    of_run = [name for name in options_given(args) if not args.model or name in OF_THE_JOB]
    if given := [*of_run, *options_given(args, add_engine_options)]:
        raise UsageError(f"{given[0]} needs a SCRIPT", "muster plan SCRIPT [OPTIONS]")


def _show(
    args: argparse.Namespace,
    environ: Mapping[str, str],
    asked: bool = False,
    dry: DryRun | None = None,
) -> int:
    from muster.commands.preview import preview

    shown = dry.shown if dry else str
    try:
        found = preview(environ, None if args.json else SHOWN_HOSTS, asked, dry)
    except MusterError as error:
        return _refused(args, environ, error, shown)
    sys.stdout.write(
        shown(as_json(found) if args.json else as_text(found, args.environment, shown))
    )
    return 0


def _refused(
    args: argparse.Namespace,
    environ: Mapping[str, str],
    error: MusterError,
    shown: Callable[[str], str] = str,
) -> int:
    """Prints what is wrong; the code of `train`."""
    masker = Masker.of(environ)
    if args.json:
        sys.stdout.write(shown(masker.mask(error_json(error))))
    else:
        sys.stderr.write(shown(masker.mask(error_text(error))))
    return error.exit_code
