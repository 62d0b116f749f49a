#!/usr/bin/env bash
# ld-paths.sh FOLDER...: the folders that exist, in this order, become folders of the dynamic linker,
# so that no job needs LD_LIBRARY_PATH, which sshd and mpirun would not carry to other hosts.
set -euo pipefail
conf=/etc/ld.so.conf.d/000-muster.conf  # before what installers add
for folder in "$@"; do
  if [ -d "$folder" ]; then printf '%s\n' "$folder"; fi
done > "$conf"
ldconfig
printf 'ld-paths.sh: %s\n' "$(tr '\n' ' ' < "$conf")"
