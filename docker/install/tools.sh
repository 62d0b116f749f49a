#!/usr/bin/env bash
# tools.sh LOCK: the stage that builds. /build/venv gets what builds our wheels.
set -euo pipefail
[ ! -s /run/secrets/ca_bundle ] || export PIP_CERT=/run/secrets/ca_bundle
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends python3-venv
python3 -m venv --without-pip /build/venv
python3 -m venv /build/pip
/build/pip/bin/pip --python /build/venv/bin/python install --no-cache-dir --require-hashes \
  --disable-pip-version-check -r "$1"
