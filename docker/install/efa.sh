#!/usr/bin/env bash
# efa.sh URL VERSION SHA256: AWS's EFA software for containers: libfabric, rdma-core, NCCL's plugin
# (aws-ofi-nccl) and Open MPI 5. The kernel module and the limits are the host's. -g has been without
# effect since 1.14.0. URL is the folder that the installer lies in.
set -euo pipefail
url=$1 version=$2 sha256=$3
here=$(dirname "$0")
work=/tmp/efa
export DEBIAN_FRONTEND=noninteractive

flags=(-y --skip-kmod --skip-limit-conf --no-verify --mpi=openmpi5)
# from 1.48.0 it looks for NVIDIA's own base images and leaves out parts there; ours is none
if dpkg --compare-versions "$version" ge 1.48.0; then flags+=(--disable-ngc); fi

mkdir -p "$work"
python3 "$here/fetch.py" "$url/aws-efa-installer-$version.tar.gz" "$sha256" "$work/installer.tar.gz"
tar -xzf "$work/installer.tar.gz" -C "$work" --no-same-owner
apt-get update -qq  # the installer takes what it depends on from the distribution
cd "$work/aws-efa-installer"
printf 'efa.sh: installer %s with %s\n' "$version" "${flags[*]}"
./efa_installer.sh "${flags[@]}"
cd /
rm -rf "$work"
