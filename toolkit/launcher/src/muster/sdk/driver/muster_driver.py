"""Runs in the container, started by the script of SDK v3: hands over to `train` of the image.

`train` finds the script, the code and the distribution in variables that the SDK has set. This
file travels with the job and knows nothing else, so that it fits every version in an image.
"""

import os
import shutil
import sys

NO_TRAIN = 100  # as a ConfigError
BASE = "/opt/ml"


def find_train() -> str:
    """`train` of muster, beside this Python or on PATH; "" when the image has none.

    Another toolkit's `train` would run the job without its distribution.
    """
    beside = os.path.join(os.path.dirname(sys.executable or ""), "train")
    for path in (beside, shutil.which("train")):
        if path and os.access(path, os.X_OK) and os.path.isfile(path):
            with open(path, "rb") as file:
                if b"muster.cli" in file.read(4096):
                    return path
    return ""


def main() -> None:
    path = find_train()
    if path:
        sys.stdout.flush()
        os.execv(path, [path])
    text = (
        f"ConfigError: Muster(...): the image has no `train` of muster beside {sys.executable} or "
        "on PATH\nFix: install the wheel muster_training in the image, or use one that has it\n"
    )
    sys.stderr.write(text)
    base = os.environ.get("SAGEMAKER_BASE_DIR") or BASE
    try:
        with open(os.path.join(base, "output", "failure"), "w") as file:
            file.write(text)
    except OSError:
        pass
    sys.exit(NO_TRAIN)


if __name__ == "__main__":
    main()
