#!/usr/bin/env bash
# toolkit.sh IMAGE: the last layer of every image, and the only one that a release of the launcher changes: its wheel,
# and the lists of all that the image holds.
set -euo pipefail
here=$(dirname "$0")
# -B: pip is not to compile itself into this layer
/opt/venv/bin/python -B -m pip install --no-index --no-deps --no-cache-dir --no-compile --quiet \
  --disable-pip-version-check --root-user-action ignore "$here"/wheels/*.whl
# what jobs import; `muster local`, `plan` and `doctor` are rarely called here, and the layer is to
# stay small: it is all that a release uploads
settle
site=$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
/opt/venv/bin/python -m compileall -q -x '/muster/(local|commands|sdk)/' "$site"/muster
SOURCE_DATE_EPOCH=$STEP_EPOCH /opt/venv/bin/python -B -m muster sbom --output /usr/share/muster \
  --name "$1" --version "$(/opt/venv/bin/train --version | cut -d' ' -f2)"
