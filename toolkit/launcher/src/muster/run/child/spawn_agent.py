"""What a launcher starts in place of ssh: `python -I -S spawn_agent.py HOST COMMAND...`.

It reaches its own host's supervisor and nothing else, hands over the words as they are, and ends:
0 when they were passed on to that host's supervisor, which decides what it starts. No shell reads
them, no key is needed. Promises: S02.
"""

import _socket
import os
import sys

ANSWER_S = 30


def main() -> int:
    path, _, token = os.environ.get("MUSTER_SHIM", "").partition(" ")
    words = [b"ask", token.encode(), *(os.fsencode(word) for word in sys.argv[1:])]
    payload = b"\0".join(words)
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    sock.settimeout(ANSWER_S)
    try:
        sock.connect(path)
        sock.sendall(len(payload).to_bytes(4, "big") + payload)
        answer = sock.recv(4096)
    except OSError as error:
        answer = f"cannot connect to {path!r}: {error}; only `train` starts this process".encode()
    if answer == b"\0":
        return 0
    sys.stderr.write(f"muster: {(answer or b'no answer').decode('utf-8', 'replace')}\n")
    return 1


if __name__ == "__main__":
    os._exit(main())
