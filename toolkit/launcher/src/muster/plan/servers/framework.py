"""Which framework's parameter servers a job means: what was set, else what is installed and
imported."""

from __future__ import annotations

from collections.abc import Mapping

from muster.types.distribution import ParameterServer
from muster.types.errors import ConfigError
from muster.types.job import Job
from muster.types.tools import Frameworks

VARIABLE = "MUSTER_PS_FRAMEWORK"
TENSORFLOW, MXNET, PYTORCH = "tensorflow", "mxnet", "pytorch"
TITLES = {TENSORFLOW: "TensorFlow", MXNET: "MXNet", PYTORCH: "PyTorch"}
LIBRARY = "muster_parameter_server"
WHEEL = "muster-parallel"
_MODULES = {TENSORFLOW: "tensorflow", MXNET: "mxnet", PYTORCH: "torch"}
# Images of the vendor say by these what they are for.
_HINTS = ("SAGEMAKER_TRAINING_MODULE", "SM_FRAMEWORK_MODULE")
_HINTED = {f"sagemaker_{name}_container": name for name in _MODULES}


def choose_framework(job: Job, option: ParameterServer, found: Frameworks) -> str:
    """`tensorflow`, `mxnet` or `pytorch`: the setting, else what the image says it is for, else
    the one that is installed; of several the one that the entry script imports.

    Raises ConfigError: none, several, or one without its servers.
    """
    if option.option == "multi_worker_mirrored_strategy":
        return _mirrored(job, found)
    chosen = job.settings.ps_framework or _hint(job.environ) or _look(job, found)
    _check_installed(job, chosen, found)
    return chosen


def _hint(environ: Mapping[str, str]) -> str:
    for variable in _HINTS:
        module = environ.get(variable, "").strip().partition(":")[0].partition(".")[0]
        if module in _HINTED:
            return _HINTED[module]
    return ""


def _look(job: Job, found: Frameworks) -> str:
    """The only one that it can be."""
    there = [name for name in _MODULES if _MODULES[name] in found.installed]
    if LIBRARY in found.installed and PYTORCH not in there:
        there.append(PYTORCH)
    if not there:
        raise _refusal(
            job,
            "none of tensorflow, mxnet and torch is installed here, so there is nothing to serve",
            "use an image with one of them, or name it in requirements.txt",
        )
    meant = [name for name in there if _is_meant(name, found)]
    usable = [name for name in there if name != PYTORCH or LIBRARY in found.installed]
    for candidates in (there, meant, [name for name in (meant or there) if name in usable]):
        if len(candidates) == 1:
            return candidates[0]
    listed = " and ".join(TITLES[name] for name in (meant or there))
    how = "imported by the script" if meant else "installed, and the script imports none of them"
    raise _refusal(
        job,
        f"{listed} are {how}: cannot tell which framework to use",
        f"set {VARIABLE} to {' or '.join(meant or there)}",
    )


def _is_meant(name: str, found: Frameworks) -> bool:
    library = name == PYTORCH and LIBRARY in found.imported
    return library or _MODULES[name] in found.imported


def _check_installed(job: Job, chosen: str, found: Frameworks) -> None:
    """Servers run under the job's own Python: what they need must be there."""
    if chosen == PYTORCH and LIBRARY not in found.installed:
        raise _refusal(
            job,
            f"PyTorch has no parameter server of its own, and {LIBRARY} is not installed here",
            f"install the wheel {WHEEL}, for example by requirements.txt; to train without a "
            "parameter server use torch_distributed",
        )
    module = _MODULES[chosen]
    if module not in found.installed and chosen != PYTORCH:
        raise _refusal(
            job,
            f"{module} is not installed here, and its servers need it",
            f"use an image with {TITLES[chosen]}, name it in requirements.txt, or set {VARIABLE} "
            "to another framework",
        )


def _mirrored(job: Job, found: Frameworks) -> str:
    """TensorFlow, and nothing else knows that option."""
    chosen = job.settings.ps_framework
    if chosen == TENSORFLOW or (not chosen and "tensorflow" in found.installed):
        return TENSORFLOW
    what = f"{VARIABLE} is {chosen}" if chosen else "tensorflow is not installed here"
    raise _refusal(
        job,
        f"multi_worker_mirrored_strategy is TensorFlow's, and {what}",
        "use an image with TensorFlow; for PyTorch use torch_distributed",
    )


def _refusal(job: Job, what: str, fix: str) -> ConfigError:
    return ConfigError.of(job.origins.get("distribution", "distribution"), what, fix)
