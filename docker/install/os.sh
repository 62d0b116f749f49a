#!/usr/bin/env bash
# The distribution's part of every image: Python 3.11, tini as PID 1, certificates, /opt/ml.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get upgrade -y -qq --no-install-recommends
apt-get install -y -qq --no-install-recommends ca-certificates python3 tini
# SageMaker's tree; input must be writable: its SDK's own scripts leave a file there
mkdir -p /opt/ml/input/config /opt/ml/input/data /opt/ml/model /opt/ml/output/data /opt/ml/code \
  /opt/ml/checkpoints
"$(dirname "$0")/tidy.sh"
