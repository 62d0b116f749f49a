"""accel_check.py cuda-efa|neuron: fails the build of an image whose libraries would clash or be
missed in a job, where it shows as a hang or as TCP's speed and no error. Needs no accelerator.

Two libfabrics (aws-ofi-nccl issue 889) or two NCCLs: which one is loaded depends on the script.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

ELSEWHERE = ("/dev", "/mnt", "/proc", "/run", "/sys", "/tmp")  # not the image's
LIMIT_S = 120.0
FABRIC = re.compile(r"libfabric(-[0-9a-f]{8})?\.so(\.[\d.]+)?")
NCCL = re.compile(r"libnccl(-[0-9a-f]{8})?\.so(\.[\d.]+)?")
PLUGIN = re.compile(r"libnccl-net(-ofi)?\.so")
MPI = re.compile(r"libmpi(-[0-9a-f]{8})?\.so(\.[\d.]+)?")
LOADS = {
    # what NCCL and its plugin ask the linker for, by these very names
    "cuda-efa": ("libfabric.so.1", "libnccl.so.2", "libnccl-net.so", "libcudart.so"),
    "neuron": ("libfabric.so.1", "libnrt.so.1"),
}


def main(target: str) -> list[str]:
    """What is wrong with this image, a sentence each; [] for nothing."""
    wrong = [*one_of("libfabric", FABRIC), *one_of("Open MPI library", MPI), *one_mpirun()]
    checked = [*copies(FABRIC), *copies(MPI)]
    if target == "cuda-efa":
        wrong += one_of("libnccl", NCCL)
        checked += copies(PLUGIN)
    for path in checked:
        if missing := unresolved(path):
            wrong.append(f"{path} needs {missing}, which the dynamic linker does not find")
    return wrong + [line for name in LOADS[target] for line in load(name)]


def copies(name: re.Pattern[str]) -> list[str]:
    """The libraries of the image with such a name; links are not counted."""
    found: dict[tuple[int, int], str] = {}
    for path in files():
        if name.fullmatch(os.path.basename(path)) and not os.path.islink(path) and is_elf(path):
            status = os.stat(path)
            found.setdefault((status.st_dev, status.st_ino), path)
    return sorted(found.values())


def is_elf(path: str) -> bool:
    """libmpi.so may be a line of text for the linker of programs."""
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def files() -> Iterator[str]:
    for folder, folders, names in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in ELSEWHERE]
        yield from (os.path.join(folder, name) for name in names)


def one_of(what: str, name: re.Pattern[str]) -> list[str]:
    found = copies(name)
    if len(found) == 1:
        return []
    return [f"exactly one {what} belongs into the image; found {len(found)}: {listed(found)}"]


def one_mpirun() -> list[str]:
    folders = os.environ["PATH"].split(os.pathsep)
    found = {
        os.path.realpath(path)
        for folder in folders
        if (path := shutil.which("mpirun", path=folder)) is not None
    }
    if len(found) == 1:
        return []
    return [f"exactly one mpirun belongs on PATH ({os.environ['PATH']}); found: {listed(found)}"]


def unresolved(path: str) -> str:
    """The libraries that `path` needs and the linker does not find, "" for none.

    libcuda and libnvidia-ml are the host's driver, which the container runtime mounts."""
    answer = subprocess.run(
        ["ldd", path], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    names = re.findall(r"^\s*(\S+) => not found", answer.stdout, re.M)
    return " ".join(
        name for name in names if not name.startswith(("libcuda.so", "libnvidia-ml.so"))
    )


def load(name: str) -> list[str]:
    """Loads a library as a job does, in a process of its own and by the linker's folders only."""
    code = f"import ctypes; ctypes.CDLL({name!r})"
    environ = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, env=environ, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    if done.returncode == 0:
        return []
    last = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
    return [f"{name} cannot be loaded: {last}"]


def listed(paths: set[str] | list[str]) -> str:
    return ", ".join(sorted(paths)) or "none"


if __name__ == "__main__":
    if problems := main(sys.argv[1]):
        sys.exit("\n".join(f"accel_check.py: {line}" for line in problems))
    print(f"accel_check.py: {sys.argv[1]}: one libfabric, one Open MPI, every library found")
