#!/usr/bin/env bash
# copy.sh FOLDER...: what is mounted at /media below these names comes to the same places here, with
# its times; what an earlier copy brought stays in its layer. COPY gives the folders that it makes the time of the build.
set -euo pipefail
for folder in "$@"; do
  mkdir -p "$folder"
  cp -au "/media$folder/." "$folder"
done
