"""Runs before the user script of a scenario: reports how it was started, then gets out of the way.

The runner puts this text in front of scripts, and shell scripts call the file. It is alone in the
process that is under test, so it imports little and leaves no name behind but `report`.
"""


def report(argv: list[str]) -> None:
    import json
    import os
    import sys

    def is_open(number: int) -> bool:
        try:
            os.fstat(number)
        except OSError:
            return False
        return True

    with open("/proc/self/status") as file:
        masks = dict(line.split(":\t") for line in file if line.startswith("Sig"))
    # 32 and 33 are the C library's own: posix_spawn leaves them ignored, and it sets them again
    own = ~(3 << 31)
    signals = {name: f"{int(masks[name], 16) & own:x}" for name in ("SigBlk", "SigIgn")}
    folder = os.environ["CONFORMANCE_REPORTS"]
    content = {
        "argv": list(argv),
        "cwd": os.getcwd(),
        "env": dict(os.environ),
        "descriptors": sorted(number for number in range(3, 256) if is_open(number)),
        "python": sys.executable,
        "signals": signals,
        "stdin_is_null": os.fstat(0).st_rdev == os.stat(os.devnull).st_rdev,
    }
    path = os.path.join(folder, f"{os.getpid()}.json")
    with open(path + ".part", "w") as file:
        json.dump(content, file)
    os.rename(path + ".part", path)


if __name__ == "__main__":
    import sys

    report(sys.argv if "conformance-probe" not in sys.argv[0] else sys.argv[1:])
