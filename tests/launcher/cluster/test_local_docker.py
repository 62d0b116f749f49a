"""`muster local` with containers as hosts: what they see, what they may take, and whose files
they write.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from muster.types.errors import ConfigError
from tests.launcher.support.events import events_in
from tests.launcher.support.local.local_docker import (
    Start,
    changed,
    context,
    job,
    options_of_nobody,
)
from tests.launcher.support.local.local_runs import SCRIPT, contents, facts_of
from tests.launcher.support.local.unprivileged import NOBODY
from tests.support.engine import Engine
from tests.support.images import image
from tests.support.venvs import CHECKOUT

pytestmark = pytest.mark.timeout(600)  # an image may have to be built first

LOOK = """\
import os
import json, os, socket
def attempt(action):
    try:
        return str(action())
    except OSError as error:
        return type(error).__name__
shm = os.statvfs("/dev/shm")
facts = {
    "hostname": socket.gethostname(),
    "names": sorted({socket.gethostbyname(name) for name in ("algo-1", "algo-2")}),
    "ml": sorted(os.listdir("/opt/ml")),
    "base": os.environ["SM_MODEL_DIR"],
    "user": os.getuid(),
    "channel": open("/opt/ml/input/data/train/a.csv").read(),
    "write channel": attempt(lambda: open("/opt/ml/input/data/train/a.csv", "a")),
    "shm": shm.f_frsize * shm.f_blocks,
    "threads": os.environ["OMP_NUM_THREADS"],
    "given": os.environ["GIVEN"],
    "token": os.environ.get("MY_API_TOKEN"),
    "path": os.environ["PATH"],
}
print("facts " + json.dumps(facts), flush=True)
"""
DDP = """\
import gc, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
assert sys.argv[1:] == ["--lr", "0.1", "--mine", "a b"], sys.argv
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    torch.manual_seed(10 * step + dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
total = torch.tensor([p.double().sum() for p in model.parameters()]).sum()
sums = [torch.zeros(()) for _ in range(dist.get_world_size())]
dist.all_gather(sums, total.float())
assert len(set(map(float, sums))) == 1
print("same model on", dist.get_world_size(), "ranks", flush=True)
# gloo aborts where its threads outlive the group: nobody hangs up while another rank still talks
del model, optimizer
gc.collect()
dist.barrier()
dist.destroy_process_group()
"""
BUSY = """\
import os, time
began, used = time.monotonic(), time.process_time()
while time.monotonic() < began + 2:
    pass
print("share", (time.process_time() - used) / 2, flush=True)
"""


def test_every_container_is_a_host_of_its_own_with_the_limits_that_were_asked_for(
    start: Start, home: Path, base: str
) -> None:
    (home / "src/look.py").write_text(LOOK)
    before = contents(home / "data"), contents(home / "src")
    limits = ("--shm-size", "48m", "--memory", "512m", "--cpus", "1")
    more = ("--channel", "train=data", "--env", "GIVEN=a=b", *limits)
    result = start(home, job("look", base, *more)).wait()
    assert result.code == 0, result.err
    assert before == (contents(home / "data"), contents(home / "src"))
    facts = facts_of(result.out)
    assert sorted(facts) == ["algo-1", "algo-2"]
    for host, seen in facts.items():
        assert seen["hostname"] == host
        assert len(seen["names"]) == 2
        assert {"code", "input", "model", "output"} <= set(seen["ml"])
        assert seen["base"] == "/opt/ml/model"
        assert seen["user"] == 0
        assert seen["channel"] == "1,2\n"
        assert seen["write channel"] == "OSError"  # a read-only file system
        assert seen["shm"] == 48 << 20
        assert (seen["threads"], seen["given"], seen["token"]) == ("1", "a=b", None)
        assert str(home) not in seen["path"]
    local = result.summary["local"]
    assert (local["isolation"], local["image"], local["left"]) == ("docker", base, "nothing")
    assert local["image_id"].startswith("sha256:")
    assert "each host may take 512 MiB, 1 processor, 48 MiB in /dev/shm" in result.err


def test_hosts_share_the_folder_of_checkpoints_and_it_stays(
    start: Start, home: Path, base: str
) -> None:
    (home / "src/saves.py").write_text(
        "import os\nopen('/opt/ml/checkpoints/' + os.environ['SM_CURRENT_HOST'], 'w').write('x')\n"
    )
    result = start(home, job("saves", base, "--checkpoint", "ckpt")).wait()
    assert result.code == 0, result.err
    assert sorted(path.name for path in (home / "ckpt").iterdir()) == ["algo-1", "algo-2"]
    assert {path.stat().st_uid for path in (home / "ckpt").iterdir()} == {os.getuid()}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_checkpoint_folder_that_the_hosts_user_cannot_write_is_refused_before_they_start(
    start: Start, home: Path, base: str
) -> None:
    (home / "src/saves.py").write_text("open('/opt/ml/checkpoints/x', 'w')\nprint('saved')\n")
    folder = home / "ckpt"
    folder.mkdir(mode=0o700)
    words = job("saves", base, "--checkpoint", "ckpt", "--user", "1234:1235")
    refused = start(home, words).wait()
    assert refused.code == ConfigError.exit_code, refused.err
    assert f"--checkpoint {folder}: hosts run as user 1234, who may not write there" in refused.err
    assert f"sudo chown 1234 {folder}, or run hosts as its owner with --user 0:0" in refused.err
    assert not (refused.folder / "algo-1/events.jsonl").exists()
    os.chown(folder, 1234, -1)  # the fix
    assert "saved" in start(home, words).wait().out


def test_the_record_is_that_of_any_other_isolation(start: Start, home: Path, base: str) -> None:
    result = start(home, job("train", base)).wait()
    assert result.code == 0, result.err
    assert sorted(result.out.splitlines()) == [
        "[algo-1:0] ready on algo-1",
        "[algo-2:1] ready on algo-2",
    ]
    assert result.summary["plan"]["master_addr"] == "algo-1"
    assert result.summary["outcome"]["result"] == "Succeeded"
    assert (result.folder / "algo-2/logs/rank-1.out").read_text() == "ready on algo-2\n"
    ended = [event for event in events_in(result.folder) if event["kind"] == "rank_ended"]
    assert {event["host"] for event in ended} == {"algo-1", "algo-2"}
    for host in ("algo-1", "algo-2"):
        ml = result.folder / host / "opt/ml"
        assert (ml / "model/model.txt").read_text() == host
        assert (ml / "code/train.py").read_text() == SCRIPT
        assert (ml / "output/success").exists()


def test_torch_distributed_trains_one_model_on_two_containers(start: Start, home: Path) -> None:
    (home / "src/ddp.py").write_text(DDP)
    more = ("--distribution", "torch_distributed", "--hyperparameter", "lr=0.1")
    result = start(home, job("ddp", image("cpu"), *more, "--", "--mine", "a b")).wait(120)
    assert result.code == 0, result.err
    assert result.out.count("same model on 2 ranks") == 2
    assert "[algo-2:1] same model" in result.out


def test_a_pipeline_trains_one_model_on_two_containers(start: Start, home: Path) -> None:
    shutil.copy(CHECKOUT / "examples" / "modelparallel" / "train.py", home / "src" / "gpt.py")
    parameters = json.dumps({"partitions": 2, "microbatches": 2})
    settings = {"mp_parameters": parameters, "steps": 4, "report-every": 2}
    more = [f"--hyperparameter={name}={value}" for name, value in settings.items()]
    result = start(home, job("gpt", image("cpu"), "--distribution", "smp", *more)).wait(120)
    assert result.code == 0, result.err
    assert result.out.count("pipeline 2 x data 1") == 1 and "proved: 1 outputs" in result.out
    first, last = re.findall(r"step=[24]/4 loss=([\d.]+)", result.out)
    assert float(last) < float(first), result.out
    found = [json.loads(path.read_text()) for path in result.folder.rglob("metrics-rank*.json")]
    assert [one["world_size"] for one in found] == [2, 2]


def test_mpirun_reaches_the_other_container(start: Start, home: Path, base: str) -> None:
    (home / "src/ring.py").write_text(
        "from mpi4py import MPI\n"
        "world = MPI.COMM_WORLD\n"
        "names = world.allgather(MPI.Get_processor_name())\n"
        "print('ring', *names, flush=True)\n"
    )
    result = start(home, job("ring", base, "--distribution", "mpi")).wait(120)
    assert result.code == 0, result.err
    assert result.out.count("ring algo-1 algo-2") == 2


def test_a_rank_gets_no_more_processor_than_was_given(start: Start, home: Path, base: str) -> None:
    (home / "src/busy.py").write_text(BUSY)
    result = start(home, job("busy", base, "--cpus", "0.3", hosts=1)).wait()
    assert result.code == 0, result.err
    assert float(result.out.rpartition(" ")[2]) < 0.45


def test_proxies_of_the_client_stay_out_of_containers_of_its_context(
    start: Start, home: Path, base: str, engine: Engine
) -> None:
    (home / "src/names.py").write_text(
        "import os\nprint('proxies', [n for n in os.environ if 'proxy' in n.lower()], flush=True)\n"
    )
    proxies = {"default": {"httpProxy": "http://user:word@proxy:1", "noProxy": "x"}}
    environ = context(home, engine.address, proxies=proxies)
    result = start(home, job("names", base, hosts=1), environ=environ).wait()
    assert result.code == 0, result.err
    assert "proxies []" in result.out


def test_two_runs_with_the_same_names_stay_apart(start: Start, home: Path, base: str) -> None:
    argv = job("train", base, "--hyperparameter", "seconds=1")
    results = [run.wait() for run in (start(home, argv), start(home, argv))]
    assert [result.code for result in results] == [0, 0], results[0].err + results[1].err


def test_what_containers_wrote_belongs_to_the_user_who_ran_them(
    nobodys_home: Path, start: Start, base: str, socket: Path
) -> None:
    member = options_of_nobody(f"--groups={socket.stat().st_gid}")
    result = start(nobodys_home, job("train", base), **member).wait()
    assert result.code == 0, result.err
    assert {path.stat().st_uid for path in result.folder.rglob("*")} == {NOBODY}
    assert (result.folder / "algo-2/logs/rank-1.out").exists()


WHO = """\
import os
with open(os.path.join(os.environ["SM_MODEL_DIR"], "mine"), "w") as file:
    file.write("x")
print("user", os.getuid(), os.getgid(), flush=True)
"""


@pytest.mark.parametrize(
    ("instruction", "option", "seen"),
    [
        ("USER 1000", (), "user 1000 0"),
        ("USER 1000:1001", ("--user", "0"), "user 0 0"),
        ("LABEL x=y", (), "user 0 0"),
        ("LABEL x=y", ("--user", "1234:1235"), "user 1234 1235"),
    ],
)
def test_hosts_run_as_the_images_user_or_as_the_one_that_was_asked_for(
    start: Start,
    engine: Engine,
    base: str,
    home: Path,
    instruction: str,
    option: tuple[str, ...],
    seen: str,
) -> None:
    (home / "src/who.py").write_text(WHO)
    with changed(engine, base, instruction) as reference:
        result = start(home, job("who", reference, *option)).wait()
    assert result.code == 0, result.err
    assert result.out.count(seen) == 2
    assert ("hosts run as user" in result.err) == (not seen.startswith("user 0"))
    assert {path.lstat().st_uid for path in result.folder.rglob("*")} == {os.getuid()}
    assert (result.folder / "algo-2/opt/ml/model/mine").exists()
    assert result.summary["outcome"]["result"] == "Succeeded"


def test_the_callers_files_stay_the_callers_whoever_runs_the_hosts(
    nobodys_home: Path, start: Start, base: str, socket: Path
) -> None:
    (nobodys_home / "src/who.py").write_text(WHO)
    user = options_of_nobody(f"--groups={socket.stat().st_gid}")
    result = start(nobodys_home, job("who", base, "--user", "1234"), **user).wait()
    assert result.code == 0, result.err
    assert result.out.count("user 1234") == 2
    assert {path.lstat().st_uid for path in result.folder.rglob("*")} == {NOBODY}
    assert result.folder.stat().st_uid == NOBODY
