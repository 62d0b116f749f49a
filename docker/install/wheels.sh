#!/usr/bin/env bash
# wheels.sh PACKAGE...: builds the wheels of these packages of /build/toolkit into /build/wheels,
# with what /build/venv holds.
set -euo pipefail
for package in "$@"; do
  cd "/build/toolkit/$package"
  /build/venv/bin/python -m hatchling build -t wheel -d /build/wheels
done
