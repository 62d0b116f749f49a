"""What a newcomer asks first: ARCHITECTURE.md alone leads to the file, and the file is there."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
MUSTER = "toolkit/launcher/src/muster"
COLLECTIVES = "toolkit/parallel/src/muster_collectives"

# Each answer is a file or folder; the page names its last two parts at least.
QUESTIONS = {
    "Where is SIGTERM handled?": f"{MUSTER}/run/job/supervisor.py",
    "What does a follower do when the leader is lost?": f"{MUSTER}/run/job/hostlife.py",
    "When does the leader stop the job?": f"{MUSTER}/run/job/coordinator.py",
    "Who decides which rank failed first, and the exit code?": f"{MUSTER}/run/job/verdict.py",
    "How do hosts prove that they belong to the job?": f"{MUSTER}/run/channel/wire.py",
    "What stands between torchrun and my script?": f"{MUSTER}/run/child/rank_shim.py",
    "Who set NCCL_SOCKET_IFNAME in my rank?": f"{MUSTER}/plan/fabric.py",
    "Where would I add a launcher?": f"{MUSTER}/plan/__init__.py",
    "Who makes SM_NUM_GPUS and the other SM_* variables?": f"{MUSTER}/contract/environ.py",
    "What is written to /opt/ml/output/failure?": f"{MUSTER}/contract/wording.py",
    "How long does a host wait for the others?": f"{MUSTER}/types/deadlines.py",
    "Which packages of requirements.txt are installed, how?": f"{MUSTER}/stage/python/install.py",
    "What decides that a value is a secret?": f"{MUSTER}/types/masking.py",
    "Which tensors does the core reduce, which gloo or NCCL?": f"{COLLECTIVES}/torch/group.py",
    "How does a tensor reach the other node?": "toolkit/parallel/csrc/inter",
}
PAGES = ("ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", "docs/internals/protocol.md")


@cache
def listed() -> tuple[str, ...]:
    """Every file of the checkout that git does not ignore."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(words, cwd=CHECKOUT, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("git cannot list the files of this copy")
    return tuple(f"/{name}" for name in done.stdout.splitlines() if (CHECKOUT / name).exists())


@pytest.mark.parametrize(("question", "path"), QUESTIONS.items(), ids=QUESTIONS)
def test_the_architecture_page_leads_there(question: str, path: str) -> None:
    assert (CHECKOUT / path).exists(), f"{question} {path} is not there: name the new place"
    named = "/".join(Path(path).parts[-2:])
    page = (CHECKOUT / "ARCHITECTURE.md").read_text()
    assert re.search(rf"{re.escape(named)}\b", page), f"{question} ARCHITECTURE.md: no {named}"


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    text = (CHECKOUT / page).read_text()
    names = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|c|h|sh|md|txt|yml))`", text))
    assert names
    missing = {name for name in names if not any(path.endswith(f"/{name}") for path in listed())}
    assert not missing
