"""Hosts in namespaces: who is whose parent, and in which order things are made.

    host supervisor      own user namespace unless it is root; waits
     `- namespace init   PID 1 of the cluster's PID namespace; owns the switch; parent of the hosts
         |- algo-1       PID 1 of its own PID namespace, own network, mounts, host name and IPC
         `- algo-2

Each dies with its parent, and the death of an init ends every process of its namespace, so that
SIGKILL to any of them leaves nothing. It needs no root.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from muster.local import supervisor
from muster.local.backends.netns import kernel, network, rootfs
from muster.local.backends.netns.disk import Disk
from muster.local.orders import HostOrder, Orders

if TYPE_CHECKING:
    from socket import socket

OWN = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC


def start(orders: Orders, up: int) -> int:
    """Makes the namespaces, starts the namespace init and waits for it. Raises OSError."""
    parent = os.getppid()
    helper = None
    if orders.pasta:
        from muster.local.backends.netns.internet import start_helper

        helper = start_helper(orders.pasta)
    if not kernel.has_namespace_powers():
        _become_root_of_a_user_namespace()
    kernel.unshare(OWN | kernel.CLONE_NEWPID)
    kernel.die_with(parent)
    go_r, go_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_w)
        os._exit(_keep(orders, up, go_r, helper))
    os.close(go_r)
    for host in orders.hosts:
        os.close(host.output)
        os.close(host.errors)
    os.write(go_w, b"g")
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


def _become_root_of_a_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {user} 1"),
        ("gid_map", f"0 {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _keep(orders: Orders, up: int, go: int, helper: socket | None) -> int:
    """Runs as the namespace init: its parent is in another PID namespace, hence the pipe `go`."""
    try:
        kernel.die_with(0)
        if not os.read(go, 1):
            return 1
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV)
        disks = {order.name: Disk(order.base) for order in orders.hosts if order.disk}
        hosts = _start_hosts(orders, up, helper)
    except OSError as error:
        supervisor.report(up, "error", f"{error.filename or 'namespaces'}: {error.strerror}")
        return 1
    code = supervisor.hold(orders, up, hosts)
    for name, disk in disks.items():
        if lost := disk.keep():
            supervisor.report(up, "lost", f"not all of what {name} saved could be kept: {lost}")
    return code


def _start_hosts(orders: Orders, up: int, helper: socket | None) -> dict[int, int]:
    """Every host up to the point where only its program is missing, then all of those."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    hosts: dict[int, int] = {}
    handshakes = []
    for host_index, order in enumerate(orders.hosts):
        handshake = _StartHandshake(orders, order, up, helper)
        handshakes.append(handshake)
        kernel.unshare(kernel.CLONE_NEWPID)  # of the next child only
        hosts[supervisor.start_host(order, 0, handshake.inside)] = host_index
        kernel.setns(own, kernel.CLONE_NEWPID)
        handshake.forked()
    os.close(own)
    for handshake in handshakes:
        handshake.wait()
    network.make_switch(tuple(hosts))
    for handshake in handshakes:
        handshake.go()
    for handshake in handshakes:
        handshake.wait()
    for handshake in handshakes:
        handshake.go()
    return hosts


class _StartHandshake:
    """The steps that the namespace init and one new host take together, in turns over two pipes."""

    def __init__(self, orders: Orders, order: HostOrder, up: int, helper: socket | None) -> None:
        self._orders = orders
        self._order = order
        self._up = up
        self._helper = helper
        self._done_r, self._done_w = os.pipe()
        self._go_r, self._go_w = os.pipe()

    def inside(self) -> None:
        """In the new host: namespaces, then its link, names and root, then its program."""
        os.close(self._go_w)
        try:
            kernel.unshare(OWN)
            self._turn()
            network.configure(self._order.address)
            if self._helper:
                from muster.local.backends.netns.internet import ask

                ask(self._helper, self._order.name)
            kernel.sethostname(self._order.name)
            rootfs.enter(self._orders, self._order)
            self._turn()
        except OSError as error:
            text = f"{self._order.name}: {error.filename or 'start'}: {error.strerror}"
            supervisor.report(self._up, "error", text)
            os._exit(126)

    def _turn(self) -> None:
        """Says done and waits for go; the end of the pipe is the end of the namespace init."""
        os.write(self._done_w, b"d")
        if not os.read(self._go_r, 1):
            os._exit(126)

    def forked(self) -> None:
        os.close(self._done_w)
        os.close(self._go_r)

    def wait(self) -> None:
        """Waits for the host's turn. Raises OSError when it ended instead."""
        if not os.read(self._done_r, 1):
            raise OSError(10, "the host ended early", self._order.name)

    def go(self) -> None:
        os.write(self._go_w, b"g")
