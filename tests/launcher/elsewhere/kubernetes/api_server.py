"""An API server of Kubernetes as far as kubectl needs one: it keeps what it is given, and tells.

It knows nothing of muster, runs no controller, and checks only what a test asks it to refuse.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

from tests.launcher.elsewhere.kubernetes.api_kinds import discovery

NAMESPACE = "team"


class Asked(NamedTuple):
    """One request that changes something: `query` has dryRun and the like."""

    verb: str
    path: str
    query: dict[str, list[str]]
    body: dict[str, Any]


class Cluster:
    """`kept`: (plural, name) -> object. `refusals`: (plural, dry run) -> (status, words). `logs`:
    of a pod, by its name. `warning`: that goes with every object that is made."""

    def __init__(self, address: str, kubeconfig: Path) -> None:
        self.address, self.kubeconfig = address, kubeconfig
        self.asked: list[Asked] = []
        self.kept: dict[tuple[str, str], dict[str, Any]] = {}
        self.refusals: dict[tuple[str, bool], tuple[int, str]] = {}
        self.logs: dict[str, str] = {}
        self.warning = ""

    def made(self) -> list[str]:
        return sorted(f"{plural}/{name}" for plural, name in self.kept)

    def log(self, pod: str) -> str | Iterator[bytes]:
        return self.logs.get(pod, "")

    def answer(self, verb: str, address: str, body: dict[str, Any]) -> tuple[int, Any]:
        url = urlsplit(address)
        query, path = parse_qs(url.query), url.path.strip("/").split("/")
        if (found := discovery(path)) is not None:
            return 200, found
        if "namespaces" not in path:
            return _problem(404, "not found")
        at = path.index("namespaces") + 2
        plural, name = path[at], "/".join(path[at + 1 : at + 2])
        if name and path[at + 2 :] == ["log"]:
            return 200, self.log(name)
        if verb != "GET":
            self.asked.append(Asked(verb, url.path, query, body))
            dry = "dryRun" in query
            if verb in ("POST", "PATCH") and (plural, dry) in self.refusals:
                return _problem(*self.refusals[plural, dry])
        return self._object(verb, plural, name, query, body, "/".join(path[1 : at - 2]))

    def _object(
        self, verb: str, plural: str, name: str, query: dict[str, Any], body: Any, version: str
    ) -> tuple[int, Any]:
        if verb == "POST":
            name = body["metadata"]["name"]
            if (plural, name) in self.kept:
                return _problem(409, f'{plural} "{name}" already exists')
            body["metadata"].update(namespace=NAMESPACE, uid=str(uuid.uuid4()))
            if "dryRun" not in query:
                self.kept[plural, name] = body
            return 201, body
        if name and (plural, name) not in self.kept:
            return _problem(404, f'{plural} "{name}" not found')
        if verb == "DELETE":
            return 200, self.kept.pop((plural, name))
        if verb == "PATCH":
            for part, changed in body.items():
                self.kept[plural, name][part].update(changed)
        if name:
            return 200, self.kept[plural, name]
        wanted = [one.split("=") for one in query.get("labelSelector", [""])[0].split(",") if one]
        items = [one for (kind, _), one in self.kept.items() if kind == plural]
        for key, value in wanted:
            items = [one for one in items if one["metadata"].get("labels", {}).get(key) == value]
        for one in query.get("fieldSelector", [""])[0].split(","):
            key, _, value = one.partition("=")
            *above, last = key.split(".")
            for name in above:
                items = [it for it in items if it[name][last] == value]
        return 200, {"kind": "List", "apiVersion": version, "metadata": {}, "items": items}


def _problem(status: int, words: str) -> tuple[int, Any]:
    reason = {403: "Forbidden", 404: "NotFound", 409: "AlreadyExists"}.get(status, "BadRequest")
    problem = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
    return status, {**problem, "reason": reason, "message": words}


C = TypeVar("C", bound=Cluster)


@contextmanager
def api_server(folder: Path, kind: Callable[..., C] = Cluster) -> Iterator[C]:  # type: ignore[assignment]
    """One, with a kubeconfig in the folder that names it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(data) if data else {}
            status, found = cluster.answer(self.command, self.path, body)
            if isinstance(found, Iterator):  # as long as the client listens
                self.send_response(status)
                self.send_header("Connection", "close")
                self.end_headers()
                with suppress(ConnectionError):
                    for piece in found:
                        self.wfile.write(piece)
                self.close_connection = True
                return
            text = (found if isinstance(found, str) else json.dumps(found)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if cluster.warning and self.command == "POST":
                self.send_header("Warning", f'299 - "{cluster.warning}"')
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = _any  # noqa: N815

        def log_message(self, *words: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    cluster = kind(address, folder / "kubeconfig")
    context = {"name": "test", "context": {"cluster": "c", "namespace": NAMESPACE, "user": ""}}
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "test"}
    clusters = [{"name": "c", "cluster": {"server": address}}]
    whole = {**config, "contexts": [context], "clusters": clusters}
    cluster.kubeconfig.write_text(json.dumps(whole))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield cluster
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
