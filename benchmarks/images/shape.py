"""The incumbent's image shape, on our base: what its containers do before a script's first line.

As its published Dockerfiles have it, written anew: a start script is PID 1,
reads the host's name from the request with jq, compiles a library that says this name, preloads it
into everything, and runs the vendor's `train` as a child.
"""

from __future__ import annotations

from pathlib import Path

from scripts.images.engine import Client, outward
from scripts.images.errors import ImageError

NAME = "incumbent's image shape"
_SHIM = """\
#include <string.h>
int gethostname(char *name, size_t size) { strncpy(name, "PLACEHOLDER", size); return 0; }
"""
_START = """\
#!/usr/bin/env bash
name=$(jq -r .current_host /opt/ml/input/config/resourceconfig.json)
sed "s/PLACEHOLDER/$name/" /shim.c > /tmp/shim.c
gcc -o /libshim.so -fPIC -shared /tmp/shim.c
export LD_PRELOAD=/libshim.so
eval "$@"
"""
_TRAIN = """\
#!/opt/venv/bin/python
from sagemaker_training.cli.train import main
main()
"""
_DOCKERFILE = """\
FROM {base}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev jq
COPY shim.c start.sh /
COPY vendor-train /usr/local/bin/
ENTRYPOINT ["bash", "-m", "/start.sh"]
CMD ["vendor-train"]
"""


def build_shape(client: Client, folder: Path, vendor: str, tag: str, label: str) -> str:
    """The reference. `vendor`: our base with the vendor's toolkit. Raises ImageError."""
    files = {
        "Dockerfile": _DOCKERFILE.format(base=vendor),
        "shim.c": _SHIM,
        "start.sh": _START,
        "vendor-train": _TRAIN,
    }
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    words = ("build", f"--tag={tag}", f"--label={label}", *outward(client), str(folder))
    if client.show(*words, limit_s=600):
        raise ImageError("the peer's image could not be built", "see the lines above")
    return tag
