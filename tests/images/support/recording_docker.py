"""A stand-in for `docker` that says what it was told and does almost nothing.

It appends each call to the file STAND_IN_RECORDING, as JSON lines. Images are the names in the
folder STAND_IN_IMAGES. `push` hands the registry a manifest, to be read back from there.
With STAND_IN_FAILS="run cpu-test" a command of that name fails when one of its words holds the
other, or is the other where that is an option.
It runs as a program of its own and imports nothing of ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import urllib.parse
from pathlib import Path


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def main(words: list[str]) -> int:
    if words[:1] == ["-H"]:
        words = words[2:]
    command = words[0]
    said = sys.stdin.read() if command == "login" else ""
    if command not in ("version", "info", "buildx", "context"):  # those only look around
        record = {"docker": words, "stdin": said, "config": os.environ.get("DOCKER_CONFIG", "")}
        with Path(os.environ["STAND_IN_RECORDING"]).open("a") as file:
            file.write(json.dumps(record) + "\n")
    fails, _, where = os.environ.get("STAND_IN_FAILS", "").partition(" ")
    fit = (word == where if where.startswith("--") else where in word for word in words)
    if command == fails and any(fit):
        print("as it was told to", file=sys.stderr)
        return 1
    answer = ANSWERS.get(command)
    return answer(words) if answer else 0


def version(words: list[str]) -> int:
    print("20.10.24 20.10.24")
    return 0


def buildx(words: list[str]) -> int:
    return 1  # not there


def info(words: list[str]) -> int:
    print("{}")
    return 0


def build(words: list[str]) -> int:
    (tag,) = (word.removeprefix("--tag=") for word in words if word.startswith("--tag="))
    labels = {
        f"org.opencontainers.image.{name.lower()}": value
        for word in words
        for name, _, value in [word.removeprefix("--build-arg=").partition("=")]
        if name in ("VERSION", "REVISION")
    }
    named = dict(word.removeprefix("--build-arg=").partition("=")[::2] for word in words)
    stages = [named.get("TESTED", ""), named["--target"]]  # a child, on what it stands on
    layers = [digest(name.encode()) for name in stages if name]
    name = digest(tag.encode())
    image: dict[str, object] = {"id": name, "labels": labels, "digests": [], "layers": layers}
    remember(tag, image)
    return 0


def place(name: str) -> Path:
    return Path(os.environ["STAND_IN_IMAGES"], urllib.parse.quote(name, safe=""))


def remember(name: str, image: dict[str, object]) -> None:
    place(name).write_text(json.dumps(image))
    place(str(image["id"])).write_text(json.dumps(image))


def inspect(words: list[str]) -> int:
    name = words[-1]
    if not place(name).exists():
        if name.startswith("debian:"):
            print(1)  # the base, which is there: its size
            return 0
        print(f"Error: No such image: {name}", file=sys.stderr)
        return 1
    image = json.loads(place(name).read_text())
    if any("{{.Id}}" in word for word in words):
        print(image["id"])
        return 0
    if any("{{json .RootFS.Layers}}" in word for word in words):
        print(json.dumps(image["layers"]))
        return 0
    found = {
        "Id": image["id"],
        "Size": 1,
        "Created": "2026-01-01T00:00:00Z",
        "RepoTags": ["muster:kept"],
        "RepoDigests": image["digests"],
        "RootFS": {"Layers": image["layers"]},
        "Config": {"Labels": image["labels"]},
    }
    print(json.dumps([found]))
    return 0


def history(words: list[str]) -> int:
    print(json.dumps({"Size": "1", "CreatedBy": "nothing"}))
    return 0


def tag(words: list[str]) -> int:
    remember(words[2], json.loads(place(words[1]).read_text()))
    return 0


def push(words: list[str]) -> int:
    import urllib.request  # half of a start's time, and a build starts this some fifty times

    image = json.loads(place(words[1]).read_text())
    host, _, rest = words[1].partition("/")
    repository, _, name = rest.rpartition(":")
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    layers = [{"digest": digest(b"layer"), "size": 7}]
    manifest = {"mediaType": kind, "config": {"digest": image["id"], "size": 1}, "layers": layers}
    body = json.dumps(manifest).encode()
    request = urllib.request.Request(
        f"http://{host}/v2/{repository}/manifests/{name}", data=body, method="PUT"
    )
    urllib.request.urlopen(request, timeout=10).close()
    image["digests"].append(f"{host}/{repository}@{digest(body)}")
    remember(words[1], image)
    return 0


ANSWERS = {
    "version": version,
    "buildx": buildx,
    "info": info,
    "build": build,
    "image": inspect,
    "history": history,
    "tag": tag,
    "push": push,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
