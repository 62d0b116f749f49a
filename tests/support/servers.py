"""Servers of this machine that misbehave as object storage and package indexes may."""

from __future__ import annotations

import socket
import threading

Script = bytes | list[bytes] | float | None


class Server:
    """Answers the n-th connection with the n-th script; the last one counts for all that follow.

    A script is bytes to send; a list of them, sent with pauses; None to reset the connection; a
    number to stay silent for so long at most. `requests`: what was asked, in order.
    """

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"http://{self.address}"
        self.environ = {"AWS_ENDPOINT_URL_S3": self.url, "AWS_REGION": "us-west-2"}
        self.requests: list[bytes] = []
        self.connections = 0
        self.asked = threading.Event()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._serve)]

    def __enter__(self) -> Server:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _serve(self) -> None:
        while not self._stopped.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            script = self._scripts[min(self.connections, len(self._scripts) - 1)]
            self.connections += 1
            self._threads.append(threading.Thread(target=self._answer, args=(sock, script)))
            self._threads[-1].start()

    def _answer(self, sock: socket.socket, script: Script) -> None:
        with sock:
            sock.settimeout(2)
            try:
                self.requests.append(sock.recv(65536))
                self.asked.set()
                if script is None:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                elif isinstance(script, bytes):
                    sock.sendall(script)
                elif isinstance(script, list):
                    self._drip(sock, script)
                else:
                    self._keep_silent(sock, script)
            except OSError:
                pass  # the other side has had enough

    def _drip(self, sock: socket.socket, pieces: list[bytes]) -> None:
        for piece in pieces:
            sock.sendall(piece)
            if self._stopped.wait(0.1):
                return

    def _keep_silent(self, sock: socket.socket, limit_s: float) -> None:
        """Until the other side gives up, the time is over, or the server ends."""
        sock.settimeout(0.05)
        for _ in range(int(limit_s / 0.05)):
            try:
                if not sock.recv(1 << 16):
                    return
            except TimeoutError:
                pass
            if self._stopped.is_set():
                return


def answer(status: str, body: bytes = b"", length: int | None = None, headers: str = "") -> bytes:
    """An HTTP answer. `length`: as its header claims; `headers`: more of them, `Name: x\\r\\n`."""
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n{headers}Connection: close\r\n\r\n"
    return head.encode() + body


def refusal(status: str, code: str, more: str = "") -> bytes:
    """An error of S3: its code and more XML elements."""
    return answer(status, f"<Error><Code>{code}</Code>{more}</Error>".encode())
