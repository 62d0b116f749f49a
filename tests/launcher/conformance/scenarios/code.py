"""Which program runs, where its code comes from, how it is started."""

from __future__ import annotations

from tests.launcher.conformance.scenario import ABSENT, Scenario
from tests.launcher.conformance.scenarios.meant import (
    FITS,
    NO_FRAMEWORK_ERROR,
    accepted,
    differs,
    recorded,
    refused,
    said,
    tied,
)
from tests.launcher.conformance.scenarios.parts import SCRIPT, SHELL, script, sdk

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
    Scenario(
        "kind: bash script",
        sdk("train.sh"),
        {"train.sh": "#!/bin/bash\n#probe\nnames=(a b)\n[[ ${#names[@]} == 2 ]] || exit 9\n"},
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
_SCENARIOS = (*_PROGRAMS, *_SOURCES, *_KINDS)
_OWN_COPY = "packages are built from a private copy"
_PLAIN_NAME = "scripts are started as `sh script`, not made executable and run by a shell"
_MEANT = {
    "program: not named": said("1", "100", "ConfigError"),
    "program: not there": (
        *said("1", "100", "ConfigError"),
        *differs(
            "found before anything is started",
            ("failure.exit_code", "2", ABSENT),
            ("failure.words", "ExecuteUserScriptError", ""),
            ("log.invocation", "*", ""),
        ),
        *recorded(),
    ),
    "program: begins with ./": accepted("names that worked before 5.1.0"),
    "program: leaves the folder": said("1", "100", "ConfigError"),
    "program: name with a space": accepted("names that worked before 5.1.0"),
    "source: an archive that climbs out": (
        *refused("101", "rejected, not rewritten"),
        *differs("rejected, not rewritten",
                 ("files.code", "escaped.py train.py", "")),
        *recorded(),
    ),
    "source: not there": (
        *said("2", "101", "SourceError"),
        *NO_FRAMEWORK_ERROR, *FITS, *recorded(),
    ),
    "kind: shell script": differs(
        _PLAIN_NAME,
        ("script.argv", '["./train.sh",*', '["train.sh",*'),
    ),
    "kind: bash script": differs(
        _PLAIN_NAME, ("script.argv", '["./train.sh"]', '["train.sh"]')
    ),
    "kind: shell script, not executable": differs(
        _PLAIN_NAME,
        ("script.argv", '["./run/train.sh"]', '["run/train.sh"]'),
    ),
    "kind: shell script with requirements": (
        *differs(
            "requirements of every kind of entry point are installed",
            ("exit", "1", "0"),
            ("success", ABSENT, "empty"),
            ("failure", "present", ABSENT),
            ("log.report", "*FAILURE*", "*SUCCESS"),
        ),
        *differs(_PLAIN_NAME, ("script.argv", '["./train.sh"]', '["train.sh"]')),
    ),
    "kind: package": differs(
        _OWN_COPY, ("files.code", "build/lib/*", "setup.py train.py")
    ),
    "kind: package with requirements": differs(
        _OWN_COPY,
        ("files.code", "build/lib/*", "requirements.txt setup.py train.py"),
    ),
    "kind: requirements that cannot be had": (
        *said("1", "101", "InstallError"),
        *differs("the installer's own code says nothing",
                 ("failure.exit_code", "1", ABSENT),
                 ("failure.words", "InstallRequirementsError", "")),
        *recorded(),
    ),
}  # fmt: skip

SCENARIOS = tied(_SCENARIOS, _MEANT)
