"""The batch script of a job of Slurm: `muster run` once on each node. Pure."""

from __future__ import annotations

import os
import re
import shlex
from string import Template

from muster.arguments import UsageError
from muster.contract.engines.slurm import STOP_S
from muster.local.record.layout import ENGINE_LOG, ENVIRON, SECRET
from muster.submit import folder
from muster.submit.arguments import run_arguments
from muster.submit.values import Submission
from muster.types.names import TYPED, did_you_mean, listed
from muster.types.run_files import SUMMARY

KINDS = ("pyxis", "apptainer")
MARGIN_S = 15  # from the end of the ranks' time to the end of the job
NUMBER = "$SLURM_JOB_ID"
_UNSEEN = "muster-unseen"
DECIDED = {
    "nodes": "use --hosts N",
    "signal": "use --grace SECONDS",
    "job-name": "use --name NAME",
    **dict.fromkeys(("ntasks", "ntasks-per-node", "open-mode", "array", "wrap"), "leave it out"),
    **dict.fromkeys(("output", "chdir", "wait", "test-only", "parsable"), "leave it out"),
}
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
# options of jobs that do not take nodes whole
_SHARES = ("cpus-per-task", "cpus-per-gpu", "oversubscribe", "exclusive", *_MEMORY)
# `wait` ends early at each signal that is heard; the shell keeps the step's status for the next one
_BODY = Template("""\
# Made by `muster submit`. `muster run` does on each node what `train` does on SageMaker: it decides
# when the job ends, and with which code.
unset $${!SQUEUE_@} $${!SCANCEL_@} $${!SRUN_@} SLURM_TIME_FORMAT  # somebody's taste, an outer job's
export SLURM_EXPORT_ENV=ALL  # else a site's --export=NONE is srun's as well
$exports
# jobs may share a node: ports of this one's own, below those that the kernel gives away
at=$$((20000 + (SLURM_JOB_ID + 1000 * $${SLURM_RESTART_COUNT:-0}) % 1500 * 8))
export MUSTER_CONTROL_PORT="$${MUSTER_CONTROL_PORT:-$$at}"
export MUSTER_STORE_PORT="$${MUSTER_STORE_PORT:-$$((at + 1))}"
export MUSTER_WORKER_PORT="$${MUSTER_WORKER_PORT:-$$((at + 2))}"
export MUSTER_PS_PORT="$${MUSTER_PS_PORT:-$$((at + 3))}"  # the first of a host's servers
if [ -z "$${SLURM_JOB_END_TIME:-}" ]; then  # before Slurm 23 nobody sets it
  end=$$(squeue -h --jobs="$$SLURM_JOB_ID" -o %e)  # of an empty one date makes this day's beginning
  if [ -n "$$end" ] && end=$$(date +%s -d "$$end" 2>/dev/null); then
    export SLURM_JOB_END_TIME="$$end"
  fi
fi
if [ -n "$${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK="$$SLURM_CPUS_PER_TASK"; fi

goes_on() {  # not when somebody cancels the job; a queue that does not answer says nothing of it
  state=$$(squeue -h --jobs="$$SLURM_JOB_ID" -o %T) || return 0
  [ "$${state:-RUNNING}" = RUNNING ]
}
told=0
stop() {  # the time limit is near, or another job needs the nodes: the ranks get time to save
  told=$$((told + 1))
  if goes_on; then $stop scancel --signal=TERM "$$SLURM_JOB_ID"; fi  # its steps
}
trap stop TERM
leave() {  # with this code, or the job begins again where that helps
  case $$1 in
    102|106) again=1 ;;  # a lost host, or a launcher that did not start
    143) again=$$told ;;  # by the signal above, not by a person
    *) again=0 ;;
  esac
  if [ "$$again" -gt 0 ] && [ "$${SLURM_RESTART_COUNT:-0}" -lt $retries ] && goes_on; then
    mv -f $summary $earlier 2>/dev/null  # a folder with an outcome is free for the next run
    scontrol requeue "$$SLURM_JOB_ID" || mv -f $earlier $summary
  fi
  exit "$$1"
}

rm -f $summary $earlier  # of an earlier attempt
blind=$$($see) || leave 106
if [[ $$blind == *$unseen* ]]; then  # among what a node's own prolog prints
  echo "muster submit: not all nodes see "$folder": it must be on a file system that they share" >&2
  exit 100
fi
own() { grep -om1 '^    "exit_code": [0-9]*' $summary 2>/dev/null | tr -dc 0-9; }
$run &
step=$$!
# A node on which muster never began would keep the job for ever. The leader's word comes before any
# host leaves, so only from then on others have to end: not by srun's --wait, which counts from the
# first end and would kill a leader that still waits for a host.
trap : USR1
left=$margin
while sleep 1; do
  [ -z "$$(own)" ] || [ $$((left -= 1)) -gt 0 ] || kill -USR1 $$$$ || break
done >/dev/null 2>&1 &
watch=$$!
disown
while before=$$told; wait "$$step"; code=$$?; [ "$$told" != "$$before" ]; do :; done
kill "$$watch"

# where a host was killed srun has its 137: the leader's word counts, and one without it was lost
own=$$(own)
if [ -n "$$own" ]; then code=$$own; elif [ "$$code" = 137 ] && [ $hosts -gt 1 ]; then code=102; fi
leave "$$code"
""")


def check(job: Submission) -> None:
    """Raises UsageError for options that sbatch cannot have, or that muster decides."""
    # at a backslash names of files end or change for Slurm; the rest the job itself would refuse
    if "\\" in job.run or not job.run.isprintable():
        raise UsageError(
            f"{job.run!r} cannot be a run folder at Slurm: no backslash, no line break, printable",
            "name another folder with --output",
        )
    for name, value in job.settings.items():
        if name in DECIDED:
            raise UsageError(f"--set {name}: muster decides it", DECIDED[name])
        if not re.fullmatch("[a-z][a-z0-9-]*", name):
            fix = "write --set partition=gpu for --partition=gpu of sbatch"
            raise UsageError(f"--set {name}: no long option of sbatch is spelt so", fix)
        if "\n" in value:
            raise UsageError(f"--set {name}: the value has more than one line")
    if job.kind and not job.image:
        raise UsageError(f"--kind {job.kind} says how an image is started", "add --image IMAGE")
    if job.kind not in ("", *KINDS):
        guess = did_you_mean(job.kind, KINDS, likeness=TYPED)
        raise UsageError(f"--kind {job.kind}: no way to start an image{guess}", listed(KINDS))
    for path in _mounted(job) if job.image else ():
        if re.search("[:,]", path):  # they stand between mounts and their ends
            fix = "name a folder without : and ,"
            raise UsageError(f"{path!r} cannot be mounted into the image", fix)


def render(job: Submission) -> str:
    """The whole script."""
    lines = ["#!/bin/bash"]
    for name, value in sbatch_options(job).items():
        lines.append(f"#SBATCH --{name}" + (f"={_of_sbatch(value)}" if value else ""))
    secret = os.path.join(job.run, SECRET)
    made = []
    if job.image and job.request.checkpoint:  # a container binds only what is there
        made = [_in_shell(["mkdir", "-p", job.request.checkpoint])]
    exports = {"MUSTER_ENGINE": "slurm", "MUSTER_JOB_SECRET_FILE": secret}
    if job.grace_s is not None:
        exports["MUSTER_STOP_TOTAL_S"] = f"{job.grace_s:g}"
    environ = os.path.join(job.run, ENVIRON)
    arguments = run_arguments(job.request, folder.source(job.run), job.run, environ)
    hosts = job.request.hosts
    step = ["srun", f"--nodes={hosts}", f"--ntasks={hosts}", "--ntasks-per-node=1"]
    # a node that cannot know the job would keep the others waiting for it; it says so, since srun's
    # own failure has the same exit code
    see = ["sh", "-c", f'test -r "$0" || echo {_UNSEEN}', secret]
    see = [*step, "--quiet", *see] if hosts > 1 else see
    step += ["--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none", *muster(job)]
    # to start an image anew may take longer than the time to save
    stop = "" if job.image else _in_shell([*beside(job, NUMBER), "stop", "--here", job.run]) + " ||"
    body = _BODY.substitute(
        exports="\n".join(
            [*(f"export {name}={shlex.quote(text)}" for name, text in exports.items()), *made]
        ),
        run=_in_shell([*step, "run", *arguments]),
        see=_in_shell(see),
        unseen=_UNSEEN,
        folder=shlex.quote(job.run),
        stop=stop,
        retries=job.retries,
        hosts=hosts,
        margin=_grace_s(job) + MARGIN_S,
        summary=shlex.quote(os.path.join(job.run, SUMMARY)),
        earlier=shlex.quote(os.path.join(job.run, f"{SUMMARY}.part")),
    )
    return "\n".join([*lines, body])


def sbatch_options(job: Submission) -> dict[str, str]:
    """Option -> value, "" for a flag; what --set gives wins."""
    options = {
        "job-name": job.name,
        "nodes": str(job.request.hosts),
        "ntasks-per-node": "1",
        "chdir": job.run,
        "output": os.path.join(job.run.replace("%", "%%"), ENGINE_LOG),
        "open-mode": "append",
        "signal": f"B:TERM@{_grace_s(job) + MARGIN_S}",
        "requeue" if job.retries else "no-requeue": "",
    }
    if not any(name in job.settings for name in _SHARES):
        options |= {"exclusive": "", "mem": "0"}  # else the one task has one processor
    return {**options, **job.settings}


def _grace_s(job: Submission) -> int:
    return int(STOP_S if job.grace_s is None else job.grace_s)


def beside(job: Submission, number: str) -> list[str]:
    """`muster` in a step of its own on the job's first node, where the leader is."""
    step = ["srun", "--overlap", f"--jobid={number}", "--relative=0", "--nodes=1", "--ntasks=1"]
    return [*step, "--quiet", *muster(job)]


def muster(job: Submission) -> list[str]:
    """What follows `srun` and its options to start `muster`."""
    if not job.image:
        return [job.python, "-m", "muster"]
    mounts = ",".join(f"{one}:{one}" for one in _mounted(job))
    if (job.kind or ("apptainer" if job.image.endswith(".sif") else "pyxis")) == "pyxis":
        return [f"--container-image={job.image}", f"--container-mounts={mounts}", "muster"]
    # --nv: its GPUs, if the node has any; else apptainer warns
    return ["apptainer", "exec", "--nv", "--bind", mounts, job.image, "muster"]


def _mounted(job: Submission) -> list[str]:
    """The folders that a container gets, each by its own name."""
    checkpoint = [job.request.checkpoint] if job.request.checkpoint else []
    return list(dict.fromkeys([job.run, *job.request.channels.values(), *checkpoint]))


def _in_shell(words: list[str]) -> str:
    """Words as a shell reads them; the job's number is the shell's to fill in."""
    number = f"--jobid={NUMBER}"
    return " ".join(f'"{word}"' if word == number else shlex.quote(word) for word in words)


def _of_sbatch(value: str) -> str:
    """A value as sbatch reads it in a line of options."""
    if re.fullmatch(r"[\w@%+=:,./-]+", value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
