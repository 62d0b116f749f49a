#!/usr/bin/env bash
# The layer below the launcher's: the libraries that scripts import, compiled for Python.
set -euo pipefail
here=$(dirname "$0")
# -B: pip is not to compile itself into this layer
/opt/venv/bin/python -B -m pip install --no-index --no-deps --no-cache-dir --no-compile --quiet \
  --disable-pip-version-check --root-user-action ignore "$here"/wheels/*.whl
settle
site=$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
/opt/venv/bin/python -m compileall -q "$site"/muster_* "$site"/smdistributed
