#!/usr/bin/env bash
# flat.sh: /image is the file system that is mounted at /media, with what the engine makes and takes
# away again, after every step, where it is missing: that leaves a time in its folder.
set -euo pipefail
cp -a /media /image
mkdir -p /image/{dev,proc,sys}
touch -a /image/etc/{hostname,hosts,resolv.conf}
touch -d "@$STEP_EPOCH" /image /image/etc /image/{dev,proc,sys}
