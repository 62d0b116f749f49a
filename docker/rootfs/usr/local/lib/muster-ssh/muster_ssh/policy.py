"""What stands in the files of sshd and ssh: texts only, no effects."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["MARK", "authorized_keys", "known_hosts", "ssh_config", "sshd_config"]

MARK = "muster-ssh"  # the comment of a line or file that is ours

# A key of this job opens a shell, nothing more; there is no other way in. No PAM: its pam_loginuid
# ends every session in a container that may not write /proc/self/loginuid, and sshd alone refuses
# passwords just as well. StrictModes would refuse a folder below /dev/shm, which all may write to;
# the folder itself has been found to be ours, with mode 700.
_SERVER = """\
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
PermitEmptyPasswords no
KbdInteractiveAuthentication no
HostbasedAuthentication no
GSSAPIAuthentication no
KerberosAuthentication no
UsePAM no
StrictModes no
DisableForwarding yes
PermitTunnel no
PermitUserEnvironment no
PermitUserRC no
PrintMotd no
PrintLastLog no
UseDNS no
PidFile none
MaxStartups 64:30:512
MaxAuthTries 3
LoginGraceTime 30
ClientAliveInterval 30
ClientAliveCountMax 10
LogLevel INFO
"""
_CLIENT = """\
  StrictHostKeyChecking yes
  GlobalKnownHostsFile /dev/null
  UpdateHostKeys no
  IdentitiesOnly yes
  PreferredAuthentications publickey
  PasswordAuthentication no
  KbdInteractiveAuthentication no
  BatchMode yes
  ConnectTimeout 30
  ServerAliveInterval 30
  ServerAliveCountMax 10
"""


def sshd_config(folder: str, user: str, port: int, listen: Sequence[str], variables: str) -> str:
    """`listen`: addresses of this host; none: all. `variables`: the words of SetEnv."""
    root = "prohibit-password" if user == "root" else "no"
    rows = [
        f"# {MARK}: of one job, made when sshd started",
        f"Port {port}",
        *(f"ListenAddress {address}" for address in listen),
        f"HostKey {folder}/host_key",
        f"AuthorizedKeysFile {folder}/authorized_keys",
        f"AllowUsers {user}",
        f"PermitRootLogin {root}",
    ]
    setting = f"SetEnv {variables}\n" if variables else ""
    return "\n".join(rows) + "\n" + _SERVER + setting


def authorized_keys(public: str) -> str:
    return f"restrict,pty {public} {MARK}\n"


def known_hosts(publics: Sequence[tuple[str, str]], port: int) -> str:
    """Lines for (host, public key), with the port where ssh wants it named."""
    form = "{} {} {}\n" if port == 22 else f"[{{}}]:{port} {{}} {{}}\n"
    return "".join(form.format(host, public, MARK) for host, public in publics)


def ssh_config(folder: str, user: str, port: int, hosts: Sequence[str]) -> str:
    """For connections of this user to the hosts of the job; all others are as they were."""
    if not hosts:
        return f"# {MARK}: no other host is known\n"
    return (
        f"# {MARK}: the hosts of one job, made when sshd started\n"
        f"Match localuser {user} originalhost {','.join(hosts)}\n"
        f"  Port {port}\n"
        f"  IdentityFile {folder}/id_ed25519\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n"
        f"{_CLIENT}"
    )
