#!/usr/bin/env bash
# venv.sh LOCK [TORCH_LOCK INDEX]: /opt/venv with exactly what the locks say, by hash. torch comes
# from /run/wheelhouse when it is there, else from INDEX; with WITH_TORCHVISION torchvision and
# torchaudio too.
set -euo pipefail
# the certificates that a build was given, also where its pip configuration does not name them
[ ! -s /run/secrets/ca_bundle ] || export PIP_CERT=/run/secrets/ca_bundle
lock=$1 torch=${2:-} index=${3:-}
fail() { printf 'venv.sh: docker/constraints/%s: %s\n' "$(basename "$torch")" "$1" >&2; exit 1; }
pip() {
  /build/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --require-hashes \
    --no-compile --disable-pip-version-check --progress-bar off "$@"
}
names=()
if [ -n "$torch" ]; then
  names=(torch ${WITH_TORCHVISION:+torchvision torchaudio})
  [ -s "$torch" ] || fail "is not there: make lock-torch where torch's index can be reached"
fi
for name in "${names[@]}"; do
  sed -n "/^$name==/,/[^\\\\]\$/p" "$torch" > "/build/only-$name.txt"
  [ -s "/build/only-$name.txt" ] || fail "does not lock $name: make lock-torch where torch's index can be reached"
done
python3 -m venv --without-pip /opt/venv
pip --only-binary :all: -r "$lock"
if [ -n "${WITH_SAGEMAKER_TRAINING:-}" ]; then  # before ours: `train` is to be ours
  apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc python3-dev
  lock=/build/sagemaker-training.txt
  sed -n '/^setuptools==/,/[^\\]$/p' "$lock" > /build/first.txt  # which builds the others
  pip -r /build/first.txt
  pip --no-build-isolation -r "$lock"
fi
if [ -n "$torch" ] && [ -n "${WITH_TORCHVISION:-}" ]; then
  pip --only-binary :all: -r /build/torchvision.txt
fi
for name in "${names[@]}"; do
  if ls /run/wheelhouse/"$name"-*.whl >/dev/null 2>&1; then
    printf 'venv.sh: wheels of docker/wheelhouse: %s\n' "$(cd /run/wheelhouse && echo "$name"-*.whl)"
    pip --no-index --find-links /run/wheelhouse -r "/build/only-$name.txt"
  else
    pip ${index:+--index-url "$index"} -r "/build/only-$name.txt"
  fi
done
settle
# -qq: wheels bring files that are of other Pythons, or no modules at all
/opt/venv/bin/python -m compileall -qq /opt/venv/lib || true
