#!/usr/bin/env bash
# A C++ compiler and Python's headers: what torch.compile and source packages need.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends g++ make python3-dev
