"""What ended a rank, in the words of a headline, and what to do about it.

Pure: the status, the last error lines and what surrounds the rank go in. What is not recognised
keeps its own words. Each case is made from the text of a real failure (test_causes.py).
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Collection

from muster.plan.launchplan import LaunchPlan
from muster.run.base.evidence import Frame, frames
from muster.types.distribution import Single, switch_on
from muster.types.values import NamedTuple

SMALL_SHM_BYTES = 64 << 20  # what a container gets by default
_LAST_LINE = 160  # characters of it in a headline

_SYNTAX = r"(?:SyntaxError|IndentationError|TabError)\b"
_IMPORT = r"(?:ModuleNotFoundError|ImportError)\b"
_NO_MODULE = r"No module named '([\w.]+)'"
_NO_GROUP = (
    r"environment variable (?:RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT) expected"
    r"|KeyError: '(?:RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'"
    r"|Default process group has not been initialized"
)
_NO_NETWORK = (
    r"Network is unreachable|Temporary failure in name resolution|Name or service not known"
    r"|No address associated with hostname|Could not resolve host|Failed to resolve '"
    r"|couldn't connect to 'https?://|Cannot reach https?://|No route to host"
)
_NO_SHARED_MEMORY = (
    r"unable to (?:open|allocate|mmap|resize|write to) (?:shared memory|file </torch_)"
    r"|out of shared memory|insufficient shared memory|creating shared memory segment"
    r"|No space left on device: '/dev/shm"
)
_PACKAGES = {  # module -> the package that has it, where the names differ
    "PIL": "pillow", "cv2": "opencv-python-headless", "sklearn": "scikit-learn", "yaml": "PyYAML",
    "skimage": "scikit-image", "bs4": "beautifulsoup4", "dateutil": "python-dateutil",
}  # fmt: skip


_LIBRARIES = (  # what is raised, what its traceback names, and what to do
    (
        r"ZeroDivisionError: integer modulo by zero|device_ids and output_device arguments only",
        r"/(?:accelerate|transformers)/",
        "Hugging Face's Trainer takes GPUs for granted under smdistributed.dataparallel: use hosts "
        "with GPUs, or torch_distributed or mpi with use_cpu=True (docs/how-to/frameworks.md)",
    ),
    (
        r"convert a value \(PerReplica|you need to pass this dataset to ClusterCoordinator",
        r"/keras/",
        "Keras 3's model.fit does not know this strategy: add tf_keras to requirements.txt and set "
        "TF_USE_LEGACY_KERAS=1, or write the loop yourself (docs/how-to/frameworks.md)",
    ),
)
_TOOLKITS = ("sagemaker_training", "sagemaker_containers", "sagemaker_mxnet_container")


class Surroundings(NamedTuple):
    """What surrounds the ranks of a host. `isolation`: that of `muster local`, "" elsewhere;
    `source`: the folder of the user's machine that the code came from, "" when unknown; `code`:
    where it lies here; `undistributed`: each host runs the script by itself; `addresses`: of the
    job's hosts; `shm_bytes`: of shared memory."""

    isolation: str = ""
    source: str = ""
    code: str = ""
    undistributed: bool = False
    addresses: tuple[str, ...] = ()
    shm_bytes: int | None = None

    def of_plan(self, plan: LaunchPlan, addresses: Collection[str]) -> Surroundings:
        """With what the plan says of them."""
        alone = plan.option == Single().option
        hosts = tuple(addresses) if len(addresses) > 1 else ()  # what is here is no peer's
        return self._replace(code=plan.script.cwd, undistributed=alone, addresses=hosts)


class Cause(NamedTuple):
    """What ended a rank, and what to do about it.

    `what` goes into the headline, "" when the status says it all; `fix`: "" when unknown.
    """

    what: str
    fix: str = ""


def find_cause(status: int, raised: str, words: str, around: Surroundings) -> Cause:
    """Why a rank ended that way. `raised`: its last exception or abort, ""; `words`: the
    traceback of it, else its last lines on the error stream."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    refused = re.match(r"(?:(\S+): )?[Ee]rror: (.+)", last)
    if status == 2 and refused and re.search(r"(?im)^usage: ", words):
        return _refused_arguments(refused[0], refused[2], around)
    raised = raised or (last if re.match(_SYNTAX, last) and frames(words) else "")
    if not raised:
        return _silent(status, last)
    if raised.startswith("Fatal Python error: "):
        return _crash(raised.partition(": ")[2], words, around)
    if re.match(_SYNTAX, raised):
        return Cause(_at(raised, frames(words)[-1:], around), "correct that line of the script")
    if re.match(_IMPORT, raised):
        return Cause(_at(raised, frames(words), around), _fix_import(raised, around))
    return Cause(raised, _fix(raised, around) or _fix_library(raised, words))


def follows_a_kill(raised: str) -> bool:
    """Whether a process that the kernel killed may be what this exception is about."""
    return bool(re.search(r"worker|killed|BrokenProcessPool|terminated abruptly|SIGKILL", raised))


def _fix(raised: str, around: Surroundings) -> str:
    """What to do about an exception that is known; "" for any other."""
    if around.undistributed and re.search(_NO_GROUP, raised):
        how = switch_on(bool(around.isolation))
        return f"this job has no distribution, so no process group and no RANK: {how}"
    if re.search(_NO_SHARED_MEMORY, raised):
        return _fix_shared_memory(around)
    if re.search(_NO_NETWORK, raised) and not any(one in raised for one in around.addresses):
        return _fix_network(around)
    if raised.startswith("bdb.BdbQuit"):
        return (
            "breakpoint() and pdb need a terminal, and ranks have none: run the script alone "
            "(`python SCRIPT`, `torchrun --nproc-per-node 1 SCRIPT`), or have it wait for an editor"
            " (`debugpy.listen(5678); debugpy.wait_for_client()`, in muster local with "
            "--isolation process)"
        )
    return ""


def _fix_library(raised: str, words: str) -> str:
    """Of a library that fails by itself under this option."""
    for what, where, fix in _LIBRARIES:
        if re.search(what, raised) and re.search(where, words):
            return fix
    return ""


def _refused_arguments(line: str, what: str, around: Surroundings) -> Cause:
    fix = "exit code 2 is the script's own: its argument parser refused what it was given; "
    if "required" in what:
        given = "--hyperparameter NAME=VALUE" if around.isolation else "hyperparameters={...}"
        return Cause(line, f"{fix}pass it ({given}) or give the option a default")
    return Cause(
        line,
        f"{fix}hyperparameters reach it as --NAME VALUE: add the option to the parser, use "
        "parse_known_args(), or do not pass it",
    )


def _silent(status: int, last: str) -> Cause:
    """It left no traceback and no abort."""
    if status >= 0:
        said = f"a traceback; its last line: {last[:_LAST_LINE]}" if last else "an error message"
        fix = f"look for sys.exit({status}) or os._exit({status}) in the script and what it calls"
        return Cause(f"exit({status}) without {said}", fix)
    if -status in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL):
        return Cause(
            "",
            "no stack was printed: PYTHONFAULTHANDLER was set to nothing, or what crashed is not "
            "Python; allow core files (`ulimit -c unlimited`) and look at them with gdb",
        )
    return Cause(
        "",
        "muster did not send this signal: look for who did on that host (a person, a scheduler, "
        "the script itself; after SIGKILL also the kernel: `dmesg | grep -i kill`)",
    )


def _crash(what: str, words: str, around: Surroundings) -> Cause:
    """By faulthandler's dump, whose frames begin with the innermost."""
    dump = words[words.rfind("Fatal Python error") :]
    found = frames(dump[dump.index("Current thread") :]) if "Current thread" in dump else []
    own = [frame for frame in found if _is_own(frame, around)]
    fix = "the crash is in compiled code that this line calls: its versions have to fit together"
    if what == "Bus error" and (around.shm_bytes or SMALL_SHM_BYTES) <= SMALL_SHM_BYTES:
        fix = _fix_shared_memory(around)
    if not found:
        return Cause(what, "" if fix.startswith("the crash") else fix)
    frame = (own or found)[0]
    return Cause(f"{what} at {_place(frame, around)} in {frame.function}", fix)


def _at(raised: str, found: list[Frame], around: Surroundings) -> str:
    """The exception with the innermost line of the user's that it came from."""
    files = [frame for frame in found if not frame.path.startswith("<")]
    own = [frame for frame in files if _is_own(frame, around)] or files
    return f"{raised} ({_place(own[-1], around)})" if own else raised


def _is_own(frame: Frame, around: Surroundings) -> bool:
    return bool(around.code) and frame.path.startswith(f"{around.code}/")


def _place(frame: Frame, around: Surroundings) -> str:
    path = frame.path
    if _is_own(frame, around):
        path = os.path.relpath(path, around.code)
    elif "site-packages/" in path:
        path = path.rpartition("site-packages/")[2]
    return f"{path} line {frame.line}"


def _fix_import(raised: str, around: Surroundings) -> str:
    missing = re.search(_NO_MODULE, raised)
    if "shared object" in raised:
        return "a library that this package needs is not here: install it, or a build that fits"
    if missing is None:
        return "the package is installed, but lacks that name: check its version"
    name = missing[1].partition(".")[0]
    if name in _TOOLKITS:
        thin = (
            "install the wheel muster_compat, which has what scripts use of it "
            "(docs/how-to/images/own-image.md)"
        )
        if missing[1] != name:
            thin = f"muster_compat has no {missing[1]}"
        return (
            f"{thin}; the package itself would replace `train`: after "
            f"pip install {name.replace('_', '-')} install muster's wheel again"
        )
    parent = os.path.dirname(around.source)
    if around.source and (
        name == os.path.basename(around.source)
        or any(os.path.exists(os.path.join(parent, name + end)) for end in ("", ".py"))
    ):
        folder = os.path.basename(around.source)
        return (
            f"'{name}' lies beside or above the script's folder, which alone is packed: run from "
            f"{parent} with `--source-dir . {folder}/SCRIPT`, or as a module: "
            f"`--source-dir . -m {folder}.MODULE`"
        )
    package = _PACKAGES.get(name, name)
    return (
        f"add {package} to requirements.txt beside the script (it is installed before the start), "
        f"or to the image (`pip install {package}`); if it is your own, pack it with the code"
    )


def _fix_network(around: Surroundings) -> str:
    if around.isolation == "netns":
        return (
            "hosts of --isolation netns have no internet: --internet gives it to them, "
            "--isolation process shares this machine's network"
        )
    if around.isolation:
        return "check this machine's network, and what the hosts of the job may reach"
    return "this host cannot reach it: check network isolation, VPC, security group and DNS"


def _fix_shared_memory(around: Surroundings) -> str:
    size = around.shm_bytes
    has = f"/dev/shm has {size >> 20} MiB" if size is not None else "/dev/shm is missing"
    more = more_shared_memory(around.isolation)
    return f"{has}, which DataLoader workers and NCCL need: {more}; or num_workers=0"


def more_shared_memory(isolation: str) -> str:
    """How a container gets more of it."""
    if isolation == "docker":
        return "--shm-size 8g"
    if isolation:
        return "sudo mount -o remount,size=8g /dev/shm"
    return "docker run --shm-size=8g, in SDK local mode container_config: {shm_size: 8g}"
