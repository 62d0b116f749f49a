#!/usr/bin/env bash
# neuron-key.sh URL FINGERPRINT: /keyring/neuron.gpg with the repository's signing key, which must be
# the one of that fingerprint, alone. The stage is thrown away.
set -euo pipefail
url=$1 fingerprint=$2
here=$(dirname "$0")
export DEBIAN_FRONTEND=noninteractive GNUPGHOME=/tmp/gnupg
fail() { printf 'neuron-key.sh: %s; nothing was installed\n' "$1" >&2; exit 1; }

apt-get update -qq
apt-get install -y -qq --no-install-recommends gpg
mkdir -m 700 "$GNUPGHOME" /keyring
python3 "$here/fetch.py" "$url/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB" any "$GNUPGHOME/key"
mapfile -t keys < <(gpg --batch --with-colons --show-keys "$GNUPGHOME/key" |
  awk -F: '$1 == "pub" {wait = 1} $1 == "fpr" && wait {print $10; wait = 0}')
[ "${keys[*]}" = "$fingerprint" ] ||
  fail "the key of $url must be $fingerprint (docker/versions.env); got ${keys[*]:-no key}"
gpg --batch --dearmor --yes --output /keyring/neuron.gpg "$GNUPGHOME/key"
rm -rf "$GNUPGHOME"
