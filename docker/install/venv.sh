#!/usr/bin/env bash
# venv.sh LOCK [FRAMEWORK_LOCK [INDEX]]: /opt/venv with exactly what the locks say, by hash.
# A framework comes from /run/wheelhouse when it is there, else from INDEX. Modules are compiled
# when they are first imported (slim-torch.sh does that for what every job imports).
set -euo pipefail
# the certificates that a build was given, also where its pip configuration does not name them
[ ! -s /run/secrets/ca_bundle ] || export PIP_CERT=/run/secrets/ca_bundle
lock=$1 framework=${2:-} index=${3:-}
pip() {
  /build/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --require-hashes \
    --disable-pip-version-check --progress-bar off "$@"
}
python3 -m venv --without-pip /opt/venv
pip --only-binary :all: -r "$lock"
if [ -n "${WITH_SAGEMAKER_TRAINING:-}" ]; then  # before ours: `train` is to be ours
  apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc python3-dev
  lock=/build/sagemaker-training.txt
  sed -n '/^setuptools==/,/[^\\]$/p' "$lock" > /build/first.txt  # which builds the others
  pip -r /build/first.txt
  pip --no-build-isolation -r "$lock"
fi
[ -n "$framework" ] || exit 0
if ls /run/wheelhouse/*.whl >/dev/null 2>&1; then
  printf 'venv.sh: wheels of docker/wheelhouse: %s\n' "$(cd /run/wheelhouse && echo *.whl)"
  pip --no-index --find-links /run/wheelhouse -r "$framework"
else
  pip ${index:+--index-url "$index"} -r "$framework"
fi
