#!/usr/bin/env bash
# The CUDA wheels of /opt/venv and the EFA software find each other: folders of the dynamic linker,
# and the two names that NCCL and its plugin load at run time and that may be missing: libcudart.so
# and libnccl-net.so. Without the second NCCL falls back to TCP and says nothing.
set -euo pipefail
here=$(dirname "$0")
amazon=/opt/amazon
site=$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
fail() { printf 'cuda-libs.sh: %s\n' "$1" >&2; exit 1; }

plugin=
for path in "$amazon"/ofi-nccl/lib/*-linux-gnu/libnccl-net.so \
  "$amazon"/ofi-nccl/lib{,64}/libnccl-net-ofi.so; do
  if [ -z "$plugin" ] && [ -f "$path" ]; then plugin=$path; fi
done
[ -n "$plugin" ] || fail "the EFA installer left no libnccl-net.so (before 1.44) and no \
libnccl-net-ofi.so below $amazon/ofi-nccl; found: $(find "$amazon" -name '*nccl*' ! -type d | tr '\n' ' ')"
printf 'cuda-libs.sh: plugin %s\n' "$plugin"

runtime=("$site"/nvidia/*/lib/libcudart.so.[0-9]*)
[ ${#runtime[@]} -eq 1 ] && [ -f "${runtime[0]}" ] ||
  fail "one libcudart is needed below $site/nvidia; found: ${runtime[*]}"
ln -sf "$(basename "${runtime[0]}")" "$(dirname "${runtime[0]}")/libcudart.so"
# in a folder that the linker always searches by name: its cache knows a link by the name inside
[ -e "$(dirname "$plugin")/libnccl-net.so" ] || ln -s "$plugin" /usr/lib/libnccl-net.so

"$here/ld-paths.sh" "$amazon"/efa/lib{,64} "$(dirname "$plugin")" "$amazon"/openmpi5/lib{,64} \
  "$site"/nvidia/*/lib
