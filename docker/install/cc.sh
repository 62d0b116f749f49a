#!/usr/bin/env bash
# A C compiler for the core of the collectives; the stage that has it is thrown away.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends gcc libc6-dev
