"""The training scripts of the soak. Each leaves a file just before it ends well."""

from __future__ import annotations

from tests.launcher.soak.scenario import Scenario

DONE = "done-"  # and the rank: what proves that a rank exited 0
BEGIN = """\
import os, signal, subprocess, sys, time
me = os.environ["SM_CURRENT_HOST"]
rank = os.environ.get("RANK", "0")
bad = me == "{culprit}"
end = time.monotonic() + {works_s}
def work():
    while time.monotonic() < end:
        time.sleep(0.01)
print("ready on", me, flush=True)
"""
END = """\
open(os.path.join(os.environ["SM_MODEL_DIR"], "done-" + rank), "w").close()
"""
# A step after the other until the time of all ranks is over; where one is bad, its stage raises.
PIPELINE = """\
import torch
import smdistributed.modelparallel.torch as smp
class Layer(torch.nn.Linear):
    def forward(self, x):
        if bad and time.monotonic() > end:
            raise ValueError("bad batch")
        return super().forward(x)
smp.init()
end = time.monotonic() + {works_s}
torch.manual_seed(0)
model = smp.DistributedModel(torch.nn.Sequential(*[Layer(8, 8) for _ in range(6)]))
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
@smp.step
def train(batch):
    loss = model(batch).square().mean()
    model.backward(loss)
    return loss
going = True
while going:
    optimizer.zero_grad()
    train(torch.ones(8, 8))
    optimizer.step()
    going = any(smp.allgather(bad or time.monotonic() < end, smp.WORLD))
"""
BODIES = {
    "quick": "",
    "works": "work()\n",
    "slow install": "work()\n",
    "saves": (
        "def stop(*_):\n"
        "    time.sleep(0.3)\n"
        "    print('saved', flush=True)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "work()\n"
    ),
    "ignores": "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nend += 3\nwork()\n",
    "floods": (
        "line = ('x' * 200 + '\\n').encode()\n"
        "for _ in range(400):\n"
        "    os.write(1, line * 100)\n"
        "    os.write(2, line)\n"
        "work()\n"
    ),
    "daemon": "subprocess.Popen(['setsid', 'sleep', '600'])\nwork()\n",
    "forks": (
        "for _ in range(20):\n"
        "    subprocess.Popen(['sleep', '600'])\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        os._exit(0)\n"
        "work()\n"
    ),
    "exits": "if bad:\n    work()\n    os._exit({value})\nend += 0.5\nwork()\n",
    "dies": "if bad:\n    work()\n    os.kill(os.getpid(), {value})\nend += 0.5\nwork()\n",
    "raises": "if bad:\n    work()\n    raise ValueError('bad batch')\nend += 0.5\nwork()\n",
    "all raise": "work()\nraise ValueError('bad batch on ' + me)\n",
    "pipeline": "bad = False\n" + PIPELINE,
    "pipeline raises": PIPELINE,
    "fills": (
        "try:\n"
        "    with open(os.path.join(os.environ['SM_OUTPUT_DIR'], 'big'), 'wb', 0) as file:\n"
        "        while True:\n"
        "            file.write(b'x' * 4096)\n"
        "except OSError:\n"
        "    pass\n"
        "work()\n"
        "raise ValueError('bad batch on ' + me)\n"
    ),
}
SHELL = """\
echo ready on $SM_CURRENT_HOST
sleep {works_s}
touch $SM_MODEL_DIR/done-0
"""
# stands in for pip, so that no index is needed
SLOW_PIP = """\
import subprocess, sys, time
subprocess.Popen(["setsid", "sleep", "600"])
print("installing", flush=True)
time.sleep(1)
"""
BAD_PIP = "import sys, time\ntime.sleep(0.3)\nprint('ERROR: no such package')\nsys.exit(1)\n"


def program(one: Scenario) -> str:
    return "run.sh" if one.script == "shell" else "train.py"


def source(one: Scenario) -> str:
    """The text of the training script."""
    if one.script == "shell":
        return SHELL.format(works_s=one.works_s)
    body = BODIES.get(one.script, BODIES["works"])
    values = {"culprit": f"algo-{one.culprit + 1}", "works_s": one.works_s, "value": one.value}
    return "".join(part.format(**values) for part in (BEGIN, body)) + END
