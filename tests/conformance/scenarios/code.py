"""Which program runs, where its code comes from, how it is started (contract.md 1.5)."""

from __future__ import annotations

from tests.conformance.scenario import Scenario
from tests.conformance.scenarios.parts import SCRIPT, SHELL, script, sdk

_SETUP = (
    "from setuptools import setup\n"
    'setup(name="conformance-package", version="1.0", py_modules=["train"])\n'
)
_NEEDS_TINY = f"{SCRIPT}import conformance_tiny\n"

_PROGRAMS = (
    Scenario(
        "program: variable wins over hyperparameter",
        sdk("other.py"),
        script(),
        environ={"SAGEMAKER_PROGRAM": "train.py"},
    ),
    Scenario("program: without quotes", {"sagemaker_program": "train.py"}, script()),
    Scenario("program: in a folder", sdk("jobs/train.py"), {"jobs/train.py": SCRIPT}),
    Scenario("program: not named", sdk(None), script()),
    Scenario("program: not there", sdk("absent.py"), script()),
    Scenario("program: begins with ./", sdk("./train.py"), script()),
    Scenario("program: leaves the folder", sdk("../train.py"), script()),
    Scenario("program: name with a space", sdk("my train.py"), {"my train.py": SCRIPT}),
)
_SOURCES = (
    Scenario(
        "source: a folder",
        sdk(sagemaker_submit_directory="<base>/given"),
        {},
        tree={"given/train.py": SCRIPT, "given/lib/helper.py": "x = 1\n"},
    ),
    Scenario(
        "source: an archive",
        sdk(sagemaker_submit_directory="<base>/given/sourcedir.tar.gz"),
        {},
        archives={"given/sourcedir.tar.gz": {"train.py": SCRIPT, "lib/helper.py": "x = 1\n"}},
    ),
    Scenario(
        "source: the code channel under network isolation",
        sdk(sagemaker_submit_directory="<base>/input/data/code/sourcedir.tar.gz"),
        {},
        archives={"input/data/code/sourcedir.tar.gz": {"train.py": SCRIPT}},
        channels={"code": {"TrainingInputMode": "File"}},
    ),
    Scenario(
        "source: a single file",
        sdk(sagemaker_submit_directory="<base>/given/train.py"),
        {},
        tree={"given/train.py": SCRIPT},
    ),
    Scenario(
        "source: a code folder with content wins",
        sdk(sagemaker_submit_directory="<base>/given"),
        script(),
        tree={"given/train.py": "raise SystemExit('the new code ran')\n"},
    ),
    Scenario(
        "source: the variable alone is dead",
        sdk(),
        script(),
        environ={"SAGEMAKER_SUBMIT_DIRECTORY": "<base>/absent"},
    ),
    Scenario(
        "source: an archive that climbs out",
        sdk(sagemaker_submit_directory="<base>/given/sourcedir.tar.gz"),
        {},
        archives={"given/sourcedir.tar.gz": {"train.py": SCRIPT, "../escaped.py": "x = 1\n"}},
    ),
    Scenario("source: not there", sdk(sagemaker_submit_directory="<base>/absent.tar.gz"), {}),
)
_KINDS = (
    Scenario("kind: shell script", sdk("train.sh", lr=0.1, note="a b"), {"train.sh": SHELL}),
    Scenario(
        "kind: shell script, not executable", sdk("run/train.sh"), {"run/train.sh": "#probe\n"}
    ),
    Scenario("kind: other executable", sdk("train"), {"train": SHELL}),
    Scenario(
        "kind: script with requirements",
        sdk(),
        {"train.py": _NEEDS_TINY, "requirements.txt": "conformance-tiny==1.0\n"},
    ),
    Scenario(
        "kind: shell script with requirements",
        sdk("train.sh"),
        {
            "train.sh": SHELL + '"$CONFORMANCE_PYTHON" -c "import conformance_tiny"\n',
            "requirements.txt": "conformance-tiny==1.0\n",
        },
    ),
    Scenario("kind: package", sdk(), {"train.py": SCRIPT, "setup.py": _SETUP}),
    Scenario(
        "kind: package with requirements",
        sdk(),
        {
            "train.py": _NEEDS_TINY,
            "setup.py": _SETUP,
            "requirements.txt": "conformance-tiny==1.0\n",
        },
    ),
    Scenario(
        "kind: requirements that cannot be had",
        sdk(),
        {"train.py": SCRIPT, "requirements.txt": "conformance-absent==9\n"},
    ),
)
SCENARIOS = (*_PROGRAMS, *_SOURCES, *_KINDS)
