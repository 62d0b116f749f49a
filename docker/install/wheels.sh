#!/usr/bin/env bash
# Builds the wheels of /build/toolkit into /build/wheels, with what /build/venv holds.
set -euo pipefail
for package in launcher parallel; do
  cd "/build/toolkit/$package"
  /build/venv/bin/python -m hatchling build -t wheel -d /build/wheels
done
