"""Applies the metric definitions of a request to kept logs: a program of its own, since what is
applied is foreign and may never come to an end. Started by `metric_check`.

In: a JSON object on stdin. Out: one JSON line per definition, as soon as it is known.
"""

import json
import os
import re
import resource
import sys

MOST_BYTES = 512 << 20  # of memory: an expression may ask for any amount
MOST_CPU_S = 6  # where `train` was killed and ends nothing any more
MOST_CHARACTERS = 65536  # of a line: what a platform takes is shorter
NEVER, TEXT, NUMBER, BROKEN = "never", "text", "number", "broken"


def found_in(expression: str, logs: "list[list[str]]") -> str:
    """How far an expression gets on any line of these (path, prefix of its lines)."""
    try:
        compiled = re.compile(expression)
    except (re.error, RecursionError, OverflowError):
        return BROKEN
    best = NEVER
    for path, prefix in logs:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                while line := file.readline(MOST_CHARACTERS):
                    match = compiled.search(prefix + line.rstrip("\n"))
                    if match is None:
                        continue
                    if compiled.groups and _is_number(match[1]):
                        return NUMBER
                    best = TEXT
        except OSError:
            continue  # nothing was written there
    return best


def _is_number(text: "str | None") -> bool:
    try:
        float(text or "")
    except ValueError:
        return False
    return True


def main() -> None:
    os.nice(10)
    for what, most in ((resource.RLIMIT_AS, MOST_BYTES), (resource.RLIMIT_CPU, MOST_CPU_S)):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (most if hard < 0 else min(most, hard), hard))
    asked = json.load(sys.stdin)
    for name, expression in asked["definitions"]:
        try:
            how = found_in(expression, asked["logs"])
        except MemoryError:
            continue  # it is among those that were not tried to their end
        print(json.dumps([name, how]), flush=True)


if __name__ == "__main__":
    main()
