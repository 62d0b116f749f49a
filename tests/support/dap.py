"""A debugger in few lines: speaks the Debug Adapter Protocol to debugpy, as an editor does."""

from __future__ import annotations

import json
import socket
from typing import Any

LIMIT_S = 30.0


class Debugger:
    """Attached to a port once `attach` has returned. Every wait ends after `LIMIT_S`."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        self._sock.settimeout(LIMIT_S)
        self._file = self._sock.makefile("rb")
        self._number = 0
        self._events: list[dict[str, Any]] = []

    def close(self) -> None:
        self._file.close()
        self._sock.close()

    def attach(self, configuration: dict[str, Any], source: str, line: int) -> None:
        """With one breakpoint; returns once the program may run."""
        self.ask("initialize", adapterID="test", pathFormat="path")
        attached = self._send("attach", configuration)
        self.event("initialized")
        found = self.ask("setBreakpoints", source={"path": source}, breakpoints=[{"line": line}])
        assert found["breakpoints"][0]["verified"], found
        self.ask("configurationDone")
        self._answer(attached)

    def stopped(self) -> dict[str, Any]:
        """The innermost frame of the thread that stopped."""
        thread = self.event("stopped")["body"]["threadId"]
        frames = self.ask("stackTrace", threadId=thread)["stackFrames"]
        return {**frames[0], "thread": thread}

    def value(self, expression: str, frame: dict[str, Any]) -> str:
        return str(self.ask("evaluate", expression=expression, frameId=frame["id"])["result"])

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self._answer(self._send(command, arguments))

    def event(self, name: str) -> dict[str, Any]:
        """The next one of that name."""
        while True:
            for event in self._events:
                if event["event"] == name:
                    self._events.remove(event)
                    return event
            message = self._read()
            if message["type"] == "event":
                self._events.append(message)

    def _send(self, command: str, arguments: dict[str, Any]) -> int:
        self._number += 1
        message = {"seq": self._number, "type": "request", "command": command}
        data = json.dumps({**message, "arguments": arguments}).encode()
        self._sock.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
        return self._number

    def _answer(self, number: int) -> dict[str, Any]:
        while True:
            message = self._read()
            if message["type"] == "event":
                self._events.append(message)
            elif message["type"] == "response" and message["request_seq"] == number:
                assert message["success"], message
                body: dict[str, Any] = message.get("body", {})
                return body

    def _read(self) -> dict[str, Any]:
        size = 0
        while line := self._file.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        assert size, "the debugger's other end is gone"
        message: dict[str, Any] = json.loads(self._file.read(size))
        return message
