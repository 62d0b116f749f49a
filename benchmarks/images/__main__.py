"""`make bench-images`: what the images cost, beside the incumbent's shape on the same base.

Prints one table (or JSON with `--json`), writes `benchmarks/results/images.json`, and ends with 1
when a bound is missed. The peer of stop and start is `benchmarks/images/shape.py`.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.images.shape import NAME, build_shape
from benchmarks.table import Bound, Row, at_least_times, missed, render, to_json, under
from benchmarks.timing import interleaved
from scripts.images.build import build, command
from scripts.images.engine import Client, find_client
from scripts.images.inputs import find_inputs
from scripts.images.likeness import content_of, differences
from scripts.images.pins import CHECKOUT
from scripts.images.scan import scan
from scripts.images.sizes import beside_base, layers, size_of
from scripts.images.traces import traces
from tests.support.mltree import write_tree

RESULTS = CHECKOUT / "benchmarks" / "results" / "images.json"
CUDA = CHECKOUT / ".cache" / "images" / "cuda-efa-sizes.json"  # of make test-long
DLC_CPU_BYTES, DLC_GPU_BYTES = 7.2e9, 28e9  # the vendor's own budgets, published
DLC = "DLC's budget"
LABEL = "muster.bench"
ROUNDS = 9
LIMIT_S = 60.0
SLEEPS = "import time\nprint('first line', flush=True)\ntime.sleep(600)\n"
ENDS = "print('first line', flush=True)\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="JSON on stdout instead of the table")
    options = parser.parse_args()
    client = find_client()
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder, made(client) as tag:
        rows = list(_rows(client, Path(folder), tag))
    RESULTS.write_text(json.dumps({"rows": to_json(rows)}, indent=1) + "\n")
    print(json.dumps(to_json(rows)) if options.json else render(rows))
    return 1 if missed(rows) else 0


@contextmanager
def made(client: Client) -> Iterator[str]:
    """A repository for the images of this run, all of which go at its end."""
    tag = f"muster-bench-{secrets.token_hex(4)}"
    try:
        yield tag
    finally:  # a tag that moved on left images without a name
        listed = client.run("images", "--quiet", f"--filter=label={LABEL}={tag}").stdout.split()
        if listed:
            client.run("rmi", "--force", *dict.fromkeys(listed))


def _rows(client: Client, folder: Path, tag: str) -> Iterator[Row]:
    label = f"{LABEL}={tag}"
    cpu = build("cpu", tag=f"{tag}:cpu", label=label).reference
    with_vendor = ("WITH_SAGEMAKER_TRAINING=1",)
    vendor = build("base", with_vendor, tag=f"{tag}:vendor", label=label).reference
    base = build("base", tag=f"{tag}:base", label=label).reference
    yield _size(client, cpu)
    yield _cuda()
    yield from _rebuild(client, folder / "copy", tag)
    shape = build_shape(client, folder / "shape", vendor, f"{tag}:shape", label)
    yield _stop(client, folder, base, shape)
    yield from _start(client, folder, base, shape)
    yield _scan(client, cpu)
    yield _again(client, tag)


def _size(client: Client, cpu: str) -> Row:
    base = find_inputs(client, os.environ).base
    size = beside_base(layers(client, cpu), size_of(client, base))
    return Row(
        "cpu image, unpacked, beside the base", "MB", size / 1e6, {DLC: DLC_CPU_BYTES / 1e6},
        (under(size / 1e6, 800, "MB"),),
        "with torch, numpy, pip, boto3, paramiko, mpi4py, Open MPI and our wheels",
    )  # fmt: skip


def _cuda() -> Row:
    what = "cuda-efa image, unpacked, real CUDA wheels"
    if not CUDA.is_file():
        return Row(what, "GB", None, {DLC: DLC_GPU_BYTES / 1e9}, (), "make test-long measures it")
    size = sum(layer["size_bytes"] for layer in json.loads(CUDA.read_text())) / 1e9
    return Row(
        what, "GB", size, {DLC: DLC_GPU_BYTES / 1e9}, (under(size, 9, "GB"),),
        "all layers, the base too, as make test-long built them; a stub stands for AWS's installer",
    )  # fmt: skip


def _rebuild(client: Client, copy: Path, tag: str) -> Iterator[Row]:
    """One line of the launcher changes; everything below its layer comes from the cache."""
    for name in ("docker", "toolkit", "tests/images/inside"):
        shutil.copytree(CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    module = copy / "toolkit" / "launcher" / "src" / "muster" / "cli.py"
    times, reference = [], f"{tag}:changed"
    given = find_inputs(client, os.environ)
    words = command("cpu", reference, "bench", given, client, label=f"{LABEL}={tag}")
    for _ in range(4):
        module.write_text(module.read_text() + f"# change {secrets.token_hex(8)}\n")
        began_s = time.monotonic()
        done = subprocess.run(
            client.argv(*words[:-1], f"--file={copy}/docker/Dockerfile", str(copy)),
            env=client.environ(), capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"the rebuild failed: {done.stderr[-2000:]}")
        times.append(time.monotonic() - began_s)
    worst = max(times[1:])  # the first finds nothing of this copy in the cache but its content
    detail = f"worst of 3 after one more: {', '.join(f'{one:.1f}' for one in times)} s"
    yield Row(
        "rebuild after a toolkit-only change", "s", worst, {}, (under(worst, 10, "s"),), detail
    )
    size = _compressed_top(client, reference) / 1e6
    yield Row("upload after a toolkit-only change", "MB", size, {}, (under(size, 1.6, "MB"),),
              "the last layer, compressed as a push does")  # fmt: skip


def _compressed_top(client: Client, reference: str) -> int:
    """Bytes of the image's last layer, compressed."""
    saved = subprocess.run(
        client.argv("save", reference), capture_output=True, check=True, timeout=300
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(saved)) as image:
        listed = image.extractfile("manifest.json")
        assert listed is not None
        top = image.extractfile(json.load(listed)[0]["Layers"][-1])
        assert top is not None
        return len(gzip.compress(top.read(), 6))


def _stop(client: Client, folder: Path, base: str, shape: str) -> Row:
    found = {}
    for name, reference in (("ours", base), ("peer", shape)):
        with running(client, folder / f"stop-{name}", reference, SLEEPS) as container:
            began_s = time.monotonic()
            client.must("stop", "--time=8", container)
            took_s = time.monotonic() - began_s
            code = int(client.must("inspect", "--format={{.State.ExitCode}}", container))
            found[name] = (took_s, code)
    (ours_s, code), (shape_s, shape_code) = found["ours"], found["peer"]
    return Row(
        "docker stop of an idle script", "s", ours_s, {NAME: shape_s},
        (under(ours_s, 2, "s"), Bound("exit 143", code == 143)),
        f"ours ends with {code}, the peer with {shape_code} after the whole grace of 8 s",
    )  # fmt: skip


def _start(client: Client, folder: Path, base: str, shape: str) -> Iterator[Row]:
    """From `docker run`, and beyond what a container with a bare `python script` takes."""
    times = interleaved(
        {
            "ours": lambda: _first_line(client, folder, base),
            NAME: lambda: _first_line(client, folder, shape),
            "bare": lambda: _first_line(client, folder, base, "python", "/opt/ml/code/train.py"),
        },
        ROUNDS,
    )
    ours, peer, bare = (times[name].median for name in ("ours", NAME, "bare"))
    most = f"so that an entry point without any cost would be {peer / bare:.1f} times sooner"
    what = (
        f"medians of {ROUNDS}; the same container with `python script` takes {bare:.3f} s, {most}"
    )
    yield Row("container start to the script's first line", "s", ours, {NAME: peer}, (), what)
    ours, peer = ours - bare, peer - bare
    yield Row(
        "the same, beyond bare python in a container", "s", ours, {NAME: peer},
        (at_least_times(3, peer, ours),),
    )  # fmt: skip


def _first_line(client: Client, folder: Path, image: str, *words: str) -> float:
    began_s = time.monotonic()
    with running(client, folder / secrets.token_hex(4), image, ENDS, *words) as _:
        return time.monotonic() - began_s


@contextmanager
def running(client: Client, folder: Path, image: str, script: str, *words: str) -> Iterator[str]:
    """A container that has shown the script's first line."""
    write_tree(
        folder,
        {"sagemaker_program": "train.py", "sagemaker_submit_directory": "/opt/ml/code"},
        {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "eth0"},
    )
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "train.py").write_text(script)
    name = f"muster-bench-{secrets.token_hex(6)}"
    argv = client.argv(
        "run", f"--name={name}", "--network=none", "--add-host=algo-1:127.0.0.1",
        f"--mount=type=bind,src={folder},dst=/opt/ml", image, *words,
    )  # fmt: skip
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=client.environ()
    ) as process:
        assert process.stdout is not None
        late = threading.Timer(LIMIT_S, client.run, ("rm", "--force", name))
        late.start()
        try:
            _until_first_line(process.stdout)
            yield name
        finally:
            late.cancel()
            client.run("rm", "--force", name)
            process.stdout.read()


def _until_first_line(lines: Iterator[str]) -> None:
    said = []
    for line in lines:
        said.append(line)
        if line.strip().endswith("first line"):
            return
    raise RuntimeError(f"the script never ran: {''.join(said)[-2000:]}")


def _scan(client: Client, cpu: str) -> Row:
    found = scan(client, cpu, traces())
    return Row(
        "keys, credentials, pip settings, mirrors in any layer or the history", "found",
        float(len(found)), {}, (Bound("none", not found),), str(found) if found else "",
    )  # fmt: skip


def _again(client: Client, tag: str) -> Row:
    """The same commit twice, without the cache: layers, and configurations without their times."""
    one, other = (
        content_of(
            client,
            build("cpu", tag=f"{tag}:again-{number}", label=f"{LABEL}={tag}", fresh=True).reference,
        )
        for number in range(2)
    )
    found = list(differences(one, other))
    return Row(
        "two no-cache builds of `cpu`: what differs in layers and configuration", "entries",
        float(len(found)), {}, (Bound("equal layers", not found),), "; ".join(found[:3]),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
