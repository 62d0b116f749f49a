"""ssh between real containers: hosts of one job reach each other, nobody else does (S01)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.images.support.ssh_hosts import SSHD, SshHosts, ssh_hosts

pytestmark = [pytest.mark.promise("S01"), pytest.mark.timeout(600)]
SECRET = {"MUSTER_JOB_SECRET": "0123456789abcdef0123456789abcdef"}
# whoever does not check who answers
CARELESS = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")
REAL = "/usr/sbin/sshd.distrib"
KEY_FILES = "find / -xdev ( -name ssh_host_*_key* -o -name id_* -path */.ssh/* ) -print"


@pytest.fixture
def hosts() -> Iterator[SshHosts]:
    with ssh_hosts() as made:
        yield made


def test_hosts_of_one_job_reach_each_other_as_root_with_host_checking_on(hosts: SshHosts) -> None:
    one, two = hosts.start("algo-1"), hosts.start("algo-2")

    for made, other in ((one, "algo-2"), (two, "algo-1"), (one, "algo-1")):
        assert hosts.must(made, "ssh", other, "id", "-un") == "root\n"
        settings = hosts.must(made, "ssh", "-G", other).splitlines()
        assert {"stricthostkeychecking true", "batchmode yes"} <= set(settings)
    elsewhere = hosts.must(one, "ssh", "-G", "example.com").splitlines()
    assert {"stricthostkeychecking ask", "batchmode no"} <= set(elsewhere)


@pytest.mark.parametrize("home", ["/root", "/tmp/elsewhere"])
def test_paramiko_finds_the_key_and_checks_the_host(hosts: SshHosts, home: str) -> None:
    """As SDK v3's driver waits for its workers, with a policy that accepts nothing unknown."""
    environ = {"HOME": home}
    one = hosts.start("algo-1", environ=environ)
    two = hosts.start("algo-2", job="another", environ=environ)
    script = """
import paramiko, sys
client = paramiko.SSHClient()
client.load_system_host_keys()
client.set_missing_host_key_policy(paramiko.RejectPolicy())
client.connect(sys.argv[1], timeout=20)
print(client.exec_command("id -un")[1].read().decode())
"""
    to_itself = hosts.run_in(one, "python", "-c", script, "algo-1")
    assert to_itself.stdout.strip() == "root", to_itself.stderr
    assert "BadHostKeyException" in hosts.run_in(one, "python", "-c", script, "algo-2").stderr
    assert "BadHostKeyException" in hosts.run_in(two, "python", "-c", script, "algo-1").stderr


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (("job-1", SECRET), ("job-2", SECRET)),
        (("job-1", SECRET), ("job-1", {})),
        (("job-1", SECRET), ("job-1", {"MUSTER_JOB_SECRET": "f" * 32})),
        (("", {}), ("", {})),
    ],
    ids=["another-job", "no-secret", "another-secret", "no-job"],
)
def test_a_container_of_the_same_image_with_another_job_is_refused_both_ways(
    hosts: SshHosts, ours: tuple[str, dict[str, str]], theirs: tuple[str, dict[str, str]]
) -> None:
    one = hosts.start("algo-1", job=ours[0], environ=ours[1])
    stranger = hosts.start("algo-2", job=theirs[0], environ=theirs[1])

    for made, other in ((one, "algo-2"), (stranger, "algo-1")):
        careful = hosts.run_in(made, "ssh", "-o", "BatchMode=yes", other, "true")
        assert careful.returncode == 255
        assert "Host key verification failed" in careful.stderr
        careless = hosts.run_in(made, "ssh", *CARELESS, other, "true")
        assert careless.returncode == 255
        assert "Permission denied (publickey)" in careless.stderr


def test_no_password_opens_a_session(hosts: SshHosts) -> None:
    one, two = hosts.start("algo-1"), hosts.start("algo-2")
    hosts.must(two, "sh", "-c", "echo root:known | chpasswd")
    ways = "PreferredAuthentications=password,keyboard-interactive,hostbased,gssapi-with-mic"
    words = ["ssh", "-v", "-o", ways, "-o", "PubkeyAuthentication=no", "-o", "BatchMode=no"]

    done = hosts.run_in(one, *words, "-o", "PasswordAuthentication=yes", "algo-2", "true")

    assert done.returncode == 255
    assert "Authentications that can continue: publickey\n" in done.stderr.replace("\r", "")
    assert "Permission denied (publickey)" in done.stderr


def test_the_policy_is_what_sshd_says_of_itself(hosts: SshHosts) -> None:
    one = hosts.start("algo-1")
    rows = hosts.must(one, "/usr/sbin/sshd", "-T").splitlines()
    said = dict(row.split(" ", 1) for row in rows if " " in row)
    address = hosts.must(one, "hostname", "-i").strip()

    assert said["permitrootlogin"] in ("prohibit-password", "without-password")
    assert said["authenticationmethods"] == "publickey"
    assert said["allowusers"] == "root"
    assert said["maxstartups"] == "64:30:512"
    assert said["disableforwarding"] == "yes"
    assert [row for row in rows if row.startswith("listenaddress")] == [
        f"listenaddress {address}:22"
    ]
    assert said["hostkey"].startswith("/dev/shm/muster-ssh-0-")
    for name in ("password", "kbdinteractive", "hostbased", "gssapi", "kerberos"):
        assert said[f"{name}authentication"] == "no"
    for name in (
        "permitemptypasswords",
        "usepam",
        "permituserenvironment",
        "permituserrc",
        "permittunnel",
    ):
        assert said[name] == "no"


def test_keys_lie_in_memory_and_are_closed_to_others(hosts: SshHosts) -> None:
    one = hosts.start("algo-1", environ=SECRET)

    listed = hosts.must(one, "sh", "-c", "stat -c '%a %n' /dev/shm/muster-ssh-* /dev/shm/*/*")
    assert {row.split()[0] for row in listed.splitlines()} == {"700", "600"}
    written = hosts.engine.must("diff", one).split()
    assert not [path for path in written if "host_key" in path or "ssh_host" in path]
    links = "readlink /root/.ssh/id_ed25519; stat -f -c %T -L /root/.ssh/id_ed25519"
    where, kind = hosts.must(one, "sh", "-c", links).split()
    assert where.startswith("/dev/shm/muster-ssh-0-") and kind == "tmpfs"
    secret = SECRET["MUSTER_JOB_SECRET"]
    found = hosts.run_in(one, "grep", "-rl", secret, "/dev/shm", "/etc", "/root", "/run")
    assert found.stdout == ""


def test_the_image_has_no_key_before_the_start_and_makes_none_when_its_package_is_configured(
    hosts: SshHosts,
) -> None:
    one = hosts.run(command=["sleep", "600"])

    assert hosts.must(one, *KEY_FILES.split()) == ""
    hosts.must(one, "dpkg-reconfigure", "--frontend=noninteractive", "openssh-server")
    assert hosts.must(one, *KEY_FILES.split()) == ""
    # an image that is built on ours may upgrade the package: ours has to stay in its place
    assert hosts.must(one, "dpkg-divert", "--truename", "/usr/sbin/sshd") == f"{REAL}\n"
    real = hosts.run_in(one, REAL, "-D")
    assert real.returncode and "no hostkeys available" in real.stderr


def test_sessions_have_the_variables_of_their_own_host(hosts: SshHosts) -> None:
    nasty = {"SM_HPS": '{"a": "it\'s \\"quoted\\" \\\\ # % $HOME", "b": " "}', "SM_EMPTY": ""}
    long = {"SM_LONG": "x" * 100_000, "SM_LONG_TOO": "y" * 60_000}
    environ = {**nasty, **long, **SECRET, "LD_LIBRARY_PATH": "/opt/a:/opt/b", "WHO": "two"}
    one = hosts.start("algo-1", environ={**SECRET, "WHO": "one", "ONLY_ONE": "1"})
    hosts.start("algo-2", environ=environ)

    said = hosts.must(one, "ssh", "algo-2", "env", "-0").split("\0")
    found = dict(row.split("=", 1) for row in said if row)

    del environ["MUSTER_JOB_SECRET"]
    assert {name: found.get(name) for name in environ} == environ
    assert found["PATH"].startswith("/opt/venv/bin:")
    assert not {"MUSTER_JOB_SECRET", "ONLY_ONE"} & set(found)
    assert hosts.must(one, "ssh", "algo-2", "umask") == "0022\n"
    assert "muster" in hosts.must(one, "ssh", "algo-2", "train", "--version")


def test_what_the_user_put_into_the_home_folder_stays(hosts: SshHosts) -> None:
    own = "mkdir -m 700 /root/.ssh; echo mine > /root/.ssh/id_ed25519; "
    own += "printf 'example.com ssh-ed25519 AAAA' > /root/.ssh/known_hosts; exec /usr/sbin/sshd -D"
    one, _ = hosts.start("algo-1", command=["sh", "-c", own]), hosts.start("algo-2")
    hosts.wait_for(one, "Server listening on")

    assert hosts.must(one, "cat", "/root/.ssh/id_ed25519") == "mine\n"
    known = hosts.must(one, "cat", "/root/.ssh/known_hosts").splitlines()
    assert known[0] == "example.com ssh-ed25519 AAAA" and len(known) == 3
    assert "/root/.ssh/id_ed25519 is yours and stays" in hosts.said(one)
    assert hosts.must(one, "ssh", "algo-2", "id", "-un") == "root\n"  # ssh itself needs no ~


def test_modules_of_the_user_do_not_take_the_place_of_those_that_make_keys(hosts: SshHosts) -> None:
    """A job's PYTHONPATH leads to its own code, which may well have a module `secrets`."""
    own = "mkdir /own; echo 'raise SystemExit(9)' > /own/secrets.py; exec /usr/sbin/sshd -D"
    one = hosts.start("algo-1", environ={"PYTHONPATH": "/own"}, command=["sh", "-c", own])

    hosts.wait_for(one, "Server listening on")


@pytest.mark.parametrize("job", ["job-1", ""])
def test_a_second_start_has_the_same_keys(hosts: SshHosts, job: str) -> None:
    one = hosts.start("algo-1", job=job, hosts=["algo-1"])
    read = "cd /dev/shm/muster-ssh-0-*; cat known_hosts authorized_keys; ssh-keygen -yf host_key"
    before = hosts.must(one, "sh", "-c", read)

    hosts.must(one, *SSHD[:1], "-p", "2200")

    assert hosts.must(one, "sh", "-c", read) == before


def test_users_other_than_root_have_it_on_a_high_port(hosts: SshHosts, tmp_path: object) -> None:
    passwd = f"{tmp_path}/passwd"
    with open(passwd, "w", encoding="ascii") as file:
        file.write("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
    os.chmod(passwd, 0o644)
    options = [
        "--user=1000:1000",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--read-only",
        "--tmpfs=/tmp",
        "--tmpfs=/home/user:uid=1000,gid=1000,mode=700",
        f"--mount=type=bind,src={passwd},dst=/etc/passwd,readonly",
    ]
    environ = {"MUSTER_SSH_PORT": "2222", "HOME": "/home/user"}
    one = hosts.start("algo-1", environ=environ, options=options)
    stranger = ["algo-2", "job-2"]
    for name, job in (["algo-2", "job-1"], stranger):
        other = hosts.start(name, job, environ=environ, options=options)
        done = hosts.run_in(one, "ssh", name, "id", "-u")
        assert (done.stdout, done.returncode) == (("1000\n", 0) if job == "job-1" else ("", 255))
        hosts.engine.must("rm", "--force", other)


def test_a_read_only_root_needs_a_home_in_memory_and_no_more(hosts: SshHosts) -> None:
    one = hosts.start("algo-1", options=["--read-only", "--tmpfs=/root"])
    two = hosts.start("algo-2", options=["--read-only"])

    assert hosts.must(one, "ssh", "algo-2", "id", "-un") == "root\n"
    assert "ssh needs `-F /dev/shm/muster-ssh-0-" in hosts.said(two)
    to_one = "ssh -F /dev/shm/muster-ssh-0-*/ssh_config algo-1 id -un"
    assert hosts.must(two, "sh", "-c", to_one) == "root\n"


def test_without_memory_the_keys_lie_on_a_disk_and_it_is_said(hosts: SshHosts) -> None:
    one = hosts.start("algo-1", options=["--ipc=none"])

    assert "the keys lie on a disk" in hosts.said(one)
    assert hosts.must(one, "ssh", "algo-1", "id", "-un") == "root\n"


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"MUSTER_JOB_SECRET": "short"}, "MUSTER_JOB_SECRET has 5 bytes, at least 16"),
        ({"MUSTER_SSH_PORT": "many"}, "MUSTER_SSH_PORT: expected a port"),
    ],
)
def test_a_bad_setting_is_said_and_nothing_listens(
    hosts: SshHosts, environ: dict[str, str], text: str
) -> None:
    words = [f"--env={name}={value}" for name, value in environ.items()]
    one = hosts.run(*words, command=SSHD)

    assert hosts.wait_for_end(one) == 255
    assert text in hosts.said(one) and "listening" not in hosts.said(one)


def test_a_user_without_an_entry_is_told_so(hosts: SshHosts) -> None:
    one = hosts.run("--user=4321", command=SSHD)

    assert hosts.wait_for_end(one) == 255
    assert "user 4321 has no entry in /etc/passwd" in hosts.said(one)


def test_an_interface_that_does_not_exist_is_no_obstacle(hosts: SshHosts) -> None:
    """SDK v3's local mode names one, `ethwe`."""
    resources = {"network_interface_name": "ethwe"}
    one = hosts.start("algo-1", resources=resources)
    hosts.start("algo-2", resources=resources)

    address = hosts.must(one, "hostname", "-i").strip()
    assert f"Server listening on {address} port 22" in hosts.said(one)
    assert hosts.must(one, "ssh", "algo-2", "id", "-un") == "root\n"
