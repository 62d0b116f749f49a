#!/usr/bin/env bash
# step.sh SCRIPT ARGUMENT...: a step of the Dockerfile, and after it what lets two builds from the
# same packages leave the same bytes: no logs, no caches that hold times, one time for all that the
# step made. What a package brings with a time of its own keeps it.
# A script that compiles Python calls `settle` first: the compiled module names its source's time.
set -euo pipefail
here=$(dirname "$0")
export STEP_EPOCH=1767225600 PYTHONHASHSEED=0
STEP_BEGAN=$(mktemp -p /dev/shm)  # which is not the image's
touch -d '10 seconds ago' "$STEP_BEGAN"  # the engine has made places for mounts before
export STEP_BEGAN
settle() {  # the image's own file system only: a mount is another device
  find / -xdev -newer "$STEP_BEGAN" -printf '%D:%p\0' | sed -zn "s/^$(stat -c %d /)://p" |
    xargs -0r touch -h -d "@$STEP_EPOCH"
}
export -f settle

"$here/$1" "${@:2}"
# no program runs as another user than it was started by; an upgrade of its package keeps it so
find / -xdev -type f -perm /6000 -printf '%D:%p\0' | sed -zn "s/^$(stat -c %d /)://p" |
  while IFS= read -rd '' path; do
    dpkg-statoverride --quiet --update --add root root 0755 "$path"
  done
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/aux-cache \
  /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/log/bootstrap.log \
  /var/lib/dpkg/*-old /tmp/* /var/tmp/*
settle
rm "$STEP_BEGAN"
