"""What `muster doctor` makes of tools, packages, devices and settings; pure like doctor_checks."""

from __future__ import annotations

from collections.abc import Sequence

from muster.commands.doctor_facts import FRAMEWORKS, Facts
from muster.commands.doctor_finding import Finding, fail, fine, warn

_NAMESPACE_SWITCHES = (  # the value that forbids, and the command that allows
    ("user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"),
    ("kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


def train(facts: Facts) -> Finding:
    """Two packages have a `train`, and the one that was installed last wins."""
    path, module, on_path = facts.train
    fix = f"{facts.executable} -m pip install --force-reinstall --no-deps muster_training-*.whl"
    if not path:
        return warn("not on PATH", "images: SageMaker starts the command `train`", fix)
    if module.partition(".")[0] == "muster":
        return fine(f"muster's, {path}" + ("" if on_path else ", which is not on PATH"))
    whose = f"of {module.partition('.')[0]}, not muster's" if module else "not muster's"
    breaks = "images: jobs run under the other toolkit"
    return warn(f"{path} is {whose}", breaks, fix)


def torch(facts: Facts) -> Finding:
    version = facts.packages.get("torch", "")
    install = f"{facts.executable} -m pip install torch"
    others = [name for name in FRAMEWORKS if name != "torch" and facts.packages.get(name)]
    if not version and others:
        return fine(f"not installed; here is {' and '.join(others)}")
    if not version:
        return warn("not installed", "torch_distributed, and scripts that train with it", install)
    if not facts.tools.get("torchrun"):
        found = f"{version}, without the program torchrun"
        return warn(found, "scripts that call torchrun", f"{install} --force-reinstall")
    if facts.machine.gpus and "+cpu" in version:
        found = f"{version}, on a machine with {facts.machine.gpus} GPUs"
        return warn(found, "training on GPUs", f"{install} --force-reinstall")
    return fine(version)


def frameworks(facts: Facts) -> Finding:
    """Those that scripts of every option but plain mpi4py import."""
    have = {name: facts.packages.get(name, "") for name in FRAMEWORKS}
    found = ", ".join(f"{name} {version}" for name, version in have.items() if version)
    if not found:
        fix = f"{facts.executable} -m pip install torch"
        return warn("none is installed", "scripts that train with one", fix)
    return fine(found)


def packages(facts: Facts) -> Finding:
    have = {name: facts.packages.get(name, "") for name in ("pip", "boto3", "rich")}
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in have.items())
    if not have["pip"]:
        fix = f"{facts.executable} -m ensurepip --upgrade"
        return warn(found, "requirements.txt, and packages of the user's code", fix)
    if not have["boto3"]:
        fix = f"{facts.executable} -m pip install boto3"
        return warn(found, "code at s3:// addresses", fix)
    return fine(found)


def accelerators(facts: Facts) -> Finding:
    machine = facts.machine
    breaks = "the number of processes per host"
    if machine.gpus is None:
        fix = "sudo nvidia-smi -pm 1; if that hangs too, restart the machine"
        return warn("nvidia-smi does not answer", breaks, fix)
    if machine.neurons is None:
        fix = "sudo modprobe -r neuron && sudo modprobe neuron"
        return warn("neuron-ls does not answer", breaks, fix)
    if facts.nvidia_devices and not machine.gpus:
        found = f"{facts.nvidia_devices} NVIDIA devices, but nvidia-smi shows none"
        return warn(found, "training on GPUs", "docker run --gpus all ...")
    parts = [f"{machine.gpus} GPUs"] if machine.gpus else []
    parts += [f"{machine.neurons} Neuron cores"] if machine.neurons else []
    parts += ["EFA"] if machine.efa else []
    found = ", ".join(parts) or "nothing else: ranks run on the CPU"
    return fine(f"{machine.cpus} CPUs, {found}")


def fabric(facts: Facts) -> Finding:
    """NCCL takes an interface that is not there, and a forgotten file, without a word."""
    here = [one.name for one in facts.machine.interfaces]
    for name, value in facts.fabric.items():
        if name.endswith("_IFNAME") and not _meets(name, value, here):
            found = f"{name}={value}, but here are {', '.join(here) or 'none'}"
            breaks = "every job of several ranks: muster never overrides your setting"
            return fail(found, breaks, f"unset {name}")
        if not name.endswith("_IFNAME"):
            found = f"{name} says {value}"
            return warn(found, "NCCL in every job", f"sudo mv {name} {name}.off")
    settings = ", ".join(f"{name}={value}" for name, value in facts.fabric.items())
    return fine(settings or "no setting of yours for NCCL or gloo")


def _meets(variable: str, value: str, here: Sequence[str]) -> bool:
    """gloo wants names; NCCL beginnings, names after `=`, and after `^` what it must not take."""
    nccl = variable.startswith("NCCL")
    if nccl and value.startswith("^"):
        return True
    wanted = [text for text in value.lstrip("=").split(",") if text]
    if not nccl or value.startswith("="):
        return any(text in here for text in wanted)
    return any(name.startswith(text) for name in here for text in wanted)


def isolation(facts: Facts) -> Finding:
    reason = facts.isolation
    if not reason:
        return fine("hosts of `muster local` can be isolated")
    fix = "muster local --isolation process, or docker run --privileged ..."
    for switch, forbids, command in _NAMESPACE_SWITCHES:
        if facts.sysctls.get(switch) == forbids:
            fix = command
    if not facts.tools.get("ip"):
        fix = "sudo apt-get install -y iproute2"
    return warn(reason, "`muster local --isolation netns`", fix)
