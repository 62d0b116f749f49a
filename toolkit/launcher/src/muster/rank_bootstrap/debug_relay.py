"""Carries connections: `python debug_relay.py LISTENER PORT` takes those of the unix socket with
that descriptor to the port of this host, until that refuses one, or the whole tree is ended.
It leaves its parent, whose children are a script's own matter."""

import os
import socket
import sys
import threading


def main() -> None:
    if os.fork():
        os._exit(0)
    os.setsid()
    listener = socket.socket(fileno=int(sys.argv[1]))
    while True:
        here, _ = listener.accept()
        try:
            there = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
        except OSError:
            return
        join(here, there)


def join(one: socket.socket, other: socket.socket) -> None:
    """Carries both ways, on two threads of their own, until both ends have ended."""
    for source, target in ((one, other), (other, one)):
        threading.Thread(target=carry, args=(source, target), daemon=True).start()


def carry(source: socket.socket, target: socket.socket) -> None:
    """Until the source ends; the other direction may still have something to say."""
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    try:
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


if __name__ == "__main__":
    main()
