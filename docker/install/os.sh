#!/usr/bin/env bash
# os.sh PYTHON REFRESH: the distribution's part of every image: Python, tini as PID 1, certificates,
# /opt/ml. Python is the base's own where it has that one, else Debian's. REFRESH only makes it
# another step than before (docs/how-to/images/README.md).
set -euo pipefail
python=$1
export DEBIAN_FRONTEND=noninteractive
has() { python3 -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$python')" 2>/dev/null; }
apt-get update -qq
apt-get upgrade -y -qq --no-install-recommends
apt-get install -y -qq --no-install-recommends ca-certificates tini
has || apt-get install -y -qq --no-install-recommends python3
if ! has; then
  printf 'os.sh: PYTHON=%s, but this base has %s: take a base that has it (docs/how-to/images/README.md)\n' \
    "$python" "$(python3 --version)" >&2
  exit 1
fi
# SageMaker's tree; input must be writable: its SDK's own scripts leave a file there
mkdir -p /opt/ml/input/config /opt/ml/input/data /opt/ml/model /opt/ml/output/data /opt/ml/code \
  /opt/ml/checkpoints
