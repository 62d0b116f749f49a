"""What the images are and how they run: their configuration, their layers, one container."""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts.images.build import build
from scripts.images.engine import Client
from scripts.images.inputs import find_inputs
from scripts.images.likeness import content_of, differences, likeness
from scripts.images.scan import scan, scan_archive
from scripts.images.sizes import beside_base, layers, size_of
from scripts.images.traces import traces
from tests.support.images import LABEL, RUN, client, image
from tests.support.mltree import write_tree

pytestmark = pytest.mark.timeout(1200)  # the first test of a machine builds the image
TARGETS = ["base", "cpu"]
LARGEST_BYTES = {"base": 200e6, "cpu": 800e6}
DEBIAN_S_CERTIFICATES = Path("/usr/share/ca-certificates")
CERTIFICATE_S_END = re.compile(r"^(\S+)\n\S+\n-----END CERTIFICATE-----$", re.MULTILINE)
COMPILED = """\
import importlib.util, os, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
files = [vars(module).get("__file__") or "" for module in list(sys.modules.values())]
ours = [path for path in files if path.startswith("/opt/venv/") and path.endswith(".py")]
print(len(ours), *(path for path in ours
                   if not os.path.exists(importlib.util.cache_from_source(path))))
"""
IMPORTED = {
    "base": ("muster.train", "muster_collectives.core", "boto3.session", "paramiko"),
    "cpu": ("muster.train", "muster_collectives.torch", "torch.distributed.run"),
}
SLEEPS = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def engine() -> Client:
    return client()


def inspected(engine: Client, target: str) -> Mapping[str, object]:
    text = engine.must("image", "inspect", "--format={{json .Config}}", image(target))
    found: Mapping[str, object] = json.loads(text)
    return found


@pytest.mark.promise("F03")
@pytest.mark.parametrize("target", TARGETS)
def test_an_image_starts_train_in_exec_form_as_root_without_a_health_check(
    engine: Client, target: str
) -> None:
    config = inspected(engine, target)
    assert config["Entrypoint"] == ["/usr/bin/tini", "--"]
    assert config["Cmd"] == ["train"]
    assert not config["User"]
    assert not config.get("Healthcheck")
    assert not config.get("ExposedPorts")
    assert not config.get("Volumes")


@pytest.mark.promise("S16")
@pytest.mark.parametrize("target", TARGETS)
def test_an_image_sets_only_what_it_needs_and_says_what_it_is(engine: Client, target: str) -> None:
    config = inspected(engine, target)
    environ = config["Env"]
    assert isinstance(environ, list)
    names = {text.partition("=")[0] for text in environ}
    mpi = {name for name in names if name.startswith(("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_MCA_"))}
    assert names - mpi == {"PATH", "VIRTUAL_ENV", "LANG"}
    labels = config["Labels"]
    assert isinstance(labels, dict)
    assert labels["org.opencontainers.image.version"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    ours = {name: text for name, text in labels.items() if name.startswith("ml.muster.")}
    assert ours["ml.muster.python"] == "3.11"
    assert ours["ml.muster.os"] == "debian-bookworm"
    assert "" not in ours.values() and len(ours) <= 10


@pytest.mark.parametrize("target", TARGETS)
def test_the_history_has_the_steps_that_made_the_layers(engine: Client, target: str) -> None:
    """BuildKit lets stages on one another write into one history: an auditor then reads that tools
    of the build are in the image."""
    steps = [one.made_by for one in layers(engine, image(target))]
    found = [step.rpartition("step.sh ")[2].split()[0] for step in steps]
    assert found == ["COPY", "ssh.sh", "copy.sh", "libraries.sh", "toolkit.sh"]


@pytest.mark.promise("S12")
@pytest.mark.parametrize("target", TARGETS)
def test_no_program_runs_as_another_user_than_it_was_started_by(
    engine: Client, target: str
) -> None:
    find = "find / -xdev -type f -perm /6000 -print; dpkg-statoverride --list /usr/bin/passwd"
    run = ("run", "--rm", f"--label={LABEL}={RUN}", "--network=none", image(target))
    assert engine.must(*run, "bash", "-c", find).split() == [
        "root",
        "root",
        "755",
        "/usr/bin/passwd",
    ]


def test_without_ssh_there_is_none(engine: Client) -> None:
    look = "! type ssh sshd; ls -A /etc/ssh /usr/local/lib; python -c 'import paramiko'"
    run = ("run", "--rm", f"--label={LABEL}={RUN}", "--network=none", image("base", "SSH=0"))
    said = engine.run(*run, "bash", "-c", look)
    assert said.returncode == 0 and "muster-ssh" not in said.stdout, said


CHILD = """\
ARG BASE
FROM ${BASE}
RUN cd /opt/venv/lib/python3.*/site-packages && mkdir own-7.dist-info && \\
    printf 'Metadata-Version: 2.1\\nName: own\\nVersion: 7\\n' > own-7.dist-info/METADATA && \\
    muster sbom --output /usr/share/muster --name mine --version 3
"""


@pytest.mark.promise("S14")
def test_an_image_that_is_built_on_ours_is_called_by_its_own_name(
    engine: Client, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(CHILD)
    reference = f"muster-test-{RUN}:child"
    try:
        words = (
            f"--build-arg=BASE={image('base')}",
            f"--tag={reference}",
            f"--label={LABEL}={RUN}",
        )
        engine.must("build", *words, "--network=none", str(tmp_path))
        config = json.loads(engine.must("image", "inspect", "--format={{json .Config}}", reference))
        run = ("run", "--rm", f"--label={LABEL}={RUN}", "--network=none", reference)
        bill = json.loads(engine.must(*run, "cat", "/usr/share/muster/sbom.cdx.json"))
    finally:
        engine.run("rmi", "--force", reference)
    assert {
        name: text for name, text in config["Labels"].items() if text and "opencont" in name
    } == {}
    assert config["Labels"]["ml.muster.version"]  # what it stands on
    subject = bill["metadata"]["component"]
    assert (subject["name"], subject["version"]) == ("mine", "3")
    assert "pkg:pypi/own@7" in {one.get("purl") for one in bill["components"]}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS)
def test_two_builds_of_one_commit_are_the_same_image(engine: Client, target: str) -> None:
    """Nothing comes from the cache. The packages have to be the same: a mirror may get new ones."""
    tags = [f"muster-test-{RUN}:again-{target}-{number}" for number in range(2)]
    try:
        one, other = (
            content_of(engine, build(target, tag=tag, label=f"{LABEL}={RUN}", fresh=True).reference)
            for tag in tags
        )
    finally:
        engine.run("rmi", "--force", *tags)
    assert list(differences(one, other)) == []
    assert likeness(one.config) == likeness(other.config)


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_is_small(engine: Client, target: str) -> None:
    found = layers(engine, image(target))
    base_bytes = size_of(engine, find_inputs(engine, os.environ).base)
    assert beside_base(found, base_bytes) < LARGEST_BYTES[target], found
    assert found[-1].size_bytes < 8e6, "the toolkit's layer is all that a release moves"


@pytest.mark.parametrize("target", TARGETS)
def test_what_jobs_import_is_compiled(engine: Client, target: str) -> None:
    """Else each container of each host compiles it anew: torch then takes twice the time."""
    # what is read-only cannot be compiled by this very look
    words = ("run", "--rm", f"--label={LABEL}={RUN}", "--network=none", "--read-only")
    said = engine.must(*words, image(target), "python", "-B", "-c", COMPILED, *IMPORTED[target])
    count, *others = said.split()
    assert int(count) > 50
    assert others == []


@pytest.mark.promise("S01")
@pytest.mark.promise("S14")
@pytest.mark.parametrize("target", TARGETS)
def test_no_layer_holds_a_key_a_credential_or_a_trace_of_the_machine(
    engine: Client, target: str
) -> None:
    known = traces()
    assert len(known) >= 2  # the checkout, and apt's mirror
    assert scan(engine, image(target), [*known, *own_certificates(engine)]) == []


def own_certificates(engine: Client) -> list[str]:
    """A line of each that builds are given here and that Debian's package does not have; none
    where that is not here to tell them by."""
    bundle = find_inputs(engine, os.environ).ca_bundle
    debian = "".join(path.read_text() for path in DEBIAN_S_CERTIFICATES.rglob("*.crt"))
    given = CERTIFICATE_S_END.findall(bundle.read_text()) if bundle and debian else []
    return sorted({*given} - {*CERTIFICATE_S_END.findall(debian)})


BODY = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n"
PLANTED = {
    "usr/share/a": (f"-----BEGIN OPENSSH PRIVATE KEY-----\n{BODY}", "private key"),
    "usr/lib/a.py": (f"import os\n'-----BEGIN PRIVATE KEY-----\n{BODY}'", "private key"),
    "etc/ssh/ssh_host_rsa_key": ("x", "key"),
    "home/me/.ssh/id_ed25519": ("x", "key"),
    "root/.ssh/authorized_keys": ("x", "key"),
    "etc/pip.conf": ("x", "settings of an index"),
    "root/.git-credentials": ("x", "settings of an index"),
    "root/.aws/credentials": ("x", "credential"),
    "usr/share/b": (f"AWS_SECRET_ACCESS_KEY={'a' * 40}\n", "credential"),
    "usr/share/c": (f'{{"SecretAccessKey": "{"a" * 40}"}}', "credential"),
    "usr/share/d": ("AKIAABCDEFGHIJKLMNOP ", "credential"),
    "usr/share/e": ("ASIAABCDEFGHIJKLMNOP ", "credential"),
    "usr/share/f": (f"ghp_{'a' * 36}", "credential"),
    "usr/share/g": ('{"auth": "QVdTOnBhc3N3b3Jk"}', "credential"),
    "etc/h": ("https://me:word@an.index/simple", "password in an address"),
    "usr/share/i": ("from an.index.of.mine", "'an.index.of.mine', which is this machine's"),
}


@pytest.mark.promise("S01")
def test_what_a_later_layer_removes_is_found_all_the_same(engine: Client, tmp_path: Path) -> None:
    """The scan can fail: each kind of thing is planted at a place of its own and removed again."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as files:
        for path, (text, _) in PLANTED.items():
            member = tarfile.TarInfo(f"planted/{path}" if path.startswith("usr") else path)
            member.size = len(text)
            files.addfile(member, io.BytesIO(text.encode()))
    (tmp_path / "files.tar").write_bytes(archive.getvalue())
    (tmp_path / "Dockerfile").write_text(
        "FROM scratch\nCOPY Dockerfile /\nADD files.tar /\nCOPY empty /planted/usr/share/a\n"
    )
    (tmp_path / "empty").touch()
    reference = f"muster-test-{RUN}:planted"
    try:
        engine.must("build", "--quiet", f"--tag={reference}", str(tmp_path))
        found = scan(engine, reference, ["an.index.of.mine"])
    finally:
        engine.run("rmi", "--force", reference)
    for path, (_, what) in PLANTED.items():
        assert [one for one in found if one.what == what and one.where.endswith(path)], (
            path,
            found,
        )
    assert len(found) == len(PLANTED)


def test_what_the_history_tells_is_looked_at(engine: Client, tmp_path: Path) -> None:
    reference = f"muster-test-{RUN}:told"
    (tmp_path / "Dockerfile").write_text(
        "FROM scratch\nARG A\nENV INDEX=https://me:word@an.index/ A=$A\nCOPY Dockerfile /\n"
    )
    try:
        engine.must(
            "build", "--quiet", f"--build-arg=A=ghp_{'a' * 36}", f"--tag={reference}",
            str(tmp_path),
        )  # fmt: skip
        found = scan(engine, reference)
    finally:
        engine.run("rmi", "--force", reference)
    assert {(one.what, one.where) for one in found} >= {
        ("password in an address", "configuration"),
        ("password in an address", "history"),
        ("credential", "configuration"),
    }


@pytest.mark.parametrize("newer", [False, True])
def test_both_forms_of_a_saved_image_are_read(tmp_path: Path, newer: bool) -> None:
    """Docker 25 and later keep layers as blobs, beside others that are JSON."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as files:
        files.addfile(tarfile.TarInfo("etc"))
        member = tarfile.TarInfo("etc/ssh/ssh_host_rsa_key")
        member.size = 1
        files.addfile(member, io.BytesIO(b"x"))
    layer = "blobs/sha256/abc" if newer else "abc/layer.tar"
    parts = {
        "manifest.json": json.dumps([{"Layers": [layer]}]).encode(),
        "blobs/sha256/def": b"{}",
        layer: inner.getvalue(),
    }
    with tarfile.open(tmp_path / "image.tar", "w") as image_file:
        for name, data in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            image_file.addfile(member, io.BytesIO(data))
    assert [one.where for one in scan_archive(tmp_path / "image.tar")] == [
        "layer 0 /etc/ssh/ssh_host_rsa_key"
    ]


class Container:
    """One `train` with a /opt/ml of its own."""

    def __init__(self, engine: Client, folder: Path, target: str, script: str, *options: str):
        self.engine, self.folder = engine, folder / "ml"
        self.name = f"muster-test-{secrets.token_hex(6)}"
        write_tree(
            self.folder,
            {"sagemaker_program": "train.py"},
            {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "eth0"},
        )
        (self.folder / "code").mkdir(exist_ok=True)
        (self.folder / "code" / "train.py").write_text(script)
        self.words = [
            "run", f"--name={self.name}", f"--label={LABEL}={RUN}", "--network=none",
            f"--mount=type=bind,src={self.folder},dst=/opt/ml", *options, image(target),
        ]  # fmt: skip

    def start(self) -> None:
        self.engine.must(self.words[0], "--detach", *self.words[1:])
        end = time.monotonic() + 60
        while "ready" not in self.log():
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)

    def run(self, *command: str) -> int:
        return self.engine.run(*self.words, *command, limit_s=120).returncode

    def log(self) -> str:
        done = self.engine.run("logs", self.name)
        return done.stdout + done.stderr

    def exit_code(self) -> int:
        return int(self.engine.must("inspect", "--format={{.State.ExitCode}}", self.name))

    def remove(self) -> None:
        self.engine.run("rm", "--force", self.name)


@pytest.fixture
def containers(engine: Client, tmp_path: Path):  # type: ignore[no-untyped-def]
    made: list[Container] = []

    def make(target: str, script: str, *options: str) -> Container:
        made.append(Container(engine, tmp_path / str(len(made)), target, script, *options))
        return made[-1]

    yield make
    for one in made:
        one.remove()


@pytest.mark.promise("F01")
@pytest.mark.promise("F03")
@pytest.mark.parametrize("target", TARGETS)
def test_a_stop_reaches_an_idle_script_at_once(containers, engine, target: str) -> None:  # type: ignore[no-untyped-def]
    job = containers(target, SLEEPS)
    job.start()
    engine.must("stop", "--time=30", job.name)
    assert job.exit_code() == 143, job.log()  # 137 if the engine had to end it
    assert "STOPPED by SIGTERM" in job.log()


def test_the_code_of_the_script_is_the_container_s_and_the_failure_file_says_why(
    containers,
) -> None:  # type: ignore[no-untyped-def]
    job = containers("base", "raise ValueError('bad batch')\n")
    assert job.run() == 1
    failure = (job.folder / "output" / "failure").read_text()
    assert failure.startswith("UserScriptError: ValueError: bad batch (algo-1 rank 0, exit code 1)")


@pytest.mark.parametrize(
    "command", [["python", "-c", "import os; os._exit(7)"], ["sh", "-c", "exit 7"]]
)
def test_any_other_command_runs_below_pid_1_too(containers, command: list[str]) -> None:  # type: ignore[no-untyped-def]
    assert containers("base", "").run(*command) == 7


@pytest.mark.promise("S12")
@pytest.mark.parametrize("target", TARGETS)
def test_an_ordinary_user_without_any_right_trains_on_a_read_only_disk(
    containers,
    target: str,  # type: ignore[no-untyped-def]
) -> None:
    script = (
        "import getpass, os, pathlib\n"
        "assert getpass.getuser() == 'user-12345'\n"
        "pathlib.Path.home().joinpath('cache').mkdir()\n"
        "assert os.getuid() == 12345 and 'CapEff:\\t0000000000000000' in "
        "pathlib.Path('/proc/self/status').read_text()\n"
        "try:\n    open('/usr/there', 'w')\n"
        "except OSError as error:\n    assert error.errno == 30\n"
        "else:\n    raise AssertionError('the disk is not read-only')\n"
        "open('/opt/ml/model/weights', 'w').write('1')\n"
    )
    job = containers(
        target, script, "--user=12345:12345", "--cap-drop=ALL", "--read-only",
        "--tmpfs=/tmp", "--security-opt=no-new-privileges",
    )  # fmt: skip
    for folder, _, names in os.walk(job.folder):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, 12345, 12345)
    assert job.run() == 0, job.log()
    assert (job.folder / "model" / "weights").read_text() == "1"


def test_the_vendor_s_toolkit_can_be_there_and_train_stays_ours(engine: Client) -> None:
    reference = image("base", "WITH_SAGEMAKER_TRAINING=1")
    run = ("run", "--rm", f"--label={LABEL}={RUN}", "--network=none", reference)
    assert engine.must(*run, "train", "--version").startswith("muster ")
    code = "import sagemaker_training.environment as e; print(e.__name__)"
    assert engine.must(*run, "python", "-c", code).strip() == "sagemaker_training.environment"
