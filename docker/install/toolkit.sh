#!/usr/bin/env bash
# The last layer of every image, and the only one that a release of the toolkit changes: our wheels,
# and the lists of all that the image holds.
set -euo pipefail
here=$(dirname "$0")
# -B: pip is not to compile itself into this layer; it compiles our modules all the same
/opt/venv/bin/python -B -m pip install --no-index --no-deps --no-cache-dir --quiet \
  --disable-pip-version-check --root-user-action ignore "$here"/wheels/*.whl
"$here/venv/bin/python" -B "$here/sbom.py" /usr/share/muster
"$here/tidy.sh"
