"""How a job ends: codes, signals, status files, what stays behind (contract.md 2.2, 2.3, 4)."""

from __future__ import annotations

import signal

from tests.conformance.facets import CANARY, CULPRIT, USER_LINE
from tests.conformance.scenario import Scenario, Stop
from tests.conformance.scenarios.parts import SHELL, script, sdk

_LEAVES_CHILD = """
import subprocess
subprocess.Popen(["sleep", "12"], start_new_session=True)
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

SCENARIOS = (
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
        patience_s=6.0,
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
        patience_s=3.0,
    ),
    Scenario(
        "ending: a secret hyperparameter",
        sdk(api_token=CANARY),
        script("sys.exit(6)\n"),
    ),
)
