"""fetch.py URL SHA256|any FILE: downloads a file that has that checksum, or leaves none and fails.

The certificates of the optional secret ca_bundle are used when it is there, else the system's.
"""

import hashlib
import os
import ssl
import sys
import urllib.request

READ_S = 60.0  # the longest that upstream may stay silent
BLOCK_BYTES = 1 << 20
CERTIFICATES = "/run/secrets/ca_bundle"


def main(url: str, expected: str, path: str) -> str:
    """What went wrong, in a sentence; "" when FILE is there and is the expected one."""
    trusted = CERTIFICATES if os.path.exists(CERTIFICATES) else None
    digest = hashlib.sha256()
    try:
        context = ssl.create_default_context(cafile=trusted)
        with (
            urllib.request.urlopen(url, timeout=READ_S, context=context) as answer,
            open(path, "wb") as file,
        ):
            while block := answer.read(BLOCK_BYTES):
                digest.update(block)
                file.write(block)
    except OSError as error:
        return f"{url}: {error}; nothing was unpacked"
    if expected in (digest.hexdigest(), "any"):  # any: the caller has another proof
        return ""
    os.unlink(path)
    return (
        f"{url}: its sha256 is {digest.hexdigest()}, expected {expected}; nothing was unpacked. "
        "Only when upstream announced another file: check its signature, then set the checksum "
        "in docker/versions.env"
    )


if __name__ == "__main__":
    if wrong := main(*sys.argv[1:]):
        sys.exit(f"fetch.py: {wrong}")
