"""How a job ends: codes, signals, status files, what stays behind."""

from __future__ import annotations

import signal

from tests.launcher.conformance.facets import CANARY, CULPRIT, USER_LINE
from tests.launcher.conformance.scenario import ABSENT, BARE, PYTORCH, Scenario, Stop
from tests.launcher.conformance.scenarios.meant import FITS, differs, real_code, tied
from tests.launcher.conformance.scenarios.parts import SHELL, script, sdk

_LEAVES_CHILD = """
import subprocess
subprocess.Popen(["sleep", "60"], start_new_session=True)
"""
_SAVES_ON_TERM = f"""\
import signal, sys, time
def save(*_):
    print("{USER_LINE}saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
#probe
while True:
    time.sleep(0.05)
"""
_PRINTS = f"""
print("{USER_LINE}one", flush=True)
print("    {USER_LINE}indented", flush=True)
print("{USER_LINE}to stderr", file=sys.stderr, flush=True)
"""
_GLOO = "terminate called after throwing an instance of 'gloo::EnforceNotMet'"

_SCENARIOS = (
    Scenario("ending: exit 0", sdk(), script("sys.exit(0)\n")),
    Scenario("ending: exit 3", sdk(), script("sys.exit(3)\n")),
    Scenario("ending: shell script exits 7", sdk("train.sh"), {"train.sh": SHELL + "exit 7\n"}),
    Scenario("ending: exception", sdk(), script(f"raise ValueError('{CULPRIT}')\n")),
    Scenario("ending: exit with a text", sdk(), script(f"sys.exit('{CULPRIT}: give up')\n")),
    Scenario(
        "ending: error text without an exception",
        sdk(),
        script(f"print('{CULPRIT}', file=sys.stderr)\nsys.exit(4)\n"),
    ),
    Scenario(
        "ending: segmentation fault",
        sdk(),
        script("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"),
    ),
    Scenario("ending: killed", sdk(), script("import os\nos.kill(os.getpid(), 9)\n")),
    Scenario(
        "ending: a gloo failure",
        sdk(),
        script(f'sys.stderr.write("RuntimeError: {_GLOO}\\n")\nsys.exit(134)\n'),
    ),
    Scenario(
        "ending: the script's own failure file",
        sdk(),
        script(
            "import os\n"
            "open(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').write('my own words')\n"
            "sys.exit(5)\n"
        ),
    ),
    Scenario(
        "ending: a failure file of an earlier run",
        sdk(),
        script(),
        tree={"output/failure": "of yesterday"},
    ),
    Scenario("ending: long error", sdk(), script("raise ValueError('x' * 5000)\n")),
    Scenario("ending: what a script prints", sdk(), script(_PRINTS)),
    Scenario(
        "ending: a child that keeps stdout open",
        sdk(),
        script(_LEAVES_CHILD),
        environ={"MUSTER_DRAIN_S": "0.5"},
        patience_s=20.0,  # beyond any start, well below the child's time
    ),
    Scenario(
        "ending: SIGTERM",
        sdk(),
        {"train.py": _SAVES_ON_TERM},
        stop=Stop(signal.SIGTERM),
        patience_s=6.0,
    ),
    Scenario(
        "isolated: SIGTERM to PID 1",
        sdk(),
        {"train.py": _SAVES_ON_TERM},
        resource={"network_interface_name": "eth0"},
        isolated=True,
        stop=Stop(signal.SIGTERM),
        patience_s=10.0,
    ),
    Scenario(
        "ending: a secret hyperparameter",
        sdk(api_token=CANARY),
        script("sys.exit(6)\n"),
    ),
)
_SAVED = differs(
    "scripts get SIGTERM and the time to save",
    ("stdout", "[]", '["user|saved"]'),
    ("survivors", "*", "0"),
)  # fmt: skip
_STOPPED = differs(
    "a stop is told in the log",
    ("log.report", "", "*"),
)  # fmt: skip
_CULPRIT = differs(
    "the rank's last lines stand in the failure file",
    ("failure.culprit", "no", "yes"),
)  # fmt: skip
_BARE_CULPRIT = tuple(one._replace(oracle=BARE) for one in _CULPRIT)
_MEANT = {
    "ending: exit 3": real_code("3"),
    "ending: shell script exits 7": (
        *real_code("7"),
        *differs("scripts are started as `sh script`",
                 ("script.argv", '["./train.sh"]', '["train.sh"]')),
    ),
    "ending: exception": _BARE_CULPRIT,
    "ending: exit with a text": _CULPRIT,
    "ending: error text without an exception": (*real_code("4"), *_CULPRIT),
    "ending: segmentation fault": real_code("139"),
    "ending: killed": real_code("137"),
    "ending: a gloo failure": (
        *(one._replace(oracle=BARE) for one in real_code("134")),
        *differs(
            "a failure is never reported as success",
            ("exit", "0", "134"),
            ("success", "empty", ABSENT),
            ("failure", ABSENT, "present"),
            ("log.report", "*SUCCESS", "*FAILURE*"),
            oracle=PYTORCH,
        ),
    ),
    "ending: the script's own failure file": real_code("5"),
    "ending: a failure file of an earlier run": differs(
        "a leftover is set aside at the start",
        ("failure", "present", ABSENT),
        ("files.output", "", "failure.earlier"),
    ),
    "ending: long error": tuple(one._replace(oracle=PYTORCH) for one in FITS),
    "ending: what a script prints": differs(
        "output passes byte by byte, each stream its own",
        ("stdout", "*user|to stderr*", '["user|one", "    user|indented"]'),
        ("stderr", "[]", '["user|to stderr"]'),
        oracle=PYTORCH,
    ),
    "ending: a child that keeps stdout open": (
        *differs("no process of a rank is left", ("survivors", "*", "0")),
        *differs(
            "the end of the script counts, not the end of its pipes",
            ("in_time", "no", "yes"),
            ("exit", "None", "0"),
            ("success", ABSENT, "empty"),
            ("log.report", "", "*SUCCESS"),
            oracle=PYTORCH,
        ),
    ),
    "ending: SIGTERM": (*_SAVED, *real_code("143", theirs="-15"), *_STOPPED),
    "isolated: SIGTERM to PID 1": (
        *_SAVED,
        *real_code("143", theirs="None"),
        *_STOPPED,
        *differs("PID 1 passes SIGTERM on", ("in_time", "no", "yes")),
    ),
    "ending: a secret hyperparameter": (
        *real_code("6"),
        *differs("values of secret names are masked",
                 ("log.leak", "yes", "no"), ("failure.leak", "yes", "no")),
    ),
}  # fmt: skip

SCENARIOS = tied(_SCENARIOS, _MEANT)
